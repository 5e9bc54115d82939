"""Which bytes of a segment's log have been read and checked since it was opened.

Bytes are checked against their CRC when a batch is first read (`Segment.verify`). Those that have
been are kept as *parts*: runs of whole batches, ascending and apart from one another, each with the
offset behind it. Random reads add thousands of parts. What this process has appended is *written*:
from `written_from` on the log is as it was written, as long as the page cache holds it.

Any thread may call anything: no call releases the GIL.

Not here: judging batches (`record`), damage (`batch_check`, `segment`).
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


cdef class FirstRead:
    """The parts of a log. `whole`: nothing is left to be checked. `batch_size`: bytes of a batch that
    was read lately.
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

    def doubt(self, int64_t size):
        """Let nothing of the log's `size` bytes count as written any longer."""
        self.written_from = size
        self.whole = self.reached(0) == INT64_MAX

    # -- looking -------------------------------------------------------------------------------

    cpdef int64_t reached(self, int64_t position) noexcept:
        """Where the bytes from `position` on end that have been checked or written: `position` if
        none have been, INT64_MAX if all have.
        """
        cdef int64_t number = self.behind(position)
        if number and self.parts[number - 1].end > position:
            position = self.parts[number - 1].end
        return INT64_MAX if position >= self.written_from else position

    def knows(self, int64_t position, int64_t end):
        """Whether all of these bytes have been checked or written."""
        return self.reached(position) >= end

    def to_read(self, int64_t position, int64_t size):
        """How much to read at once where `size` bytes are wanted: what has been checked, if that is
        much; else a batch more than is wanted, so that all of it can be checked as it is read.
        """
        cdef int64_t checked = self.reached(position) - position
        if checked >= size:
            return size
        return checked if checked >= MUCH else size + self.batch_size

    def end_before(self, int64_t position):
        """Where the last part ends that begins at or before a position, and the offset that comes
        next; None where none does.
        """
        cdef int64_t number = self.behind(position)
        if not number:
            return None
        return self.parts[number - 1].end, self.parts[number - 1].next_offset

    # -- adding --------------------------------------------------------------------------------

    def add_sound(
        self, data not None, start not None, int64_t size, int64_t base_offset, int64_t limit
    ):
        """Add the sound batches at the start of `data` (`sound_start`); False where there are none.

        `start`: the position from which `data` was read, an offset that no batch is below, and one
        that the first batch reaches. The log has `size` bytes and ends below the offset `limit`.
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
        """Add the checked bytes `start` to `end`; `next_offset` is behind the last batch of them."""
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
        # It touches the parts from `first` to `behind`: they become one.
        memmove(
            self.parts + first + 1, self.parts + behind, (self.count - behind) * sizeof(Run)
        )
        self.parts[first] = added
        self.count += 1 - (behind - first)
        self.whole = self.reached(0) == INT64_MAX
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
        """How many parts begin at or before a position."""
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
