"""The hot loops of views that show whole records. A view defines the text of one record (`Format`).

A loop reads a record if all of it lies in the window; else it stops, and `needed` says how many
bytes it needs. So between two calls it stores nothing of a record but its text: if a text does not
fit into the rest of the output, the loop writes it once to a buffer of the cursor (`pending`).

A line of more than LONG_LINE bytes that does not fit into the output is rendered in pieces, so that
many cursors inside of lines take little memory. The cursor then stores where in the record the next piece begins (`LongLine`); the window
needs only the bytes of that piece. A piece that does not fit into the output is rendered again by
the next call, from its first byte on.

The functions of `_batch.pxd` walk to the records. The loops here also read key, value and headers,
which must fill the record exactly. They ignore record counts and CRCs.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kafkafs.views._measure cimport (
    ENTRY_ROOM, Cursor, Entry, LongLine, Loops, Measure, RecordBase, base_of, loops_of, set_entry,
    set_place
)
from storage.record._batch cimport (
    BAD_HEADERS, BAD_RECORD_LENGTH, NEEDS_MORE, NO_FAULT, WINDOW, Fault, Fields, Place, RecordHead, Window,
    at_position, bounded_varint, enter_batches, enter_head, headers_fill, leave_record, read_fields,
    sum_of,
)


cdef enum:
    # A longer line is rendered in pieces.
    LONG_LINE = 16 << 10


cdef Fault next_record(
    const Window *window, Place *place, RecordBase *base, WholeRecord *record, int64_t *needed
) noexcept nogil:
    """Read the fields of the next record. A fault leaves the place where that record begins."""
    cdef RecordHead head
    cdef Fields fields
    cdef Fault fault
    if place.batch_end == 0 or place.position == place.batch_end:
        fault = enter_batches(window, place)
        if fault != NO_FAULT:
            return fault
        base[0] = base_of(at_position(window, place.batch_position))
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
    record.offset = sum_of(base.offset, head.offset_delta)
    record.append_time = base.append_time
    record.timestamp = base.timestamp
    if not base.append_time:
        record.timestamp = sum_of(base.timestamp, head.timestamp_delta)
    record.key = fields.key
    record.key_size = head.key_length
    record.value = fields.value
    record.value_size = fields.value_length
    record.headers = fields.end
    record.headers_size = fields.end - fields.headers
    record.header_count = 0
    if fields.end - fields.headers > 1:
        record.headers = bounded_varint(fields.headers, fields.end, &record.header_count)
    record.readable_end = window.data + (window.end - window.start)
    place.record_end = place.position + head.size
    return NO_FAULT


cdef Fault render_loop(
    Cursor cursor, const Window *window, uint8_t **out_position, uint8_t *out_end, int64_t *skip,
    const void *context,
) except? NO_FAULT nogil:
    """A `RenderLoop` whose context is a Format."""
    cdef const Format *format = <const Format *> context
    cdef WholeRecord record
    cdef Place place = cursor.place
    cdef int64_t skipping = skip[0]
    cdef uint8_t *out = out_position[0]
    cdef int64_t size, start
    cdef int64_t needed = 0
    cdef Fault fault = NO_FAULT
    while out < out_end:
        if cursor.line.left:
            cursor.line.at_once = cursor.at_once
            fault = render_pieces(
                &cursor.line, format, window, &place, &out, out_end, &skipping, &needed
            )
            cursor.takes_long = cursor.line.takes_long
            if fault != NO_FAULT:
                break
            continue
        fault = next_record(window, &place, &cursor.base, &record, &needed)
        if fault != NO_FAULT:
            break
        start = place.position
        if cursor.at_once and place.record_end - start > LONG_RECORD:
            place.record_end = 0
            cursor.takes_long = True
            fault = NEEDS_MORE
            break
        leave_record(&place)
        if skipping:
            size = format.size(&record)
            if size > skipping:
                if size > LONG_LINE:
                    begin_line(&cursor.line, format, window, &record, start, size, &place)
                    continue
                spill(cursor, format, &record, size)
                break
            skipping -= size
        elif format.most(&record) + WRITE_SLACK <= out_end - out:
            out = format.write(&record, out)
        else:
            size = format.size(&record)
            if size + WRITE_SLACK <= out_end - out:
                out = format.write(&record, out)
                continue
            if size > LONG_LINE:
                begin_line(&cursor.line, format, window, &record, start, size, &place)
                continue
            spill(cursor, format, &record, size)
            break
    set_place(&cursor.place, &place)
    cursor.needed = needed
    out_position[0] = out
    skip[0] = skipping
    return fault


cdef int spill(
    Cursor cursor, const Format *format, const WholeRecord *record, int64_t size
) except -1 nogil:
    """Write a record's text, of this size, to a buffer of the cursor, from which `fetch` moves it."""
    cdef uint8_t *start
    with gil:
        cursor.spill = PyBytes_FromStringAndSize(NULL, size + WRITE_SLACK)
        start = <uint8_t *> PyBytes_AS_STRING(cursor.spill)
    cursor.spill_size = format.write(record, start) - start
    assert cursor.spill_size == size, "a record's text is not as long as it was measured"
    cursor.spilled = 0
    return 0


cdef void begin_line(
    LongLine *line, const Format *format, const Window *window, const WholeRecord *record,
    int64_t start, int64_t size, Place *place,
) noexcept nogil:
    """Begin the line of the record at `start`, whose text has `size` bytes, and which `place` has
    left. The place goes back to the record.
    """
    line.left = size
    line.inside = 0
    line.part = 0
    line.field = NO_FIELD
    line.at = start
    line.offset = record.offset
    line.timestamp = record.timestamp
    line.append_time = record.append_time
    line.key = window.start + (record.key - window.data)
    line.key_size = record.key_size
    line.value = window.start + (record.value - window.data)
    line.value_size = record.value_size
    line.headers = window.start + (record.headers - window.data)
    line.headers_left = record.header_count
    format.begin(line, record)
    line.after = place[0]
    place.position = start


cdef Fault render_pieces(
    LongLine *line, const Format *format, const Window *window, Place *place, uint8_t **out,
    uint8_t *out_end, int64_t *skip, int64_t *needed,
) noexcept nogil:
    """Render a line from where it stands, until it ends or the output is full (NO_FAULT), or the
    window ends (NEEDS_MORE). Move the place to the next byte of the record that is needed, or
    behind the record.
    """
    cdef uint8_t buffer[PIECE_BEFORE + PIECE_ROOM]
    cdef uint8_t *text = buffer + PIECE_BEFORE
    cdef LongLine following
    cdef int64_t size, start, shown
    while line.left and out[0] < out_end:
        following = line[0]
        # The last parts of a line need no byte: the place stays inside of the record.
        place.position = min(line.at, line.after.position - 1)
        size = format.piece(&following, window, text)
        line.takes_long = size == TAKES_LONG
        if size == NEEDS_BYTES:
            needed[0] = following.needed
        if size == NEEDS_BYTES or size == TAKES_LONG:
            return NEEDS_MORE
        if size <= 0 or size - line.inside > line.left:
            # Other bytes than those that were measured.
            return BAD_RECORD_LENGTH
        start = line.inside
        shown = min(skip[0], size - start)
        skip[0] -= shown
        line.left -= shown
        start += shown
        shown = min(size - start, out_end - out[0])
        memcpy(out[0], text + start, shown)
        out[0] += shown
        line.left -= shown
        line.inside = start + shown
        if line.inside == size:
            following.left = line.left
            following.takes_long = False
            following.inside = 0
            line[0] = following
    if line.left:
        place.position = min(line.at, line.after.position - 1)
    else:
        place[0] = line.after
    return NO_FAULT


cdef Fault measure_loop(
    Measure measure, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil:
    """A `MeasureLoop` whose context is a Format."""
    cdef const Format *format = <const Format *> context
    cdef WholeRecord record
    cdef Place place = measure.place
    cdef int64_t text = measure.text_length
    cdef int64_t records = measure.records
    cdef int64_t next_entry = measure.next_entry
    cdef int64_t needed = 0
    cdef Entry *entry = entries
    cdef Fault fault
    while True:
        fault = next_record(window, &place, &measure.base, &record, &needed)
        if fault != NO_FAULT:
            break
        if text >= next_entry:
            if entry == entries + ENTRY_ROOM:
                # The next call reads this record again, with room for its entry.
                place.record_end = 0
                break
            set_entry(entry, &place, text, records)
            next_entry = text + measure.granularity
            entry += 1
        text += format.size(&record)
        records += 1
        leave_record(&place)
    set_place(&measure.place, &place)
    measure.text_length = text
    measure.records = records
    measure.next_entry = next_entry
    measure.needed = needed
    made[0] = <int> (entry - entries)
    return fault


cdef Loops whole_records(const Format *format):
    """Make the loops of a view. The caller keeps `format` alive."""
    return loops_of(render_loop, measure_loop, format)
