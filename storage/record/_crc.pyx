"""CRC-32C (Castagnoli) for loops without the GIL (`crc32c.h`)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from "storage/record/crc32c.h":
    void make_crc_tables "kafkafs_make_crc_tables"() noexcept nogil
    uint32_t crc "kafkafs_crc"(const uint8_t *at, int64_t size) noexcept nogil
    uint32_t crc_by_table "kafkafs_crc_by_table"(const uint8_t *at, int64_t size) noexcept nogil
    int64_t crc_prefix "kafkafs_crc_prefix"(
        const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted
    ) noexcept nogil

make_crc_tables()


cdef uint32_t crc32c_of(const uint8_t *at, int64_t size) noexcept nogil:
    return crc(at, size)


cdef int64_t crc32c_prefix(
    const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted
) noexcept nogil:
    return crc_prefix(at, shortest, size, wanted)


def crc32c(data not None, *, bint by_table=False):
    """Return the CRC-32C of a buffer. `by_table`: do not use the processor's CRC instruction.

    For tests: Python code uses `storage.record.crc`.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if by_table:
            return crc_by_table(<const uint8_t *> view.buf, view.len)
        return crc(<const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
