"""Finds the first record of a batch by offset, by timestamp or by number.

The batch is in plain form (`plain.py`). The search reads only the heads of its records, and checks
neither CRC, record count, values nor headers. It does not assume that timestamps rise.
"""

from libc.stdint cimport INT64_MIN, int64_t, uint8_t

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, HEADER_SIZE, MAX_TIMESTAMP, NO_FAULT,
    RELEASE_GIL_FROM, Fault, PinnedBuffer, RecordHead, hold, load64, read_head, sum_of,
)

from storage.record._batch import refusal


cdef struct Found:
    int64_t position  # of the record in the batch; the batch's end if no record matches
    int64_t number
    int64_t offset
    int64_t timestamp


cdef Fault seek(
    const uint8_t *batch, int64_t size, int64_t min_offset, int64_t min_timestamp,
    int64_t min_number, Found *found,
) noexcept nogil:
    """Find the first record with at least these three. A fault leaves `found` at the faulty one."""
    cdef RecordHead head
    cdef int64_t left
    cdef Fault fault
    cdef bint append_time = batch[ATTRIBUTES + 1] & APPEND_TIME_BIT != 0
    cdef int64_t base_offset = <int64_t> load64(batch + BASE_OFFSET)
    cdef int64_t base_timestamp = <int64_t> load64(batch + BASE_TIMESTAMP)
    found.position = HEADER_SIZE
    found.number = 0
    while found.position < size:
        left = size - found.position
        fault = read_head(batch + found.position, left, left, &head)
        if fault != NO_FAULT:
            return fault
        found.offset = sum_of(base_offset, head.offset_delta)
        if append_time:
            found.timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
        else:
            found.timestamp = sum_of(base_timestamp, head.timestamp_delta)
        if (
            found.offset >= min_offset
            and found.timestamp >= min_timestamp
            and found.number >= min_number
        ):
            return NO_FAULT
        found.position += head.size
        found.number += 1
    return NO_FAULT


def find_record(
    batch not None, *,
    long long offset=INT64_MIN, long long timestamp=INT64_MIN, long long number=0,
):
    """Find the first record of a plain batch with at least this offset, timestamp and number.

    Returns (number in the batch, counted from 0; offset; timestamp in ms), or None if there is no
    such record. Raises CorruptRecord, with the position in the batch, for a malformed record.
    """
    cdef PinnedBuffer held = hold(batch)
    cdef Found found
    cdef Fault fault
    cdef const uint8_t *at
    if held.size < HEADER_SIZE:
        raise ValueError(f"a batch of {held.size} bytes")
    at = held.start
    if held.size >= RELEASE_GIL_FROM:
        with nogil:
            fault = seek(at, held.size, offset, timestamp, number, &found)
    else:
        fault = seek(at, held.size, offset, timestamp, number, &found)
    if fault != NO_FAULT:
        raise refusal(fault, found.position)
    if found.position >= held.size:
        return None
    return found.number, found.offset, found.timestamp


def record_position(batch not None, long long number):
    """Return the position in a plain batch of its record `number`, which must exist.

    Raises CorruptRecord, as `find_record`.
    """
    cdef PinnedBuffer held = hold(batch)
    cdef Found found
    cdef Fault fault
    if held.size < HEADER_SIZE:
        raise ValueError(f"a batch of {held.size} bytes")
    with nogil:
        fault = seek(held.start, held.size, INT64_MIN, INT64_MIN, number, &found)
    if fault != NO_FAULT:
        raise refusal(fault, found.position)
    if found.position >= held.size:
        raise ValueError(f"a batch of {found.number} records has no record {number}")
    return found.position


def offset_span(batch not None):
    """Return (first offset, last offset, whether each is above the one before) of a plain batch.

    None if it has no record. Raises CorruptRecord, as `find_record`.
    """
    cdef PinnedBuffer held = hold(batch)
    cdef Found found
    cdef int64_t first = 0
    cdef bint rises = True
    cdef Fault fault
    if held.size < HEADER_SIZE:
        raise ValueError(f"a batch of {held.size} bytes")
    with nogil:
        fault = span(held.start, held.size, &found, &first, &rises)
    if fault != NO_FAULT:
        raise refusal(fault, found.position)
    return (first, found.offset, rises) if found.number else None


cdef Fault span(
    const uint8_t *batch, int64_t size, Found *found, int64_t *first, bint *rises
) noexcept nogil:
    """Find the last record; a fault leaves `found` at the faulty one."""
    cdef RecordHead head
    cdef int64_t offset, left
    cdef Fault fault
    cdef int64_t base_offset = <int64_t> load64(batch + BASE_OFFSET)
    found.position = HEADER_SIZE
    found.number = 0
    while found.position < size:
        left = size - found.position
        fault = read_head(batch + found.position, left, left, &head)
        if fault != NO_FAULT:
            return fault
        offset = sum_of(base_offset, head.offset_delta)
        if not found.number:
            first[0] = offset
        elif offset <= found.offset:
            rises[0] = False
        found.offset = offset
        found.position += head.size
        found.number += 1
    return NO_FAULT
