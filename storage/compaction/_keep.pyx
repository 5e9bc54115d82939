"""The hot loops of compaction: fill the offset map, and write the records that the cleaner keeps.

Pure: the loops take bytes and numbers, and return bytes and numbers. The rules are those of Kafka's
Cleaner.java (buildOffsetMapForSegment, shouldRetainRecord), MemoryRecords.java (filterTo) and
MemoryRecordsBuilder.java, and of KIP-534 for the delete horizon.

There are two kinds of functions. `map_batches` and `keep_batches` go through the bytes of the log
as long as its batches are *simple*: v2, uncompressed, neither control batches nor transactional.
They check each batch's CRC before they trust it, and that its records fill it exactly. They stop
before the first batch that is not simple, not whole or damaged, and do not say why: the caller
examines that batch, and raises or continues after it. `map_batch` and `keep_one` take one batch in
plain form (`storage/record/plain.py`), whose CRC the caller has checked, and raise CorruptRecord.

Before a loop looks up the first of KEYS records, it hashes the keys of all of them and prefetches
the map's memory for them. The map is much larger than the processor's caches, and waiting for
memory once a record would take longer than all the rest.

The caller decides about aborted transactions, markers, empty batches and codecs.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from storage.compaction._offset_map cimport OffsetMap, find, put
from storage.compaction._records cimport (
    KEYS, Records, Seen, enter, have_room, judge_plain, read_some, records_of, simple_size,
)
from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BAD_BATCH_LENGTH, BASE_OFFSET, BASE_TIMESTAMP, HEADER_SIZE,
    HORIZON_BIT, LAST_OFFSET, LAST_OFFSET_DELTA, LOG_OVERHEAD, MAGIC, MAX_TIMESTAMP, NO_FAULT,
    RECORDS_COUNT, Fault, last_offset_of, load64, read_varint, read_varlong, size_of, store32,
    store64, sum_of,
)
from storage.record._write cimport LARGEST_BATCH, body_size, difference, put_head, seal, zigzag_bits

from storage.record._batch import refusal

cdef enum:
    FIRST_ROOM = 1 << 20
    # The most bytes that a record grows by a new timestamp delta: nine, and one in its length.
    RECORD_GAIN = 10


cdef struct Entry:
    # A batch in the output: the numbers that SegmentWriter.append needs.
    int64_t position
    int64_t size
    int64_t last_offset
    int64_t max_timestamp


cdef struct Kept:
    # A record that the cleaner keeps.
    const uint8_t *at
    int64_t size
    int64_t offset
    int64_t timestamp_delta


cdef struct Choice:
    # How many records a batch has, and how many of them the cleaner keeps or drops as invalid.
    int64_t records
    int64_t kept
    int64_t invalid
    int64_t tombstones


# -- the map -------------------------------------------------------------------------------------


cdef Fault map_records(
    OffsetMap map, const uint8_t *batch, int64_t size, int64_t first_offset, bint *full
) noexcept nogil:
    cdef Records records
    cdef Seen seen[KEYS]
    cdef int count
    cdef int i
    cdef Fault fault = enter(batch, size, &records)
    while fault == NO_FAULT and records.left:
        fault = read_some(&records, map, first_offset, LAST_OFFSET, seen, &count)
        if fault != NO_FAULT:
            break
        for i in range(count):
            if seen[i].looked_up and not put(map, seen[i].hash, seen[i].offset):
                full[0] = True
                return NO_FAULT
    if fault == NO_FAULT and records.last_offset >= first_offset:
        map.latest_offset = records.last_offset
    return fault


cdef int64_t map_run(
    OffsetMap map, const uint8_t *data, int64_t at, int64_t end, int64_t first_offset, bint *full
) noexcept nogil:
    cdef int64_t size
    while at < end:
        size = simple_size(data + at, end - at)
        if size == 0 or map_records(map, data + at, size, first_offset, full) != NO_FAULT:
            break
        if full[0]:
            break
        at += size
    return at


def map_batches(
    OffsetMap map not None, data not None, long long at, long long end, long long first_offset
):
    """Put the keys of the records from `first_offset` on, in simple batches, into the map.

    The batches are `data[at:end]`. Returns (position, full). It stops at `end`, before a batch that
    is not simple, not whole or damaged, or, with `full`, before the batch whose next record does
    not fit into the map. The map then has the records of that batch up to `latest_offset`. The map
    may also have some records of a batch with a right CRC and malformed records; `map_batch` raises
    when the caller passes it that batch.
    """
    cdef Py_buffer view
    cdef bint full = False
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_range(&view, at, end)
        with nogil:
            at = map_run(map, <const uint8_t *> view.buf, at, end, first_offset, &full)
    finally:
        PyBuffer_Release(&view)
    return at, full


def map_batch(OffsetMap map not None, batch not None, long long first_offset):
    """Put the keys of one batch in plain form into the map, as `map_batches` does.

    Returns whether a record did not fit because the map is full. Raises CorruptRecord.
    """
    cdef Py_buffer view
    cdef bint full = False
    cdef Fault fault
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        fault = judge_plain(<const uint8_t *> view.buf, view.len)
        if fault == NO_FAULT:
            fault = map_records(map, <const uint8_t *> view.buf, view.len, first_offset, &full)
        if fault != NO_FAULT:
            raise refuse(fault, &view)
    finally:
        PyBuffer_Release(&view)
    return full


cdef int check_range(const Py_buffer *view, int64_t at, int64_t end) except -1:
    if not 0 <= at <= end <= view.len:
        raise ValueError(f"{at} to {end} of a buffer of {view.len}")
    return 0


cdef object refuse(Fault fault, const Py_buffer *view):
    return refusal(fault, 0, (<const char *> view.buf)[:min(view.len, HEADER_SIZE)])


# -- writing a batch of kept records -------------------------------------------------------------


cdef inline uint8_t *put_record(
    uint8_t *out, const Kept *kept, int64_t timestamp_delta, int64_t offset_delta
) noexcept nogil:
    """Copy a record with new deltas, and return the byte after the copy."""
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


cdef int64_t write_kept(
    const uint8_t *batch,
    const Choice *choice,
    const Kept *kept,
    bint legacy,
    int64_t horizon_ms,
    uint8_t *out,
) noexcept nogil:
    """Write a batch of the kept records (MemoryRecords.buildRetainedRecordsInto).

    `choose` has checked their heads. Returns the batch's size in bytes, or 0 if it would exceed the
    largest batch length.
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


# -- choosing the records to keep ----------------------------------------------------------------


cdef class Keeper:
    """Chooses the records of batches that the cleaner keeps, and writes them as batches.

    now_ms             drop the tombstones of a batch whose delete horizon is at or before this
    horizon_ms         the delete horizon to write into batches: now + delete.retention.ms
    special            the last offsets, ascending, of batches that the caller decides about:
                       `keep_batches` stops before them
    legacy_tombstones  keep the tombstones in batches of v0 and v1

    The output is whole batches back to back, which `take` returns. The counters count the records
    of all batches but those that `append` adds: records read, kept, dropped because they have no
    key, and kept without a value.
    """

    cdef OffsetMap map
    cdef public long long records_read
    cdef public long long records_kept
    cdef public long long records_invalid
    cdef public long long tombstones_kept
    cdef long long now_ms
    cdef long long horizon_ms
    cdef public bint legacy_tombstones
    cdef int64_t *special
    cdef int64_t specials
    cdef bytearray out
    cdef uint8_t *start  # the first byte of `out`
    cdef int64_t room
    cdef int64_t used
    cdef Entry *entries
    cdef int64_t entry_room
    cdef int64_t entry_count
    cdef Kept *kept  # the kept records of the current batch
    cdef int64_t kept_room

    def __cinit__(
        self,
        OffsetMap map not None,
        *,
        long long now_ms,
        long long horizon_ms,
        special=(),
        bint legacy_tombstones=True,
    ):
        self.map = map
        self.now_ms = now_ms
        self.horizon_ms = horizon_ms
        self.legacy_tombstones = legacy_tombstones
        self.out = bytearray()
        self.specials = len(special)
        self.special = <int64_t *> malloc(max(self.specials, 1) * sizeof(int64_t))
        if self.special == NULL:
            raise MemoryError
        for i, offset in enumerate(special):
            self.special[i] = offset
            assert i == 0 or self.special[i - 1] <= offset, "special offsets must ascend"

    def __dealloc__(self):
        free(self.special)
        free(self.entries)
        free(self.kept)

    @property
    def pending(self):
        """Bytes of output that `take` has not returned yet."""
        return self.used

    def take(self):
        """Return the output since the last call, and an entry for each batch in it.

        An entry is (position in the output, size in bytes, last offset, largest timestamp in ms).
        The bytes are valid until the next call of a method.
        """
        cdef int64_t i
        entries = [
            (
                self.entries[i].position,
                self.entries[i].size,
                self.entries[i].last_offset,
                self.entries[i].max_timestamp,
            )
            for i in range(self.entry_count)
        ]
        data = memoryview(self.out)[:self.used]
        self.used = 0
        self.entry_count = 0
        return data, entries

    def append(self, batch not None):
        """Add a complete v2 batch to the output, unchanged. Raises CorruptRecord if it is none."""
        cdef Py_buffer view
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            if (
                view.len < HEADER_SIZE
                or (<const uint8_t *> view.buf)[MAGIC] != 2
                or size_of(<const uint8_t *> view.buf) != view.len
            ):
                raise refuse(BAD_BATCH_LENGTH, &view)
            self.make_room(view.len, 0)
            memcpy(self.start + self.used, view.buf, view.len)
            self.enter_output(view.len)
        finally:
            PyBuffer_Release(&view)

    def keep_batches(self, data not None, long long at, long long end):
        """Add the kept records of the simple batches in `data[at:end]` to the output.

        Returns the position where it stopped: `end`, or before a batch that is not simple, not
        whole, damaged or special. It copies a batch unchanged if it drops no record of it and adds
        no delete horizon. It drops a batch without a kept record.
        """
        cdef Py_buffer view
        cdef int64_t wanted
        cdef int64_t position = at
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            check_range(&view, at, end)
            while True:
                with nogil:
                    wanted = self.run(self.map, <const uint8_t *> view.buf, &position, end)
                if not wanted:
                    return position
                self.make_room(wanted, records_of(<const uint8_t *> view.buf + position, wanted))
        finally:
            PyBuffer_Release(&view)

    def keep_one(self, batch not None, *, bint legacy=False):
        """Return (records read, records kept, new batch) for one batch in plain form.

        The batch is uncompressed v2, and the caller has checked the stored batch's CRC. The new
        batch is None if the batch stays unchanged or no record is kept. `legacy`: the plain form is
        of v0 or v1, of whose kept records it always makes a new batch, from the first kept offset
        to the last. It does not add the new batch to the output.

        Raises CorruptRecord.
        """
        cdef Py_buffer view
        cdef Choice choice
        cdef Fault fault
        cdef bytearray made = None
        cdef int64_t size
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            fault = judge_plain(<const uint8_t *> view.buf, view.len)
            if fault == NO_FAULT:
                self.make_kept_room(records_of(<const uint8_t *> view.buf, view.len))
                fault = self.choose(
                    self.map, <const uint8_t *> view.buf, view.len, legacy, &choice
                )
            if fault == NO_FAULT and self.must_write(<const uint8_t *> view.buf, &choice, legacy):
                size = view.len + choice.kept * RECORD_GAIN
                made = PyByteArray_FromStringAndSize(NULL, size)
                size = write_kept(
                    <const uint8_t *> view.buf,
                    &choice,
                    self.kept,
                    legacy,
                    self.horizon_ms,
                    <uint8_t *> PyByteArray_AS_STRING(made),
                )
                assert size <= len(made)
                if size == 0:
                    fault = BAD_BATCH_LENGTH
                PyByteArray_Resize(made, size)
            if fault != NO_FAULT:
                raise refuse(fault, &view)
        finally:
            PyBuffer_Release(&view)
        self.count(&choice)
        return choice.records, choice.kept, made

    cdef int make_room(self, int64_t size, int64_t records) except -1:
        """Make room in the output for one more batch, of `size` bytes before its rewrite."""
        cdef int64_t room = self.used + size + records * RECORD_GAIN
        cdef bytearray grown
        self.make_kept_room(records)
        if room > self.room:
            # Allocate a new buffer: the caller may still have a view of the old one.
            room = max(room, 2 * self.room, <int64_t> FIRST_ROOM)
            grown = PyByteArray_FromStringAndSize(NULL, room)
            if self.used:
                memcpy(PyByteArray_AS_STRING(grown), self.start, self.used)
            self.out = grown
            self.start = <uint8_t *> PyByteArray_AS_STRING(grown)
            self.room = room
        if not have_room(
            <void **> &self.entries, &self.entry_room, self.entry_count + 1, sizeof(Entry)
        ):
            raise MemoryError
        return 0

    cdef int make_kept_room(self, int64_t records) except -1:
        if not have_room(<void **> &self.kept, &self.kept_room, records, sizeof(Kept)):
            raise MemoryError
        return 0

    cdef int64_t run(
        self, OffsetMap map, const uint8_t *data, int64_t *position, int64_t end
    ) noexcept nogil:
        """Keep records of the batches from `position` on.

        Returns the size of the first batch for which there is no room yet, or 0 if the run ends.
        """
        cdef const uint8_t *batch
        cdef Choice choice
        cdef int64_t size
        cdef int64_t made
        cdef int64_t records
        while position[0] < end:
            batch = data + position[0]
            size = simple_size(batch, end - position[0])
            if size == 0 or self.is_special(batch):
                return 0
            records = records_of(batch, size)
            if (
                records > self.kept_room
                or self.used + size + records * RECORD_GAIN > self.room
                or self.entry_count == self.entry_room
            ):
                return size
            if self.choose(map, batch, size, False, &choice) != NO_FAULT:
                return 0
            if self.must_write(batch, &choice, False):
                made = write_kept(
                    batch, &choice, self.kept, False, self.horizon_ms, self.start + self.used
                )
                if made == 0:
                    return 0
                self.enter_output(made)
            elif choice.kept:
                memcpy(self.start + self.used, batch, size)
                self.enter_output(size)
            self.count(&choice)
            position[0] += size
        return 0

    cdef bint is_special(self, const uint8_t *batch) noexcept nogil:
        cdef int64_t last = last_offset_of(batch)
        cdef int64_t low = 0
        cdef int64_t high = self.specials
        cdef int64_t middle
        while low < high:
            middle = (low + high) >> 1
            if self.special[middle] < last:
                low = middle + 1
            else:
                high = middle
        return low < self.specials and self.special[low] == last

    cdef void enter_output(self, int64_t size) noexcept nogil:
        """Add the batch that a loop wrote behind the output to the output."""
        cdef const uint8_t *batch = self.start + self.used
        cdef Entry *entry = self.entries + self.entry_count
        entry.position = self.used
        entry.size = size
        entry.last_offset = last_offset_of(batch)
        entry.max_timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
        self.used += size
        self.entry_count += 1

    cdef void count(self, const Choice *choice) noexcept nogil:
        self.records_read += choice.records
        self.records_kept += choice.kept
        self.records_invalid += choice.invalid
        self.tombstones_kept += choice.tombstones

    cdef Fault choose(
        self,
        OffsetMap map,
        const uint8_t *batch,
        int64_t size,
        bint legacy,
        Choice *choice,
    ) noexcept nogil:
        """List the records of a batch to keep in `kept` (Cleaner.shouldRetainRecord)."""
        cdef Records records
        cdef Seen seen[KEYS]
        cdef Seen *record
        cdef Kept *kept
        cdef int count
        cdef int i
        cdef int64_t latest = map.latest_offset
        cdef bint tombstones_stay = self.legacy_tombstones
        cdef Fault fault = enter(batch, size, &records)
        if not legacy:
            tombstones_stay = (
                batch[ATTRIBUTES + 1] & HORIZON_BIT == 0
                or self.now_ms < <int64_t> load64(batch + BASE_TIMESTAMP)
            )
        memset(choice, 0, sizeof(Choice))
        choice.records = records.left
        while fault == NO_FAULT and records.left:
            fault = read_some(&records, map, 0, latest, seen, &count)
            if fault != NO_FAULT:
                break
            for i in range(count):
                record = seen + i
                if record.offset <= latest:
                    if not record.has_key:
                        choice.invalid += 1
                        continue
                    if not record.has_value and not tombstones_stay:
                        continue
                    if record.offset < find(map, record.hash):
                        continue
                kept = self.kept + choice.kept
                kept.at = record.at
                kept.size = record.size
                kept.offset = record.offset
                kept.timestamp_delta = record.timestamp_delta
                choice.kept += 1
                choice.tombstones += not record.has_value
        return fault

    cdef bint must_write(
        self, const uint8_t *batch, const Choice *choice, bint legacy
    ) noexcept nogil:
        """Whether the kept records need a new batch (MemoryRecords.filterTo)."""
        if choice.kept == 0:
            return False
        if legacy or choice.kept < choice.records:
            return True
        return choice.tombstones > 0 and batch[ATTRIBUTES + 1] & HORIZON_BIT == 0
