"""Record batches to columns, in Arrow's layout but without Arrow: for Spark, and for statistics.

Every column is a bytearray in the machine's byte order, so that `pyarrow.py_buffer` takes it as it
is: numbers i64; bytes as `rows + 1` i32 positions into one block of bytes, and a validity bitmap
(lowest bit first, 1 = not null).

Invariants: every record is read to its end, headers included, and must fill its length exactly; a
batch must hold as many records as it says. Compressed batches and those of v0 and v1 are read in
their plain form, and their CRC is checked; no other is. Not here: what a transaction's end means
for its records, headers as a column.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BAD_BATCH_LENGTH, BAD_HEADERS, BAD_RECORDS_COUNT,
    BAD_VALUE_LENGTH, BASE_OFFSET, BASE_TIMESTAMP, BATCH_LENGTH, CODEC_BITS, CONTROL_BATCH,
    ENCODED, HEADER_SIZE, LOG_OVERHEAD, MAGIC, MAX_TIMESTAMP, NO_FAULT, RECORDS_COUNT,
    RELEASE_GIL_FROM, SMALLEST_RECORD, WINDOW, Fault, RecordHead, bounded_varint, headers_fill,
    judge_batch, judge_head, load32, load64, parse_head,
)

from storage.record._batch import refusal
from storage.record.plain import plain

cdef enum:
    # i32 positions reach no further.
    LARGEST_INPUT = 0x7FFFFFFF


cdef struct Bytes:
    # A column of bytes; `positions` is NULL where it is not wanted.
    int32_t *positions
    uint8_t *block
    uint8_t *validity
    int64_t used
    int64_t nulls


cdef struct Rows:
    int64_t count
    int64_t room
    int64_t from_offset
    int64_t to_offset
    int64_t *offsets
    int64_t *timestamps
    Bytes keys
    Bytes values


cdef inline void put(Bytes *column, int64_t row, const uint8_t *start, int32_t length) noexcept nogil:
    """Add a row; `length` -1 is null."""
    if column.positions == NULL:
        return
    if length >= 0:
        memcpy(column.block + column.used, start, length)
        column.used += length
        column.validity[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        column.nulls += 1
    column.positions[row + 1] = <int32_t> column.used


cdef Fault add_batch(Rows *rows, const uint8_t *batch, int64_t size) noexcept nogil:
    """Add the records of a whole batch whose header has been judged."""
    cdef uint64_t base_offset = load64(batch + BASE_OFFSET)
    cdef uint64_t base_timestamp = load64(batch + BASE_TIMESTAMP)
    cdef bint append_time = batch[ATTRIBUTES + 1] & APPEND_TIME_BIT
    cdef int64_t append_timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
    cdef int32_t count = <int32_t> load32(batch + RECORDS_COUNT)
    cdef const uint8_t *at = batch + HEADER_SIZE
    cdef const uint8_t *end = batch + size
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef const uint8_t *record_end
    cdef uint8_t pad[WINDOW]
    cdef RecordHead head
    cdef int32_t value_length = 0
    cdef int64_t offset
    cdef int32_t number
    cdef Fault fault
    if count > rows.room - rows.count:
        return BAD_RECORDS_COUNT
    for number in range(count):
        if end - at >= WINDOW:
            fault = parse_head(at, &head)
        else:
            memset(pad, 0, WINDOW)
            memcpy(pad, at, end - at)
            fault = parse_head(pad, &head)
        if fault == NO_FAULT:
            fault = judge_head(&head, end - at)
        if fault != NO_FAULT:
            return fault
        record_end = at + head.size
        key = at + head.head
        value = bounded_varint(key + max(head.key_length, 0), record_end, &value_length)
        if value == NULL or value_length < -1 or value_length > record_end - value - 1:
            return BAD_VALUE_LENGTH
        at = value + max(value_length, 0)
        if (at[0] != 0 or at + 1 != record_end) and not headers_fill(at, record_end):
            return BAD_HEADERS
        at = record_end
        offset = <int64_t> (base_offset + <uint64_t> <int64_t> head.offset_delta)
        if rows.from_offset <= offset < rows.to_offset:
            rows.offsets[rows.count] = offset
            rows.timestamps[rows.count] = (
                append_timestamp if append_time
                else <int64_t> (base_timestamp + <uint64_t> head.timestamp_delta)
            )
            put(&rows.keys, rows.count, key, head.key_length)
            put(&rows.values, rows.count, value, value_length)
            rows.count += 1
    return NO_FAULT if at == end else BAD_RECORDS_COUNT


cdef inline Fault judge(const uint8_t *batch) noexcept nogil:
    """`judge_batch`, but a transaction's records are records like others."""
    cdef Fault fault = judge_batch(batch)
    if fault == ENCODED and batch[MAGIC] == 2 and not batch[ATTRIBUTES + 1] & CODEC_BITS:
        return NO_FAULT
    return fault


cdef Fault survey(
    const uint8_t *data, int64_t size, int64_t *position, int64_t *records
) noexcept nogil:
    """Count the records that the whole batches say they hold; `position` ends behind the last.

    Or before one that has to be brought into plain form, then with ENCODED.
    """
    cdef Fault fault
    cdef int64_t batch_size
    cdef int64_t count
    while size - position[0] > MAGIC:
        if data[position[0] + MAGIC] < 2:
            return ENCODED
        if size - position[0] < HEADER_SIZE:
            break
        fault = judge(data + position[0])
        if fault != NO_FAULT and fault != CONTROL_BATCH:
            return fault
        batch_size = <int64_t> <int32_t> load32(data + position[0] + BATCH_LENGTH) + LOG_OVERHEAD
        if batch_size > size - position[0]:
            break
        if fault == NO_FAULT:
            count = <int32_t> load32(data + position[0] + RECORDS_COUNT)
            if count < 0 or count * SMALLEST_RECORD > batch_size - HEADER_SIZE:
                return BAD_RECORDS_COUNT
            records[0] += count
        position[0] += batch_size
    return NO_FAULT


cdef Fault fill(Rows *rows, const uint8_t *data, int64_t size, int64_t *position) noexcept nogil:
    """Decode the batches that `survey` has found, which end at `size`.

    What it saw is checked once more: the bytes may be a map of a file that someone writes to.
    """
    cdef Fault fault
    cdef int64_t batch_size
    position[0] = 0
    while position[0] < size:
        batch_size = <int64_t> <int32_t> load32(data + position[0] + BATCH_LENGTH) + LOG_OVERHEAD
        if batch_size < HEADER_SIZE or batch_size > size - position[0]:
            return BAD_BATCH_LENGTH
        if judge(data + position[0]) == NO_FAULT:
            fault = add_batch(rows, data + position[0], batch_size)
            if fault != NO_FAULT:
                return fault
        position[0] += batch_size
    return NO_FAULT


cdef class Columns:
    """The records of some batches, column by column; a column that was not asked for is None.

    rows       how many records
    consumed   bytes of the whole batches that were decoded
    offsets, timestamps          i64 each; timestamps in ms
    key_positions, keys, key_validity, key_nulls          see the module
    value_positions, values, value_validity, value_nulls  the same
    """

    cdef readonly long long rows
    cdef readonly long long consumed
    cdef readonly bytearray offsets
    cdef readonly bytearray timestamps
    cdef readonly bytearray key_positions
    cdef readonly bytearray keys
    cdef readonly bytearray key_validity
    cdef readonly long long key_nulls
    cdef readonly bytearray value_positions
    cdef readonly bytearray values
    cdef readonly bytearray value_validity
    cdef readonly long long value_nulls

    cdef int make_room(
        self, Rows *into, int64_t records, int64_t total, bint keys, bint values
    ) except -1:
        """Allocate for as many records and bytes as there can be."""
        self.offsets = PyByteArray_FromStringAndSize(NULL, 8 * records)
        self.timestamps = PyByteArray_FromStringAndSize(NULL, 8 * records)
        into.room = records
        into.offsets = <int64_t *> PyByteArray_AS_STRING(self.offsets)
        into.timestamps = <int64_t *> PyByteArray_AS_STRING(self.timestamps)
        if keys:
            self.key_positions = PyByteArray_FromStringAndSize(NULL, 4 * (records + 1))
            self.keys = PyByteArray_FromStringAndSize(NULL, total)
            self.key_validity = bytearray((records + 7) // 8)
            begin(&into.keys, self.key_positions, self.keys, self.key_validity)
        if values:
            self.value_positions = PyByteArray_FromStringAndSize(NULL, 4 * (records + 1))
            self.values = PyByteArray_FromStringAndSize(NULL, total)
            self.value_validity = bytearray((records + 7) // 8)
            begin(&into.values, self.value_positions, self.values, self.value_validity)
        return 0

    cdef int trim(self, const Rows *rows) except -1:
        """Cut the columns down to what was decoded."""
        self.rows = rows.count
        PyByteArray_Resize(self.offsets, 8 * rows.count)
        PyByteArray_Resize(self.timestamps, 8 * rows.count)
        if self.keys is not None:
            self.key_nulls = rows.keys.nulls
            end(&rows.keys, rows.count, self.key_positions, self.keys, self.key_validity)
        if self.values is not None:
            self.value_nulls = rows.values.nulls
            end(&rows.values, rows.count, self.value_positions, self.values, self.value_validity)
        return 0


cdef void begin(Bytes *column, bytearray positions, bytearray block, bytearray validity):
    column.positions = <int32_t *> PyByteArray_AS_STRING(positions)
    column.block = <uint8_t *> PyByteArray_AS_STRING(block)
    column.validity = <uint8_t *> PyByteArray_AS_STRING(validity)
    column.positions[0] = 0


cdef int end(
    const Bytes *column, int64_t rows, bytearray positions, bytearray block, bytearray validity
) except -1:
    PyByteArray_Resize(positions, 4 * (rows + 1))
    PyByteArray_Resize(block, column.used)
    PyByteArray_Resize(validity, (rows + 7) // 8)
    return 0


cdef class Parts:
    """What decoding works on: runs of batches as they lie there, and plain forms.

    `runs` has of each (the plain form, or None; its position in the data; its size).
    """

    cdef list runs
    cdef int64_t consumed  # bytes of the data
    cdef int64_t total  # bytes of all runs
    cdef int64_t records

    def __cinit__(self):
        self.runs = []

    cdef int collect(self, data, const uint8_t *start, int64_t position, int64_t size) except -1:
        """See what there is in the `size` bytes at `start`, which is `data[position]`."""
        cdef int64_t at = 0
        cdef int64_t begin
        cdef Fault fault
        while True:
            begin = at
            fault = survey(start, size, &at, &self.records)
            if at > begin:
                self.runs.append((None, begin, at - begin))
                self.total += at - begin
            if fault == NO_FAULT:
                break
            if fault != ENCODED:
                raise refusal(fault, position + at, header_at(start, at, size))
            made, taken = plain(data, position + at, position + size)
            if not made or self.total + len(made) > LARGEST_INPUT:
                break
            self.add(made, position + at)
            self.runs.append((made, at, len(made)))
            self.total += len(made)
            at += taken
        self.consumed = at
        return 0

    cdef int add(self, bytearray made, int64_t position) except -1:
        cdef int64_t at = 0
        cdef Fault fault = survey(
            <const uint8_t *> PyByteArray_AS_STRING(made), len(made), &at, &self.records
        )
        if fault != NO_FAULT:
            raise refusal(fault, position)
        return 0

    cdef int decode(self, Rows *rows, const uint8_t *start, int64_t position) except -1:
        cdef bytearray made
        cdef const uint8_t *batches
        cdef int64_t begin
        cdef int64_t size
        cdef int64_t at = 0
        cdef Fault fault
        for made, begin, size in self.runs:
            batches = start + begin
            if made is not None:
                batches = <const uint8_t *> PyByteArray_AS_STRING(made)
            if size >= RELEASE_GIL_FROM:
                with nogil:
                    fault = fill(rows, batches, size, &at)
            else:
                fault = fill(rows, batches, size, &at)
            if fault != NO_FAULT:
                raise refusal(
                    fault,
                    position + begin + (at if made is None else 0),
                    header_at(batches, at, size),
                )
        return 0


cdef bytes header_at(const uint8_t *batches, int64_t at, int64_t size):
    return (<const char *> batches)[at:min(at + HEADER_SIZE, size)]


def decode_columns(
    data not None, long long position, long long size, *,
    long long from_offset=0, long long to_offset=0x7FFFFFFFFFFFFFFF,
    bint keys=True, bint values=True,
):
    """Decode the whole batches in `data[position:position + size]`, the first at its start.

    Only records with from_offset <= offset < to_offset become rows; control records never do. A
    batch that is cut off at the end is left out, and what follows when plain forms have come to
    2**31 bytes. `size` is below that.

    Raises CorruptRecord, its position the batch's in `data`.
    """
    cdef Py_buffer view
    cdef Rows rows
    cdef Columns columns = Columns.__new__(Columns)
    cdef Parts parts = Parts()
    cdef const uint8_t *start
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or size < 0 or position > view.len - size or size > LARGEST_INPUT:
            raise ValueError(f"{size} bytes at {position} of a buffer of {view.len}")
        start = <const uint8_t *> view.buf + position
        memset(&rows, 0, sizeof(Rows))
        rows.from_offset = from_offset
        rows.to_offset = to_offset
        parts.collect(data, start, position, size)
        columns.consumed = parts.consumed
        columns.make_room(&rows, parts.records, parts.total, keys, values)
        parts.decode(&rows, start, position)
        columns.trim(&rows)
        return columns
    finally:
        PyBuffer_Release(&view)
