"""The hot loop of the partitioner: it splits record batches over partitions by key.

Pure. The loop takes batches that this process made: sound, uncompressed v2 batches without a
producer. It returns batches of the same kind for each partition; the append assigns their offsets.
A record keeps its key, value, headers and timestamp, and the records of one partition keep their
order. Their offset and timestamp deltas change. The base timestamp of a new batch is its first
record's (MemoryRecordsBuilder.java), so a record alone in its batch is never larger than before.

`storage/log/partitioner.py` documents how a record gets its partition, `storage/record/batch.py`
and `storage/record/header.py` the layouts.
"""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from storage.record._batch cimport (
    BAD_BATCH_LENGTH, BASE_TIMESTAMP, HEADER_SIZE, NO_FAULT, RECORDS_COUNT, RECORD_HEAD,
    RELEASE_GIL_FROM, Fault, PinnedBuffer, RecordHead, hold, judge_batch, load32, load64, read_head,
    size_of, sum_of,
)
from storage.record._write cimport (
    COPY_STEP, Batches, NextRecord, add_record, complete_batch, copy_bytes, fit_record,
    put_varint, varint_size, zigzag_bits,
)

from storage.errors import CorruptRecord

cdef enum Stop:
    ALL_DONE
    STICK_ANEW
    OUT_FULL
    FAULTY


cdef struct Work:
    # The loop's position in its input, and its output.
    const uint8_t *data
    int64_t size
    int64_t position
    int64_t batch_end
    int64_t records_left  # in the batch at `position`
    int64_t timestamp  # the base timestamp of that batch, in ms
    Batches *parts  # the output for each partition
    uint32_t count  # the number of partitions
    int64_t stuck_to  # the partition that gets records without a key
    int64_t stays  # bytes of such records that it still gets, before another one gets them
    int64_t max_batch_bytes
    Fault fault


cdef Fault enter_batch(Work *work) noexcept nogil:
    """Move from a batch's start to its first record."""
    cdef const uint8_t *batch = work.data + work.position
    cdef int64_t left = work.size - work.position
    cdef Fault fault
    if left < HEADER_SIZE:
        return BAD_BATCH_LENGTH
    fault = judge_batch(batch)
    if fault != NO_FAULT:
        return fault
    work.batch_end = work.position + size_of(batch)
    if work.batch_end > work.size:
        return BAD_BATCH_LENGTH
    work.records_left = <int32_t> load32(batch + RECORDS_COUNT)
    work.timestamp = <int64_t> load64(batch + BASE_TIMESTAMP)
    work.position += HEADER_SIZE
    return NO_FAULT


cdef inline bint make_room(Batches *part, int64_t needed, int64_t ahead) noexcept nogil:
    """Allocate room for `needed` more bytes, and as many again as are used, or at least `ahead`.

    Returns False if there is no memory.
    """
    cdef int64_t room = part.used + needed + max(part.used, ahead)
    cdef uint8_t *data = <uint8_t *> realloc(part.data, room)
    if data == NULL:
        return False
    part.data = data
    part.room = room
    return True


cdef inline int64_t put_record(
    Batches *part, const RecordHead *head, const uint8_t *rest, int64_t readable_bytes,
    int64_t timestamp, int64_t max_batch_bytes
) noexcept nogil:
    """Write a record and return its new size in bytes; `rest` is what follows its head.

    The part has room for the record, and for the header of a new batch if the last one is full.
    """
    cdef int64_t rest_size = head.size - head.head
    cdef uint64_t key_bits = zigzag_bits(head.key_length)
    cdef NextRecord record
    cdef uint8_t *out
    fit_record(part, timestamp, varint_size(key_bits) + rest_size, max_batch_bytes, &record)
    out = put_varint(add_record(part, timestamp, &record), key_bits)
    copy_bytes(out, rest, rest_size, readable_bytes)
    return record.size


cdef Stop run(Work *work) noexcept nogil:
    """Route records until they end, or until the caller must act: the result says on what."""
    cdef RecordHead head
    cdef const uint8_t *record
    cdef Batches *part
    cdef int64_t available, needed, size
    while True:
        while work.records_left <= 0:
            if work.position != work.batch_end:
                work.fault = BAD_BATCH_LENGTH
                return FAULTY
            if work.position == work.size:
                return ALL_DONE
            work.fault = enter_batch(work)
            if work.fault != NO_FAULT:
                return FAULTY
        available = work.size - work.position
        record = work.data + work.position
        work.fault = read_head(record, available, work.batch_end - work.position, &head)
        if work.fault != NO_FAULT:
            return FAULTY
        if head.key_length >= 0:
            part = work.parts + (hash_of(record + head.head, head.key_length) & POSITIVE) % (
                work.count
            )
        elif work.stays <= 0:
            return STICK_ANEW
        else:
            part = work.parts + work.stuck_to
        needed = head.size - head.head + HEADER_SIZE + RECORD_HEAD + COPY_STEP
        # A new part gets room for its share of the input; a part that is full doubles.
        if part.room - part.used < needed and not make_room(part, needed, available // work.count):
            return OUT_FULL
        size = put_record(
            part, &head, record + head.head, available - head.head,
            sum_of(work.timestamp, head.timestamp_delta),
            work.max_batch_bytes,
        )
        if head.key_length < 0:
            work.stays -= size
        work.position += head.size
        work.records_left -= 1


def route(
    data not None, int count, long long stuck_to, long long stays, next_partition,
    long long stay_bytes, long long max_batch_bytes,
):
    """Split the batches in `data` over `count` partitions by key.

    Records without a key go to partition `stuck_to` until it has got `stays` bytes of them. Then
    `next_partition(partition before)` returns another partition, which gets `stay_bytes` of them. A
    batch, its header included, has at most `max_batch_bytes`, except a single record that was
    larger before.

    Returns ({partition: batches back to back}, stuck_to, stays). Raises CorruptRecord, with the
    position in `data`, if `data` is not sound, uncompressed batches.
    """
    cdef PinnedBuffer held = hold(data)
    cdef Work work
    cdef Stop stop
    cdef int number
    if count < 1:
        raise ValueError(f"{count} partitions")
    if stays > 0 and not 0 <= stuck_to < count:
        raise ValueError(f"partition {stuck_to} of {count}")
    memset(&work, 0, sizeof(work))
    try:
        work.parts = <Batches *> calloc(count, sizeof(Batches))
        if work.parts == NULL:
            raise MemoryError
        work.data = held.start
        work.size = held.size
        work.count = count
        work.stuck_to = stuck_to
        work.stays = stays
        work.max_batch_bytes = max_batch_bytes
        while True:
            if work.size - work.position >= RELEASE_GIL_FROM:
                with nogil:
                    stop = run(&work)
            else:
                stop = run(&work)
            if stop == ALL_DONE:
                break
            if stop == OUT_FULL:
                raise MemoryError
            if stop == FAULTY:
                raise CorruptRecord("not a valid batch of records", position=work.position)
            work.stuck_to = next_partition(work.stuck_to)
            work.stays = stay_bytes
            if not 0 <= work.stuck_to < count:
                raise ValueError(f"partition {work.stuck_to} of {count}")
        return collected(&work), work.stuck_to, work.stays
    finally:
        if work.parts != NULL:
            for number in range(count):
                free(work.parts[number].data)
            free(work.parts)


cdef dict collected(Work *work):
    """The complete batches of each partition that has any, by its number."""
    cdef dict parts = {}
    cdef Batches *part
    cdef uint32_t number
    for number in range(work.count):
        part = work.parts + number
        complete_batch(part)
        if part.used:
            parts[number] = PyByteArray_FromStringAndSize(<char *> part.data, part.used)
    return parts
