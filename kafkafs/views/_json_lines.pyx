"""Writes the text of the `jsonl` view: each record as one line of JSON without spaces.

    {"offset":5,"timestamp":1700000000000,"timestampType":"CreateTime","key":"k","value":"v",
     "headers":[["name","value"],["other",null]]}

The keys are in this order. The timestamp is in milliseconds, -1 if the record has none. Bytes that
are UTF-8 become a string, others {"base64":"…"} (`_json_text.pxd`), and null is null. A header's
name is bytes, too: Kafka's own clients write it as UTF-8, but a broker does not check that.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkafs.views._json_text cimport (
    bytes_size, integer_size, most_of, prepare, put, put_bytes, put_integer
)
from kafkafs.views._measure cimport Loops
from kafkafs.views._whole cimport Format, WholeRecord, whole_records
from storage.record._batch cimport read_varint

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


cdef Format FORMAT = Format(most_text, text_size, write_text)
LOOPS = whole_records(&FORMAT)
