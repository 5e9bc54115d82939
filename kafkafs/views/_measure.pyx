"""The common parts of the views' hot loops: cursors, measures, and entries of the line index.

A loop takes a window of a segment's `.log` file: `data[:data_size]`, read at file position
`data_position`. It goes through the window as far as it can, and stores where it stopped in a
Cursor or a Measure. So the text does not depend on the sizes of the windows.

A loop stops before a batch that it cannot judge (`encoded`): one that is compressed, of an older
format, or transactional. The caller then steps over the batch, steps into it as stored, or goes
through its plain form (`storage.record.plain`).

To go on, a loop needs a batch's header (61 bytes), and of a record the bytes that its view shows.
If a record needs more than 64 bytes, `needed` says how many. A loop skips control batches, whose
records need not be in the window.

Entries of the line index have 24 bytes, little-endian, and ascend:

    u64 text             bytes of text before this record
    u32 batch_position   file position of the record's batch
    u32 record_position  file position of the record: a cursor starts here ...
    u32 batch_end        ... with this end of its batch; 0: a batch begins at record_position, as
                         for every entry of a batch that is read in plain form
    u32 ordinal          records shown before this one

The first entry of a segment is all zeros: its start. Each later entry is the first record with at
least `granularity` bytes of text since the entry before.

Invariants: a loop checks every length against record, batch and window before it uses it. Each
batch takes at least 61 bytes and each record at least 7, so every loop ends.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.bytearray cimport PyByteArray_FromStringAndSize
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
    # A `.log` file is at most this long, so every position in it fits an entry's field.
    LONGEST_FILE = 0x7FFFFFFF

# A granularity so large that a Measure makes no entry but the first.
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
    """Set the base from the batch header at the start of the buffer `header`."""
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
    """The place of a rendering in a segment's `.log` file.

    position    file position of the next byte that the rendering needs
    batch_end   the end of the current batch; 0: a batch begins at `position`
    record_end  the end of the current record; 0: a record or a batch begins at `position`
    value_left  bytes of that record's value that are not rendered yet, before its newline; -1: the
                value's length comes next
    encoded     whether the last rendering stopped because the batch at `position` is encoded
    needed      bytes from `position` on that the next rendering needs; 0: 64
    pending     bytes of the last record's text that did not fit into the output
    long_line   bytes of text that are left of a line that is rendered in pieces (`_whole.pyx`); the
                position is then the next byte of its record that is needed; 0: there is none
    at_once     whether a rendering stops before a record that takes long; the caller sets it
    takes_long  whether the last rendering stopped because of that

    A view of whole records does not use `record_end` and `value_left`.
    """

    def __init__(self, long long position, long long batch_end=0, header=None):
        """Inside a batch, a view of whole records needs the batch's `header`, 61 bytes or more."""
        self.place.position = position
        self.place.batch_end = batch_end
        self.value_left = -1
        if header is not None:
            take_base(&self.base, header)

    def copy(self):
        """Return another cursor at the same place."""
        cdef Cursor other = Cursor.__new__(Cursor)
        other.place = self.place
        other.base = self.base
        other.value_left = self.value_left
        other.encoded = self.encoded
        other.needed = self.needed
        other.line = self.line
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
    def long_line(self):
        return self.line.left

    @property
    def pending(self):
        return self.spill_size - self.spilled


cdef class Measure:
    """Counts the bytes of text of a segment's `.log` file, and makes the line index on the way.

    position     file position of the next byte that the measuring needs
    text_length  bytes of text of the records before `position`
    records      the number of records before `position`
    entries      the line index from its beginning on; it only grows, except in `go_back`
    batch_end    the end of the current batch; 0: a batch begins at `position`
    encoded      whether the last measuring stopped because the batch at `position` is encoded
    needed       bytes from `position` on that the next measuring needs; 0: 64
    """

    def __init__(
        self, long long granularity=4096, long long position=0, long long text_length=0,
        long long records=0,
    ):
        """Begin at `position`, where a batch begins, with the totals before it."""
        cdef Entry first
        if granularity < 1 or position < 0:
            raise ValueError(f"granularity {granularity}, position {position}")
        self.granularity = granularity
        self.place = Place(position, position, 0, 0)
        self.text_length = text_length
        self.records = records
        self.next_entry = text_length + granularity
        set_entry(&first, &self.place, text_length, records)
        self.entries = bytearray((<char *> &first)[:sizeof(Entry)])

    @property
    def position(self):
        return self.place.position

    @property
    def batch_end(self):
        return self.place.batch_end

    def step_over(self, long long size):
        """Step over the batch of `size` bytes at `position`: the view shows nothing of it."""
        self.leave_stop(size)
        self.place.position += size

    def step_into(self, long long size, header not None):
        """Step into the batch of `size` bytes at `position`, which begins with `header`.

        The view shows the batch as stored.
        """
        if size < HEADER_SIZE:
            raise ValueError(f"a batch of {size} bytes")
        self.leave_stop(size)
        take_base(&self.base, header)
        self.place.batch_position = self.place.position
        # A batch without records ends behind its header.
        self.place.batch_end = self.place.position + size if size > HEADER_SIZE else 0
        self.place.position += HEADER_SIZE

    def add(self, measure, plain not None, long long size):
        """Measure `plain`, the plain form of the `size` bytes at `position`, and step over these.

        `measure` is the view's. Raises CorruptRecord if the records do not fill the plain batch.
        """
        cdef Measure inner = Measure(NEVER)
        cdef Place place
        cdef Entry entry
        cdef int64_t length = len(plain)
        # Begin at its first record: the caller has already judged its header.
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

    def go_back(self, long long position, long long text_length, long long records):
        """Go back to `position`, where a batch began, and to the totals before it."""
        cdef Entry last
        cdef int64_t count = len(self.entries) // <int64_t> sizeof(Entry)
        count = max(count_below(self.entries, count, max(position, 0), False, &last), 1)
        # Other threads may still read the old ones.
        self.entries = self.entries[:count * sizeof(Entry)]
        self.next_entry = last.text + self.granularity
        self.place = Place(position, 0, 0, 0)
        self.text_length = text_length
        self.records = records
        self.encoded = False

    cdef int leave_stop(self, int64_t size) except -1:
        if self.place.batch_end or self.place.record_end:
            raise ValueError("no batch begins at the position")
        if size < 1 or self.place.position + size > LONGEST_FILE:
            raise ValueError(f"{size} bytes of log at {self.place.position}")
        self.encoded = False
        return 0


cdef class Loops:
    """The functions `render` and `measure` of a view."""

    def render(
        self, data not None, long long data_position, long long data_size, Cursor cursor not None,
        out not None, long long out_start, long long out_end, long long skip,
    ):
        """Render the log bytes `data[:data_size]` from the cursor on into `out[out_start:out_end]`.

        It skips the first `skip` bytes of text: it counts them and does not copy them. The `values`
        view does not need the log bytes of a value that it skips. The cursor's pending text comes
        before any text of the data. Returns (where the text ends in `out`, the bytes that are still
        to skip) when `out` is full or the data ends. The cursor is then at the next byte that it
        needs, which may lie behind the data. The bytes of `out` from the end of the text to
        `out_end` are undefined.

        A malformed batch or record ends the text before it. If a call has no text before it, it
        raises CorruptRecord with the file position.
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
                cursor.takes_long = False
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
        """Measure the log bytes `data[:data_size]` from the measure's position to their end.

        The position may then lie behind the data: the measuring does not need the bytes between.

        Raises CorruptRecord with the file position; it has then measured everything before it.
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
    """Move the cursor's pending text to the output, as far as there is room."""
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
    """Return the exception for a fault at the place: in a header, or in a record of a batch."""
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
    """How many of the first `count` entries have a text, or a batch position, below `limit`.

    Sets `last` to the last of these, or to the first entry if there is none.
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


def unfilled(Py_ssize_t size):
    """Return a bytearray of `size` bytes that may be any bytes: the caller overwrites all that it
    shows. `bytearray(size)` would take a tenth of a rendering for its zeros.
    """
    return PyByteArray_FromStringAndSize(NULL, size)


def find_batch(entries not None, long long count, long long position):
    """How many of the first `count` entries belong to batches that begin before `position`."""
    cdef Entry last
    return count_below(entries, count, max(position, 0), False, &last)


def find_entry(entries not None, long long count, long long text):
    """Return the last of the first `count` entries that begins at or before `text`.

    Its five fields are (text, batch_position, record_position, batch_end, ordinal).
    """
    cdef Entry last
    if text < 0 or count < 1:
        raise ValueError(f"text {text} in {count} entries")
    count_below(entries, count, <uint64_t> text + 1, True, &last)
    return last.text, last.batch_position, last.record_position, last.batch_end, last.ordinal
