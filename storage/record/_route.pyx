"""The hot loop of the partitioner: record batches to one row of batches per partition, by key.

Pure. What comes in was made here: sound, uncompressed batches of format v2 without a producer.
What goes out is the same kind, ready but for its offsets. A record keeps its key, value, headers
and timestamp; of one partition's records each comes after those that came before it. Its offset
and timestamp deltas are those of its new batch, whose base timestamp is its first record's
(MemoryRecordsBuilder.java), so that no record is larger in a batch of its own than it was.

Which partition: `storage/log/partitioner.py`. Layouts: `storage/record/batch.py`.
"""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from storage.record._batch cimport (
    BAD_BATCH_LENGTH, BASE_TIMESTAMP, HEADER_SIZE, NO_FAULT, RECORDS_COUNT, RECORD_HEAD,
    RELEASE_GIL_FROM, Fault, Held, RecordHead, hold, judge_batch, load32, load64, read_head,
    size_of,
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
    # Where the loop stands in its input.
    const uint8_t *data
    int64_t size
    int64_t position
    int64_t batch_end
    int64_t records_left  # of the batch that `position` is in
    int64_t timestamp  # that batch's base
    Batches *parts  # what goes to each partition
    uint32_t count
    int64_t stuck_to  # the partition of records without a key
    int64_t stays  # bytes of such records before it is another one's turn
    int64_t max_batch_bytes
    Fault fault


cdef Fault enter_batch(Work *work) noexcept nogil:
    """Step from a batch's start into it."""
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
    """Have room for `needed` bytes more; `ahead`: a guess of what will come."""
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
    """Write a record, of which `rest` is what follows its head; the bytes that it takes.

    The part has room for it, and for the header of another batch if the last one is full.
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
    """Route records until they end, or something has to be seen to first."""
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
        # As much again as it has, or if it is new its share of what there is.
        if part.room - part.used < needed and not make_room(part, needed, available // work.count):
            return OUT_FULL
        size = put_record(
            part, &head, record + head.head, available - head.head,
            <int64_t> (<uint64_t> work.timestamp + <uint64_t> head.timestamp_delta),
            work.max_batch_bytes,
        )
        if head.key_length < 0:
            work.stays -= size
        work.position += head.size
        work.records_left -= 1


def route(
    data not None, int count, long long stuck_to, long long stays, anew, long long stay_bytes,
    long long max_batch_bytes,
):
    """Split the batches in `data` over `count` partitions by key.

    Records without a key go to partition `stuck_to` until `stays` bytes of them went there; then
    `anew(partition before)` names another one, which has `stay_bytes` before it is the next one's
    turn. A batch stays within `max_batch_bytes`, its header included, but for a single record that
    was larger before.

    Returns ({partition: batches back to back}, stuck_to, stays). CorruptRecord, its position that
    in `data`, where `data` is not what it should be.
    """
    cdef Held held = hold(data)
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
                raise CorruptRecord("no sound batch of records", position=work.position)
            work.stuck_to = anew(work.stuck_to)
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
    """What goes to each partition that something goes to."""
    cdef dict parts = {}
    cdef Batches *part
    cdef uint32_t number
    for number in range(work.count):
        part = work.parts + number
        complete_batch(part)
        if part.used:
            parts[number] = PyByteArray_FromStringAndSize(<char *> part.data, part.used)
    return parts
