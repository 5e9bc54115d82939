"""Binary search in the fixed-width entries of an index file, as in Kafka's AbstractIndex.

Each look-up of an offset or a timestamp begins with it.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef extern from "<endian.h>":
    uint32_t be32toh(uint32_t bits) noexcept nogil
    uint64_t be64toh(uint64_t bits) noexcept nogil


cdef inline int64_t key_at(const uint8_t *at, int width) noexcept nogil:
    cdef uint32_t half
    cdef uint64_t whole
    if width == 4:
        memcpy(&half, at, 4)
        return <int32_t> be32toh(half)
    memcpy(&whole, at, 8)
    return <int64_t> be64toh(whole)


def entries_up_to(
    entries not None, int64_t size, int64_t at, int width, int64_t count, target
):
    """Return how many of the first `count` entries have a key at or below `target`.

    An entry has `size` bytes. Its key is a signed big-endian number of `width` bytes (4 or 8) at
    its byte `at`. Keys never fall from one entry to the next.
    """
    cdef Py_buffer view
    cdef const uint8_t *keys
    cdef int64_t low = 0
    cdef int64_t high = count
    cdef int64_t middle
    cdef int beyond = 0
    # Every key is below, or above, a target that does not fit in 64 bits.
    cdef int64_t wanted = PyLong_AsLongLongAndOverflow(target, &beyond)
    if beyond:
        return count if beyond > 0 else 0
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if not (width in (4, 8) and 0 <= at <= size - width):
            raise ValueError(f"a key of {width} bytes at {at} of {size}")
        if not 0 <= count <= view.len // size:
            raise ValueError(f"{count} entries of {size} bytes in {view.len}")
        keys = <const uint8_t *> view.buf + at
        while low < high:
            middle = (low + high) >> 1
            if key_at(keys + middle * size, width) <= wanted:
                low = middle + 1
            else:
                high = middle
        return low
    finally:
        PyBuffer_Release(&view)
