"""Sees which batches become rows of columns, and how many records they say they hold.

Inline, as `_column_rows` and `_header_column`: `_columns.pyx` calls them for each batch, record or header.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from storage.record._batch cimport (
    ATTRIBUTES, BAD_RECORDS_COUNT, BASE_OFFSET, CODEC_BITS, CONTROL_BATCH, ENCODED, HEADER_SIZE,
    LAST_OFFSET_DELTA, LEGACY_ATTRIBUTES, MAGIC, NO_FAULT, PRODUCER_ID, RECORDS_COUNT,
    SMALLEST_RECORD, TRANSACTIONAL_BIT, Fault, judge_batch, last_offset_of, load32, load64, size_of,
)
from storage.record.columns._column_rows cimport OUT_OF_ORDER, Rows, Span


cdef inline bint is_aborted(const Rows *rows, int64_t producer_id, int64_t offset) noexcept nogil:
    """Whether the producer's last span that begins at or before the offset reaches it."""
    cdef int64_t low = 0
    cdef int64_t high = rows.aborted_count
    cdef int64_t middle
    cdef const Span *span
    while low < high:
        middle = (low + high) >> 1
        span = &rows.aborted[middle]
        if span.producer_id < producer_id or (
            span.producer_id == producer_id and span.first_offset <= offset
        ):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    span = &rows.aborted[low - 1]
    return span.producer_id == producer_id and offset <= span.last_offset


cdef inline Fault judge(const Rows *rows, const uint8_t *batch) noexcept nogil:
    """`judge_batch`, but a transaction's records are records like others, unless it is aborted.

    CONTROL_BATCH for all of which nothing becomes a row.
    """
    cdef Fault fault = judge_batch(batch)
    if fault == ENCODED and batch[MAGIC] == 2:
        if (
            rows.aborted_count and batch[ATTRIBUTES + 1] & TRANSACTIONAL_BIT
            and is_aborted(
                rows, <int64_t> load64(batch + PRODUCER_ID), <int64_t> load64(batch + BASE_OFFSET)
            )
        ):
            return CONTROL_BATCH
        if not batch[ATTRIBUTES + 1] & CODEC_BITS:
            fault = NO_FAULT
        elif rows.stops and last_offset_of(batch) < rows.from_offset:
            return CONTROL_BATCH
    return fault


cdef struct Survey:
    int64_t position  # behind the last whole batch
    int64_t records
    int64_t next_offset  # behind its last offset
    bint ended  # by to_offset


cdef inline bint has_ended(const Rows *rows, Survey *found, int64_t base) noexcept nogil:
    found.ended = rows.stops and (base >= rows.to_offset or found.next_offset >= rows.to_offset)
    return found.ended


cdef inline Fault survey(
    const Rows *rows, const uint8_t *data, int64_t size, Survey *found
) noexcept nogil:
    """Count the records that the whole batches say they hold.

    Ends before one that has to be brought into plain form, then with ENCODED.
    """
    cdef Fault fault
    cdef int64_t batch_size
    cdef int64_t count
    cdef int64_t base
    cdef bint is_wrapper
    cdef const uint8_t *batch
    while size - found.position > MAGIC:
        batch = data + found.position
        base = <int64_t> load64(batch + BASE_OFFSET)
        if batch[MAGIC] < 2:
            # A wrapper's is the last of its offsets.
            is_wrapper = (
                size - found.position <= LEGACY_ATTRIBUTES
                or batch[LEGACY_ATTRIBUTES] & CODEC_BITS
            )
            if has_ended(rows, found, found.next_offset if is_wrapper else base):
                break
            return ENCODED
        if has_ended(rows, found, base) or size - found.position < HEADER_SIZE:
            break
        fault = judge(rows, batch)
        if fault != NO_FAULT and fault != CONTROL_BATCH and fault != ENCODED:
            return fault
        if rows.stops and (
            base < found.next_offset or <int32_t> load32(batch + LAST_OFFSET_DELTA) < 0
        ):
            return <Fault> OUT_OF_ORDER
        if fault == ENCODED:
            return ENCODED
        batch_size = size_of(batch)
        if batch_size > size - found.position:
            break
        if fault == NO_FAULT:
            count = <int32_t> load32(batch + RECORDS_COUNT)
            if count < 0 or count * SMALLEST_RECORD > batch_size - HEADER_SIZE:
                return BAD_RECORDS_COUNT
            found.records += count
        found.next_offset = last_offset_of(batch) + 1
        found.position += batch_size
    return NO_FAULT
