"""Hot loops that bring a stored batch of any format into plain form, and seal a v2 batch.

Pure. `storage/record/plain.py` defines the plain form, `storage/record/header.py` the layouts.

Invariant: a v2 record is never longer than the entry of v0 or v1 that it comes from, so the loops
allocate before they convert. An entry has 26 bytes (v0) or 34 (v1) beside key and value. A record
has at most 5 bytes in each of four varints, two fields of one byte, and a timestamp delta of 1 byte
(v0) or at most 10 (v1).
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BAD_RECORD_LENGTH, BAD_RECORDS_COUNT, BATCH_LENGTH, CODEC_BITS,
    CRC, HEADER_SIZE, LEGACY_ATTRIBUTES, LEGACY_TIMESTAMP, LOG_OVERHEAD, MAGIC, RECORDS_COUNT,
    SMALLEST_ENTRY, SMALLEST_V1, PinnedBuffer, bounded_varint, crc_fits, crc_of, hold, hold_part,
    load32, load64, size_of, store32,
)
from storage.record._write cimport (
    body_size, difference, field_size, put_field, put_head, put_header, seal as seal_batch,
    zigzag_bits,
)

from storage.errors import CorruptRecord
from storage.record._batch import REASONS


# -- v2 ------------------------------------------------------------------------------------------


def plain_v2(data not None, Py_ssize_t at, Py_ssize_t size, decompress not None, limit):
    """Return the plain form of the whole v2 batch `data[at:at + size]` (`storage/record/plain.py`).

    It checks the CRC, and calls `decompress(codec, stream, limit=limit, room=HEADER_SIZE)` if the
    batch is compressed: only one buffer then has the records.
    Raises CorruptRecord, without a position.
    """
    cdef PinnedBuffer held = hold_part(data, at, at + size)
    cdef const uint8_t *batch
    cdef bytearray made
    cdef uint8_t codec
    if size < HEADER_SIZE:
        raise ValueError(f"{size} bytes at {at} of a buffer of {held.size}")
    batch = held.start + at
    if crc_of(batch, size) != load32(batch + CRC):
        raise CorruptRecord("a batch's CRC is wrong")
    codec = batch[ATTRIBUTES + 1] & CODEC_BITS
    # A compressed batch without records may also have no stream (DefaultRecordBatch.iterator).
    if codec and (size > HEADER_SIZE or load32(batch + RECORDS_COUNT)):
        stored = memoryview(data)[at + HEADER_SIZE:at + size]
        made = decompress(codec, stored, limit=limit, room=HEADER_SIZE)
    else:
        made = PyByteArray_FromStringAndSize(NULL, size)
        memcpy(PyByteArray_AS_STRING(made) + HEADER_SIZE, batch + HEADER_SIZE, size - HEADER_SIZE)
    put_plain_header(<uint8_t *> PyByteArray_AS_STRING(made), len(made), batch)
    check_fill(<const uint8_t *> PyByteArray_AS_STRING(made), len(made))
    return made


cdef void put_plain_header(uint8_t *out, int64_t size, const uint8_t *batch) noexcept:
    """Write the header of a plain form of `size` bytes, made of this stored batch."""
    memcpy(out, batch, HEADER_SIZE)
    store32(out + BATCH_LENGTH, <uint32_t> (size - LOG_OVERHEAD))
    store32(out + CRC, 0)
    out[ATTRIBUTES + 1] &= <uint8_t> ~CODEC_BITS


def seal(bytearray batch not None):
    """Write the right length and CRC into this v2 batch."""
    if len(batch) < HEADER_SIZE:
        raise ValueError(f"a batch of {len(batch)} bytes")
    seal_batch(<uint8_t *> PyByteArray_AS_STRING(batch), len(batch))


cdef int check_fill(const uint8_t *at, int64_t size) except -1:
    """Check by the record lengths that a plain form's records fill it exactly."""
    cdef const uint8_t *end = at + size
    cdef int32_t length = 0
    cdef int32_t count = <int32_t> load32(at + RECORDS_COUNT)
    cdef int32_t left = count
    at += HEADER_SIZE
    while left > 0 and at < end:
        at = bounded_varint(at, end, &length)
        if at == NULL or length < 0 or length > end - at:
            raise CorruptRecord(REASONS[BAD_RECORD_LENGTH])
        at += length
        left -= 1
    if left != 0 or at != end:
        raise CorruptRecord(REASONS[BAD_RECORDS_COUNT].format(count=count))
    return 0


# -- v0 and v1 -----------------------------------------------------------------------------------


cdef enum:
    FURTHEST = 0x7FFFFFFF  # the largest offset delta, an i32


cdef struct Entry:
    int64_t offset
    int64_t size  # of the whole entry
    int64_t timestamp  # -1 in v0
    const uint8_t *key
    const uint8_t *value
    int32_t key_length  # -1: null
    int32_t value_length
    uint8_t magic
    uint8_t attributes


cdef enum Outcome:
    READ
    CUT_OFF
    OTHER_MAGIC
    BAD_SIZE
    BAD_FIELDS


cdef Outcome read_entry(const uint8_t *at, int64_t room, Entry *entry) noexcept nogil:
    """Read the entry at `at`, where `room` bytes are readable; key and value must fill it."""
    cdef const uint8_t *end
    cdef int64_t left
    if room <= MAGIC:
        return CUT_OFF
    entry.size = size_of(at)
    entry.magic = at[MAGIC]
    if entry.magic > 1:
        return OTHER_MAGIC
    if entry.size < LOG_OVERHEAD + (SMALLEST_V1 if entry.magic else SMALLEST_ENTRY):
        return BAD_SIZE
    if entry.size > room:
        return CUT_OFF
    entry.offset = <int64_t> load64(at)
    entry.attributes = at[LEGACY_ATTRIBUTES]
    entry.timestamp = -1
    end = at + entry.size
    at += LEGACY_TIMESTAMP
    if entry.magic:
        entry.timestamp = <int64_t> load64(at)
        at += 8
    entry.key_length = <int32_t> load32(at)
    entry.key = at + 4
    left = end - at - 8
    if entry.key_length < -1 or entry.key_length > left:
        return BAD_FIELDS
    left -= max(entry.key_length, 0)
    at = entry.key + max(entry.key_length, 0)
    entry.value_length = <int32_t> load32(at)
    entry.value = at + 4
    if entry.value_length < -1 or max(entry.value_length, 0) != left:
        return BAD_FIELDS
    return READ


ENTRY_REASONS = {
    CUT_OFF: "a message is truncated",
    OTHER_MAGIC: "a message has another format",
    BAD_SIZE: "a message's size is less than the fields of its format",
    BAD_FIELDS: "a message's key and value do not fill it",
}


cdef uint8_t *put_record(
    uint8_t *at, const Entry *entry, int64_t offset_delta, int64_t timestamp_delta
) noexcept nogil:
    cdef uint64_t timestamp = zigzag_bits(timestamp_delta)
    cdef uint64_t offset = zigzag_bits(offset_delta)
    cdef int64_t rest = field_size(entry.key_length) + field_size(entry.value_length) + 1
    at = put_head(at, body_size(timestamp, offset, rest), 0, timestamp, offset)
    at = put_field(at, entry.key, entry.key_length, 0)
    at = put_field(at, entry.value, entry.value_length, 0)
    at[0] = 0  # headers
    return at + 1


cdef inline bint is_too_far(int64_t offset, int64_t base) noexcept nogil:
    """Whether an offset is too far from its batch's base offset for an offset delta."""
    return <uint64_t> difference(offset, base) > FURTHEST


def convert_run(data not None, Py_ssize_t start, Py_ssize_t end, Py_ssize_t most):
    """Convert uncompressed messages from `data[start]` on, at least one, to one v2 batch.

    It takes messages that are whole before `end` and lie in the first `most` bytes (the first one
    may be larger). They have the format and the timestamp type of the first one, and ascending
    offsets. With append time they also have its timestamp, because a batch has only one. It checks
    each CRC, and stops before a message that is wrong. Returns the batch, with a CRC of 0, and the
    number of bytes of messages.

    Raises CorruptRecord, with the position in `data`, if the first message is malformed.
    """
    cdef PinnedBuffer held = hold_part(data, start, end)
    cdef Entry entry, first
    cdef const uint8_t *at, *stop
    cdef uint8_t *out, *batch
    cdef int64_t last = 0
    cdef int64_t max_timestamp
    cdef int64_t taken = 0
    cdef int32_t count = 0
    cdef bint append_time = False
    cdef Outcome outcome
    cdef bytearray made
    at = held.start + start
    stop = held.start + end
    outcome = read_entry(at, stop - at, &first)
    if outcome != READ:
        raise CorruptRecord(ENTRY_REASONS[outcome], position=start)
    max_timestamp = first.timestamp
    append_time = first.magic and first.attributes & APPEND_TIME_BIT
    if stop - at > max(most, first.size):
        stop = at + max(most, first.size)
    made = PyByteArray_FromStringAndSize(NULL, HEADER_SIZE + (stop - at))
    batch = <uint8_t *> PyByteArray_AS_STRING(made)
    out = batch + HEADER_SIZE
    while read_entry(at, stop - at, &entry) == READ:
        if (
            entry.magic != first.magic
            or entry.attributes & CODEC_BITS
            or (count and entry.offset <= last)
            or is_too_far(entry.offset, first.offset)
        ):
            break
        if entry.magic and (
            (entry.attributes ^ first.attributes) & APPEND_TIME_BIT
            or (append_time and entry.timestamp != first.timestamp)
        ):
            break
        if not crc_fits(at, entry.size):
            break
        out = put_record(
            out, &entry, entry.offset - first.offset,
            0 if append_time else difference(entry.timestamp, first.timestamp),
        )
        last = entry.offset
        max_timestamp = max(max_timestamp, entry.timestamp)
        count += 1
        at += entry.size
    if count == 0:
        raise CorruptRecord("a message's CRC is wrong", position=start, offset=first.offset)
    put_header(
        batch, out - batch, first.offset, last - first.offset, -1,
        APPEND_TIME_BIT if append_time else 0, first.timestamp, max_timestamp, count,
    )
    taken = at - held.start - start
    PyByteArray_Resize(made, out - batch)
    return made, taken


def convert_set(
    data not None, uint8_t magic, long long wrapper_offset, long long wrapper_timestamp,
    bint append_time,
):
    """Convert a wrapper's decompressed messages to one v2 batch with a CRC of 0.

    Like Kafka's AbstractLegacyRecordBatch.DeepRecordsIterator, it does not check inner CRCs.
    `wrapper_timestamp` is in ms. Raises CorruptRecord, without a position.
    """
    cdef PinnedBuffer held = hold(data)
    cdef Entry entry
    cdef const uint8_t *at, *stop
    cdef uint8_t *out, *batch
    cdef int64_t shift = 0  # what to add to an inner offset to get the absolute one
    cdef int64_t base = 0
    cdef int64_t last = 0
    cdef int64_t base_timestamp = wrapper_timestamp
    cdef int32_t count = 0
    cdef Outcome outcome
    cdef bytearray made
    at = held.start
    stop = at + held.size
    # Only the header depends on the last inner offset, which the loop learns last.
    made = PyByteArray_FromStringAndSize(NULL, HEADER_SIZE + held.size)
    batch = <uint8_t *> PyByteArray_AS_STRING(made)
    out = batch + HEADER_SIZE
    while at < stop:
        outcome = read_entry(at, stop - at, &entry)
        if outcome != READ:
            raise CorruptRecord(f"inside a wrapper: {ENTRY_REASONS[outcome]}")
        if entry.magic != magic:
            raise CorruptRecord(f"inside a wrapper: {ENTRY_REASONS[OTHER_MAGIC]}")
        if entry.attributes & CODEC_BITS:
            raise CorruptRecord("a wrapper inside a wrapper")
        if count == 0:
            base = last = entry.offset
            if not append_time:
                base_timestamp = entry.timestamp
        elif entry.offset <= last:
            raise CorruptRecord("offsets inside a wrapper are not ascending")
        if entry.offset < 0 or is_too_far(entry.offset, base):
            raise CorruptRecord(f"offset {entry.offset} inside a wrapper that begins at {base}")
        out = put_record(
            out, &entry, entry.offset - base,
            0 if append_time else difference(entry.timestamp, base_timestamp),
        )
        last = entry.offset
        count += 1
        at += entry.size
    if count == 0:
        raise CorruptRecord("a wrapper contains no message")
    # In v1 inner offsets count from the wrapper's first message, and the wrapper has the absolute
    # offset of the last one. Some versions of librdkafka wrote 0 there: then nothing is added.
    if magic and wrapper_offset != 0:
        if wrapper_offset < last:
            raise CorruptRecord(
                f"a wrapper's offset {wrapper_offset} is less than an offset inside it"
            )
        shift = wrapper_offset - last
    base += shift
    last = max(last + shift, wrapper_offset)
    if last - base > FURTHEST:
        raise CorruptRecord(f"a wrapper from offset {base} to {last}")
    put_header(
        batch, out - batch, base, last - base, -1, APPEND_TIME_BIT if append_time else 0,
        base_timestamp, wrapper_timestamp, count,
    )
    PyByteArray_Resize(made, out - batch)
    return made
