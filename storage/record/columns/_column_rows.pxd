"""Adds the records of a batch to columns, in Arrow's layout (`_columns.pyx`). Inline."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BAD_HEADERS, BAD_RECORDS_COUNT, BASE_OFFSET, BASE_TIMESTAMP,
    HEADER_SIZE, MAX_TIMESTAMP, NO_FAULT, RECORDS_COUNT, Fault, Fields, RecordHead, headers_fill,
    load32, load64, read_fields, read_head,
)
from storage.record.columns._header_column cimport (
    ADDED, MALFORMED, NAMES_TOO_LONG, Headers, Outcome, put_headers,
)

cdef enum:
    # More milliseconds are too many microseconds for an i64.
    LATEST_MS = 9223372036854775


cdef enum:
    # Faults beside those of `Fault`.
    WRONG_CRC = 100
    LATE_TIMESTAMP
    LONG_NAMES
    OUT_OF_MEMORY
    OUT_OF_ORDER


cdef struct Bytes:
    # A column of bytes; `positions` is NULL where it is not wanted.
    int32_t *positions
    uint8_t *block
    uint8_t *validity
    int64_t used
    int64_t nulls


cdef struct Span:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset


cdef struct Rows:
    int64_t count
    int64_t room
    int64_t from_offset
    int64_t to_offset
    bint stops  # at to_offset
    bint check_crc
    bint in_us  # timestamps
    int64_t *offsets  # NULL: not wanted, as the next two
    int64_t *timestamps
    int32_t *types
    bint without_times  # the batches come from a format that has no timestamps
    Bytes keys
    Bytes values
    Headers headers
    const Span *aborted  # in rising order
    int64_t aborted_count
    int64_t refused_offset  # the record that a fault is about, for some faults
    int64_t refused_timestamp


cdef inline void put(Bytes *column, int64_t row, const uint8_t *start, int32_t length) noexcept nogil:
    """Add a row; `length` -1 is null."""
    if column.positions == NULL:
        return
    if length >= 0:
        memcpy(column.block + column.used, start, length)
        column.used += length
        column.validity[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        column.nulls += 1
    column.positions[row + 1] = <int32_t> column.used


cdef inline Fault add_batch(Rows *rows, const uint8_t *batch, int64_t size) noexcept nogil:
    """Add the records of a whole batch whose header has been judged."""
    cdef uint64_t base_offset = load64(batch + BASE_OFFSET)
    cdef uint64_t base_timestamp = load64(batch + BASE_TIMESTAMP)
    cdef bint append_time = batch[ATTRIBUTES + 1] & APPEND_TIME_BIT
    cdef int64_t append_timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
    cdef int32_t count = <int32_t> load32(batch + RECORDS_COUNT)
    cdef const uint8_t *at = batch + HEADER_SIZE
    cdef const uint8_t *end = batch + size
    cdef RecordHead head
    cdef Fields fields
    cdef int64_t offset
    cdef int64_t timestamp
    cdef int32_t number
    cdef int64_t row = rows.count
    cdef int32_t type_
    cdef bint wanted
    cdef Fault fault
    if count > rows.room - rows.count:
        return BAD_RECORDS_COUNT
    for number in range(count):
        fault = read_head(at, end - at, end - at, &head)
        if fault == NO_FAULT:
            fault = read_fields(at, &head, &fields)
        if fault != NO_FAULT:
            return fault
        at = fields.end
        offset = <int64_t> (base_offset + <uint64_t> <int64_t> head.offset_delta)
        wanted = rows.from_offset <= offset < rows.to_offset
        if wanted and rows.headers.positions != NULL:
            fault = add_headers(rows, fields.headers, fields.end)
            if fault != NO_FAULT:
                return fault
        elif not headers_fill(fields.headers, fields.end):
            return BAD_HEADERS
        if wanted:
            if rows.offsets != NULL:
                rows.offsets[rows.count] = offset
            if rows.timestamps != NULL:
                timestamp = (
                    append_timestamp if append_time
                    else <int64_t> (base_timestamp + <uint64_t> head.timestamp_delta)
                )
                if rows.in_us:
                    if timestamp > <int64_t> LATEST_MS or timestamp < -<int64_t> LATEST_MS:
                        rows.refused_offset = offset
                        rows.refused_timestamp = timestamp
                        return <Fault> LATE_TIMESTAMP
                    timestamp *= 1000
                rows.timestamps[rows.count] = timestamp
            put(&rows.keys, rows.count, fields.key, head.key_length)
            put(&rows.values, rows.count, fields.value, fields.value_length)
            rows.count += 1
    if at != end:
        return BAD_RECORDS_COUNT
    if rows.types != NULL:
        type_ = -1 if rows.without_times else 1 if append_time else 0
        for row in range(row, rows.count):
            rows.types[row] = type_
    return NO_FAULT


cdef inline Fault add_headers(Rows *rows, const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef Outcome outcome = put_headers(&rows.headers, rows.count, at, end)
    if outcome == ADDED:
        return NO_FAULT
    if outcome == MALFORMED:
        return BAD_HEADERS
    return <Fault> (LONG_NAMES if outcome == NAMES_TOO_LONG else OUT_OF_MEMORY)
