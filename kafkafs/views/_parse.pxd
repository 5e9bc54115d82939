"""What the views' parsers share: the way from lines to finished batches.

A view's own is one function, `ParseLines`: it finds in each line what a record has, and has
`put_record` write the record. `parse_by` sees to the batches, their limits and the output's room.

All that runs for each line is inline.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcpy

from storage.record._write cimport (
    body_size, field_size, put_field, put_head, put_varint, record_size, varint_size
)


cdef enum:
    # What a record takes beside its key and value, at most.
    RECORD_ROOM = 24


cdef enum Stop:
    DONE  # with the line, or with all lines
    BATCH_FULL
    OUT_FULL
    SCRATCH_FULL
    WRONG_LINE
    FOREIGN_LINE  # one that the view's slower parser has to take


cdef struct LineRecord:
    # The record that a line is.
    const uint8_t *key
    int64_t key_size  # below 0: null
    const uint8_t *value
    int64_t value_size  # below 0: null
    # The bytes from a key or a value on that may be read lie before this.
    const uint8_t *readable_end
    const uint8_t *headers  # as they are stored, without their count
    int64_t headers_size
    int64_t header_count
    int64_t timestamp  # where lines have one
    uint64_t timestamp_bits  # of the delta to the batch's; see `zigzag_bits`


cdef struct Progress:
    # How far a parsing is in the input, the output, and the batch that grows. Loops copy it.
    const uint8_t *line
    const uint8_t *newline  # of the line
    const uint8_t *input_end
    uint8_t *out
    uint8_t *out_end  # COPY_STEP bytes more may be touched
    int64_t batch_room
    uint64_t offset_bits  # of the next record's offset delta; twice the records of the batch
    int64_t needed  # the bytes for which there was no room


cdef struct Parsing:
    Progress at
    # Of the batch that grows.
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t now_ms
    # Room for what a line's escapes stand for.
    uint8_t *scratch
    int64_t scratch_size
    # What is wrong with the line, and from where on.
    const char *reason
    const uint8_t *wrong
    # Whether the record of the line is known already.
    bint has_record


# Writes the records of lines until all are DONE or one has to wait. `record` may be kept from one
# call to the next.
ctypedef Stop (*ParseLines)(Parsing *parsing, LineRecord *record) noexcept nogil

# Has the view's slower parser, an object of Python's, find what the record of the line has; what
# keeps the record's bytes. The ParseLines then writes the record.
ctypedef object (*ParseForeign)(object parser, Parsing *parsing, LineRecord *record)


cdef inline bint next_line(Progress *at) noexcept nogil:
    """Find the end of the line; False: there is no line left."""
    if at.line >= at.input_end:
        return False
    at.newline = <const uint8_t *> memchr(
        at.line, c"\n", at.input_end - at.line
    )
    if at.newline == NULL:  # someone writes to the input while it is read
        at.newline = at.input_end
    return True


cdef inline Stop put_record(Progress *at, const LineRecord *record) noexcept nogil:
    """Write the record of the line, and go to the next line."""
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
    int64_t max_batch_bytes, ParseForeign parse_foreign=*, object parser=*
)

cdef int need_scratch(Parsing *parsing, int64_t size) except -1
