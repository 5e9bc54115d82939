"""Writes the text of the `jsonl` view: each record as one line of JSON without spaces.

    {"offset":5,"timestamp":1700000000000,"timestampType":"CreateTime","key":"k","value":"v",
     "headers":[["name","value"],["other",null]]}

The keys are in this order. The timestamp is in milliseconds, -1 if the record has none. Bytes that
are UTF-8 become a string, others {"base64":"…"} (`_json_text.pxd`), and null is null. A header's
name is bytes, too: Kafka's own clients write it as UTF-8, but a broker does not check that.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkafs.views._json_text cimport (
    bytes_size, integer_size, is_utf8, most_of, prepare, put, put_base64, put_bytes, put_integer,
    put_string
)
from kafkafs.views._measure cimport Loops, LongLine
from kafkafs.views._whole cimport (
    CHANGED, LONG_RECORD, NEEDS_BYTES, NO_FIELD, NULL_FIELD, TAKES_LONG, UNKNOWN_FIELD, Format,
    WholeRecord, bytes_at_hand, enter_field, whole_records
)
from storage.record._batch cimport Window, at_position, bounded_varint, read_varint

prepare()

cdef enum:
    # FRAME: the length of a record's text without its numbers, bytes and headers, with the shorter
    # name of a timestamp type. LONGER_TYPE: how much longer the other name is. NUMBERS: the most
    # bytes that the two numbers take.
    FRAME = 10 + 13 + 36 + 9 + 12 + 3
    LONGER_TYPE = 3
    NUMBERS = 40


cdef int64_t most_text(const WholeRecord *record) noexcept nogil:
    # A header adds brackets and commas, and at most the fixed part of two fields (`most_of`).
    return (
        FRAME + LONGER_TYPE + NUMBERS + most_of(record.key_size) + most_of(record.value_size)
        + most_of(record.headers_size) + (4 + 2 * most_of(0)) * <int64_t> record.header_count
    )


cdef int64_t text_size(const WholeRecord *record) noexcept nogil:
    cdef int64_t text = FRAME + integer_size(record.offset) + integer_size(record.timestamp)
    cdef const uint8_t *end = record.readable_end
    cdef const uint8_t *at = record.headers
    cdef int32_t left = record.header_count
    cdef int32_t length = 0
    if record.append_time:
        text += LONGER_TYPE
    text += bytes_size(record.key, record.key_size, end)
    text += bytes_size(record.value, record.value_size, end)
    if left:
        # Each header adds two brackets and a comma, and a comma stands between two headers.
        text += 4 * <int64_t> left - 1
    while left:
        at = read_varint(at, &length)
        text += bytes_size(at, length, end)
        at = read_varint(at + length, &length)
        text += bytes_size(at, length, end)
        at += max(length, 0)
        left -= 1
    return text


cdef uint8_t *write_text(const WholeRecord *record, uint8_t *out) noexcept nogil:
    cdef const uint8_t *end = record.readable_end
    cdef const uint8_t *at = record.headers
    cdef int32_t left = record.header_count
    cdef int32_t length = 0
    out = put_integer(put(out, b'{"offset":'), record.offset)
    out = put_integer(put(out, b',"timestamp":'), record.timestamp)
    if record.append_time:
        out = put(out, b',"timestampType":"LogAppendTime","key":')
    else:
        out = put(out, b',"timestampType":"CreateTime","key":')
    out = put(put_bytes(out, record.key, record.key_size, end), b',"value":')
    out = put(put_bytes(out, record.value, record.value_size, end), b',"headers":[')
    while left:
        at = read_varint(at, &length)
        out = put_bytes(put(out, b"["), at, length, end)
        at = read_varint(at + length, &length)
        out = put_bytes(put(out, b","), at, length, end)
        at += max(length, 0)
        left -= 1
        out = put(out, b"],") if left else put(out, b"]")
    return put(out, b"]}\n")


# -- lines in pieces -----------------------------------------------------------------------------

cdef enum:
    # How a field of bytes is written: its opening comes next, or its bytes.
    OPEN_STRING = 16
    STRING
    OPEN_BASE64
    BASE64
    # Bytes before and behind the digits that `put_base64` writes.
    BEFORE_BASE64 = 11
    BEHIND_BASE64 = 2


cdef int written_as(const uint8_t *at, int64_t size) noexcept nogil:
    return OPEN_STRING if is_utf8(at, size) else OPEN_BASE64


cdef void begin_line(LongLine *line, const WholeRecord *record) noexcept nogil:
    line.key_as = written_as(record.key, record.key_size)
    line.value_as = written_as(record.value, record.value_size)


cdef int64_t next_piece(LongLine *line, const Window *window, uint8_t *text) noexcept nogil:
    """The parts are: up to the key, the value's name, the headers' name; for each header the name,
    the value, its end; the end of the line.
    """
    cdef uint8_t *out = text
    cdef int32_t length = 0
    cdef int64_t size
    if line.field != NO_FIELD:
        return field_piece(line, window, text)
    if line.part == 0:
        out = put_integer(put(out, b'{"offset":'), line.offset)
        out = put_integer(put(out, b',"timestamp":'), line.timestamp)
        if line.append_time:
            out = put(out, b',"timestampType":"LogAppendTime","key":')
        else:
            out = put(out, b',"timestampType":"CreateTime","key":')
        enter_field(line, line.key, line.key_size, line.key_as)
    elif line.part == 1:
        out = put(out, b',"value":')
        enter_field(line, line.value, line.value_size, line.value_as)
    elif line.part == 2:
        out = put(out, b',"headers":[')
        line.at = line.headers
    elif line.part == 3 and line.headers_left == 0:
        out = put(out, b"]}\n")
        line.part = 5
    elif line.part == 3 or line.part == 4:
        size = take_length(line, window, &length)
        if size < 0:
            return size
        enter_field(line, line.at + size, length, UNKNOWN_FIELD)
        out = put(out, b"[" if line.part == 3 else b",")
    elif line.part == 5:
        line.headers_left -= 1
        out = put(out, b"],") if line.headers_left else put(out, b"]")
        line.part = 2
    line.part += 1
    return out - text


cdef int64_t take_length(
    LongLine *line, const Window *window, int32_t *length
) noexcept nogil:
    """Read the length of a header's name or value. Return how many bytes the length has."""
    cdef int64_t end = min(window.end, line.after.position)
    cdef const uint8_t *at
    cdef const uint8_t *after
    line.needed = min(line.after.position - line.at, <int64_t> 5)
    if end - line.at < line.needed:
        return NEEDS_BYTES
    at = at_position(window, line.at)
    after = bounded_varint(at, at + (end - line.at), length)
    if (
        after == NULL
        or length[0] < -1
        or length[0] > line.after.position - line.at - (after - at)
    ):
        return CHANGED
    return after - at


cdef int64_t field_piece(LongLine *line, const Window *window, uint8_t *text) noexcept nogil:
    """The next piece of a key, a value, or a header's name or value."""
    cdef const uint8_t *window_end = window.data + (window.end - window.start)
    cdef const uint8_t *at = at_position(window, line.at)
    cdef uint8_t *out
    cdef int64_t size = line.field_end - line.at
    if line.field == NULL_FIELD:
        line.field = NO_FIELD
        return put(text, b"null") - text
    if line.field == UNKNOWN_FIELD:
        if size > LONG_RECORD and line.at_once:
            return TAKES_LONG
        if window.end < line.field_end:
            line.needed = size
            return NEEDS_BYTES
        line.field = written_as(at, size)
    if line.field == OPEN_STRING:
        line.field = STRING
        return put(text, b'"') - text
    if line.field == OPEN_BASE64:
        line.field = BASE64
        return put(text, b'{"base64":"') - text
    size = bytes_at_hand(line, window)
    if size < 0:
        return size
    if size == 0:
        out = put(text, b'"') if line.field == STRING else put(text, b'"}')
        line.field = NO_FIELD
        return out - text
    if line.field == BASE64:
        line.at += size
        out = put_base64(text - BEFORE_BASE64, at, size, window_end)
        return out - BEHIND_BASE64 - text
    if line.at + size < line.field_end:
        # No piece ends inside a character.
        while size and at[size] & 0xC0 == 0x80:
            size -= 1
    out = put_string(text - 1, at, size, window_end)
    if out == NULL or size == 0:
        return CHANGED
    line.at += size
    return out - 1 - text


cdef Format FORMAT = Format(most_text, text_size, write_text, begin_line, next_piece)
LOOPS = whole_records(&FORMAT)
