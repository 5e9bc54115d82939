"""Inline functions that read records of every format as DumpLogSegments reads them.

Kafka's DefaultRecord and LegacyRecord define which records are well-formed. The functions read
nothing outside the bytes from `at` to `end`, or the `size` bytes from `message` on.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from storage.record._batch cimport (
    ATTRIBUTES, HORIZON_BIT, LEADER_EPOCH, PRODUCER_EPOCH, PRODUCER_ID, RECORDS_COUNT,
    TRANSACTIONAL_BIT, bounded_varint, load32, load64, read_varint, read_varlong, sum_of,
)


cdef enum:
    VARLONG = 10

    NO_TIMESTAMP_TYPE = 0
    CREATE_TIME = 1
    LOG_APPEND_TIME = 2


cdef struct Batch:
    # The fields of a batch, or of a wrapper, that its records need.
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_time
    int32_t base_sequence
    int timestamp_type
    bint is_control
    bint is_message


cdef struct Record:
    int64_t offset
    int64_t timestamp
    int32_t sequence
    int32_t key_size  # below 0: null
    int32_t value_size
    int32_t headers
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers_at
    # Set in formats v0 and v1 only.
    uint32_t crc
    bint is_valid


cdef inline int32_t later_sequence(int32_t sequence, int32_t by) noexcept:
    """Add to a sequence as DefaultRecordBatch.incrementSequence does, in Java's int arithmetic."""
    cdef int32_t limit = <int32_t> (<uint32_t> 0x7FFFFFFF - <uint32_t> by)
    if sequence > limit:
        return <int32_t> (<uint32_t> by - (<uint32_t> 0x7FFFFFFF - <uint32_t> sequence) - 1)
    return <int32_t> (<uint32_t> sequence + <uint32_t> by)


cdef inline const uint8_t *take_varint(
    const uint8_t *at, const uint8_t *end, int32_t *value
) noexcept:
    """Read a varint; return the byte after it, NULL if it does not end before `end`."""
    if at == NULL:
        return NULL
    return bounded_varint(at, end, value)


cdef inline const uint8_t *take_varlong(
    const uint8_t *at, const uint8_t *end, int64_t *value
) noexcept:
    cdef uint8_t pad[VARLONG]
    cdef const uint8_t *after
    if at == NULL or at >= end:
        return NULL
    if end - at >= VARLONG:
        return read_varlong(at, value)
    for i in range(VARLONG):
        pad[i] = at[i] if i < end - at else 0x80
    after = read_varlong(pad, value)
    if after == NULL:
        return NULL
    return at + (after - pad)


cdef inline const uint8_t *take_field(
    const uint8_t *at, const uint8_t *end, int32_t *size, const uint8_t **field
) noexcept:
    """Read a length and point `field` at its bytes; return the byte after them.

    A length below 0 is null. Returns NULL if the bytes reach beyond `end`.
    """
    at = take_varint(at, end, size)
    field[0] = at
    if at == NULL or size[0] <= 0:
        return at
    return at + size[0] if size[0] <= end - at else NULL


cdef inline const uint8_t *take_headers(
    const uint8_t *at, const uint8_t *end, int32_t count
) noexcept:
    cdef int32_t size = 0
    cdef const uint8_t *field
    while count > 0 and at != NULL:
        at = take_field(at, end, &size, &field)
        if at != NULL and size < 0:
            return NULL
        at = take_field(at, end, &size, &field)
        count -= 1
    return at


cdef inline const uint8_t *take_record(
    const uint8_t *at, const uint8_t *end, const Batch *batch, Record *record
) noexcept:
    """Read a record; return the byte after it, NULL if it is malformed (DefaultRecord.readFrom)."""
    cdef const uint8_t *start
    cdef int32_t size = 0
    cdef int32_t offset_delta = 0
    cdef int64_t timestamp_delta = 0
    at = take_varint(at, end, &size)
    if at == NULL or size < 1 or size > end - at:
        return NULL
    start = at
    at = take_varlong(at + 1, end, &timestamp_delta)
    at = take_varint(at, end, &offset_delta)
    at = take_field(at, end, &record.key_size, &record.key)
    at = take_field(at, end, &record.value_size, &record.value)
    at = take_varint(at, end, &record.headers)
    if at == NULL or record.headers < 0 or record.headers > end - at:
        return NULL
    record.headers_at = at
    if record.headers:
        at = take_headers(at, end, record.headers)
    if at == NULL or at - start != size:
        return NULL
    record.timestamp = sum_of(batch.base_timestamp, timestamp_delta)
    if batch.timestamp_type == LOG_APPEND_TIME:
        record.timestamp = batch.append_time
    record.offset = sum_of(batch.base_offset, offset_delta)
    record.sequence = -1
    if batch.base_sequence >= 0:
        record.sequence = later_sequence(batch.base_sequence, offset_delta)
    record.key_size = max(record.key_size, -1)
    record.value_size = max(record.value_size, -1)
    return at


cdef inline bint take_message(
    const uint8_t *message, int64_t size, const Batch *wrapper, Record *record
) noexcept:
    """Read a v0 or v1 message from its CRC on; False if its lengths do not fit in `size` bytes.

    The value may reach beyond them: as in LegacyRecord, the code that uses the value checks that.
    """
    cdef int64_t key_at = 6 if message[4] == 0 else 14
    cdef int64_t value_at
    if key_at + 4 > size:
        return False
    record.key_size = <int32_t> load32(message + key_at)
    record.key = message + key_at + 4
    value_at = key_at + 4 + max(record.key_size, 0)
    if value_at + 4 > size:
        return False
    record.value_size = <int32_t> load32(message + value_at)
    record.value = message + value_at + 4
    record.timestamp = -1
    if message[4] != 0:
        record.timestamp = <int64_t> load64(message + 6)
        if message[4] == 1 and wrapper.timestamp_type == LOG_APPEND_TIME:
            record.timestamp = wrapper.append_time
    record.sequence = -1
    record.headers = 0
    record.crc = load32(message)
    return True


cdef inline object slice_of(const uint8_t *at, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> at, size)


cdef inline dict header_row(
    const uint8_t *at, const Batch *batch, int64_t last_offset, int32_t last_sequence
):
    """The entries of a batch's row that only a v2 batch has."""
    cdef uint8_t attributes = at[ATTRIBUTES + 1]
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": last_offset,
        "count": <int32_t> load32(at + RECORDS_COUNT),
        "baseSequence": batch.base_sequence,
        "lastSequence": last_sequence,
        "producerId": <int64_t> load64(at + PRODUCER_ID),
        "producerEpoch": (<int32_t> load32(at + PRODUCER_EPOCH)) >> 16,
        "partitionLeaderEpoch": <int32_t> load32(at + LEADER_EPOCH),
        "isTransactional": attributes & TRANSACTIONAL_BIT != 0,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.base_timestamp if attributes & HORIZON_BIT else None,
    }


cdef inline dict record_row(const Batch *batch, const Record *record):
    cdef const uint8_t *at = record.headers_at
    cdef const uint8_t *name
    cdef int32_t name_size = 0
    cdef int32_t size = 0
    headers = []
    for _ in range(record.headers):
        at = read_varint(at, &name_size)
        name = at
        at = read_varint(at + name_size, &size)
        headers.append((slice_of(name, name_size), slice_of(at, size)))
        at += max(size, 0)
    found = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "keySize": record.key_size,
        "valueSize": record.value_size,
    }
    if batch.is_message:
        found.update(isValid=record.is_valid, crc=record.crc)
    else:
        found["sequence"] = record.sequence
    found["headers"] = headers
    found["key"] = slice_of(record.key, record.key_size)
    found["value"] = slice_of(record.value, record.value_size)
    return found
