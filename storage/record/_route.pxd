"""What everything shares that makes batches of records for the partitions that their keys name."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from storage.record._batch cimport (
    ATTRIBUTES, BASE_TIMESTAMP, BATCH_LENGTH, LAST_OFFSET_DELTA, LEADER_EPOCH, LOG_OVERHEAD, MAGIC,
    MAX_TIMESTAMP, PRODUCER_ID, RECORDS_COUNT, store32, store64,
)


cdef enum:
    SEED = <int> 0x9747B28C
    MULTIPLIER = 0x5BD1E995
    POSITIVE = 0x7FFFFFFF
    # Up to so many bytes are copied COPY_STEP bytes at a time, without a call.
    SHORT_COPY = 256
    COPY_STEP = 32


cdef inline uint32_t hash_of(const uint8_t *key, int64_t size) noexcept nogil:
    """Utils.murmur2 of Kafka's clients, its bits unsigned."""
    cdef uint32_t hash = <uint32_t> SEED ^ <uint32_t> size
    cdef uint32_t word
    cdef int64_t left = size
    while left >= 4:
        word = (
            <uint32_t> key[0]
            | <uint32_t> key[1] << 8
            | <uint32_t> key[2] << 16
            | <uint32_t> key[3] << 24
        )
        word *= MULTIPLIER
        word ^= word >> 24
        word *= MULTIPLIER
        hash *= MULTIPLIER
        hash ^= word
        key += 4
        left -= 4
    if left >= 3:
        hash ^= <uint32_t> key[2] << 16
    if left >= 2:
        hash ^= <uint32_t> key[1] << 8
    if left >= 1:
        hash ^= <uint32_t> key[0]
        hash *= MULTIPLIER
    hash ^= hash >> 13
    hash *= MULTIPLIER
    hash ^= hash >> 15
    return hash


cdef inline void copy_bytes(
    uint8_t *out, const uint8_t *start, int64_t size, int64_t readable_bytes
) noexcept nogil:
    """Copy `size` bytes; `out` has room for COPY_STEP more, and `readable_bytes` are at `start`."""
    cdef int64_t at = 0
    if size <= SHORT_COPY and size + COPY_STEP <= readable_bytes:
        while at < size:
            memcpy(out + at, start + at, COPY_STEP)
            at += COPY_STEP
    else:
        memcpy(out, start, size)


cdef inline void put_header(
    uint8_t *batch, int64_t size, int64_t records, int64_t base_timestamp, int64_t max_timestamp
) noexcept nogil:
    """Write the header of a batch of `size` bytes without a producer, but for its CRC."""
    store64(batch, 0)
    store32(batch + BATCH_LENGTH, <uint32_t> (size - LOG_OVERHEAD))
    store32(batch + LEADER_EPOCH, 0)
    batch[MAGIC] = 2
    batch[ATTRIBUTES] = 0
    batch[ATTRIBUTES + 1] = 0
    store32(batch + LAST_OFFSET_DELTA, <uint32_t> (records - 1))
    store64(batch + BASE_TIMESTAMP, <uint64_t> base_timestamp)
    store64(batch + MAX_TIMESTAMP, <uint64_t> max_timestamp)
    # No producer: id, epoch and sequence are -1.
    memset(batch + PRODUCER_ID, 0xFF, RECORDS_COUNT - PRODUCER_ID)
    store32(batch + RECORDS_COUNT, <uint32_t> records)
