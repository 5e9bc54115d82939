"""The `jsonl` view's way out: a record as one line of JSON, keys in fixed order, no spaces.

    {"offset":5,"timestamp":1700000000000,"timestampType":"CreateTime","key":"k","value":"v",
     "headers":[["name","value"],["other",null]]}

The timestamp is in milliseconds, -1 where there is none. Bytes are strings where they are UTF-8,
else {"base64":"…"} (`_json_text.pxd`); null is null. A header's name is bytes too: Kafka's own
clients write it as UTF-8, but nobody checks that.
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
    # The text of a record without its numbers, bytes and headers, with the shorter name of the
    # type of its timestamp; how much longer the other one is; two numbers at most.
    FRAME = 10 + 13 + 36 + 9 + 12 + 3
    LONGER_TYPE = 3
    NUMBERS = 40


cdef int64_t most_text(const WholeRecord *record) noexcept nogil:
    # A header has brackets and commas, and its name and value may be null or no text.
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
        # Brackets and a comma each, and a comma between two of them.
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
