"""What the views' hot loops share: cursors, measuring, and the line index's entries.

A loop takes a window of a segment's log: `data[:data_size]`, which lies at file position
`data_position`. It goes through the window as far as it can, and keeps in a Cursor or a Measure
where it stands, so the same bytes in any windows give the same text.

A loop stops before a batch that it cannot judge (`encoded`): one that is compressed, of an older
format, or of a transaction. The caller then steps over the batch, steps into it as it is, or goes
through its plain form (`storage.record.plain`) instead.

To get on, a loop needs of a batch its header (61 bytes), and of a record what its view shows; where
that is more than 64 bytes, `needed` says how much. A loop jumps over control batches, which need
not be there.

Entries of the line index, 24 bytes, little-endian, ascending:

    u64 text             bytes of text before this record
    u32 batch_position   file position of the record's batch
    u32 record_position  file position of the record: a cursor starts here ...
    u32 batch_end        ... with this end of its batch; 0: a batch begins at record_position, as
                         for every entry of a batch that has to be decoded
    u32 ordinal          records shown before this one

The first is all zeros: the segment's start. Each later one is the first record with at least
`granularity` bytes of text since the entry before.

Invariants: a loop checks every length against record, batch and window before it uses it. Each
batch takes 61 bytes and each record 7 at least, so every loop ends.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint64_t
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


cdef RecordBase base_of(const uint8_t *header) noexcept nogil:
    cdef RecordBase base
    base.offset = <int64_t> load64(header + BASE_OFFSET)
    base.append_time = header[ATTRIBUTES + 1] & APPEND_TIME_BIT != 0
    base.timestamp = <int64_t> load64(
        header + (MAX_TIMESTAMP if base.append_time else BASE_TIMESTAMP)
    )
    return base


cdef int take_base(RecordBase *base, object header) except -1:
    """The base of the header that the buffer `header` begins with."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(header, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len < HEADER_SIZE:
            raise ValueError(f"a header of {buffer.len} bytes")
        base[0] = base_of(<const uint8_t *> buffer.buf)
    finally:
        PyBuffer_Release(&buffer)
    return 0


cdef class Cursor:
    """Where a rendering stands in a segment's log.

    position    file position of the next log byte that is needed
    batch_end   where the batch ends that it is in; 0: a batch begins at `position`
    record_end  where the record ends that it is in; 0: at a record's or batch's start
    value_left  bytes of that record's value still to come, then its newline; -1: the value's
                length comes next
    encoded     whether the last rendering stopped because the batch at `position` is encoded
    needed      bytes from `position` on that the next rendering needs; 0: 64
    pending     bytes of the last record's text that did not fit into the output

    A view of whole records leaves `record_end` and `value_left` as they are.
    """

    def __init__(self, long long position, long long batch_end=0, header=None):
        """Inside a batch a view of whole records wants its `header`, 61 bytes or more."""
        self.place.position = position
        self.place.batch_end = batch_end
        self.value_left = -1
        if header is not None:
            take_base(&self.base, header)

    def copy(self):
        """Another cursor at the same place."""
        cdef Cursor other = Cursor.__new__(Cursor)
        other.place = self.place
        other.base = self.base
        other.value_left = self.value_left
        other.encoded = self.encoded
        other.needed = self.needed
        other.spill = self.spill
        other.spill_size = self.spill_size
        other.spilled = self.spilled
        return other

    @property
    def position(self):
        return self.place.position

    @property
    def batch_end(self):
        return self.place.batch_end

    @property
    def record_end(self):
        return self.place.record_end

    @property
    def pending(self):
        return self.spill_size - self.spilled


cdef class Measure:
    """How much text a segment's log shows, and the line index's entries on the way.

    position     file position of the next log byte that is needed
    text_length  bytes of text of the records up to there
    records      how many records that is
    entries      the line index so far; only ever grows
    batch_end    where the batch ends that it is in; 0: a batch begins at `position`
    encoded      whether the last measuring stopped because the batch at `position` is encoded
    needed       bytes from `position` on that the next measuring needs; 0: 64
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
        """The view shows the batch at the position, `size` bytes of log that begin with `header`,
        as it lies there.
        """
        if size < HEADER_SIZE:
            raise ValueError(f"a batch of {size} bytes")
        self.leave_stop(size)
        take_base(&self.base, header)
        self.place.batch_position = self.place.position
        # An empty one ends where its records would begin.
        self.place.batch_end = self.place.position + size if size > HEADER_SIZE else 0
        self.place.position += HEADER_SIZE

    def add(self, measure, plain not None, long long size):
        """What lies at the position, `size` bytes of log, shows the records of `plain`, one batch.

        `measure` is the view's. CorruptRecord where the records do not fill the batch.
        """
        cdef Measure inner = Measure(NEVER)
        cdef Place place
        cdef Entry entry
        cdef int64_t length = len(plain)
        # From its first record on, whatever its header says.
        inner.step_into(length, plain)
        measure(plain, 0, length, inner)
        if inner.place.position != length or inner.place.batch_end:
            raise CorruptRecord("a batch's records do not fill it", position=self.place.position)
        self.leave_stop(size)
        if self.text_length >= self.next_entry and inner.records:
            place = Place(self.place.position, self.place.position, 0, 0)
            set_entry(&entry, &place, self.text_length, self.records)
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


cdef class Loops:
    """A view's `render` and `measure`."""

    def render(
        self, data not None, long long data_position, long long data_size, Cursor cursor not None,
        out not None, long long out_start, long long out_end, long long skip,
    ):
        """Render the log bytes `data[:data_size]` from the cursor on into `out[out_start:out_end]`.

        What is pending comes first, whatever the data. `skip` bytes of text are dropped before
        that: counted, not copied; the log bytes of what is dropped need not be there. Returns
        (where the text ends in `out`, what is left of `skip`) when `out` is full or the data used
        up; the cursor then says what comes next, and may stand beyond the data. What lies in `out`
        between that end and `out_end` is undefined.

        A malformed batch or record ends the text before it, and the next call fails. Raises, where
        there is no text before it, CorruptRecord with the file position.
        """
        cdef Py_buffer source
        cdef Py_buffer target
        cdef Window window
        cdef uint8_t *text
        cdef uint8_t *text_end
        cdef int64_t skip_left = skip
        cdef Fault fault = NO_FAULT
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
            try:
                open_window(&window, &source, data_position, data_size, cursor.place.position)
                if out_start < 0 or out_end < out_start or out_end > target.len or skip < 0:
                    raise ValueError(f"text {out_start} to {out_end} of a buffer of {target.len}")
                text = <uint8_t *> target.buf + out_start
                text_end = <uint8_t *> target.buf + out_end
                cursor.needed = 0
                while fault == NO_FAULT:
                    if cursor.spill_size:
                        fetch(cursor, &text, text_end, &skip_left)
                    if text == text_end:
                        break
                    if data_size >= RELEASE_GIL_FROM:
                        with nogil:
                            fault = self.render_loop(
                                cursor, &window, &text, text_end, &skip_left, self.context
                            )
                    else:
                        fault = self.render_loop(
                            cursor, &window, &text, text_end, &skip_left, self.context
                        )
                cursor.encoded = fault == ENCODED
                if fault != NO_FAULT and fault != NEEDS_MORE and fault != ENCODED and (
                    text == <uint8_t *> target.buf + out_start and skip_left == skip
                ):
                    raise refuse(fault, &window, &cursor.place)
                return text - <uint8_t *> target.buf, skip_left
            finally:
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&source)

    def measure(
        self, data not None, long long data_position, long long data_size, Measure measure not None
    ):
        """Measure the log bytes `data[:data_size]` from the measure's position on, as far as they
        go. The position may then lie beyond the data: what is between is not needed.

        Raises CorruptRecord with the file position; everything before it is measured then.
        """
        cdef Py_buffer source
        cdef Window window
        cdef Entry entries[ENTRY_ROOM]
        cdef int made
        cdef Fault fault = NO_FAULT
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            open_window(&window, &source, data_position, data_size, measure.place.position)
            if window.end > LONGEST_FILE:
                raise ValueError(f"a segment of {window.end} bytes")
            measure.needed = 0
            while fault == NO_FAULT:
                if data_size >= RELEASE_GIL_FROM:
                    with nogil:
                        fault = self.measure_loop(measure, &window, entries, &made, self.context)
                else:
                    fault = self.measure_loop(measure, &window, entries, &made, self.context)
                if made:
                    measure.entries += (<char *> entries)[:made * sizeof(Entry)]
            measure.encoded = fault == ENCODED
            if fault != NEEDS_MORE and fault != ENCODED:
                raise refuse(fault, &window, &measure.place)
        finally:
            PyBuffer_Release(&source)


cdef Loops loops_of(RenderLoop render_loop, MeasureLoop measure_loop, const void *context):
    cdef Loops loops = Loops()
    loops.render_loop = render_loop
    loops.measure_loop = measure_loop
    loops.context = context
    return loops


cdef int fetch(Cursor cursor, uint8_t **out, uint8_t *out_end, int64_t *skip) except -1:
    """Move what is pending to the output, as far as that has room."""
    cdef int64_t size
    cdef int64_t dropped = min(skip[0], cursor.spill_size - cursor.spilled)
    cursor.spilled += dropped
    skip[0] -= dropped
    size = min(cursor.spill_size - cursor.spilled, out_end - out[0])
    memcpy(out[0], PyBytes_AS_STRING(cursor.spill) + cursor.spilled, size)
    out[0] += size
    cursor.spilled += size
    if cursor.spilled == cursor.spill_size:
        cursor.spill = None
        cursor.spilled = cursor.spill_size = 0
    return 0


cdef object refuse(Fault fault, const Window *window, const Place *place):
    """The exception for a fault at the place, which is a header's unless a batch has begun."""
    if place.batch_end:
        return refusal(fault, place.position)
    header = (<const char *> at_position(window, place.position))[:HEADER_SIZE]
    return refusal(fault, place.position, header)


cdef int open_window(
    Window *window, const Py_buffer *buffer, int64_t start, int64_t size, int64_t position
) except -1:
    if size < 0 or size > buffer.len:
        raise ValueError(f"{size} bytes of a buffer of {buffer.len}")
    if position < start:
        raise ValueError(f"position {position} lies before the data, which is at {start}")
    window.data = <const uint8_t *> buffer.buf
    window.start = start
    window.end = start + size
    return 0


cdef int64_t count_below(
    object entries, int64_t count, uint64_t limit, bint by_text, Entry *last
) except -1:
    """How many of the first `count` entries have a text, or a batch position, below `limit`; and
    the last of them, or the first entry.
    """
    cdef Py_buffer buffer
    cdef Entry entry
    cdef int64_t low = 0
    cdef int64_t high = count
    cdef int64_t middle
    PyObject_GetBuffer(entries, &buffer, PyBUF_SIMPLE)
    try:
        if count < 0 or count > buffer.len // <int64_t> sizeof(Entry):
            raise ValueError(f"{count} entries in a buffer of {buffer.len}")
        if count:
            memcpy(last, buffer.buf, sizeof(Entry))
        while low < high:
            middle = (low + high) >> 1
            memcpy(&entry, <const char *> buffer.buf + middle * sizeof(Entry), sizeof(Entry))
            if (entry.text if by_text else entry.batch_position) < limit:
                low = middle + 1
                last[0] = entry
            else:
                high = middle
    finally:
        PyBuffer_Release(&buffer)
    return low


def find_batch(entries not None, long long count, long long position):
    """How many of the first `count` entries are of batches that begin before `position`."""
    cdef Entry last
    return count_below(entries, count, max(position, 0), False, &last)


def find_entry(entries not None, long long count, long long text):
    """The last of the first `count` entries that begins at or before `text`, as its five fields:

    (text, batch_position, record_position, batch_end, ordinal).
    """
    cdef Entry last
    if text < 0 or count < 1:
        raise ValueError(f"text {text} in {count} entries")
    count_below(entries, count, <uint64_t> text + 1, True, &last)
    return last.text, last.batch_position, last.record_position, last.batch_end, last.ordinal
