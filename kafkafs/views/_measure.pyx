"""What the views' hot loops share: cursors, measuring, and the line index's entries.

Input of a loop is a window of a segment's log: `data[:data_size]`, which lies at file position
`data_position`. A loop works through it as far as it goes and keeps in its state where it stands,
so the same bytes in any windows give the same text.

A loop stops before a batch that it cannot judge (`encoded`): one that is compressed, of an older
format, or of a transaction. The caller then steps over it, walks into it as it is, or goes through
its plain form (`storage.record.plain`) instead.

What a window must hold to get on: of a batch its header (61 bytes), of a record what its view
needs; where that is more than 64 bytes the state says how much (`needed`). Control batches are
jumped over without being there.

Entries of the line index, 24 bytes, little-endian, ascending:

    u64 text             bytes of text before this record
    u32 batch_position   file position of the record's batch
    u32 record_position  file position of the record: a cursor starts here ...
    u32 batch_end        ... with this end of its batch; 0: a batch begins at record_position, as
                         for every entry of a batch that has to be decoded
    u32 ordinal          records shown before this one

The first is all zeros: the segment's start. Each later one is the first record with at least
`granularity` bytes of text since the entry before.

Invariants: every length is checked against record, batch and window before it is used; each batch
takes 61 bytes and each record 7 at least, so every loop ends.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, ENCODED, HEADER_SIZE, MAX_TIMESTAMP,
    NEEDS_MORE, NO_FAULT, RELEASE_GIL_FROM, Fault, Place, Window, at_position, load64,
)

from storage.errors import CorruptRecord
from storage.record._batch import refusal

ENTRY_SIZE = sizeof(Entry)

cdef enum:
    # A segment's file is no longer, so every position in it fits an entry's field.
    LONGEST_FILE = 0x7FFFFFFF

# A granularity at which there is never another entry.
cdef int64_t NEVER = 1 << 62


cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "line index entries are written as they lie in memory, little-endian"
    #endif
    """


cdef Facts facts_of(const uint8_t *header) noexcept nogil:
    cdef Facts facts
    facts.base_offset = <int64_t> load64(header + BASE_OFFSET)
    facts.append_time = header[ATTRIBUTES + 1] & APPEND_TIME_BIT != 0
    if facts.append_time:
        facts.timestamp = <int64_t> load64(header + MAX_TIMESTAMP)
    else:
        facts.timestamp = <int64_t> load64(header + BASE_TIMESTAMP)
    return facts


cdef int take_facts(Facts *facts, object header) except -1:
    """Those of the header that the buffer `header` begins with; None: nobody asks for them."""
    cdef Py_buffer view
    if header is None:
        facts[0] = Facts(0, 0, False)
        return 0
    PyObject_GetBuffer(header, &view, PyBUF_SIMPLE)
    try:
        if view.len < HEADER_SIZE:
            raise ValueError(f"a header of {view.len} bytes")
        facts[0] = facts_of(<const uint8_t *> view.buf)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef class Cursor:
    """Where a rendering stands in a segment's log.

    position    file position of the next log byte that is needed
    batch_end   where the batch ends that it is in; 0: a batch begins at `position`
    record_end  where the record ends that it is in; 0: at a record's or batch's start
    value_left  bytes of that record's value still to come, then its newline; -1: the value's
                length comes next
    encoded     whether the last rendering stopped because the batch at `position` is encoded
    needed      bytes from `position` on that have to be there for any more; 0: 64 do

    A view of whole records leaves `record_end` and `value_left` as they are. What did not fit of
    the last record's text stays with the cursor, `pending` bytes.
    """

    def __init__(self, long long position, long long batch_end=0, header=None):
        """Inside a batch a view of whole records wants its `header`, 61 bytes or more."""
        self.position = position
        self.batch_end = batch_end
        self.record_end = 0
        self.value_left = -1
        self.spill = b""
        take_facts(&self.facts, header)

    def copy(self):
        """Another cursor at the same place."""
        cdef Cursor other = Cursor.__new__(Cursor)
        other.position = self.position
        other.batch_end = self.batch_end
        other.record_end = self.record_end
        other.value_left = self.value_left
        other.encoded = self.encoded
        other.needed = self.needed
        other.facts = self.facts
        other.spill = self.spill
        other.spill_size = self.spill_size
        other.spilled = self.spilled
        return other

    @property
    def pending(self):
        return self.spill_size - self.spilled

    def __repr__(self):
        return (
            f"Cursor(position={self.position}, batch_end={self.batch_end}, "
            f"record_end={self.record_end}, value_left={self.value_left})"
        )


cdef class Measure:
    """How much text a segment's log shows, and the line index's entries on the way.

    position     file position of the next log byte that is needed
    text_length  bytes of text of the records up to there
    records      how many records that is
    entries      the line index so far; only ever grows
    batch_end    where the batch ends that it is in; 0: a batch begins at `position`
    encoded      whether the last measuring stopped because the batch at `position` is encoded
    needed       bytes from `position` on that have to be there for any more; 0: 64 do
    """

    def __init__(self, long long granularity=4096):
        if granularity < 1:
            raise ValueError(f"granularity {granularity}")
        self.granularity = granularity
        self.next_entry = granularity
        self.entries = bytearray(sizeof(Entry))

    @property
    def position(self):
        return self.place.position

    @property
    def batch_end(self):
        return self.place.batch_end

    def step_over(self, long long size):
        """The batch at the position, `size` bytes of log, shows nothing."""
        self.leave_stop(size)
        self.place.position += size

    def step_into(self, long long size, header not None):
        """The batch at the position, `size` bytes of log that begin with `header`, is shown as it
        lies there.
        """
        if size < HEADER_SIZE:
            raise ValueError(f"a batch of {size} bytes")
        self.leave_stop(size)
        take_facts(&self.facts, header)
        self.place.batch_position = self.place.position
        # An empty one ends where its records would begin.
        self.place.batch_end = self.place.position + size if size > HEADER_SIZE else 0
        self.place.position += HEADER_SIZE

    def add(self, measure, plain not None, long long size):
        """What lies at the position, `size` bytes of log, shows the records of `plain`, one batch.

        `measure` is the view's. CorruptRecord where the records do not fill the batch.
        """
        cdef Measure inner = Measure(NEVER)
        cdef Entry entry
        cdef int64_t length = len(plain)
        # From its first record on, whatever its header says.
        inner.step_into(length, plain)
        measure(plain, 0, length, inner)
        if inner.place.position != length or inner.place.batch_end:
            raise CorruptRecord("a batch's records do not fill it", position=self.place.position)
        self.leave_stop(size)
        if self.text_length >= self.next_entry and inner.records:
            entry.text = self.text_length
            entry.batch_position = <uint32_t> self.place.position
            entry.record_position = <uint32_t> self.place.position
            entry.batch_end = 0
            entry.ordinal = <uint32_t> self.records
            self.next_entry = self.text_length + self.granularity
            self.entries += (<char *> &entry)[:sizeof(Entry)]
        self.text_length += inner.text_length
        self.records += inner.records
        self.place.position += size

    cdef int leave_stop(self, int64_t size) except -1:
        if self.place.batch_end or self.place.record_end:
            raise ValueError("no batch begins at the position")
        if size < 1 or self.place.position + size > LONGEST_FILE:
            raise ValueError(f"{size} bytes of log at {self.place.position}")
        self.encoded = False
        return 0


cdef int measure_by(
    Count count, const void *context, object data, int64_t position, int64_t size, Measure state
) except -1:
    """Measure the log bytes `data[:size]`, at file position `position`, by a view's loop."""
    cdef Py_buffer source
    cdef Window window
    cdef Entry entries[ENTRY_ROOM]
    cdef int made
    cdef Fault fault = NO_FAULT
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        open_window(&window, &source, position, size, state.place.position)
        if window.end > LONGEST_FILE:
            raise ValueError(f"a segment of {window.end} bytes")
        state.needed = 0
        while fault == NO_FAULT:
            if size >= RELEASE_GIL_FROM:
                with nogil:
                    fault = count(state, &window, entries, &made, context)
            else:
                fault = count(state, &window, entries, &made, context)
            if made:
                state.entries += (<char *> entries)[:made * sizeof(Entry)]
        state.encoded = fault == ENCODED
        if fault != NEEDS_MORE and fault != ENCODED:
            raise refuse(fault, &window, state.place.position, state.place.batch_end != 0)
    finally:
        PyBuffer_Release(&source)
    return 0


cdef object refuse(Fault fault, const Window *window, int64_t position, bint in_batch):
    """The exception for a fault at `position`, which is a header's unless `in_batch`."""
    if in_batch:
        return refusal(fault, position)
    return refusal(
        fault, position, (<const char *> at_position(window, position))[:HEADER_SIZE]
    )


cdef int open_window(
    Window *window, const Py_buffer *view, int64_t start, int64_t size, int64_t position
) except -1:
    if size < 0 or size > view.len:
        raise ValueError(f"{size} bytes of a buffer of {view.len}")
    if position < start:
        raise ValueError(f"position {position} lies before the data, which is at {start}")
    window.data = <const uint8_t *> view.buf
    window.start = start
    window.end = start + size
    return 0


def find_batch(entries not None, long long count, long long position):
    """How many of the first `count` entries are of batches that begin before `position`."""
    cdef Py_buffer view
    cdef Entry entry
    cdef int64_t low = 0
    cdef int64_t high = count
    cdef int64_t middle
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if count < 0 or count > view.len // <int64_t> sizeof(Entry):
            raise ValueError(f"{count} entries in a buffer of {view.len}")
        while low < high:
            middle = (low + high) >> 1
            memcpy(&entry, <const char *> view.buf + middle * sizeof(Entry), sizeof(Entry))
            if entry.batch_position < position:
                low = middle + 1
            else:
                high = middle
    finally:
        PyBuffer_Release(&view)
    return low


def find_entry(entries not None, long long count, long long text):
    """The last of the first `count` entries that begins at or before `text`, as its five fields:

    (text, batch_position, record_position, batch_end, ordinal).
    """
    cdef Py_buffer view
    cdef Entry entry
    cdef const char *start
    cdef int64_t low = 0
    cdef int64_t high = count - 1
    cdef int64_t middle
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if text < 0 or count < 1 or count > view.len // <int64_t> sizeof(Entry):
            raise ValueError(f"text {text} in {count} entries of a buffer of {view.len}")
        start = <const char *> view.buf
        while low < high:
            middle = (low + high + 1) >> 1
            memcpy(&entry, start + middle * sizeof(Entry), sizeof(Entry))
            if entry.text <= <uint64_t> text:
                low = middle
            else:
                high = middle - 1
        memcpy(&entry, start + low * sizeof(Entry), sizeof(Entry))
    finally:
        PyBuffer_Release(&view)
    return (
        entry.text, entry.batch_position, entry.record_position, entry.batch_end, entry.ordinal
    )
