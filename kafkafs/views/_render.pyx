"""The `values` view's hot loops: log bytes to text, and text positions to places in the log.

Text of a record: its value's bytes and a newline; a null value is an empty line. Control batches
show nothing. Input is a window of a segment's log: `data[:data_size]`, which lies at file position
`data_position`. A loop works through it as far as it goes and keeps in its state where it stands,
so the same bytes in any windows give the same text.

A loop stops before a batch that it cannot judge (`encoded`): one that is compressed, of an older
format, or of a transaction. The caller then steps over it, walks into it as it is, or goes through
its plain form (`storage.record.plain`) instead.

What a window must hold to get on: of a batch its header (61 bytes), of a record its head (26
bytes, or less where the batch ends before), of a value length 5 bytes; a value may come in pieces,
and keys, headers and control batches are jumped over without being there. So a window of MIN_WINDOW
bytes from the state's position always makes progress, unless the log ends in the middle of a batch.

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
takes 61 bytes and each record 7 at least, so every loop ends. A record's attributes, deltas and
headers are not looked at, nor are CRCs, nor the record count: a batch is walked to its end.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    ENCODED, HEADER_SIZE, NEEDS_MORE, NO_FAULT, RELEASE_GIL_FROM, WINDOW, Fault, Place,
    PlainRecord, Window, at_position, enter_batches, enter_record, enter_value, leave_record,
    plain_record,
)

from storage.record._batch import refusal

MIN_WINDOW = 64
ENTRY_SIZE = sizeof(Entry)

cdef enum:
    # Entries that one run of the measuring loop collects before they go to the bytearray.
    ENTRY_ROOM = 128
    # Values up to this long are copied without a call, where SLACK more bytes may be touched.
    SHORT_VALUE = 256
    SLACK = 64
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


cdef struct Entry:
    uint64_t text
    uint32_t batch_position
    uint32_t record_position
    uint32_t batch_end
    uint32_t ordinal


cdef class Cursor:
    """Where a rendering stands in a segment's log.

    position    file position of the next log byte that is needed
    batch_end   where the batch ends that it is in; 0: a batch begins at `position`
    record_end  where the record ends that it is in; 0: at a record's or batch's start
    value_left  bytes of that record's value still to come, then its newline; -1: the value's
                length comes next
    encoded     whether the last rendering stopped because the batch at `position` is encoded
    """

    cdef public long long position
    cdef public long long batch_end
    cdef public long long record_end
    cdef public long long value_left
    cdef public bint encoded

    def __init__(self, long long position, long long batch_end=0):
        self.position = position
        self.batch_end = batch_end
        self.record_end = 0
        self.value_left = -1

    def copy(self):
        """Another cursor at the same place."""
        cdef Cursor other = Cursor.__new__(Cursor)
        other.position = self.position
        other.batch_end = self.batch_end
        other.record_end = self.record_end
        other.value_left = self.value_left
        other.encoded = self.encoded
        return other

    def __repr__(self):
        return (
            f"Cursor(position={self.position}, batch_end={self.batch_end}, "
            f"record_end={self.record_end}, value_left={self.value_left})"
        )


cdef inline void copy_short(uint8_t *out, const uint8_t *value, int64_t size) noexcept nogil:
    """Copy at most SHORT_VALUE bytes without a call; touches up to SLACK - 1 bytes more."""
    cdef int64_t at = 128
    memcpy(out, value, 64)
    if size > 64:
        memcpy(out + 64, value + 64, 64)
        while at < size:
            memcpy(out + at, value + at, 32)
            at += 32


cdef int64_t render_plain(
    const Window *window, Place *place, uint8_t *out, uint8_t *out_end
) noexcept nogil:
    """Render the plain records from `place` on while there is ample room: bytes of text.

    The ones that it does not take, well-formed or not, are left to `run`.
    """
    cdef const uint8_t *start = at_position(window, place.position)
    cdef const uint8_t *at = start
    cdef const uint8_t *batch_end = start + (place.batch_end - place.position)
    cdef const uint8_t *window_end = window.data + (window.end - window.start)
    cdef const uint8_t *copy_end = window_end - SLACK
    cdef uint8_t *out_start = out
    cdef PlainRecord plain
    out_end -= SLACK
    while (
        at < batch_end
        and at < copy_end
        and plain_record(at, batch_end - at, &plain)
        and plain.value_size <= SHORT_VALUE
        and at + plain.size <= copy_end
        and out + plain.value_size <= out_end
    ):
        copy_short(out, at + plain.value, plain.value_size)
        out += plain.value_size
        out[0] = c"\n"
        out += 1
        at += plain.size
    place.position += at - start
    return out - out_start


cdef Fault run(
    Cursor cursor, const Window *window, uint8_t **out_position, uint8_t *out_end, int64_t *skip
) noexcept nogil:
    """Render until `out` is full or the window used up: then NEEDS_MORE, else the fault."""
    cdef Place place
    cdef int64_t value_left = cursor.value_left
    cdef int64_t skipping = skip[0]
    cdef uint8_t *out = out_position[0]
    cdef int64_t size
    cdef Fault fault = NO_FAULT
    place.position = cursor.position
    place.batch_end = cursor.batch_end
    place.record_end = cursor.record_end
    while out < out_end:
        if place.record_end == 0:
            fault = enter_batches(window, &place)
            if fault != NO_FAULT:
                break
            if skipping == 0:
                out += render_plain(window, &place, out, out_end)
                if place.position == place.batch_end:
                    continue
            fault = enter_record(window, &place)
            if fault != NO_FAULT:
                break
            value_left = -1
        if value_left < 0:
            fault = enter_value(window, &place, &value_left)
            if fault != NO_FAULT:
                break
        if skipping > value_left:
            skipping -= value_left + 1
            leave_record(&place)
            continue
        place.position += skipping
        value_left -= skipping
        skipping = 0
        if value_left:
            size = min(value_left, min(window.end - place.position, out_end - out))
            if size <= 0:
                break
            memcpy(out, at_position(window, place.position), size)
            out += size
            place.position += size
            value_left -= size
            if value_left or out == out_end:
                break
        out[0] = c"\n"
        out += 1
        leave_record(&place)
    cursor.position = place.position
    cursor.batch_end = place.batch_end if place.position != place.batch_end else 0
    cursor.record_end = place.record_end
    cursor.value_left = value_left if place.record_end else -1
    out_position[0] = out
    skip[0] = skipping
    return fault if fault != NO_FAULT else NEEDS_MORE


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


def render(
    data not None, long long data_position, long long data_size, Cursor cursor not None,
    out not None, long long out_start, long long out_end, long long skip,
):
    """Render the log bytes `data[:data_size]` from the cursor on into `out[out_start:out_end]`.

    `skip` bytes of text are dropped first: counted, not copied, and the log bytes of what is
    dropped need not be there. Returns (where the text ends in `out`, what is left of `skip`) when
    `out` is full or the data used up; the cursor then says what comes next, and may stand beyond
    the data. What lies in `out` between that end and `out_end` is undefined.

    A malformed batch or record ends the text before it, and the next call fails. Raises, where
    there is no text before it, CorruptRecord with the file position.
    """
    cdef Py_buffer source
    cdef Py_buffer target
    cdef Window window
    cdef uint8_t *text
    cdef uint8_t *text_end
    cdef int64_t skip_left = skip
    cdef int64_t written
    cdef Fault fault
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
        try:
            open_window(&window, &source, data_position, data_size, cursor.position)
            if out_start < 0 or out_end < out_start or out_end > target.len or skip < 0:
                raise ValueError(f"text {out_start} to {out_end} of a buffer of {target.len}")
            text = <uint8_t *> target.buf + out_start
            text_end = <uint8_t *> target.buf + out_end
            if data_size >= RELEASE_GIL_FROM:
                with nogil:
                    fault = run(cursor, &window, &text, text_end, &skip_left)
            else:
                fault = run(cursor, &window, &text, text_end, &skip_left)
            written = text - <uint8_t *> target.buf
            cursor.encoded = fault == ENCODED
            if fault != NEEDS_MORE and fault != ENCODED and (
                written == out_start and skip_left == skip
            ):
                raise refuse(fault, &window, cursor.position, cursor.batch_end != 0)
            return written, skip_left
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)


cdef class Measure:
    """How much text a segment's log shows, and the line index's entries on the way.

    position     file position of the next log byte that is needed
    text_length  bytes of text of the records up to there
    records      how many records that is
    entries      the line index so far; only ever grows
    batch_end    where the batch ends that it is in; 0: a batch begins at `position`
    encoded      whether the last measuring stopped because the batch at `position` is encoded
    """

    cdef readonly long long granularity
    cdef readonly long long text_length
    cdef readonly long long records
    cdef readonly bytearray entries
    cdef readonly bint encoded
    cdef Place place
    cdef int64_t next_entry

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
        self._leave_stop(size)
        self.place.position += size

    def step_into(self, long long size):
        """The batch at the position, `size` bytes of log, is shown as it lies there."""
        if size < HEADER_SIZE:
            raise ValueError(f"a batch of {size} bytes")
        self._leave_stop(size)
        self.place.batch_position = self.place.position
        # An empty one ends where its records would begin.
        self.place.batch_end = self.place.position + size if size > HEADER_SIZE else 0
        self.place.position += HEADER_SIZE

    def add(self, plain not None, long long size):
        """What lies at the position, `size` bytes of log, shows the records of `plain`, one batch.

        CorruptRecord where those do not fill it.
        """
        cdef Measure inner = Measure(NEVER)
        cdef Entry entry
        measure_batch(inner, plain)
        self._leave_stop(size)
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

    cdef int _leave_stop(self, int64_t size) except -1:
        if self.place.batch_end or self.place.record_end:
            raise ValueError("no batch begins at the position")
        if size < 1 or self.place.position + size > LONGEST_FILE:
            raise ValueError(f"{size} bytes of log at {self.place.position}")
        self.encoded = False
        return 0


cdef int measure_batch(Measure state, object batch) except -1:
    """Measure one batch in plain form, from its first record on, whatever its header says."""
    cdef Py_buffer source
    cdef Window window
    cdef Entry entries[ENTRY_ROOM]
    cdef int made
    cdef Fault fault
    PyObject_GetBuffer(batch, &source, PyBUF_SIMPLE)
    try:
        open_window(&window, &source, 0, source.len, 0)
        if source.len < HEADER_SIZE:
            raise ValueError(f"a batch of {source.len} bytes")
        if source.len == HEADER_SIZE:
            return 0
        state.place.position = HEADER_SIZE
        state.place.batch_end = source.len
        if source.len >= RELEASE_GIL_FROM:
            with nogil:
                fault = count(state, &window, entries, &made)
        else:
            fault = count(state, &window, entries, &made)
        if fault != NEEDS_MORE:
            raise refuse(fault, &window, state.place.position, True)
    finally:
        PyBuffer_Release(&source)
    return 0


cdef int64_t count_plain(
    const Window *window, Place *place, int64_t *text, int64_t next_entry
) noexcept nogil:
    """Count the plain records from `place` on until `text` reaches `next_entry`: how many."""
    cdef const uint8_t *start = at_position(window, place.position)
    cdef const uint8_t *at = start
    cdef const uint8_t *batch_end = start + (place.batch_end - place.position)
    cdef const uint8_t *window_end = window.data + (window.end - window.start)
    cdef PlainRecord plain
    cdef int64_t length = text[0]
    cdef int64_t records = 0
    while (
        window_end - at >= WINDOW
        and at < batch_end
        and length < next_entry
        and plain_record(at, batch_end - at, &plain)
    ):
        length += plain.value_size + 1
        records += 1
        at += plain.size
    place.position += at - start
    text[0] = length
    return records


cdef Fault count(Measure state, const Window *window, Entry *entries, int *made) noexcept nogil:
    """Measure until the window is used up: then NEEDS_MORE, else the fault.

    NO_FAULT when ENTRY_ROOM entries have been made and there is another one.
    """
    cdef Place place = state.place
    cdef int64_t text = state.text_length
    cdef int64_t records = state.records
    cdef int64_t next_entry = state.next_entry
    cdef int64_t size
    cdef Entry *entry = entries
    cdef Fault fault
    while True:
        if place.record_end == 0:
            fault = enter_batches(window, &place)
            if fault != NO_FAULT:
                break
            if text >= next_entry:
                if entry == entries + ENTRY_ROOM:
                    break
                entry.text = text
                entry.batch_position = <uint32_t> place.batch_position
                entry.record_position = <uint32_t> place.position
                entry.batch_end = <uint32_t> place.batch_end
                entry.ordinal = <uint32_t> records
                next_entry = text + state.granularity
                entry += 1
            size = count_plain(window, &place, &text, next_entry)
            records += size
            if size:
                continue
            fault = enter_record(window, &place)
            if fault != NO_FAULT:
                break
        fault = enter_value(window, &place, &size)
        if fault != NO_FAULT:
            break
        text += size + 1
        records += 1
        leave_record(&place)
    if place.position == place.batch_end:
        place.batch_end = 0
    state.place = place
    state.text_length = text
    state.records = records
    state.next_entry = next_entry
    made[0] = <int> (entry - entries)
    return fault


def measure(data not None, long long data_position, long long data_size, Measure state not None):
    """Measure the log bytes `data[:data_size]` from the state's position on, as far as they go.

    The state's position may then lie beyond the data: what is between is not needed.

    Raises CorruptRecord with the file position; the state then has measured everything before it.
    """
    cdef Py_buffer source
    cdef Window window
    cdef Entry entries[ENTRY_ROOM]
    cdef int made
    cdef Fault fault = NO_FAULT
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        open_window(&window, &source, data_position, data_size, state.place.position)
        if window.end > LONGEST_FILE:
            raise ValueError(f"a segment of {window.end} bytes")
        while fault == NO_FAULT:
            if data_size >= RELEASE_GIL_FROM:
                with nogil:
                    fault = count(state, &window, entries, &made)
            else:
                fault = count(state, &window, entries, &made)
            if made:
                state.entries += (<char *> entries)[:made * sizeof(Entry)]
        state.encoded = fault == ENCODED
        if fault != NEEDS_MORE and fault != ENCODED:
            raise refuse(fault, &window, state.place.position, state.place.batch_end != 0)
    finally:
        PyBuffer_Release(&source)


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
