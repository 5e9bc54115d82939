"""The `values` view's hot loops: log bytes to text, and how much text that is.

Text of a record: its value's bytes and a newline; a null value is an empty line. Control batches
show nothing. Windows, cursors and what a loop stops before: `_measure.pyx`.

What a window must hold of a record is its head (26 bytes, or less where the batch ends before),
and of a value's length 5 bytes; a value may come in pieces, and keys and headers are jumped over
without being there. So a window of 64 bytes from the state's position always makes
progress, unless the log ends in the middle of a batch.

A record's attributes, deltas and headers are not looked at, nor are CRCs, nor the record count: a
batch is walked to its end.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kafkafs.views._measure cimport (
    ENTRY_ROOM, Cursor, Entry, Measure, measure_by, open_window, refuse, set_entry
)
from storage.record._batch cimport (
    ENCODED, NEEDS_MORE, NO_FAULT, RELEASE_GIL_FROM, WINDOW, Fault, Place, PlainRecord, Window,
    at_position, enter_batches, enter_record, enter_value, leave_record, plain_record,
)

cdef enum:
    # Values up to this long are copied without a call, where SLACK more bytes may be touched.
    SHORT_VALUE = 256
    SLACK = 64


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


cdef Fault count(
    Measure state, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil:
    """As `Count` says."""
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
                set_entry(entry, &place, text, records)
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
    measure_by(count, NULL, data, data_position, data_size, state)
