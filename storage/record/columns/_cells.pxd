"""Columns as Arrow lays them out, for loops that do not hold the GIL.

The functions read nothing outside of a column's buffers as long as the row is one of its rows.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef enum:
    ABSENT = -1  # the length of what is null
    OUTSIDE = -2  # of what does not lie within its buffers


cdef extern from "storage/record/bytes.h":
    int32_t native32 "kafkafs_native32"(const uint8_t *at) noexcept nogil
    int64_t native64 "kafkafs_native64"(const uint8_t *at) noexcept nogil


cdef struct Cells:
    # Numbers of 4 or 8 bytes each, or positions; `validity` is NULL where none is null.
    const uint8_t *data
    const uint8_t *validity
    int64_t first  # row 0 is there
    int64_t rows
    bint wide


cdef struct Bytes:
    Cells positions
    const uint8_t *block
    int64_t block_size


cdef inline bint is_null(const Cells *cells, int64_t row) noexcept nogil:
    row += cells.first
    return cells.validity != NULL and not (cells.validity[row >> 3] >> (row & 7)) & 1


cdef inline int64_t number_at(const Cells *cells, int64_t row) noexcept nogil:
    row += cells.first
    return native64(cells.data + 8 * row) if cells.wide else native32(cells.data + 4 * row)


cdef inline int64_t bytes_at(const Bytes *column, int64_t row, const uint8_t **start) noexcept nogil:
    """How long a row's bytes are, ABSENT or OUTSIDE, and where they begin."""
    cdef int64_t begin
    cdef int64_t end
    if is_null(&column.positions, row):
        return ABSENT
    begin = number_at(&column.positions, row)
    end = number_at(&column.positions, row + 1)
    if begin < 0 or end < begin or end > column.block_size:
        return OUTSIDE
    start[0] = column.block + begin
    return end - begin


cdef class Column:
    cdef Cells cells
    cdef list views

    cdef const uint8_t *hold(self, object buffer, int64_t needed) except? NULL
    cdef int hold_cells(
        self, int64_t rows, object data, object validity, int64_t first, bint wide, int64_t more
    ) except -1


cdef class NumbersColumn(Column):
    pass


cdef class BytesColumn(Column):
    cdef Bytes bytes


cdef class HeadersColumn(Column):
    cdef BytesColumn names
    cdef BytesColumn values
