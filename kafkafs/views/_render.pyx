"""The hot loops of the `values` view: they render log bytes as text, and measure that text.

The text of a record is its value's bytes and a newline; a null value is an empty line. Control
batches show nothing. `_measure.pyx` explains windows and cursors, and before which batches a loop
stops.

A window must have a record's head (26 bytes, or fewer if the batch ends earlier), and 5 bytes of
the value's length. A value may come in pieces. The loops skip keys and headers, which need not be
in the window. So a window of 64 bytes from the cursor's position always makes progress, unless the
log ends within a batch.

The loops ignore a record's attributes, deltas and headers, and a batch's CRC and record count: they
go through a batch to its end.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kafkafs.views._measure cimport (
    ENTRY_ROOM, Cursor, Entry, Loops, Measure, loops_of, set_entry, set_place
)
from storage.record._batch cimport (
    NEEDS_MORE, NO_FAULT, WINDOW, Fault, Place, PlainRecord, Window, at_position, enter_batches,
    enter_record, enter_value, leave_record, plain_record,
)

cdef enum:
    # A loop copies values up to SHORT_VALUE bytes without a call if it may touch SLACK more bytes.
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
    """Render records that `plain_record` reads, from `place` on, while there is ample room.

    Returns the bytes of text. `render_loop` takes all other records, well-formed or not.
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


cdef Fault render_loop(
    Cursor cursor, const Window *window, uint8_t **out_position, uint8_t *out_end, int64_t *skip,
    const void *context,
) except? NO_FAULT nogil:
    """The view's `RenderLoop`; it returns NEEDS_MORE also if the output is full."""
    cdef Place place = cursor.place
    cdef int64_t value_left = cursor.value_left
    cdef int64_t skipping = skip[0]
    cdef uint8_t *out = out_position[0]
    cdef int64_t size
    cdef Fault fault = NO_FAULT
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
    set_place(&cursor.place, &place)
    cursor.value_left = value_left if place.record_end else -1
    out_position[0] = out
    skip[0] = skipping
    return fault if fault != NO_FAULT else NEEDS_MORE


cdef int64_t count_plain(
    const Window *window, Place *place, int64_t *text, int64_t next_entry
) noexcept nogil:
    """Measure records that `plain_record` reads until `text` reaches `next_entry`.

    Returns how many records it measured.
    """
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


cdef Fault measure_loop(
    Measure measure, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil:
    """The view's `MeasureLoop`."""
    cdef Place place = measure.place
    cdef int64_t text = measure.text_length
    cdef int64_t records = measure.records
    cdef int64_t next_entry = measure.next_entry
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
                next_entry = text + measure.granularity
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
    set_place(&measure.place, &place)
    measure.text_length = text
    measure.records = records
    measure.next_entry = next_entry
    made[0] = <int> (entry - entries)
    return fault


LOOPS = loops_of(render_loop, measure_loop, NULL)
