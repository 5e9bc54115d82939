"""Records of every format, as DumpLogSegments reads them (`_records.pyx`)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef enum:
    DELETE_HORIZON_BIT = 0x40

    NO_TIMESTAMP_TYPE = 0
    CREATE_TIME = 1
    LOG_APPEND_TIME = 2


cdef struct Batch:
    # What a batch's records, or a wrapper's messages, need of it.
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_time
    int32_t base_sequence
    int timestamp_type
    bint is_control
    bint is_message


cdef struct Fields:
    int64_t offset
    int64_t timestamp
    int32_t sequence
    int32_t key_size  # below 0: null
    int32_t value_size
    int32_t headers
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers_at
    # Of formats v0 and v1 only.
    uint32_t crc
    bint is_valid


cdef int32_t later_sequence(int32_t sequence, int32_t by) noexcept

cdef const uint8_t *take_record(
    const uint8_t *at, const uint8_t *end, const Batch *batch, Fields *fields
) noexcept

cdef bint take_message(
    const uint8_t *message, int64_t size, const Batch *wrapper, Fields *fields
) noexcept

cdef object slice_of(const uint8_t *at, int32_t size)

cdef object header_row(
    const uint8_t *at, const Batch *batch, int64_t last_offset, int32_t last_sequence
)

cdef object row(const Batch *batch, const Fields *fields)
