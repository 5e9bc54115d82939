"""Hot loops over record batches: assign offsets, rebuild indexes, walk sound batches.

Pure: the loops take bytes and return bytes and numbers. They judge a batch by its header and its
CRC, and do not read the records inside (but `Rebuild` reads the type of a transaction's marker).
Layouts: `storage/record/header.py`. Kafka's LogSegment.append and LogSegment.recover define which
batch gets an index entry.
"""

import zlib

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from storage.record._crc cimport crc32c_prefix

from storage.errors import CorruptRecord

cdef extern from "Python.h":
    const int PyBUF_READ


@cython.final
@cython.freelist(8)
cdef class PinnedBuffer:
    """Holds a Python buffer, `size` bytes at `start`, as long as this object lives."""

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef PinnedBuffer hold(object data):
    cdef PinnedBuffer held = PinnedBuffer.__new__(PinnedBuffer)
    PyObject_GetBuffer(data, &held.view, PyBUF_SIMPLE)
    held.start = <const uint8_t *> held.view.buf
    held.size = held.view.len
    return held


cdef PinnedBuffer hold_part(object data, int64_t at, int64_t end):
    cdef PinnedBuffer held = hold(data)
    if not 0 <= at <= end <= held.size:
        raise ValueError(f"{end - at} bytes at {at} lie outside of a buffer of {held.size}")
    return held


REASONS = {
    BAD_BATCH_LENGTH: "batch length {length} is less than the header size",
    BAD_MAGIC: "unknown record format: magic {magic}",
    ENCODED: "a batch of magic {magic} with codec {codec} is not uncompressed v2",
    BAD_RECORDS_COUNT: "record count {count} does not match the records of the batch",
    BAD_VARINT: "a varint is not terminated",
    BAD_RECORD_LENGTH: "a record's length does not fit its batch",
    BAD_KEY_LENGTH: "a key's length does not fit its record",
    BAD_VALUE_LENGTH: "a value's length does not fit its record",
    BAD_HEADERS: "a record's headers do not fill it exactly",
    BAD_CURSOR: "a position is not inside its batch",
    BAD_OFFSETS: "a record's offset does not fit its batch",
}


def refusal(int fault, long long position, bytes header=b""):
    """Return the exception for the fault that stopped a loop at `position`.

    `header` is the batch's header, or fewer bytes if the caller does not have all of it.
    """
    cdef const uint8_t *at = header
    if len(header) < HEADER_SIZE:
        return CorruptRecord(REASONS[fault], position=position)
    reason = REASONS[fault].format(
        length=<int32_t> load32(at + BATCH_LENGTH),
        magic=at[MAGIC],
        codec=at[ATTRIBUTES + 1] & CODEC_BITS,
        count=<int32_t> load32(at + RECORDS_COUNT),
    )
    return CorruptRecord(reason, position=position)


def assign_offsets(bytearray data not None, long long first_offset, int leader_epoch):
    """Write base offsets and the leader epoch into the batches in `data`, in place.

    The first batch begins at `first_offset`, each next one at the end of the previous one. The CRC
    does not cover the two fields (UnifiedLog.append, LogValidator). Returns one tuple for each
    batch: its position in `data`, its size in bytes, its last offset, its largest timestamp in ms.

    Raises CorruptRecord, with the position in `data`, if `data` is not whole v2 batches back to
    back; `data` is then unchanged.
    """
    cdef uint8_t *start = data
    cdef int64_t size = len(data)
    cdef int64_t position = 0
    cdef int64_t batch_size, last_offset
    cdef uint8_t *batch
    while position < size:
        batch_size = checked_size(start, position, size)
        position += batch_size
    batches = []
    position = 0
    while position < size:
        batch = start + position
        batch_size = size_of(batch)
        last_offset = sum_of(first_offset, <int32_t> load32(batch + LAST_OFFSET_DELTA))
        store64(batch + BASE_OFFSET, <uint64_t> first_offset)
        store32(batch + LEADER_EPOCH, <uint32_t> leader_epoch)
        batches.append(
            (position, batch_size, last_offset, <int64_t> load64(batch + MAX_TIMESTAMP))
        )
        first_offset = sum_of(last_offset, 1)
        position += batch_size
    return batches


cdef int64_t checked_size(const uint8_t *start, int64_t position, int64_t size) except -1:
    """Check that a whole v2 batch is at `position`, and return its size; else CorruptRecord."""
    cdef const uint8_t *batch = start + position
    cdef int64_t batch_size
    if size - position < HEADER_SIZE:
        raise CorruptRecord("a batch's header is truncated", position=position)
    batch_size = size_of(batch)
    if batch[MAGIC] != 2 or batch_size < HEADER_SIZE:
        fault = BAD_MAGIC if batch[MAGIC] != 2 else BAD_BATCH_LENGTH
        raise refusal(fault, position, (<const char *> batch)[:HEADER_SIZE])
    if batch_size > size - position:
        raise CorruptRecord("a batch is truncated", position=position)
    if <int32_t> load32(batch + LAST_OFFSET_DELTA) < 0:
        raise CorruptRecord("a batch's last offset is below its base offset", position=position)
    return batch_size


cdef enum Judgement:
    SOUND
    NOT_WHOLE
    OLDER_FORMAT
    WRONG_LENGTH
    WRONG_MAGIC
    WRONG_CRC
    FALLING
    NO_SPAN
    TOO_FAR
    TOO_HIGH
    WRONG_COUNT
    WRONG_CODEC


cdef Judgement judge(
    const uint8_t *batch, int64_t left, int64_t base_offset, int64_t next_offset, int64_t limit,
    bint check_crc,
) noexcept nogil:
    """Say whether the v2 batch at the start of `left` bytes of a segment's `.log` file is sound.

    A sound batch is whole. Its CRC is right, its record count is not negative, its codec exists,
    and its offsets are at least `next_offset`, below `limit` and within 2**31 - 1 of `base_offset`.
    Returns OLDER_FORMAT for a whole entry of v0 or v1, which `judge_older` judges.
    """
    if left < MAGIC + 1:
        return NOT_WHOLE
    if batch[MAGIC] > 2:
        return WRONG_MAGIC
    if size_of(batch) < smallest_size(batch[MAGIC]):
        return WRONG_LENGTH
    if size_of(batch) > left:
        return NOT_WHOLE
    if batch[MAGIC] < 2:
        return OLDER_FORMAT
    if check_crc and crc_of(batch, size_of(batch)) != load32(batch + CRC):
        return WRONG_CRC
    if <int32_t> load32(batch + RECORDS_COUNT) < 0:
        return WRONG_COUNT
    if batch[ATTRIBUTES + 1] & CODEC_BITS > LAST_CODEC:
        return WRONG_CODEC
    return judge_offsets(
        <int64_t> load64(batch), <int32_t> load32(batch + LAST_OFFSET_DELTA), base_offset,
        next_offset, limit,
    )


cdef Judgement judge_older(
    const uint8_t *entry, int64_t base_offset, int64_t next_offset, int64_t limit, bint check_crc
) except *:
    """Say whether a whole entry of v0 or v1 is sound. A wrapper's offset is its last message's."""
    if check_crc and not crc_fits(entry, size_of(entry)):
        return WRONG_CRC
    if not legacy_codec_exists(entry):
        return WRONG_CODEC
    return judge_offsets(<int64_t> load64(entry), 0, base_offset, next_offset, limit)


cdef inline Judgement judge_offsets(
    int64_t base, int32_t delta, int64_t base_offset, int64_t next_offset, int64_t limit
) noexcept nogil:
    if base < next_offset:
        return FALLING
    if delta < 0:
        return NO_SPAN
    if base >= limit - delta:
        return TOO_HIGH
    if base - base_offset > 0x7FFFFFFF - delta:
        return TOO_FAR
    return SOUND


cdef inline int64_t last_offset(const uint8_t *batch) noexcept nogil:
    return last_offset_of(batch) if batch[MAGIC] == 2 else <int64_t> load64(batch)


cdef str reason_of(Judgement judgement, const uint8_t *batch, int64_t next_offset, int64_t limit):
    """The reason why a batch is not sound, as text; "" if it is sound or not whole."""
    if judgement == SOUND or judgement == NOT_WHOLE:
        return ""
    if judgement == WRONG_LENGTH:
        return f"batch length {size_of(batch) - LOG_OVERHEAD} is less than the header size"
    if judgement == WRONG_MAGIC:
        return f"unknown record format: magic {batch[MAGIC]}"
    if judgement == WRONG_CRC:
        return "the CRC is wrong"
    base = <int64_t> load64(batch)
    if judgement == FALLING:
        return f"base offset {base} is below {next_offset}, the next offset"
    if judgement == TOO_FAR:
        return f"base offset {base} is too far from the segment's"
    if judgement == TOO_HIGH and limit == LAST_OFFSET:
        return f"base offset {base} exceeds the largest offset"
    if judgement == TOO_HIGH:
        return f"base offset {base} is not below {limit}, where the segment ends"
    if judgement == NO_SPAN:
        return f"invalid last offset delta {<int32_t> load32(batch + LAST_OFFSET_DELTA)}"
    if judgement == WRONG_COUNT:
        return f"invalid record count {<int32_t> load32(batch + RECORDS_COUNT)}"
    if batch[MAGIC] == 2:
        return f"unknown codec {batch[ATTRIBUTES + 1] & CODEC_BITS}"
    return f"format v{batch[MAGIC]} has no codec {batch[LEGACY_ATTRIBUTES] & CODEC_BITS}"


cdef class Rebuild:
    """Walks a segment's `.log` file in chunks, and makes the index entries that its appends made.

    The caller feeds it the file's bytes in order. It takes whole batches and checks of each the
    magic, the size, the CRC, that offsets rise, and that they lie within 2**31 - 1 of the segment's
    base offset (LogSegment.recover). The entries are in the format of the index files: 8 bytes
    (relative offset i32, position i32) in `offset_entries`, 12 bytes (timestamp i64, relative
    offset i32) in `time_entries`. The caller adds the final time entry, that of `max_timestamp`,
    because it knows whether the segment is closed. The caller takes entries out by clearing the two
    bytearrays.

    `records` counts a wrapper of v0 or v1 as one record, because Rebuild does not open it.
    `producers` has a tuple for each batch with a producer id: base and last offset, producer id and
    epoch, base sequence, attributes, largest timestamp, position; then the type and coordinator
    epoch if the batch is the marker that ends a transaction, else -1 and -1. The caller may clear
    this list, too.

    At the first batch that is not valid, Rebuild stops: it sets `fault` to the reason, and
    `position` is the end of the valid batches. It takes no more bytes until the caller calls `skip`
    to pass the damage.
    """

    cdef readonly long long base_offset
    cdef readonly long long index_interval
    cdef readonly long long position
    cdef readonly long long next_offset
    cdef readonly long long max_timestamp
    cdef readonly long long max_timestamp_offset
    cdef readonly long long first_max_timestamp
    cdef readonly long long last_batch_position
    cdef readonly long long offset_before_last
    cdef readonly long long records
    cdef readonly bytearray offset_entries
    cdef readonly bytearray time_entries
    cdef readonly list epochs
    cdef readonly list producers
    cdef readonly object fault
    cdef long long indexed_position
    cdef long long indexed_timestamp
    cdef long long epoch

    def __init__(
        self,
        long long base_offset,
        long long index_interval,
        *,
        long long position=0,
        next_offset=None,
        long long indexed_position=0,
        long long indexed_timestamp=-1,
        long long max_timestamp=-1,
        max_timestamp_offset=None,
        long long epoch=-1,
    ):
        """Begin at the segment's start, or where an earlier walk ended.

        `indexed_position` is the position in the last offset entry, `indexed_timestamp` the
        timestamp (ms) in the last time entry, `epoch` the last known leader epoch.
        """
        self.base_offset = base_offset
        self.index_interval = index_interval
        self.position = position
        self.next_offset = base_offset if next_offset is None else next_offset
        self.indexed_position = indexed_position
        self.indexed_timestamp = indexed_timestamp
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = (
            base_offset if max_timestamp_offset is None else max_timestamp_offset
        )
        self.first_max_timestamp = -1
        self.last_batch_position = -1
        self.offset_before_last = self.next_offset
        self.records = 0
        self.epoch = epoch
        self.offset_entries = bytearray()
        self.time_entries = bytearray()
        self.epochs = []
        self.producers = []
        self.fault = None

    @property
    def bytes_since(self):
        """Bytes from the start of the last indexed batch to `position` (LogSegment.append)."""
        return self.position - self.indexed_position

    def feed(
        self, data not None, long long size, long long file_position, *, bint check_crc=True
    ):
        """Take the whole batches from `data[:size]`, read at `file_position`, which is `position`.

        Returns how many bytes it took; the caller feeds the rest again, with more bytes after it.
        It takes nothing after a fault.
        """
        cdef PinnedBuffer held = hold_part(data, 0, size)
        cdef int64_t taken = 0
        cdef int64_t batch_size
        if file_position != self.position:
            raise ValueError(f"position {file_position} is not {self.position}, the next")
        while self.fault is None:
            batch_size = self.judge(held.start + taken, size - taken, check_crc)
            if batch_size == 0:
                break
            self.take(held.start + taken, batch_size)
            taken += batch_size
        return taken

    def skip(self, long long end, long long next_offset):
        """Skip damaged bytes: go on at the position `end`, with offsets from `next_offset` on."""
        self.position = end
        self.next_offset = next_offset
        self.fault = None

    cdef int64_t judge(self, const uint8_t *batch, int64_t size, bint check_crc) except -1:
        """The size of the valid batch at `batch`; 0 if it is not whole or not valid."""
        cdef Judgement judgement = judge(
            batch, size, self.base_offset, self.next_offset, LAST_OFFSET, check_crc
        )
        if judgement == OLDER_FORMAT:
            judgement = judge_older(
                batch, self.base_offset, self.next_offset, LAST_OFFSET, check_crc
            )
        if judgement == SOUND:
            return size_of(batch)
        self.fault = reason_of(judgement, batch, self.next_offset, LAST_OFFSET) or None
        return 0

    cdef int take(self, const uint8_t *batch, int64_t size) except -1:
        """Add a valid batch, in the steps and the order of LogSegment.append."""
        cdef int64_t base = <int64_t> load64(batch + BASE_OFFSET)
        cdef int64_t last = base
        cdef int64_t timestamp = -1
        cdef int32_t epoch = -1
        cdef int32_t count = 1
        cdef uint8_t entry[12]
        if batch[MAGIC] == 2:
            last += <int32_t> load32(batch + LAST_OFFSET_DELTA)
            timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
            epoch = <int32_t> load32(batch + LEADER_EPOCH)
            count = <int32_t> load32(batch + RECORDS_COUNT)
            if <int64_t> load64(batch + PRODUCER_ID) >= 0:
                self.producers.append(producer_of(batch, size, base, last, self.position))
        elif batch[MAGIC] == 1:
            timestamp = <int64_t> load64(batch + LEGACY_TIMESTAMP)
        if self.last_batch_position < 0:
            self.first_max_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last
        if self.position - self.indexed_position > self.index_interval:
            store32(entry, <uint32_t> (last - self.base_offset))
            store32(entry + 4, <uint32_t> self.position)
            self.offset_entries += (<char *> entry)[:8]
            if self.max_timestamp > self.indexed_timestamp:
                store64(entry, <uint64_t> self.max_timestamp)
                store32(entry + 8, <uint32_t> (self.max_timestamp_offset - self.base_offset))
                self.time_entries += (<char *> entry)[:12]
                self.indexed_timestamp = self.max_timestamp
            self.indexed_position = self.position
        if epoch > self.epoch:
            self.epoch = epoch
            self.epochs.append((epoch, base))
        self.records += count
        self.last_batch_position = self.position
        self.offset_before_last = self.next_offset
        self.position += size
        self.next_offset = last + 1
        return 0


cdef inline int64_t smallest_size(uint8_t magic) noexcept nogil:
    """The size in bytes of a format's smallest batch; of any format's if the magic is unknown."""
    if magic == 2:
        return HEADER_SIZE
    return LOG_OVERHEAD + (SMALLEST_V1 if magic == 1 else SMALLEST_ENTRY)


cdef bint crc_fits(const uint8_t *batch, int64_t size) except -1:
    """Whether the CRC of a whole batch, of any format, is right."""
    cdef object crc
    if batch[MAGIC] == 2:
        return crc_of(batch, size) == load32(batch + CRC)
    crc = zlib.crc32(PyMemoryView_FromMemory(<char *> (batch + MAGIC), size - MAGIC, PyBUF_READ))
    return crc == load32(batch + LEGACY_CRC)


cdef inline bint legacy_codec_exists(const uint8_t *entry) noexcept:
    return entry[LEGACY_ATTRIBUTES] & CODEC_BITS <= LAST_LEGACY_CODEC


cdef object producer_of(
    const uint8_t *batch, int64_t size, int64_t base, int64_t last, int64_t position
):
    """The tuple for a batch in `Rebuild.producers`."""
    cdef uint16_t epoch = <uint16_t> (batch[PRODUCER_EPOCH] << 8 | batch[PRODUCER_EPOCH + 1])
    cdef int32_t marker = -1
    cdef int32_t coordinator = -1
    if batch[ATTRIBUTES + 1] & CONTROL_BIT:
        read_marker(batch, size, &marker, &coordinator)
    return (
        base,
        last,
        <int64_t> load64(batch + PRODUCER_ID),
        <int16_t> epoch,
        <int32_t> load32(batch + BASE_SEQUENCE),
        batch[ATTRIBUTES + 1],
        <int64_t> load64(batch + MAX_TIMESTAMP),
        position,
        marker,
        coordinator,
    )


cdef void read_marker(
    const uint8_t *batch, int64_t size, int32_t *marker, int32_t *coordinator
) noexcept:
    """Set the type and coordinator epoch if the batch is a transaction's marker; else set nothing.

    `storage.record.control.parse_marker` reads the same fields and raises if they are malformed.
    """
    cdef uint8_t pad[WINDOW]
    cdef const uint8_t *at = batch + HEADER_SIZE
    cdef const uint8_t *end = batch + size
    cdef RecordHead head
    cdef int32_t length = 0
    cdef uint8_t kind
    if <int32_t> load32(batch + RECORDS_COUNT) < 1:
        return
    memset(pad, 0, WINDOW)
    memcpy(pad, at, min(<int64_t> WINDOW, end - at))
    if parse_head(pad, &head) != NO_FAULT or judge_head(&head, end - at) != NO_FAULT:
        return
    end = at + head.size
    at += head.head
    # The key is version and type. A value follows: its length, version and coordinator epoch.
    if head.key_length < 4 or at[0] & 0x80 or at[2] or at[3] > 1:
        return
    kind = at[3]
    at += head.key_length
    if end - at < 7:
        return
    at = read_varint(at, &length)
    if at == NULL or length < 6 or length >= end - at or at[0] & 0x80:
        return
    marker[0] = kind
    coordinator[0] = <int32_t> load32(at + 2)


cdef struct Walked:
    int64_t position
    int64_t last  # where the last walked batch begins; -1: the walk passed none
    int64_t before  # the value of `next_offset` before that batch
    int64_t next_offset


cdef inline void step(Walked *walked, const uint8_t *batch) noexcept nogil:
    walked.last = walked.position
    walked.before = walked.next_offset
    walked.next_offset = last_offset(batch) + 1
    walked.position += size_of(batch)


cdef Judgement walk_v2(
    const uint8_t *data, int64_t size, int64_t base_offset, int64_t limit, Walked *walked
) noexcept nogil:
    """Walk sound v2 batches from `walked.position` on; return why the walk stops."""
    cdef Judgement judgement
    while True:
        judgement = judge(
            data + walked.position, size - walked.position, base_offset, walked.next_offset, limit,
            True,
        )
        if judgement != SOUND:
            return judgement
        step(walked, data + walked.position)


cdef Judgement walk(
    const uint8_t *start, int64_t size, int64_t base_offset, int64_t limit, Walked *walked
) except *:
    """Walk sound batches of any format from `walked.position` on; return why the walk stops."""
    cdef Judgement judgement
    while True:
        if size - walked.position >= RELEASE_GIL_FROM:
            with nogil:
                judgement = walk_v2(start, size, base_offset, limit, walked)
        else:
            judgement = walk_v2(start, size, base_offset, limit, walked)
        if judgement == OLDER_FORMAT:
            judgement = judge_older(
                start + walked.position, base_offset, walked.next_offset, limit, True
            )
        if judgement != SOUND:
            return judgement
        step(walked, start + walked.position)


def walk_batches(
    data not None, long long size, long long base_offset, long long next_offset, long long limit
):
    """Walk the sound batches at the start of `data[:size]`, a piece of a segment's `.log` file.

    A sound batch is whole and has a right CRC. Offsets rise from `next_offset` on, are below
    `limit`, and lie within 2**31 - 1 of `base_offset`. Returns six values: the total size of the
    sound batches; where the last of them begins, -1 if there is none; the next offset before that
    batch; the next offset after it; why the next batch is not sound, "" if it is not whole;
    and whether only the offsets of that batch are wrong.
    """
    cdef PinnedBuffer held = hold_part(data, 0, size)
    cdef Walked walked = Walked(0, -1, next_offset, next_offset)
    cdef Judgement judgement
    judgement = walk(held.start, size, base_offset, limit, &walked)
    return (
        walked.position, walked.last, walked.before, walked.next_offset,
        reason_of(judgement, held.start + walked.position, walked.next_offset, limit),
        judgement in (FALLING, TOO_FAR, TOO_HIGH),
    )


cdef Sound sound_start(
    const uint8_t *data, int64_t size, int64_t left, int64_t base_offset, int64_t next_offset,
    int64_t named, int64_t limit,
) except *:
    """Find the sound batches (see `walk_batches`) at the start of `data`.

    `data` begins where the last `left` bytes of a `.log` file begin. If the last offset of the
    first batch is below `named`, no batch counts.

    No CRC covers a batch's base offset. The next batch shows whether it is right: the last batch
    counts only if `data` has the start of the next one, or if no batch follows.
    """
    cdef Walked walked = Walked(0, -1, next_offset, next_offset)
    cdef Sound sound = Sound(0, next_offset, 0)
    cdef Judgement judgement
    size = min(size, left)
    judgement = walk(data, size, base_offset, limit, &walked)
    if walked.last < 0 or last_offset(data) < named:
        return sound
    sound.last_size = walked.position - walked.last
    if judgement == NOT_WHOLE and size - walked.position > MAGIC:
        # The base offset of a batch that is not whole is there.
        if <int64_t> load64(data + walked.position) < walked.next_offset:
            judgement = FALLING
    elif judgement == NOT_WHOLE and size < left:
        judgement = FALLING  # it may be
    if judgement != FALLING:
        sound.size = walked.position
        sound.next_offset = walked.next_offset
    else:
        sound.size = walked.last
        sound.next_offset = walked.before
    return sound


def proven_size(data not None, long long shortest):
    """Find the size of the v2 batch at the start of `data` whose length field is wrong.

    Returns the smallest size, `shortest` or more, at which the batch's CRC is right, or -1 if there
    is none.
    """
    cdef PinnedBuffer held = hold(data)
    cdef int64_t found = -1
    cdef const uint8_t *batch
    batch = held.start
    if held.size >= HEADER_SIZE and batch[MAGIC] == 2:
        with nogil:
            found = crc32c_prefix(
                batch + ATTRIBUTES, max(shortest, <int64_t> HEADER_SIZE) - ATTRIBUTES,
                held.size - ATTRIBUTES, load32(batch + CRC),
            )
    return found if found < 0 else found + ATTRIBUTES
