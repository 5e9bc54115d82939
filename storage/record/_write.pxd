"""Functions that write v2 records and batches, for every loop that makes them.

The functions run without the GIL on plain pointers. They are inline because a loop calls them for
each record, and a call into another module costs as much as writing a short record. No function
checks where its room ends: another one computes the size first, and the caller makes sure that
there is room for it.

Layouts: `storage/record/batch.py` and `storage/record/header.py`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from storage.record._batch cimport (
    ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, BATCH_LENGTH, CRC, HEADER_SIZE, LAST_OFFSET_DELTA,
    LEADER_EPOCH, LOG_OVERHEAD, MAGIC, MAX_TIMESTAMP, PRODUCER_ID, RECORDS_COUNT, crc_of, store32,
    store64,
)


cdef enum:
    # `copy_bytes` copies up to SHORT_COPY bytes in steps of COPY_STEP, without a call of memcpy.
    SHORT_COPY = 256
    COPY_STEP = 32
    LARGEST_BATCH = 0x7FFFFFFF  # the largest batch length, an i32


# -- numbers and bytes ---------------------------------------------------------------------------


cdef inline uint64_t zigzag_bits(int64_t value) noexcept nogil:
    """The zig-zag bits of a number: 1 for -1, and twice the length for a length."""
    return (<uint64_t> value << 1) ^ (0 - (<uint64_t> value >> 63))


cdef inline int64_t difference(int64_t one, int64_t other) noexcept nogil:
    """one - other. It wraps as in Java, and wraps back where a reader adds it to `other`."""
    return <int64_t> (<uint64_t> one - <uint64_t> other)


cdef inline int64_t varint_size(uint64_t bits) noexcept nogil:
    """The number of bytes that `put_varint` writes.

    The processor predicts the turns of this loop, which makes it faster than counting bits.
    """
    cdef int64_t size = 1
    while bits >= 0x80:
        bits >>= 7
        size += 1
    return size


cdef inline uint8_t *put_varint(uint8_t *at, uint64_t bits) noexcept nogil:
    """Write zig-zag bits as a varint, and return the byte after it."""
    while bits >= 0x80:
        at[0] = <uint8_t> (bits | 0x80)
        at += 1
        bits >>= 7
    at[0] = <uint8_t> bits
    return at + 1


cdef inline void copy_bytes(
    uint8_t *out, const uint8_t *start, int64_t size, int64_t readable_size
) noexcept nogil:
    """Copy `size` bytes. If size + COPY_STEP <= `readable_size`, up to COPY_STEP more may be
    copied.
    """
    cdef int64_t at = 0
    if size <= SHORT_COPY and size + COPY_STEP <= readable_size:
        while at < size:
            memcpy(out + at, start + at, COPY_STEP)
            at += COPY_STEP
    else:
        memcpy(out, start, size)


# -- records -------------------------------------------------------------------------------------


cdef inline int64_t field_size(int64_t size) noexcept nogil:
    """Bytes of a key, a value or a part of a header, with its length field; `size` -1 is null."""
    return 1 if size < 0 else varint_size(<uint64_t> size << 1) + size


cdef inline uint8_t *put_field(
    uint8_t *out, const uint8_t *start, int64_t size, int64_t readable_size
) noexcept nogil:
    """Write a field's length and bytes, and return the byte after them.

    `size` is -1 for null. `readable_size` is as for `copy_bytes`.
    """
    if size < 0:
        out[0] = 1
        return out + 1
    out = put_varint(out, <uint64_t> size << 1)
    copy_bytes(out, start, size, readable_size)
    return out + size


cdef inline int64_t body_size(
    uint64_t timestamp_bits, uint64_t offset_bits, int64_t rest
) noexcept nogil:
    """The value of a record's length field.

    The deltas are `zigzag_bits`; `rest` is the bytes of the fields key, value and headers.
    """
    return 1 + varint_size(timestamp_bits) + varint_size(offset_bits) + rest


cdef inline int64_t record_size(int64_t body) noexcept nogil:
    """Bytes of a whole record whose length field is `body`."""
    return varint_size(<uint64_t> body << 1) + body


cdef inline uint8_t *put_head(
    uint8_t *out, int64_t body, uint8_t attributes, uint64_t timestamp_bits, uint64_t offset_bits
) noexcept nogil:
    """Write a record up to its key length, and return where the key length goes."""
    out = put_varint(out, <uint64_t> body << 1)
    out[0] = attributes
    out = put_varint(out + 1, timestamp_bits)
    return put_varint(out, offset_bits)


# -- batches -------------------------------------------------------------------------------------


cdef inline void put_header(
    uint8_t *batch, int64_t size, int64_t base_offset, int64_t last_offset_delta,
    int32_t leader_epoch, uint8_t attributes, int64_t base_timestamp, int64_t max_timestamp,
    int64_t records,
) noexcept nogil:
    """Write the header of a batch of `size` bytes, without a producer and with a CRC of 0."""
    store64(batch + BASE_OFFSET, <uint64_t> base_offset)
    store32(batch + BATCH_LENGTH, <uint32_t> (size - LOG_OVERHEAD))
    store32(batch + LEADER_EPOCH, <uint32_t> leader_epoch)
    batch[MAGIC] = 2
    store32(batch + CRC, 0)
    batch[ATTRIBUTES] = 0
    batch[ATTRIBUTES + 1] = attributes
    store32(batch + LAST_OFFSET_DELTA, <uint32_t> last_offset_delta)
    store64(batch + BASE_TIMESTAMP, <uint64_t> base_timestamp)
    store64(batch + MAX_TIMESTAMP, <uint64_t> max_timestamp)
    # No producer: id, epoch and sequence are -1.
    memset(batch + PRODUCER_ID, 0xFF, RECORDS_COUNT - PRODUCER_ID)
    store32(batch + RECORDS_COUNT, <uint32_t> records)


cdef inline void seal(uint8_t *batch, int64_t size) noexcept nogil:
    """Write the right length and CRC into a v2 batch of `size` bytes."""
    store32(batch + BATCH_LENGTH, <uint32_t> (size - LOG_OVERHEAD))
    store32(batch + CRC, crc_of(batch, size))


cdef inline void put_new_header(
    uint8_t *batch, int64_t size, int64_t records, int64_t base_timestamp, int64_t max_timestamp
) noexcept nogil:
    """Complete a new batch. It begins at offset 0, in epoch 0: the append assigns both."""
    put_header(batch, size, 0, records - 1, 0, 0, base_timestamp, max_timestamp, records)
    seal(batch, size)


cdef struct Batches:
    # Complete batches back to back, then a batch that still grows. That batch has its
    # records; `complete_batch` writes its header.
    uint8_t *data
    int64_t room
    int64_t used
    int64_t last  # where the batch that grows begins
    int64_t records  # in the batch that grows; 0: there is none
    int64_t base_timestamp
    int64_t max_timestamp


cdef struct NextRecord:
    int64_t body
    int64_t size
    uint64_t timestamp_bits


cdef inline void complete_batch(Batches *batches) noexcept nogil:
    """Complete the batch that grows, if there is one, by writing its header."""
    if batches.records:
        put_new_header(
            batches.data + batches.last, batches.used - batches.last, batches.records,
            batches.base_timestamp, batches.max_timestamp,
        )
        batches.last = batches.used
        batches.records = 0


cdef inline void fit_record(
    Batches *batches, int64_t timestamp, int64_t rest, int64_t most, NextRecord *record
) noexcept nogil:
    """Compute a record's size; first complete the batch if the record would bring it above `most`.

    `rest` is the bytes of the fields key, value and headers, `most` the bytes of a batch. A batch's
    base timestamp is its first record's (MemoryRecordsBuilder.java). A record alone in its batch
    may exceed `most`.
    """
    while True:
        record.timestamp_bits = 0
        if batches.records:
            record.timestamp_bits = zigzag_bits(difference(timestamp, batches.base_timestamp))
        record.body = body_size(record.timestamp_bits, <uint64_t> batches.records << 1, rest)
        record.size = record_size(record.body)
        if batches.records == 0 or batches.used + record.size - batches.last <= most:
            break
        complete_batch(batches)


cdef inline uint8_t *add_record(
    Batches *batches, int64_t timestamp, const NextRecord *record
) noexcept nogil:
    """Write a record up to its key length, and return where the rest goes.

    It counts the whole record as used. The caller makes sure that there is room for `record.size`
    bytes, and for HEADER_SIZE more if the record is its batch's first.
    """
    cdef uint8_t *out
    if batches.records == 0:
        batches.used += HEADER_SIZE
        batches.base_timestamp = batches.max_timestamp = timestamp
    out = put_head(
        batches.data + batches.used, record.body, 0, record.timestamp_bits,
        <uint64_t> batches.records << 1,
    )
    batches.used += record.size
    batches.records += 1
    batches.max_timestamp = max(batches.max_timestamp, timestamp)
    return out
