"""Remembers which bytes of a segment's `.log` file this process has checked since it opened it.

The first read of a batch checks it against its CRC (`segment.reader`). The checked
bytes are *parts*: runs of whole batches, ascending and apart from one another, each with the offset
after it. Random reads add thousands of parts. The bytes that this process has appended are
*written*: from `written_from` on, the page cache has the file as this process wrote it.

Any thread may call any method: no method releases the GIL.

`record` judges batches; `segment.batch_check` and `segment.reader` handle damage.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memmove

from storage.record._batch cimport Sound, sound_start

cdef int64_t MUCH = 128 * 1024


cdef struct Run:
    int64_t start
    int64_t end
    int64_t next_offset


cdef class CheckedRanges:
    """The checked parts of a `.log` file.

    whole         whether the process has checked or written all bytes
    written_from  the file position from which on this process has written the file
    batch_size    the size in bytes of a batch that was read lately
    """

    cdef Run *parts
    cdef int64_t count, room
    cdef readonly int64_t written_from
    cdef readonly bint whole
    cdef public int64_t batch_size

    def __cinit__(self):
        self.whole = True

    def __dealloc__(self):
        PyMem_Free(self.parts)

    def forget_written(self, int64_t size):
        """Stop counting any of the file's `size` bytes as written."""
        self.written_from = size
        self.whole = self.checked_until(0) == INT64_MAX

    # -- queries -------------------------------------------------------------------------------

    cpdef int64_t checked_until(self, int64_t position) noexcept:
        """The end of the checked or written bytes that begin at `position`.

        It is `position` if the byte there is neither, INT64_MAX if all bytes from there on are.
        """
        cdef int64_t number = self.behind(position)
        if number and self.parts[number - 1].end > position:
            position = self.parts[number - 1].end
        return INT64_MAX if position >= self.written_from else position

    def covers(self, int64_t position, int64_t end):
        """Whether all bytes from `position` to `end` are checked or written."""
        return self.checked_until(position) >= end

    def to_read(self, int64_t position, int64_t size):
        """How many bytes to read at `position` if the caller wants `size` bytes.

        If all of them are checked: `size`. If many are (MUCH): the checked ones. Else a batch more
        than the caller wants, so that the read has whole batches and can check all wanted bytes.
        """
        cdef int64_t checked = self.checked_until(position) - position
        if checked >= size:
            return size
        return checked if checked >= MUCH else size + self.batch_size

    def end_before(self, int64_t position):
        """The end of the last part that begins at or before a position, and the offset after it.

        None if no part begins there.
        """
        cdef int64_t number = self.behind(position)
        if not number:
            return None
        return self.parts[number - 1].end, self.parts[number - 1].next_offset

    # -- adding --------------------------------------------------------------------------------

    def add_sound(
        self, data not None, start not None, int64_t size, int64_t base_offset, int64_t limit
    ):
        """Add the sound batches at the start of `data` (`sound_start`); False if there are none.

        `start` is (the file position of `data`, an offset that no batch begins below, an offset
        that the first batch must reach). The file has `size` bytes, and its offsets are below
        `limit`.
        """
        cdef Py_buffer view
        cdef Sound sound
        cdef int64_t position, next_offset, named
        position, next_offset, named = start
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            sound = sound_start(
                <const uint8_t *> view.buf, view.len, min(size, self.written_from) - position,
                base_offset, next_offset, named, max(limit, next_offset),
            )
        finally:
            PyBuffer_Release(&view)
        if not sound.size:
            return False
        self.add(position, position + sound.size, sound.next_offset)
        self.batch_size = sound.last_size
        return True

    cpdef int add(self, int64_t start, int64_t end, int64_t next_offset) except -1:
        """Add the checked bytes `start` to `end`; `next_offset` is the offset after them."""
        cdef int64_t behind = self.behind(end)
        cdef int64_t first = self.behind(start)
        cdef Run added = Run(start, end, next_offset)
        if first and self.parts[first - 1].end >= start:
            first -= 1
            added.start = self.parts[first].start
        if first < behind and self.parts[behind - 1].end > end:
            added.end = self.parts[behind - 1].end
            added.next_offset = self.parts[behind - 1].next_offset
        if self.count == self.room:
            self.grow()
        # The new part touches the parts from `first` to `behind`, and all become one.
        memmove(
            self.parts + first + 1, self.parts + behind, (self.count - behind) * sizeof(Run)
        )
        self.parts[first] = added
        self.count += 1 - (behind - first)
        self.whole = self.checked_until(0) == INT64_MAX
        return 0

    cdef int grow(self) except -1:
        cdef int64_t room = max(2 * self.room, <int64_t> 8)
        cdef Run *parts = <Run *> PyMem_Realloc(self.parts, room * sizeof(Run))
        if parts == NULL:
            raise MemoryError
        self.parts = parts
        self.room = room
        return 0

    cdef int64_t behind(self, int64_t position) noexcept:
        """The number of parts that begin at or before a position."""
        cdef int64_t low = 0
        cdef int64_t high = self.count
        cdef int64_t middle
        while low < high:
            middle = (low + high) >> 1
            if self.parts[middle].start <= position:
                low = middle + 1
            else:
                high = middle
        return low
