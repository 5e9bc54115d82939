"""Writes a batch anew from the records of it that stay (MemoryRecords.buildRetainedRecordsInto).

Without the GIL, on plain pointers. The records were read before: their heads are sound.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, HEADER_SIZE, HORIZON_BIT,
    LAST_OFFSET_DELTA, LOG_OVERHEAD, MAX_TIMESTAMP, RECORDS_COUNT, last_offset_of, load64,
    read_varint, read_varlong, store32, store64,
)
from storage.record._write cimport LARGEST_BATCH, body_size, difference, put_head, seal, zigzag_bits


cdef inline int64_t sum_of(int64_t one, int64_t other) noexcept nogil:
    """Wraps as Java's long does."""
    return <int64_t> (<uint64_t> one + <uint64_t> other)


cdef inline uint8_t *put_record(
    uint8_t *out, const Kept *kept, int64_t timestamp_delta, int64_t offset_delta
) noexcept nogil:
    """Copy a record, with these deltas instead of its own; the byte after it."""
    cdef const uint8_t *at
    cdef int32_t length = 0
    cdef int32_t old_offset_delta = 0
    cdef int64_t old_delta = 0
    cdef int64_t rest
    cdef uint64_t timestamp_bits
    cdef uint64_t offset_bits
    cdef uint8_t attributes
    at = read_varint(kept.at, &length)
    attributes = at[0]
    at = read_varlong(at + 1, &old_delta)
    at = read_varint(at, &old_offset_delta)
    if timestamp_delta == old_delta and offset_delta == old_offset_delta:
        memcpy(out, kept.at, kept.size)
        return out + kept.size
    rest = kept.at + kept.size - at
    timestamp_bits = zigzag_bits(timestamp_delta)
    offset_bits = zigzag_bits(offset_delta)
    out = put_head(
        out, body_size(timestamp_bits, offset_bits, rest), attributes, timestamp_bits, offset_bits
    )
    memcpy(out, at, rest)
    return out + rest


cdef int64_t rewrite(
    const uint8_t *batch,
    const Choice *choice,
    const Kept *kept,
    bint legacy,
    int64_t horizon_ms,
    uint8_t *out,
) noexcept nogil:
    """Write a batch of the records that stay; its size, or 0 where no batch is so large.

    MemoryRecords.buildRetainedRecordsInto.
    """
    cdef uint8_t attributes = batch[ATTRIBUTES + 1]
    cdef int64_t base_offset = <int64_t> load64(batch + BASE_OFFSET)
    cdef int64_t last_offset = last_offset_of(batch)
    cdef int64_t old_base = <int64_t> load64(batch + BASE_TIMESTAMP)
    cdef int64_t old_max = <int64_t> load64(batch + MAX_TIMESTAMP)
    cdef int64_t new_base = old_base
    cdef int64_t new_max = old_max
    cdef int64_t timestamp
    cdef int64_t i
    cdef uint8_t *at = out + HEADER_SIZE
    if legacy:
        base_offset = last_offset = kept[0].offset
    if attributes & HORIZON_BIT == 0 and choice.tombstones:
        attributes |= HORIZON_BIT
        new_base = horizon_ms
    if attributes & HORIZON_BIT == 0:
        new_base = sum_of(old_base, kept[0].timestamp_delta)
        if attributes & APPEND_TIME_BIT:
            new_base = old_max
    for i in range(choice.kept):
        if attributes & APPEND_TIME_BIT:
            timestamp = old_max
        else:
            timestamp = sum_of(old_base, kept[i].timestamp_delta)
            new_max = timestamp if i == 0 else max(new_max, timestamp)
        if legacy:
            last_offset = max(last_offset, kept[i].offset)
        at = put_record(
            at, kept + i, difference(timestamp, new_base), kept[i].offset - base_offset
        )
    if at - out > <int64_t> LARGEST_BATCH + LOG_OVERHEAD:
        return 0
    memcpy(out, batch, HEADER_SIZE)
    store64(out + BASE_OFFSET, <uint64_t> base_offset)
    out[ATTRIBUTES + 1] = attributes
    store32(out + LAST_OFFSET_DELTA, <uint32_t> (last_offset - base_offset))
    store64(out + BASE_TIMESTAMP, <uint64_t> new_base)
    store64(out + MAX_TIMESTAMP, <uint64_t> new_max)
    store32(out + RECORDS_COUNT, <uint32_t> choice.kept)
    seal(out, at - out)
    return at - out
