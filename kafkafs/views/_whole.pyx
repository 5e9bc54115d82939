"""The hot loops of views that show whole records, by what a view says of one (`Format`).

A record is taken apart where all of it lies in the window; else the loop stops, and its state says
how many bytes have to be there (`needed`). So nothing is kept of a record but its text: where that
does not fit into what is left of the output it is written beside it, once, and stays with the
cursor (`pending`) until it is fetched.

Records are as `_batch.pxd` walks to them. Here key, value and headers are looked at too: headers
must fill the record exactly. Record counts and CRCs are not.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kafkafs.views._measure cimport (
    ENTRY_ROOM, Cursor, Entry, Facts, Measure, facts_of, measure_by, open_window, refuse, set_entry
)
from storage.record._batch cimport (
    BAD_HEADERS, ENCODED, NEEDS_MORE, NO_FAULT, RELEASE_GIL_FROM, WINDOW, Fault, Fields, Place,
    RecordHead, Window, at_position, bounded_varint, enter_batches, enter_head, headers_fill,
    leave_record, read_fields,
)


cdef enum Stop:
    USED_UP  # of the window, or there is a fault
    OUT_FULL
    TOO_LONG  # for the output: the text of the record that was taken apart last


cdef Fault next_record(
    const Window *window, Place *place, Facts *facts, WholeRecord *record, int64_t *needed
) noexcept nogil:
    """Take apart the record that comes next. A fault leaves the place where that one begins."""
    cdef RecordHead head
    cdef Fields fields
    cdef Fault fault
    if place.batch_end == 0 or place.position == place.batch_end:
        fault = enter_batches(window, place)
        if fault != NO_FAULT:
            return fault
        facts[0] = facts_of(at_position(window, place.batch_position))
    fault = enter_head(window, place, &head)
    if fault == NEEDS_MORE:
        needed[0] = min(<int64_t> WINDOW, place.batch_end - place.position)
    if fault != NO_FAULT:
        return fault
    if head.size > window.end - place.position:
        needed[0] = head.size
        return NEEDS_MORE
    fault = read_fields(at_position(window, place.position), &head, &fields)
    if fault != NO_FAULT:
        return fault
    if not headers_fill(fields.headers, fields.end):
        return BAD_HEADERS
    record.offset = facts.base_offset + head.offset_delta
    record.append_time = facts.append_time
    record.timestamp = facts.timestamp
    if not facts.append_time:
        record.timestamp = <int64_t> (<uint64_t> facts.timestamp + <uint64_t> head.timestamp_delta)
    record.key = fields.key
    record.key_size = head.key_length
    record.value = fields.value
    record.value_size = fields.value_length
    record.headers = fields.end
    record.header_count = 0
    if fields.end - fields.headers > 1:
        record.headers = bounded_varint(fields.headers, fields.end, &record.header_count)
    record.readable_end = window.data + (window.end - window.start)
    place.record_end = place.position + head.size
    return NO_FAULT


cdef Fault run(
    Cursor cursor, const Window *window, const Format *format, uint8_t **out_position,
    uint8_t *out_end, int64_t *skip, WholeRecord *record, Stop *stop,
) noexcept nogil:
    """Write records until `stop`; NO_FAULT where that is not USED_UP."""
    cdef Place place
    cdef int64_t skipping = skip[0]
    cdef uint8_t *out = out_position[0]
    cdef int64_t size
    cdef int64_t needed = 0
    cdef Fault fault = NO_FAULT
    place.position = cursor.position
    place.batch_end = cursor.batch_end
    place.record_end = 0
    stop[0] = OUT_FULL
    while out < out_end:
        fault = next_record(window, &place, &cursor.facts, record, &needed)
        if fault != NO_FAULT:
            stop[0] = USED_UP
            break
        if skipping:
            size = format.size(record)
            if size > skipping:
                stop[0] = TOO_LONG
                leave_record(&place)
                break
            skipping -= size
        elif format.most(record) + WRITE_SLACK <= out_end - out or (
            format.size(record) + WRITE_SLACK <= out_end - out
        ):
            out = format.write(record, out)
        else:
            stop[0] = TOO_LONG
            leave_record(&place)
            break
        leave_record(&place)
    cursor.position = place.position
    cursor.batch_end = place.batch_end if place.position != place.batch_end else 0
    cursor.needed = needed
    out_position[0] = out
    skip[0] = skipping
    return fault


cdef int spill(
    Cursor cursor, const Format *format, const WholeRecord *record, bint release_gil
) except -1:
    """Write the text of a record beside the output."""
    cdef int64_t size
    cdef bytes text
    cdef uint8_t *start
    cdef uint8_t *end
    if release_gil:
        with nogil:
            size = format.size(record)
    else:
        size = format.size(record)
    text = PyBytes_FromStringAndSize(NULL, size + WRITE_SLACK)
    start = <uint8_t *> PyBytes_AS_STRING(text)
    if release_gil:
        with nogil:
            end = format.write(record, start)
    else:
        end = format.write(record, start)
    assert end - start == size, "a record's text is not as long as it was measured"
    cursor.spill = text
    cursor.spilled = 0
    cursor.spill_size = size
    return 0


cdef int fetch(Cursor cursor, uint8_t **out_position, uint8_t *out_end, int64_t *skip) except -1:
    """Move what is pending to the output, as far as that has room."""
    cdef int64_t size
    cdef int64_t dropped = min(skip[0], cursor.spill_size - cursor.spilled)
    cursor.spilled += dropped
    skip[0] -= dropped
    size = min(cursor.spill_size - cursor.spilled, out_end - out_position[0])
    memcpy(out_position[0], PyBytes_AS_STRING(cursor.spill) + cursor.spilled, size)
    out_position[0] += size
    cursor.spilled += size
    if cursor.spilled == cursor.spill_size:
        cursor.spill = b""
        cursor.spilled = cursor.spill_size = 0
    return 0


cdef Fault count(
    Measure state, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil:
    """As `Count` says; the context is a Format."""
    cdef const Format *format = <const Format *> context
    cdef WholeRecord record
    cdef Place place = state.place
    cdef int64_t text = state.text_length
    cdef int64_t records = state.records
    cdef int64_t next_entry = state.next_entry
    cdef int64_t needed = 0
    cdef Entry *entry = entries
    cdef Fault fault
    while True:
        fault = next_record(window, &place, &state.facts, &record, &needed)
        if fault != NO_FAULT:
            break
        if text >= next_entry:
            if entry == entries + ENTRY_ROOM:
                # Once more, when there is room.
                place.record_end = 0
                break
            set_entry(entry, &place, text, records)
            next_entry = text + state.granularity
            entry += 1
        text += format.size(&record)
        records += 1
        leave_record(&place)
    if place.position == place.batch_end:
        place.batch_end = 0
    state.place = place
    state.text_length = text
    state.records = records
    state.next_entry = next_entry
    state.needed = needed
    made[0] = <int> (entry - entries)
    return fault


cdef class WholeRecords:
    """A view's `render` and `measure`, by its format, which a subclass sets in `__cinit__`."""

    def render(
        self, data not None, long long data_position, long long data_size,
        Cursor cursor not None, out not None, long long out_start, long long out_end,
        long long skip,
    ):
        """As `_render.render`. Text that is pending comes first, whatever the data."""
        cdef Py_buffer source
        cdef Py_buffer target
        cdef Window window
        cdef WholeRecord record
        cdef Stop stop = OUT_FULL
        cdef Fault fault = NO_FAULT
        cdef uint8_t *text
        cdef uint8_t *text_end
        cdef int64_t skip_left = skip
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
            try:
                open_window(&window, &source, data_position, data_size, cursor.position)
                if out_start < 0 or out_end < out_start or out_end > target.len or skip < 0:
                    raise ValueError(f"text {out_start} to {out_end} of a buffer of {target.len}")
                text = <uint8_t *> target.buf + out_start
                text_end = <uint8_t *> target.buf + out_end
                cursor.needed = 0
                while True:
                    if cursor.spill_size:
                        fetch(cursor, &text, text_end, &skip_left)
                    if text == text_end:
                        break
                    if data_size >= RELEASE_GIL_FROM:
                        with nogil:
                            fault = run(
                                cursor, &window, &self.format, &text, text_end, &skip_left,
                                &record, &stop,
                            )
                    else:
                        fault = run(
                            cursor, &window, &self.format, &text, text_end, &skip_left,
                            &record, &stop,
                        )
                    if stop != TOO_LONG:
                        break
                    spill(cursor, &self.format, &record, data_size >= RELEASE_GIL_FROM)
                cursor.encoded = fault == ENCODED
                if fault != NO_FAULT and fault != NEEDS_MORE and fault != ENCODED and (
                    text == <uint8_t *> target.buf + out_start and skip_left == skip
                ):
                    raise refuse(fault, &window, cursor.position, cursor.batch_end != 0)
                return text - <uint8_t *> target.buf, skip_left
            finally:
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&source)

    def measure(
        self, data not None, long long data_position, long long data_size, Measure state not None
    ):
        """As `_render.measure`."""
        measure_by(count, &self.format, data, data_position, data_size, state)
