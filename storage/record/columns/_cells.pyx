"""Columns as Arrow lays them out: their buffers, held and measured.

Arrow itself is not needed: numbers and positions of i32 or i64 in the machine's byte order, blocks
of bytes, validity bitmaps (lowest bit first, 1 = not null; none: no null). A column may begin at
any row of its buffers. What positions say is judged where they are used.
"""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int64_t, uint8_t


cdef class Column:
    """Buffers that stay where they are as long as this does."""

    cdef const uint8_t *hold(self, object buffer, int64_t needed) except? NULL:
        """Where the buffer's bytes are; ValueError where they are fewer than needed."""
        cdef object view = memoryview(buffer)
        if view.nbytes < needed or not view.c_contiguous:
            raise ValueError(f"a buffer of {view.nbytes} bytes, {needed} are needed")
        self.views.append(view)
        return <const uint8_t *> PyMemoryView_GET_BUFFER(view).buf

    cdef int hold_cells(
        self, int64_t rows, object data, object validity, int64_t first, bint wide, int64_t more
    ) except -1:
        if rows < 0 or first < 0:
            raise ValueError(f"{rows} rows from row {first}")
        self.views = []
        self.cells.rows = rows
        self.cells.first = first
        self.cells.wide = wide
        self.cells.data = self.hold(data, (first + rows + more) * (8 if wide else 4))
        if validity is not None:
            self.cells.validity = self.hold(validity, (first + rows + 7) // 8)
        return 0


cdef class NumbersColumn(Column):
    """Numbers of 32 bits, or of 64 (`wide`)."""

    def __init__(
        self, long long rows, data not None, validity=None, *, long long first=0, bint wide=False
    ):
        self.hold_cells(rows, data, validity, first, wide, 0)


cdef class BytesColumn(Column):
    """Strings or bytes; `wide`: their positions have 64 bits. Row 0 is that at `first`."""

    def __init__(
        self, long long rows, positions not None, block not None, validity=None, *,
        long long first=0, bint wide=False,
    ):
        self.hold_cells(rows, positions, validity, first, wide, 1)
        self.bytes.block = self.hold(block, 0)
        self.bytes.block_size = self.views[-1].nbytes
        self.bytes.positions = self.cells


cdef class HeadersColumn(Column):
    """Lists of a name and a value; `positions` count rows of `names` and `values`."""

    def __init__(
        self, long long rows, positions not None, BytesColumn names not None,
        BytesColumn values not None, validity=None, *, long long first=0, bint wide=False,
    ):
        if names.cells.rows != values.cells.rows:
            raise ValueError(f"{names.cells.rows} names of {values.cells.rows} headers")
        self.hold_cells(rows, positions, validity, first, wide, 1)
        self.names = names
        self.values = values
