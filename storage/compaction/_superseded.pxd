"""The superseded records of a group of segments, as a loop asks for them that does not hold the GIL.

What it is: `_superseded.pyx`.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class Superseded:
    cdef uint8_t *bits
    cdef readonly long long first
    cdef readonly long long count


cdef inline bint is_superseded(
    const uint8_t *bits, int64_t first, int64_t count, int64_t offset
) noexcept nogil:
    cdef uint64_t at = <uint64_t> (offset - first)
    return at < <uint64_t> count and bits[at >> 3] >> (at & 7) & 1
