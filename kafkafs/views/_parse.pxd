"""The functions that the views' parsers share: they make complete batches from lines.

A view adds one function, a `ParseLines`: it finds the fields of each line's record, and calls
`put_record` to write the record. `parse_by` begins and completes batches, keeps their limits, and
makes room in the output.

The functions that run for each line are inline.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcpy

from storage.record._write cimport (
    body_size, field_size, put_field, put_head, put_varint, record_size, varint_size
)


cdef enum:
    # The most bytes that a record takes beside its key, value and headers.
    RECORD_ROOM = 24


cdef enum Stop:
    DONE  # the line, or all lines, are parsed
    BATCH_FULL
    OUT_FULL
    SCRATCH_FULL
    WRONG_LINE
    FOREIGN_LINE  # only the view's slower parser can read the line


cdef struct LineRecord:
    # The record of a line.
    const uint8_t *key
    int64_t key_size  # below 0: null
    const uint8_t *value
    int64_t value_size  # below 0: null
    # A loop may read the bytes from a key or a value on up to here.
    const uint8_t *readable_end
    const uint8_t *headers  # in the record format, without their count
    int64_t headers_size
    int64_t header_count
    int64_t timestamp  # in ms; set only by views whose lines have one
    uint64_t timestamp_bits  # `zigzag_bits` of the timestamp delta


cdef struct Progress:
    # The position of a parsing in the input, the output, and the batch that grows. Loops work on a
    # copy of it.
    const uint8_t *line
    const uint8_t *newline  # the end of the line
    const uint8_t *input_end
    uint8_t *out
    uint8_t *out_end  # a loop may touch COPY_STEP bytes after it
    int64_t batch_room
    uint64_t offset_bits  # `zigzag_bits` of the next offset delta; twice the batch's records
    int64_t needed  # the bytes for which there was no room


cdef struct Parsing:
    Progress at
    # The timestamps of the batch that grows.
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t now_ms
    # Room for a line's unescaped fields.
    uint8_t *scratch
    int64_t scratch_size
    # With WRONG_LINE: what is wrong with the line, and at which byte.
    const char *reason
    const uint8_t *wrong
    # Whether `record` already has the record of the line.
    bint has_record


# Parses lines and writes their records until all are DONE, or until `parse_by` must act on one.
# `record` keeps its contents from one call to the next.
ctypedef Stop (*ParseLines)(Parsing *parsing, LineRecord *record) noexcept nogil

# Parses one line with the view's slower parser, a Python object, and sets `record`. Returns an
# object that owns the record's bytes. The ParseLines then writes the record.
ctypedef object (*ParseForeign)(object parser, Parsing *parsing, LineRecord *record)


cdef inline bint next_line(Progress *at) noexcept nogil:
    """Find the end of the line; False if there is no line left."""
    if at.line >= at.input_end:
        return False
    at.newline = <const uint8_t *> memchr(
        at.line, c"\n", at.input_end - at.line
    )
    if at.newline == NULL:  # another thread writes to the input meanwhile
        at.newline = at.input_end
    return True


cdef inline Stop put_record(Progress *at, const LineRecord *record) noexcept nogil:
    """Write the record of the line if there is room, and go to the next line."""
    cdef uint8_t *out = at.out
    cdef uint64_t count_bits = <uint64_t> record.header_count << 1
    cdef int64_t body = body_size(
        record.timestamp_bits, at.offset_bits,
        field_size(record.key_size) + field_size(record.value_size) + varint_size(count_bits)
        + record.headers_size,
    )
    at.needed = record_size(body)
    if at.needed > at.batch_room:
        return BATCH_FULL
    if at.needed > at.out_end - out:
        return OUT_FULL
    at.batch_room -= at.needed
    out = put_head(out, body, 0, record.timestamp_bits, at.offset_bits)
    out = put_field(out, record.key, record.key_size, record.readable_end - record.key)
    out = put_field(out, record.value, record.value_size, record.readable_end - record.value)
    out = put_varint(out, count_bits)
    if record.headers_size:
        memcpy(out, record.headers, record.headers_size)
        out += record.headers_size
    at.out = out
    at.offset_bits += 2
    at.line = at.newline + 1
    return DONE


cdef tuple parse_by(
    ParseLines parse, object data, int64_t start, int64_t end, int64_t timestamp_ms,
    int64_t max_batch_bytes, object begun, ParseForeign parse_foreign=*, object parser=*
)

cdef int need_scratch(Parsing *parsing, int64_t size) except -1
