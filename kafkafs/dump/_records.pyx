"""Records of every format, as DumpLogSegments reads them: what is well-formed and what is not is as
DefaultRecord and LegacyRecord have it.

Nothing outside the bytes from `at` to `end`, or from `message` on, is read.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from storage.record._batch cimport (
    ATTRIBUTES, LEADER_EPOCH, PRODUCER_EPOCH, PRODUCER_ID, RECORDS_COUNT, TRANSACTIONAL_BIT,
    bounded_varint, load32, load64, read_varint, read_varlong,
)


cdef enum:
    VARLONG = 10


cdef int32_t later_sequence(int32_t sequence, int32_t by) noexcept:
    """DefaultRecordBatch.incrementSequence, in Java's int arithmetic."""
    cdef int32_t limit = <int32_t> (<uint32_t> 0x7FFFFFFF - <uint32_t> by)
    if sequence > limit:
        return <int32_t> (<uint32_t> by - (<uint32_t> 0x7FFFFFFF - <uint32_t> sequence) - 1)
    return <int32_t> (<uint32_t> sequence + <uint32_t> by)


cdef inline const uint8_t *take_varint(
    const uint8_t *at, const uint8_t *end, int32_t *value
) noexcept:
    """The byte after a varint, NULL where it has no end before `end`."""
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
    """The byte after a length and so many bytes, which `field` points to; below 0: null."""
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


cdef const uint8_t *take_record(
    const uint8_t *at, const uint8_t *end, const Batch *batch, Fields *fields
) noexcept:
    """The byte after a record, NULL where it is malformed (DefaultRecord.readFrom)."""
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
    at = take_field(at, end, &fields.key_size, &fields.key)
    at = take_field(at, end, &fields.value_size, &fields.value)
    at = take_varint(at, end, &fields.headers)
    if at == NULL or fields.headers < 0 or fields.headers > end - at:
        return NULL
    fields.headers_at = at
    if fields.headers:
        at = take_headers(at, end, fields.headers)
    if at == NULL or at - start != size:
        return NULL
    fields.timestamp = <int64_t> (<uint64_t> batch.base_timestamp + <uint64_t> timestamp_delta)
    if batch.timestamp_type == LOG_APPEND_TIME:
        fields.timestamp = batch.append_time
    fields.offset = <int64_t> (<uint64_t> batch.base_offset + <uint64_t> <int64_t> offset_delta)
    fields.sequence = -1
    if batch.base_sequence >= 0:
        fields.sequence = later_sequence(batch.base_sequence, offset_delta)
    fields.key_size = max(fields.key_size, -1)
    fields.value_size = max(fields.value_size, -1)
    return at


cdef bint take_message(
    const uint8_t *message, int64_t size, const Batch *wrapper, Fields *fields
) noexcept:
    """Read a v0 or v1 message from its CRC on; False where its lengths do not fit.

    The value itself may lie outside: that is seen only where it is used (LegacyRecord).
    """
    cdef int64_t key_at = 6 if message[4] == 0 else 14
    cdef int64_t value_at
    if key_at + 4 > size:
        return False
    fields.key_size = <int32_t> load32(message + key_at)
    fields.key = message + key_at + 4
    value_at = key_at + 4 + max(fields.key_size, 0)
    if value_at + 4 > size:
        return False
    fields.value_size = <int32_t> load32(message + value_at)
    fields.value = message + value_at + 4
    fields.timestamp = -1
    if message[4] != 0:
        fields.timestamp = <int64_t> load64(message + 6)
        if message[4] == 1 and wrapper.timestamp_type == LOG_APPEND_TIME:
            fields.timestamp = wrapper.append_time
    fields.sequence = -1
    fields.headers = 0
    fields.crc = load32(message)
    return True


cdef object slice_of(const uint8_t *at, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *> at, size)


cdef object header_row(
    const uint8_t *at, const Batch *batch, int64_t last_offset, int32_t last_sequence
):
    """What only a v2 batch has."""
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
        "deleteHorizonMs": batch.base_timestamp if attributes & DELETE_HORIZON_BIT else None,
    }


cdef object row(const Batch *batch, const Fields *fields):
    cdef const uint8_t *at = fields.headers_at
    cdef const uint8_t *name
    cdef int32_t name_size = 0
    cdef int32_t size = 0
    headers = []
    for _ in range(fields.headers):
        at = read_varint(at, &name_size)
        name = at
        at = read_varint(at + name_size, &size)
        headers.append((slice_of(name, name_size), slice_of(at, size)))
        at += max(size, 0)
    found = {
        "offset": fields.offset,
        "timestamp": fields.timestamp,
        "keySize": fields.key_size,
        "valueSize": fields.value_size,
    }
    if batch.is_message:
        found.update(isValid=fields.is_valid, crc=fields.crc)
    else:
        found["sequence"] = fields.sequence
    found["headers"] = headers
    found["key"] = slice_of(fields.key, fields.key_size)
    found["value"] = slice_of(fields.value, fields.value_size)
    return found
