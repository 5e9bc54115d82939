"""Record batches to columns, in Arrow's layout but without Arrow: for Spark, and for statistics.

Every buffer is a bytearray in the machine's byte order, so that `pyarrow.py_buffer` takes it as it
is.

Invariants: every record is read to its end, headers included, and must fill its length exactly; a
batch must hold as many records as it says. Compressed batches and those of v0 and v1 are read in
their plain form, and their CRC is checked; others' with `check_crc`. Not here: which transactions
were aborted.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from storage.record._batch cimport (
    BAD_BATCH_LENGTH, CRC, ENCODED, HEADER_SIZE, MAGIC, NO_FAULT, RELEASE_GIL_FROM, Fault, crc_of,
    load32, load64, size_of,
)
from storage.record.columns._batch_survey cimport Survey, judge, survey
from storage.record.columns._column_rows cimport (
    LATE_TIMESTAMP, LONG_NAMES, OUT_OF_MEMORY, OUT_OF_ORDER, WRONG_CRC, Bytes, Rows, Span, add_batch,
)
from storage.record.columns._header_column cimport Grown, Headers, begin_headers, free_headers

from storage.errors import CorruptRecord
from storage.record._batch import refusal
from storage.record.plain import plain

cdef enum:
    # i32 positions reach no further.
    LARGEST_INPUT = 0x7FFFFFFF


cdef Fault fill(Rows *rows, const uint8_t *data, int64_t size, int64_t *position) noexcept nogil:
    """Decode the batches that `survey` has found, which end at `size`.

    What it saw is checked once more: the bytes may be a map of a file that someone writes to.
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
        if rows.check_crc and crc_of(batch, batch_size) != load32(batch + CRC):
            return <Fault> WRONG_CRC
        if judge(rows, batch) == NO_FAULT:
            fault = add_batch(rows, batch, batch_size)
            if fault != NO_FAULT:
                return fault
        position[0] += batch_size
    return NO_FAULT


cdef class AbortedSpans:
    """Aborted transactions: (producer id, first offset, last offset) of each, in any order.

    Those of one producer do not overlap. Made once, for many calls of `decode_columns`.
    """

    cdef bytearray spans
    cdef int64_t count

    def __init__(self, spans):
        cdef Span *at
        ordered = sorted(spans)
        self.count = len(ordered)
        self.spans = PyByteArray_FromStringAndSize(NULL, self.count * <Py_ssize_t> sizeof(Span))
        at = <Span *> PyByteArray_AS_STRING(self.spans)
        for producer_id, first_offset, last_offset in ordered:
            at.producer_id = producer_id
            at.first_offset = first_offset
            at.last_offset = last_offset
            at += 1

    def __len__(self):
        return self.count


cdef class VariableColumn:
    """A column whose rows differ in length: bytes, or lists.

    positions  `rows + 1` i32: where each row begins and ends
    block      the bytes of all rows; empty of lists
    validity   a bitmap, lowest bit first, 1 = not null; None where no row can be null
    nulls      how many rows are null
    """

    cdef readonly bytearray positions
    cdef readonly bytearray block
    cdef readonly bytearray validity
    cdef readonly long long nulls

    cdef int trim(self, const Bytes *column, int64_t rows) except -1:
        """Cut the buffers down to what was decoded."""
        PyByteArray_Resize(self.positions, 4 * (rows + 1))
        PyByteArray_Resize(self.block, column.used)
        PyByteArray_Resize(self.validity, (rows + 7) // 8)
        self.nulls = column.nulls
        return 0


cdef VariableColumn new_column(int64_t rows):
    """A column with room for the positions and the validity of so many rows."""
    cdef VariableColumn made = VariableColumn.__new__(VariableColumn)
    made.positions = PyByteArray_FromStringAndSize(NULL, 4 * (rows + 1))
    made.block = bytearray()
    made.validity = bytearray((rows + 7) // 8)
    return made


cdef VariableColumn new_bytes(Bytes *column, int64_t rows, int64_t total):
    """A column with room for so many rows, of `total` bytes together; `column` writes to it."""
    cdef VariableColumn made = new_column(rows)
    made.block = PyByteArray_FromStringAndSize(NULL, total)
    column.positions = <int32_t *> PyByteArray_AS_STRING(made.positions)
    column.block = <uint8_t *> PyByteArray_AS_STRING(made.block)
    column.validity = <uint8_t *> PyByteArray_AS_STRING(made.validity)
    column.positions[0] = 0
    return made


cdef VariableColumn copied_column(const Grown *positions, const Grown *block):
    """A column of the bytes of these, none of them null."""
    cdef VariableColumn made = VariableColumn.__new__(VariableColumn)
    made.positions = copied(positions)
    made.block = copied(block)
    return made


cdef bytearray copied(const Grown *block):
    return PyByteArray_FromStringAndSize(<const char *> block.start, block.used)


cdef class Columns:
    """The records of some batches, column by column.

    rows         how many records
    consumed     bytes of the whole batches that were decoded
    next_offset  behind the last offset of these batches; -1 where there is none
    ended        whether decoding stopped at `to_offset`, with `stop`

    offsets, timestamps          i64 each; empty where they were not asked for
    timestamp_types              i32 each, Kafka's: 0 create time, 1 append time, -1 none
    keys, values                 bytes
    headers                      lists of the headers below; a row without headers is null
    header_count                 of the next two:
    header_names, header_values  UTF-8, never null; bytes

    Any other column that was not asked for is None.
    """

    cdef readonly long long rows
    cdef readonly long long consumed
    cdef readonly long long next_offset
    cdef readonly bint ended
    cdef readonly bytearray offsets
    cdef readonly bytearray timestamps
    cdef readonly bytearray timestamp_types
    cdef readonly VariableColumn keys
    cdef readonly VariableColumn values
    cdef readonly VariableColumn headers
    cdef readonly long long header_count
    cdef readonly VariableColumn header_names
    cdef readonly VariableColumn header_values

    cdef int make_room(
        self, Rows *into, int64_t records, int64_t total, const Wants *wants
    ) except -1:
        """Allocate for as many records and bytes as there can be."""
        self.offsets = PyByteArray_FromStringAndSize(NULL, 8 * records * wants.offsets)
        self.timestamps = PyByteArray_FromStringAndSize(NULL, 8 * records * wants.timestamps)
        into.room = records
        if wants.offsets:
            into.offsets = <int64_t *> PyByteArray_AS_STRING(self.offsets)
        if wants.timestamps:
            into.timestamps = <int64_t *> PyByteArray_AS_STRING(self.timestamps)
        if wants.timestamp_types:
            self.timestamp_types = PyByteArray_FromStringAndSize(NULL, 4 * records)
            into.types = <int32_t *> PyByteArray_AS_STRING(self.timestamp_types)
        if wants.keys:
            self.keys = new_bytes(&into.keys, records, total)
        if wants.values:
            self.values = new_bytes(&into.values, records, total)
        if wants.headers:
            self.headers = new_column(records)
            into.headers.positions = <int32_t *> PyByteArray_AS_STRING(self.headers.positions)
            into.headers.validity = <uint8_t *> PyByteArray_AS_STRING(self.headers.validity)
            if not begin_headers(&into.headers):
                raise MemoryError
        return 0

    cdef int trim(self, const Rows *rows) except -1:
        """Cut the columns down to what was decoded."""
        cdef const Headers *headers = &rows.headers
        self.rows = rows.count
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


cdef struct Wants:
    bint keys
    bint values
    bint headers
    bint offsets
    bint timestamps
    bint timestamp_types


cdef class Parts:
    """What decoding works on: runs of batches as they lie there, and plain forms.

    `runs` has of each (the plain form, or None; its position in the data; its size; whether the
    plain form is that of a format without timestamps).
    """

    cdef list runs
    cdef Survey found
    cdef int64_t total  # bytes of all runs
    cdef int64_t limit  # no more plain forms once they come to that

    def __cinit__(self, int64_t limit, int64_t lowest_offset):
        self.runs = []
        self.limit = limit
        self.found.next_offset = lowest_offset

    cdef int collect(
        self, data, const Rows *rows, const uint8_t *start, int64_t position, int64_t size
    ) except -1:
        """See what there is in the `size` bytes at `start`, which is `data[position]`."""
        cdef int64_t at = 0
        cdef int64_t begin
        cdef bint more = True
        cdef Fault fault
        while more:
            begin = self.found.position
            # Of all together no more than positions reach.
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
                self.check_crcs(rows, start, position)
                raise fault_of(fault, position + at, start + at, size - at, rows)
            try:
                more = self.add_plain(data, rows, start + at, position, position + size)
            except CorruptRecord:
                self.check_crcs(rows, start, position)
                raise
        if rows.stops and self.found.next_offset >= rows.to_offset:
            self.found.ended = True
        return 0

    cdef bint add_plain(
        self, data, const Rows *rows, const uint8_t *batch, int64_t position, int64_t end
    ) except -1:
        """Bring the next batch into plain form; False where decoding ends before it."""
        cdef int64_t at = self.found.position
        cdef int64_t records = self.found.records
        cdef bytearray made
        if self.runs and self.total >= self.limit:
            return False
        if rows.stops and <int64_t> load64(batch) < self.found.next_offset:
            raise fault_of(<Fault> OUT_OF_ORDER, position + at, batch, HEADER_SIZE, rows)
        made, taken = plain(data, position + at, end)
        if not made or self.total + len(made) > LARGEST_INPUT:
            return False
        self.found.position = 0
        fault = survey_plain(rows, made, &self.found)
        self.found.position = at + <int64_t> taken
        if fault != NO_FAULT:
            raise refusal(fault, position + at)
        self.runs.append((made, at, len(made), batch[MAGIC] == 0))
        self.total += len(made)
        return True

    cdef int check_crcs(self, const Rows *rows, const uint8_t *start, int64_t position) except -1:
        """CorruptRecord where what seems wrong here comes from a wrong batch before."""
        cdef int64_t at
        cdef int64_t begin
        cdef int64_t size
        if rows.check_crc:
            for made, begin, size, _ in self.runs:
                at = begin
                while made is None and at < begin + size:
                    if crc_of(start + at, size_of(start + at)) != load32(start + at + CRC):
                        raise fault_of(<Fault> WRONG_CRC, position + at, start + at, 0, rows)
                    at += size_of(start + at)
        return 0

    cdef int decode(self, Rows *rows, const uint8_t *start, int64_t position) except -1:
        cdef bytearray made
        cdef const uint8_t *batches
        cdef int64_t begin
        cdef int64_t size
        cdef int64_t at = 0
        cdef bint check_crc = rows.check_crc
        cdef bint without_times = rows.without_times
        cdef Fault fault
        for made, begin, size, is_without in self.runs:
            batches = start + begin
            rows.check_crc = check_crc
            rows.without_times = without_times or is_without
            if made is not None:
                batches = <const uint8_t *> PyByteArray_AS_STRING(made)
                rows.check_crc = False
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


cdef Fault survey_plain(const Rows *rows, bytearray made, Survey *found):
    """Survey a plain form, which says its last offset better than a wrapper does its first."""
    cdef const uint8_t *batch = <const uint8_t *> PyByteArray_AS_STRING(made)
    cdef Rows loose = rows[0]
    cdef Fault fault
    loose.stops = False
    fault = survey(&loose, batch, len(made), found)
    return fault


cdef object fault_of(
    int fault, int64_t position, const uint8_t *batch, int64_t size, const Rows *rows
):
    """The exception for a fault of the batch at `position`, of which `size` bytes are there."""
    cdef object offset = None
    if size >= 8:
        offset = <int64_t> load64(batch)
    if fault == OUT_OF_MEMORY:
        return MemoryError()
    if fault == WRONG_CRC:
        reason = "a batch's CRC is wrong"
    elif fault == OUT_OF_ORDER:
        reason = "a batch's offsets do not go on from the batch before it"
    elif fault == LONG_NAMES:
        reason = "the names of the headers are more than 2 GiB together"
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
    AbortedSpans aborted=None, bint check_crc=False,
    bint stop=False, long long lowest_offset=-1, long long plain_bytes=LARGEST_INPUT,
):
    """Decode the whole batches in `data[position:position + size]`, the first at its start.

    Only records with from_offset <= offset < to_offset become rows; control records never do, and
    those of `aborted` transactions do not. A batch that is cut off at the end is left out, and what
    follows when plain forms have come to `plain_bytes`, or would come to 2**31. `size` is below
    that.

    `stop`: the data is from a log, whose batches' offsets rise from `lowest_offset` on; nothing
    behind the batch that has the last offset before `to_offset` is looked at. `check_crc`: of every
    batch, not just of those that are brought into plain form. `timestamps_us`: timestamps in
    microseconds, not in ms. `without_times`: the batches are the plain form of a format that has
    no timestamps.

    Raises CorruptRecord, its position the batch's in `data`.
    """
    cdef Py_buffer view
    cdef Rows rows
    cdef Wants wants
    cdef Columns columns = Columns.__new__(Columns)
    cdef Parts parts = Parts(plain_bytes, lowest_offset if stop else -1)
    cdef const uint8_t *start
    memset(&rows, 0, sizeof(Rows))
    wants.keys, wants.values, wants.headers = keys, values, headers
    wants.offsets, wants.timestamps, wants.timestamp_types = offsets, timestamps, timestamp_types
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or size < 0 or position > view.len - size or size > LARGEST_INPUT:
            raise ValueError(f"{size} bytes at {position} of a buffer of {view.len}")
        start = <const uint8_t *> view.buf + position
        rows.from_offset, rows.to_offset = from_offset, to_offset
        rows.stops, rows.check_crc = stop, check_crc
        rows.in_us, rows.without_times = timestamps_us, without_times
        if aborted is not None:
            rows.aborted = <const Span *> PyByteArray_AS_STRING(aborted.spans)
            rows.aborted_count = aborted.count
        parts.collect(data, &rows, start, position, size)
        columns.consumed = parts.found.position
        columns.next_offset = parts.found.next_offset
        columns.ended = parts.found.ended
        columns.make_room(&rows, parts.found.records, parts.total, &wants)
        parts.decode(&rows, start, position)
        columns.trim(&rows)
        return columns
    finally:
        PyBuffer_Release(&view)
        free_headers(&rows.headers)
