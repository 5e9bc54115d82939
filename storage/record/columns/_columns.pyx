"""Decodes record batches to columns in Arrow's layout, without Arrow: for Spark and for statistics.

Every buffer is a bytearray in the machine's byte order, so `pyarrow.py_buffer` takes it as it is.

Invariants: in a batch that it decodes, the loop reads every record to its end, headers included.
Each record must fill its length exactly, and the batch must have as many records as its header
says. The module brings compressed batches and those of v0 and v1 into plain form
(`storage/record/plain.py`), which checks their CRC; the caller has checked the others. The caller
says which transactions are aborted. Layouts: `storage/record/header.py` and
`storage/record/batch.py`.
"""

from array import array
from itertools import chain

cimport cython
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BAD_BATCH_LENGTH, BAD_HEADERS, BAD_RECORDS_COUNT, BASE_OFFSET,
    BASE_TIMESTAMP, CODEC_BITS, CONTROL_BATCH, CRC, ENCODED, HEADER_SIZE, LEGACY_ATTRIBUTES,
    LOG_OVERHEAD, MAGIC, MAX_TIMESTAMP, NO_FAULT, PRODUCER_ID, RECORDS_COUNT, RELEASE_GIL_FROM,
    SMALLEST_ENTRY, SMALLEST_RECORD, TRANSACTIONAL_BIT, Fault, Fields, PinnedBuffer, RecordHead,
    headers_fill, hold_part, judge_batch, last_offset_of, load32, load64, read_fields, read_head,
    size_of, sum_of,
)
from storage.record.columns._predicate cimport Limits, Predicate, Subject, limits_of, subject_of
from storage.record.columns._header_column cimport (
    ADDED, MALFORMED, NAMES_TOO_LONG, Grown, Headers, Outcome, begin_headers, free_headers,
    put_headers,
)

from storage.errors import CorruptRecord
from storage.record._batch import refusal
from storage.record.plain import plain

cdef enum:
    LARGEST_INPUT = 0x7FFFFFFF  # the largest position, an i32
    LATEST_MS = 9223372036854775  # the largest timestamp in ms that fits an i64 in microseconds
    CODECS = CODEC_BITS + 1

    # Faults that `Fault` does not have.
    LATE_TIMESTAMP = 100
    LONG_NAMES
    OUT_OF_MEMORY


cdef struct Bytes:
    # A column of bytes; `positions` is NULL if the caller does not want it.
    int32_t *positions
    uint8_t *block
    uint8_t *validity
    int64_t used
    int64_t nulls


cdef struct Span:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset


cdef struct Rows:
    int64_t count
    int64_t room
    int64_t from_offset
    int64_t to_offset
    bint stops  # decoding ends at to_offset
    bint in_us  # timestamps are in microseconds, not in ms
    int64_t *offsets  # NULL: the caller does not want them; so, too, for the next two
    int64_t *timestamps
    int32_t *types
    bint without_times  # the batches come from a format that has no timestamps
    Bytes keys
    Bytes values
    Headers headers
    const Span *aborted  # in rising order
    int64_t aborted_count
    void *predicate  # a Predicate; NULL: every record is wanted
    int64_t judged  # how many records have been decoded
    int64_t refused_offset  # offset and timestamp of the record that has a LATE_TIMESTAMP
    int64_t refused_timestamp


cdef inline void put(Bytes *column, int64_t row, const uint8_t *start, int32_t length) noexcept nogil:
    """Add a row; a `length` of -1 is null."""
    if column.positions == NULL:
        return
    if length >= 0:
        memcpy(column.block + column.used, start, length)
        column.used += length
        column.validity[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        column.nulls += 1
    column.positions[row + 1] = <int32_t> column.used


cdef inline Fault add_batch(Rows *rows, const uint8_t *batch, int64_t size) noexcept nogil:
    """Add the records of a whole batch whose header `judge` accepted."""
    cdef int64_t base_offset = <int64_t> load64(batch + BASE_OFFSET)
    cdef int64_t base_timestamp = <int64_t> load64(batch + BASE_TIMESTAMP)
    cdef bint append_time = batch[ATTRIBUTES + 1] & APPEND_TIME_BIT
    cdef int64_t append_timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
    cdef int32_t count = <int32_t> load32(batch + RECORDS_COUNT)
    cdef const uint8_t *at = batch + HEADER_SIZE
    cdef const uint8_t *end = batch + size
    cdef RecordHead head
    cdef Fields fields
    cdef int64_t offset, timestamp
    cdef int32_t number
    cdef int64_t row = rows.count
    cdef int32_t type_
    cdef bint wanted
    cdef Subject subject
    cdef Fault fault
    if count > rows.room - rows.count:
        return BAD_RECORDS_COUNT
    if rows.predicate != NULL and not (<Predicate> rows.predicate).may_hold_in(at, end - at):
        return NO_FAULT
    for number in range(count):
        fault = read_head(at, end - at, end - at, &head)
        if fault == NO_FAULT:
            fault = read_fields(at, &head, &fields)
        if fault != NO_FAULT:
            return fault
        at = fields.end
        offset = sum_of(base_offset, head.offset_delta)
        wanted = rows.from_offset <= offset < rows.to_offset
        if wanted and rows.predicate != NULL:
            if not headers_fill(fields.headers, fields.end):
                return BAD_HEADERS
            subject = subject_of(batch, rows.without_times, &head, &fields)
            rows.judged += 1
            wanted = (<Predicate> rows.predicate).holds(&subject)
        if wanted and rows.headers.positions != NULL:
            fault = add_headers(rows, fields.headers, fields.end)
            if fault != NO_FAULT:
                return fault
        elif not headers_fill(fields.headers, fields.end):
            return BAD_HEADERS
        if wanted:
            if rows.offsets != NULL:
                rows.offsets[rows.count] = offset
            if rows.timestamps != NULL:
                timestamp = (
                    append_timestamp if append_time
                    else sum_of(base_timestamp, head.timestamp_delta)
                )
                if rows.in_us:
                    if timestamp > <int64_t> LATEST_MS or timestamp < -<int64_t> LATEST_MS:
                        rows.refused_offset = offset
                        rows.refused_timestamp = timestamp
                        return <Fault> LATE_TIMESTAMP
                    timestamp *= 1000
                rows.timestamps[rows.count] = timestamp
            put(&rows.keys, rows.count, fields.key, head.key_length)
            put(&rows.values, rows.count, fields.value, fields.value_length)
            rows.count += 1
    if at != end:
        return BAD_RECORDS_COUNT
    if rows.types != NULL:
        type_ = -1 if rows.without_times else 1 if append_time else 0
        for row in range(row, rows.count):
            rows.types[row] = type_
    return NO_FAULT


cdef inline Fault add_headers(Rows *rows, const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef Outcome outcome = put_headers(&rows.headers, rows.count, at, end)
    if outcome == ADDED:
        return NO_FAULT
    if outcome == MALFORMED:
        return BAD_HEADERS
    return <Fault> (LONG_NAMES if outcome == NAMES_TOO_LONG else OUT_OF_MEMORY)


cdef inline bint is_aborted(const Rows *rows, int64_t producer_id, int64_t offset) noexcept nogil:
    """Whether the offset lies in the producer's last span that begins at or before it."""
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


cdef inline bint is_ruled_out(const Rows *rows, const uint8_t *batch) noexcept nogil:
    """Whether the header of a v2 batch says that no record of it is wanted."""
    cdef Limits limits
    if rows.predicate == NULL:
        return False
    limits = limits_of(batch, rows.without_times)
    return not (<Predicate> rows.predicate).may_hold(&limits)


cdef inline Fault judge(const Rows *rows, const uint8_t *batch) noexcept nogil:
    """Judge a batch as `judge_batch` does, but accept a transactional one that is not aborted.

    Returns CONTROL_BATCH for every batch without a record that becomes a row.
    """
    cdef Fault fault = judge_batch(batch)
    if (fault == NO_FAULT or fault == ENCODED) and batch[MAGIC] == 2 and is_ruled_out(rows, batch):
        return CONTROL_BATCH
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
    int64_t position  # the end of the last whole batch
    int64_t records
    int64_t next_offset  # the offset after that batch
    bint ended  # whether the survey ended because it reached to_offset


cdef inline bint has_ended(const Rows *rows, Survey *found, int64_t base) noexcept nogil:
    found.ended = rows.stops and (base >= rows.to_offset or found.next_offset >= rows.to_offset)
    return found.ended


cdef inline Fault survey(
    const Rows *rows, const uint8_t *data, int64_t size, Survey *found
) noexcept nogil:
    """Add up the record counts in the headers of the whole batches.

    It stops before a batch that needs its plain form, and then returns ENCODED.
    """
    cdef Fault fault
    cdef int64_t batch_size, count, base
    cdef bint is_wrapper
    cdef const uint8_t *batch
    while size - found.position > MAGIC:
        batch = data + found.position
        base = <int64_t> load64(batch + BASE_OFFSET)
        if batch[MAGIC] < 2:
            # A wrapper's offset is that of its last message.
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
        found.next_offset = sum_of(last_offset_of(batch), 1)
        found.position += batch_size
    return NO_FAULT


cdef Fault fill(Rows *rows, const uint8_t *data, int64_t size, int64_t *position) noexcept nogil:
    """Decode the batches that `survey` has found, which end at `size`.

    It repeats the checks of `survey`: the bytes may be a memory map of a file that is written to.
    """
    cdef Fault fault
    cdef const uint8_t *batch
    cdef int64_t batch_size
    position[0] = 0
    while position[0] < size:
        batch = data + position[0]
        batch_size = size_of(batch)
        if batch_size < HEADER_SIZE or batch_size > size - position[0]:
            return BAD_BATCH_LENGTH
        if is_ruled_out(rows, batch):
            position[0] += batch_size
            continue
        if judge(rows, batch) == NO_FAULT:
            fault = add_batch(rows, batch, batch_size)
            if fault != NO_FAULT:
                return fault
        position[0] += batch_size
    return NO_FAULT


cdef void count_batches(
    const Rows *rows, const uint8_t *batch, int64_t left, int64_t *by_codec
) noexcept nogil:
    """Count the batches whose last offset is wanted. An entry of v0 or v1 counts as a batch."""
    cdef int64_t size, last
    cdef uint8_t attributes
    # The shortest entry has every field that this loop reads in an entry of v0 or v1.
    while left >= SMALLEST_ENTRY + LOG_OVERHEAD:
        size = size_of(batch)
        last, attributes = <int64_t> load64(batch), batch[LEGACY_ATTRIBUTES]
        if batch[MAGIC] == 2:
            last, attributes = last_offset_of(batch), batch[ATTRIBUTES + 1]
        if size < SMALLEST_ENTRY + LOG_OVERHEAD or size > left:
            return
        if rows.from_offset <= last < rows.to_offset:
            by_codec[attributes & CODEC_BITS] += 1
        batch += size
        left -= size


cdef class AbortedSpans:
    """Aborted transactions: (producer id, first offset, last offset) of each, in any order.

    Spans of one producer do not overlap. One object serves many calls of `decode_columns`.
    """

    cdef bytearray spans
    cdef int64_t count

    def __init__(self, spans):
        ordered = sorted(spans)
        self.count = len(ordered)
        self.spans = bytearray(array("q", chain.from_iterable(ordered)))

    def __len__(self):
        return self.count


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class VariableColumn:
    """A column whose rows differ in length: bytes, or lists.

    positions  `rows + 1` i32: where each row begins and ends
    block      the bytes of all rows; empty for lists
    validity   a bitmap, lowest bit first, 1 = not null; None if no row can be null
    nulls      how many rows are null
    """

    cdef readonly bytearray positions
    cdef readonly bytearray block
    cdef readonly bytearray validity
    cdef readonly long long nulls

    cdef int trim(self, const Bytes *column, int64_t rows) except -1:
        """Shrink the buffers to the decoded rows."""
        PyByteArray_Resize(self.positions, 4 * (rows + 1))
        PyByteArray_Resize(self.block, column.used)
        PyByteArray_Resize(self.validity, (rows + 7) // 8)
        self.nulls = column.nulls
        return 0


cdef VariableColumn new_column(int64_t rows):
    """Make a column with room for the positions and the validity of `rows` rows."""
    cdef VariableColumn made = VariableColumn.__new__(VariableColumn)
    made.positions = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
    made.validity = bytearray((rows + 7) // 8)
    return made


cdef VariableColumn new_bytes(Bytes *column, int64_t rows, int64_t total):
    """Make a column for `rows` rows of together `total` bytes; point `column` at its buffers."""
    cdef VariableColumn made = new_column(rows)
    made.block = PyByteArray_FromStringAndSize(NULL, total)
    column.positions = <int32_t *> PyByteArray_AS_STRING(made.positions)
    column.block = <uint8_t *> PyByteArray_AS_STRING(made.block)
    column.validity = <uint8_t *> PyByteArray_AS_STRING(made.validity)
    column.positions[0] = 0
    return made


cdef VariableColumn copied_column(const Grown *positions, const Grown *block):
    """Make a column without nulls from copies of these buffers."""
    cdef VariableColumn made = VariableColumn.__new__(VariableColumn)
    made.positions = copied(positions)
    made.block = copied(block)
    return made


cdef bytearray copied(const Grown *block):
    return PyByteArray_FromStringAndSize(<const char *> block.start, block.used)


cdef class Columns:
    """The records of some batches, column by column.

    rows         how many records
    judged       how many records a predicate has decided about; 0 without one
    consumed     bytes of the whole batches that were decoded
    next_offset  the offset after these batches; -1 without a batch
    ended        whether decoding ended at `to_offset`, with `stop`
    batches      with `stop`, how many batches end in the wanted offsets, a list by codec number

    offsets, timestamps          i64 each; empty if the caller does not want them
    timestamp_types              i32 each, Kafka's: 0 create time, 1 append time, -1 none
    keys, values                 bytes
    headers                      lists of the headers below; a row without headers is null
    header_count                 how many rows the next two columns have
    header_names, header_values  UTF-8, never null; bytes

    Any other column that the caller does not want is None.
    """

    cdef readonly long long rows
    cdef readonly long long judged
    cdef readonly long long consumed
    cdef readonly long long next_offset
    cdef readonly bint ended
    cdef int64_t by_codec[CODECS]
    cdef readonly bytearray offsets
    cdef readonly bytearray timestamps
    cdef readonly bytearray timestamp_types
    cdef readonly VariableColumn keys
    cdef readonly VariableColumn values
    cdef readonly VariableColumn headers
    cdef readonly long long header_count
    cdef readonly VariableColumn header_names
    cdef readonly VariableColumn header_values

    @property
    def batches(self):
        return [self.by_codec[codec] for codec in range(CODECS)]

    cdef int make_room(
        self, Rows *into, int64_t records, int64_t total, bint keys, bint values, bint headers,
        bint offsets, bint timestamps, bint timestamp_types,
    ) except -1:
        """Allocate the wanted columns for `records` rows of together at most `total` bytes."""
        self.offsets = PyByteArray_FromStringAndSize(NULL, 8 * records * offsets)
        self.timestamps = PyByteArray_FromStringAndSize(NULL, 8 * records * timestamps)
        into.room = records
        if offsets:
            into.offsets = <int64_t *> PyByteArray_AS_STRING(self.offsets)
        if timestamps:
            into.timestamps = <int64_t *> PyByteArray_AS_STRING(self.timestamps)
        if timestamp_types:
            self.timestamp_types = PyByteArray_FromStringAndSize(NULL, 4 * records)
            into.types = <int32_t *> PyByteArray_AS_STRING(self.timestamp_types)
        if keys:
            self.keys = new_bytes(&into.keys, records, total)
        if values:
            self.values = new_bytes(&into.values, records, total)
        if headers:
            self.headers = new_column(records)
            self.headers.block = bytearray()
            into.headers.positions = <int32_t *> PyByteArray_AS_STRING(self.headers.positions)
            into.headers.validity = <uint8_t *> PyByteArray_AS_STRING(self.headers.validity)
            if not begin_headers(&into.headers):
                raise MemoryError
        return 0

    cdef int trim(self, const Rows *rows) except -1:
        """Shrink the columns to the decoded rows."""
        cdef const Headers *headers = &rows.headers
        self.rows = rows.count
        self.judged = rows.judged
        if rows.offsets != NULL:
            PyByteArray_Resize(self.offsets, 8 * rows.count)
        if rows.timestamps != NULL:
            PyByteArray_Resize(self.timestamps, 8 * rows.count)
        if self.timestamp_types is not None:
            PyByteArray_Resize(self.timestamp_types, 4 * rows.count)
        if self.keys is not None:
            self.keys.trim(&rows.keys, rows.count)
        if self.values is not None:
            self.values.trim(&rows.values, rows.count)
        if self.headers is not None:
            PyByteArray_Resize(self.headers.positions, 4 * (rows.count + 1))
            PyByteArray_Resize(self.headers.validity, (rows.count + 7) // 8)
            self.headers.nulls = headers.nulls
            self.header_count = headers.count
            self.header_names = copied_column(&headers.name_positions, &headers.names)
            self.header_values = copied_column(&headers.value_positions, &headers.values)
            self.header_values.validity = copied(&headers.value_validity)
            self.header_values.nulls = headers.value_nulls
        return 0


cdef class Parts:
    """The batches to decode: runs of batches as the data has them, and plain forms.

    `runs` is a list of (the plain form, or None for a run; its position in the data; its size in
    bytes; whether the plain form is of v0, which has no timestamps).
    """

    cdef list runs
    cdef Survey found
    cdef int64_t total  # bytes of all runs and plain forms
    cdef int64_t limit  # `add_plain` adds no more plain forms once `total` reaches it

    def __cinit__(self, int64_t limit):
        self.runs = []
        self.limit = limit
        self.found.next_offset = -1

    cdef int collect(
        self, data, const Rows *rows, const uint8_t *start, int64_t position, int64_t size
    ) except -1:
        """Survey the `size` bytes at `start`, the address of `data[position]`."""
        cdef int64_t at = 0
        cdef int64_t begin
        cdef bint more = True
        cdef Fault fault
        while more:
            begin = self.found.position
            # All runs together are no longer than i32 positions reach.
            fault = survey(
                rows, start, min(size, begin + LARGEST_INPUT - self.total), &self.found
            )
            at = self.found.position
            if at > begin:
                self.runs.append((None, begin, at - begin, False))
                self.total += at - begin
            if fault == NO_FAULT:
                break
            if fault != ENCODED:
                raise fault_of(fault, position + at, start + at, size - at, rows)
            more = self.add_plain(data, rows, start + at, position, position + size)
        if rows.stops and self.found.next_offset >= rows.to_offset:
            self.found.ended = True
        return 0

    cdef bint add_plain(
        self, data, const Rows *rows, const uint8_t *batch, int64_t position, int64_t end
    ) except -1:
        """Bring the next batch into plain form; False if decoding ends before it."""
        cdef int64_t at = self.found.position
        cdef int64_t records = self.found.records
        cdef bytearray made
        if self.runs and self.total >= self.limit:
            return False
        made, taken = plain(data, position + at, end)
        if not made or self.total + len(made) > LARGEST_INPUT:
            return False
        self.found.position = 0
        fault = survey_plain(rows, made, batch[MAGIC] == 0, &self.found)
        self.found.position = at + <int64_t> taken
        if fault != NO_FAULT:
            raise refusal(fault, position + at)
        self.runs.append((made, at, len(made), batch[MAGIC] == 0))
        self.total += len(made)
        return True

    cdef int decode(self, Rows *rows, const uint8_t *start, int64_t position) except -1:
        cdef bytearray made
        cdef const uint8_t *batches
        cdef int64_t begin, size
        cdef int64_t at = 0
        cdef bint without_times = rows.without_times
        cdef Fault fault
        for made, begin, size, is_without in self.runs:
            batches = start + begin
            rows.without_times = without_times or is_without
            if made is not None:
                batches = <const uint8_t *> PyByteArray_AS_STRING(made)
            if size >= RELEASE_GIL_FROM:
                with nogil:
                    fault = fill(rows, batches, size, &at)
            else:
                fault = fill(rows, batches, size, &at)
            if fault != NO_FAULT:
                raise fault_of(
                    fault,
                    position + begin + (at if made is None else 0),
                    batches + at,
                    size - at,
                    rows,
                )
        return 0


cdef Fault survey_plain(const Rows *rows, bytearray made, bint without_times, Survey *found):
    """Survey a plain form; the stored batch has shown whether decoding ends before it."""
    cdef const uint8_t *batch = <const uint8_t *> PyByteArray_AS_STRING(made)
    cdef Rows loose = rows[0]
    cdef Fault fault
    loose.stops = False
    loose.without_times = loose.without_times or without_times
    fault = survey(&loose, batch, len(made), found)
    return fault


cdef object fault_of(
    int fault, int64_t position, const uint8_t *batch, int64_t size, const Rows *rows
):
    """Return the exception for a fault of the batch at `position`, which has `size` bytes here."""
    cdef object offset = None
    if size >= 8:
        offset = <int64_t> load64(batch)
    if fault == OUT_OF_MEMORY:
        return MemoryError()
    if fault == LONG_NAMES:
        reason = "the header names exceed 2 GiB in total"
    elif fault == LATE_TIMESTAMP:
        reason = f"a timestamp of {rows.refused_timestamp} ms is too large in microseconds"
        offset = rows.refused_offset
    else:
        return refusal(fault, position, (<const char *> batch)[:min(HEADER_SIZE, size)])
    return CorruptRecord(reason, position=position, offset=offset)


def decode_columns(
    data not None, long long position, long long size, *,
    long long from_offset=0, long long to_offset=0x7FFFFFFFFFFFFFFF,
    bint keys=True, bint values=True, bint headers=False,
    bint offsets=True, bint timestamps=True, bint timestamp_types=False,
    bint timestamps_us=False, bint without_times=False,
    AbortedSpans aborted=None, Predicate predicate=None, bint stop=False, long long plain_bytes=LARGEST_INPUT,
):
    """Decode the whole batches in `data[position:position + size]`, the first at its start.

    Records with from_offset <= offset < to_offset become rows, except control records and the
    records of `aborted` transactions. Decoding ends before a batch that the end of the data cuts
    off. It also ends before a batch that needs its plain form if the batches before it take
    `plain_bytes` or more in decoded form, or would take 2**31 bytes together with it. `size` is
    below 2**31.

    `stop`: the data is from a log, and the batches' offsets rise; decoding ends behind the batch
    with the last offset before `to_offset`. `timestamps_us`: return timestamps in microseconds, not
    in ms. `without_times`: the batches are the plain form of a format that has no timestamps.
    `predicate`: only records for which it holds become rows, and a batch whose header or bytes rule
    that out is not decoded: malformed records in it are not noticed.

    Raises CorruptRecord, with the batch's position in `data`; also, with `timestamps_us`, for a
    timestamp that does not fit an i64 in microseconds.
    """
    cdef PinnedBuffer held = hold_part(data, position, position + size)
    cdef Rows rows
    cdef Columns columns = Columns.__new__(Columns)
    cdef Parts parts = Parts(plain_bytes)
    cdef const uint8_t *start
    memset(&rows, 0, sizeof(Rows))
    if size > LARGEST_INPUT:
        raise ValueError(f"{size} bytes are more than positions reach")
    start = held.start + position
    try:
        rows.from_offset, rows.to_offset = from_offset, to_offset
        rows.stops, rows.in_us, rows.without_times = stop, timestamps_us, without_times
        if aborted is not None:
            rows.aborted = <const Span *> PyByteArray_AS_STRING(aborted.spans)
            rows.aborted_count = aborted.count
        if predicate is not None:
            rows.predicate = <void *> predicate
        parts.collect(data, &rows, start, position, size)
        columns.consumed = parts.found.position
        columns.next_offset = parts.found.next_offset
        columns.ended = parts.found.ended
        if stop:
            count_batches(&rows, start, parts.found.position, columns.by_codec)
        columns.make_room(
            &rows, parts.found.records, parts.total, keys, values, headers, offsets, timestamps,
            timestamp_types,
        )
        parts.decode(&rows, start, position)
        columns.trim(&rows)
        return columns
    finally:
        free_headers(&rows.headers)
