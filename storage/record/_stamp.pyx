"""Writes a producer and a transaction into staged batches, and checks whether they may have one.

Staged batches (`storage.adopt.staged`) are whole v2 batches back to back, with the right CRC,
without a producer, without control records, and with as many records as offsets. Layouts:
`storage/record/header.py`.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from storage.record._batch cimport (
    ATTRIBUTES, BASE_SEQUENCE, CODEC_BITS, CONTROL_BIT, CRC, HEADER_SIZE, HORIZON_BIT, LAST_CODEC,
    LAST_OFFSET_DELTA, MAGIC, MAX_TIMESTAMP, PRODUCER_EPOCH, PRODUCER_ID, RECORDS_COUNT,
    TRANSACTIONAL_BIT, PinnedBuffer, crc_of, hold, load32, load64, size_of, store32, store64,
)
from storage.record._write cimport seal

from storage.errors import CorruptRecord, InvalidRecord

cdef enum Wrong:
    NOTHING
    CUT_OFF
    BAD_CRC
    NOT_PLAIN_DATA
    BAD_COUNT
    BAD_CODEC


cdef struct Seen:
    int64_t largest
    int64_t max_timestamp
    uint32_t codecs


cdef inline Wrong judge(const uint8_t *batch, int64_t left, int64_t *size) noexcept nogil:
    if left < HEADER_SIZE or batch[MAGIC] != 2:
        return CUT_OFF
    size[0] = size_of(batch)
    if size[0] < HEADER_SIZE or size[0] > left:
        return CUT_OFF
    if load32(batch + CRC) != crc_of(batch, size[0]):
        return BAD_CRC
    if (
        batch[ATTRIBUTES] != 0
        or batch[ATTRIBUTES + 1] & (TRANSACTIONAL_BIT | CONTROL_BIT | HORIZON_BIT) != 0
        or <int64_t> load64(batch + PRODUCER_ID) != -1
    ):
        return NOT_PLAIN_DATA
    if batch[ATTRIBUTES + 1] & CODEC_BITS > LAST_CODEC:
        return BAD_CODEC
    cdef int32_t count = <int32_t> load32(batch + RECORDS_COUNT)
    if count <= 0 or <int32_t> load32(batch + LAST_OFFSET_DELTA) != count - 1:
        return BAD_COUNT
    return NOTHING


cdef Wrong survey(const uint8_t *start, int64_t end, int64_t *at, Seen *seen) noexcept nogil:
    cdef int64_t size = 0
    cdef int64_t timestamp
    cdef Wrong wrong
    while at[0] < end:
        wrong = judge(start + at[0], end - at[0], &size)
        if wrong != NOTHING:
            return wrong
        seen.largest = max(seen.largest, size)
        timestamp = <int64_t> load64(start + at[0] + MAX_TIMESTAMP)
        seen.max_timestamp = max(seen.max_timestamp, timestamp)
        seen.codecs |= (<uint32_t> 1) << (start[at[0] + ATTRIBUTES + 1] & CODEC_BITS)
        at[0] += size
    return NOTHING


cdef Wrong stamp(
    uint8_t *start, int64_t end, int64_t *at, int64_t producer_id, uint32_t epoch,
    uint32_t *sequence,
) noexcept nogil:
    cdef int64_t size = 0
    cdef uint8_t *batch
    cdef Wrong wrong
    while at[0] < end:
        batch = start + at[0]
        wrong = judge(batch, end - at[0], &size)
        if wrong != NOTHING:
            return wrong
        batch[ATTRIBUTES + 1] |= TRANSACTIONAL_BIT
        store64(batch + PRODUCER_ID, <uint64_t> producer_id)
        batch[PRODUCER_EPOCH] = <uint8_t> (epoch >> 8)
        batch[PRODUCER_EPOCH + 1] = <uint8_t> epoch
        store32(batch + BASE_SEQUENCE, sequence[0])
        seal(batch, size)
        sequence[0] = (sequence[0] + load32(batch + RECORDS_COUNT)) & 0x7FFFFFFF
        at[0] += size
    return NOTHING


ERRORS = {
    CUT_OFF: (CorruptRecord, "not a complete batch of format v2"),
    BAD_CRC: (CorruptRecord, "a batch's CRC is wrong"),
    NOT_PLAIN_DATA: (InvalidRecord, "a batch has a producer id or is a control batch"),
    BAD_COUNT: (InvalidRecord, "a batch's number of records differs from its number of offsets"),
    BAD_CODEC: (InvalidRecord, "a batch has an unknown codec"),
}


cdef object refusal(Wrong wrong, int64_t at):
    """Return the exception for what is wrong with the batch at `at`."""
    kind, reason = ERRORS[wrong]
    return kind(reason, position=at)


def survey_staged(data not None):
    """Check staged batches.

    Returns (bytes of the largest batch, largest timestamp in ms, the codecs: bit n is set if a
    batch has codec n).

    Raises CorruptRecord or InvalidRecord, with the position of the batch in `data`.
    """
    cdef PinnedBuffer held = hold(data)
    cdef Seen seen
    cdef int64_t at = 0
    cdef Wrong wrong
    seen.largest, seen.max_timestamp, seen.codecs = 0, -1, 0
    with nogil:
        wrong = survey(held.start, held.size, &at, &seen)
    if wrong != NOTHING:
        raise refusal(wrong, at)
    return seen.largest, seen.max_timestamp, seen.codecs


def stamp_transaction(
    bytearray data not None, long long producer_id, int producer_epoch, long long sequence
):
    """Write this producer, the transactional bit and sequences from `sequence` on into the batches.

    It changes `data` in place, with new CRCs, and returns the sequence after the last record.

    Raises what `survey_staged` raises; it has then changed the batches before the wrong one.
    """
    assert producer_id >= 0
    assert 0 <= producer_epoch <= 0x7FFF
    assert 0 <= sequence <= 0x7FFFFFFF
    cdef uint8_t *start = <uint8_t *> PyByteArray_AS_STRING(data)
    cdef int64_t end = len(data)
    cdef int64_t at = 0
    cdef uint32_t following = <uint32_t> sequence
    cdef Wrong wrong
    with nogil:
        wrong = stamp(start, end, &at, producer_id, <uint32_t> producer_epoch, &following)
    if wrong != NOTHING:
        raise refusal(wrong, at)
    return following
