"""Inline functions that check batches for compaction and read their records, some at a time.

They are inline because loops call them for each batch, and many batches have one record. They run
without the GIL on plain pointers, and read nothing outside a batch, whatever its header says.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport realloc

from storage.compaction._offset_map cimport Hash, OffsetMap, hash_key, prefetch
from storage.record._batch cimport (
    ATTRIBUTES, BAD_BATCH_LENGTH, BAD_HEADERS, BAD_MAGIC, BAD_OFFSETS, BAD_RECORDS_COUNT,
    BASE_OFFSET, CODEC_BITS, CONTROL_BIT, CRC, ENCODED, HEADER_SIZE, LAST_OFFSET, LAST_OFFSET_DELTA,
    MAGIC, NO_FAULT, RECORDS_COUNT, SMALLEST_RECORD, Fault, Fields, RecordHead, crc_of,
    headers_fill, judge_batch, load32, load64, read_fields, read_head, size_of,
)


cdef enum:
    KEYS = 64  # how many records `read_some` reads, and hashes the keys of, at a time


cdef struct Records:
    # The records of a batch that are still to be read.
    const uint8_t *at
    const uint8_t *end
    int64_t left
    int64_t base_offset
    int64_t last_offset


cdef struct Seen:
    Hash hash  # set only if `looked_up`
    const uint8_t *at
    int64_t size
    int64_t offset
    int64_t timestamp_delta
    bint has_key
    bint has_value
    bint looked_up


cdef inline bint have_room(
    void **items, int64_t *room, int64_t wanted, size_t size
) noexcept nogil:
    """Make room for `wanted` items of `size` bytes each; False if there is no memory for it."""
    cdef int64_t more
    cdef void *moved
    if wanted <= room[0]:
        return True
    more = max(wanted, 2 * room[0], <int64_t> 64)
    moved = realloc(items[0], more * size)
    if moved == NULL:
        return False
    items[0] = moved
    room[0] = more
    return True


cdef inline int64_t records_of(const uint8_t *batch, int64_t size) noexcept nogil:
    """The record count in a batch's header, or the most records that fit if that is less."""
    cdef int64_t count = <int32_t> load32(batch + RECORDS_COUNT)
    return max(min(count, (size - HEADER_SIZE) // SMALLEST_RECORD), 0)


cdef inline int64_t simple_size(const uint8_t *batch, int64_t room) noexcept nogil:
    """The batch's size if it is simple, whole in the `room` bytes and has a right CRC; else 0."""
    cdef int64_t size
    if room < HEADER_SIZE or judge_batch(batch) != NO_FAULT:
        return 0
    size = size_of(batch)
    if size > room:
        return 0
    if crc_of(batch, size) != load32(batch + CRC):
        return 0
    return size


cdef inline Fault judge_plain(const uint8_t *batch, int64_t size) noexcept nogil:
    """Check that these are the bytes of one uncompressed v2 batch that is no control batch."""
    if size < HEADER_SIZE:
        return BAD_BATCH_LENGTH
    if batch[MAGIC] != 2:
        return BAD_MAGIC
    if size_of(batch) != size:
        return BAD_BATCH_LENGTH
    if batch[ATTRIBUTES + 1] & (CODEC_BITS | CONTROL_BIT):
        return ENCODED
    return NO_FAULT


cdef inline Fault enter(const uint8_t *batch, int64_t size, Records *records) noexcept nogil:
    """Check the numbers in a whole batch's header, and go to its first record."""
    cdef int64_t delta = <int32_t> load32(batch + LAST_OFFSET_DELTA)
    records.at = batch + HEADER_SIZE
    records.end = batch + size
    records.left = <int32_t> load32(batch + RECORDS_COUNT)
    records.base_offset = <int64_t> load64(batch + BASE_OFFSET)
    if records.left < 0 or records.left > (size - HEADER_SIZE) // SMALLEST_RECORD:
        return BAD_RECORDS_COUNT
    if records.left == 0 and size != HEADER_SIZE:
        return BAD_RECORDS_COUNT
    # The map stores an offset plus 1.
    if delta < 0 or records.base_offset < 0 or records.base_offset >= <int64_t> LAST_OFFSET - delta:
        return BAD_OFFSETS
    records.last_offset = records.base_offset + delta
    return NO_FAULT


cdef inline Fault read_some(
    Records *records, OffsetMap map, int64_t lowest, int64_t highest, Seen *seen, int *count
) noexcept nogil:
    """Read the next KEYS records of a batch, or all that are left.

    It marks those with a key and an offset from `lowest` to `highest` as `looked_up`, hashes their
    keys, and prefetches their slots.
    """
    cdef RecordHead head
    cdef Fields fields
    cdef Fault fault
    cdef int i
    cdef int some = <int> min(records.left, KEYS)
    for i in range(some):
        fault = read_head(
            records.at, records.end - records.at, records.end - records.at, &head
        )
        if fault == NO_FAULT:
            fault = read_fields(records.at, &head, &fields)
        if fault != NO_FAULT:
            return fault
        if not headers_fill(fields.headers, fields.end):
            return BAD_HEADERS
        if head.offset_delta < 0 or head.offset_delta > records.last_offset - records.base_offset:
            return BAD_OFFSETS
        seen[i].at = records.at
        seen[i].size = head.size
        seen[i].offset = records.base_offset + head.offset_delta
        seen[i].timestamp_delta = head.timestamp_delta
        seen[i].has_key = head.key_length >= 0
        seen[i].has_value = fields.value_length >= 0
        seen[i].looked_up = seen[i].has_key and lowest <= seen[i].offset <= highest
        if seen[i].looked_up:
            seen[i].hash = hash_key(map, fields.key, head.key_length)
            prefetch(map, seen[i].hash)
        records.at = fields.end
    records.left -= some
    if records.left == 0 and records.at != records.end:
        return BAD_RECORDS_COUNT
    count[0] = some
    return NO_FAULT
