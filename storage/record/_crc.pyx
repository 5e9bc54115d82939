"""CRC-32C (Castagnoli), by the fastest way that the processor has (`crc32c.h`)."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from "storage/record/crc32c.h":
    void make_crc_tables "kafkafs_make_crc_tables"() noexcept nogil
    bint has_instruction "kafkafs_has_instruction"
    bint has_folding "kafkafs_has_folding"
    uint32_t crc "kafkafs_crc"(const uint8_t *at, int64_t size) noexcept nogil
    uint32_t crc_by_table "kafkafs_crc_by_table"(const uint8_t *at, int64_t size) noexcept nogil
    uint32_t crc_by_instruction "kafkafs_crc_by_instruction"(
        const uint8_t *at, int64_t size
    ) noexcept nogil
    uint32_t crc_by_folding "kafkafs_crc_by_folding"(const uint8_t *at, int64_t size) noexcept nogil
    uint32_t crc_after "kafkafs_crc_after"(
        uint32_t crc, const uint8_t *at, int64_t size
    ) noexcept nogil

    int64_t prefix_by_table "kafkafs_prefix_by_table"(
        const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted
    ) noexcept nogil
    enum:
        STEP "KAFKAFS_STEP"
    void make_sums "kafkafs_make_sums"(
        uint32_t *sums, const uint8_t *data, int64_t size
    ) noexcept nogil
    uint32_t crc_of_part "kafkafs_crc_of_part"(
        const uint32_t *sums, const uint8_t *data, int64_t start, int64_t end
    ) noexcept nogil

make_crc_tables()


cdef uint32_t crc32c_of(const uint8_t *at, int64_t size) noexcept nogil:
    return crc(at, size)


cdef int64_t crc32c_prefix(
    const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted
) noexcept nogil:
    return prefix_by_table(at, shortest, size, wanted)


cdef int64_t crc32c_sums_in(int64_t size) noexcept nogil:
    return size // STEP + 1


cdef void make_crc32c_sums(uint32_t *sums, const uint8_t *data, int64_t size) noexcept nogil:
    make_sums(sums, data, size)


cdef uint32_t crc32c_of_part(
    const uint32_t *sums, const uint8_t *data, int64_t start, int64_t end
) noexcept nogil:
    return crc_of_part(sums, data, start, end)


WAYS = ("", "tables") + ("lanes",) * has_instruction + ("folding",) * has_folding


def crc32c(data not None, *, str way=""):
    """Return the CRC-32C of a buffer. `way` is one of `WAYS`, the ways that this machine has.

    "" is the fastest of them. Raises ValueError for any other way.
    """
    cdef Py_buffer view
    if way not in WAYS:
        raise ValueError(f"{way} is not a way of this machine")
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if way == "tables":
            return crc_by_table(<const uint8_t *> view.buf, view.len)
        if way == "lanes":
            return crc_by_instruction(<const uint8_t *> view.buf, view.len)
        if way == "folding":
            return crc_by_folding(<const uint8_t *> view.buf, view.len)
        return crc32c_of(<const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def crc32c_after(uint32_t crc, data not None):
    """Return the CRC-32C of bytes whose own is `crc`, with those of a buffer behind them."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc_after(crc, <const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
