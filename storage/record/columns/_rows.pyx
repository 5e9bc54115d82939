"""The hot loop of a sink: it encodes rows in Arrow's layout to batches for a topic's partitions.

Pure. The loop takes columns in Arrow's layout, without Arrow: numbers and positions of i32 or i64
in the machine's byte order, blocks of bytes, and validity bitmaps (lowest bit first, 1 = not null;
without a bitmap no row is null). A column may begin at any row of its buffers. The loop makes
uncompressed v2 batches without a producer, each with base offset 0. The records of one partition
keep the order of their rows.

A row goes to the partition that it names. If it names none, its key decides. Without a key it goes,
as in Kafka's producers, to one partition for a while and then to another
(`storage/log/partitioner.py`). Layouts: `storage/record/batch.py` and `storage/record/header.py`.

Invariants: the loop reads nothing outside a buffer, whatever the positions say; a row that the loop
refuses leaves no trace in a batch; the loop hands over each batch once, when it is complete.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from storage.record._batch cimport HEADER_SIZE, RELEASE_GIL_FROM
from storage.record._route cimport POSITIVE, hash_of
from storage.record._write cimport (
    COPY_STEP, LARGEST_BATCH, Batches, NextRecord, add_record, complete_batch, field_size,
    fit_record, put_field, put_varint, varint_size,
)

from storage.errors import (
    InvalidRecord, InvalidTimestamp, RecordTooLarge, UnknownTopicOrPartition,
)

cdef extern from "storage/record/bytes.h":
    int32_t native32 "kafkafs_native32"(const uint8_t *at) noexcept nogil
    int64_t native64 "kafkafs_native64"(const uint8_t *at) noexcept nogil

cdef enum:
    # Lengths that stand for something else:
    ABSENT = -1  # the cell is null
    OUTSIDE = -2  # the cell does not lie within its buffers
    NAMELESS = -3  # one of the headers has no name
    FIRST_ROOM = 4096
    # A partition's complete batches are handed over together once they take this many bytes.
    WRITE_BYTES = 262144
    NO_TIMESTAMP = -1


# -- columns that are read -----------------------------------------------------------------------


cdef struct Cells:
    # Numbers or positions, of 4 bytes each or, if `wide`, of 8.
    const uint8_t *data
    const uint8_t *validity  # NULL: no cell is null
    int64_t first  # the index of row 0 in the buffers
    int64_t rows
    bint wide


cdef struct Bytes:
    Cells positions
    const uint8_t *block
    int64_t block_size


cdef inline bint is_null(const Cells *cells, int64_t row) noexcept nogil:
    row += cells.first
    return cells.validity != NULL and not (cells.validity[row >> 3] >> (row & 7)) & 1


cdef inline int64_t number_at(const Cells *cells, int64_t row) noexcept nogil:
    row += cells.first
    return native64(cells.data + 8 * row) if cells.wide else native32(cells.data + 4 * row)


cdef inline int64_t bytes_at(const Bytes *column, int64_t row, const uint8_t **start) noexcept nogil:
    """Return the length of a row's bytes, ABSENT or OUTSIDE, and set `start` to the first one."""
    cdef int64_t begin, end
    if is_null(&column.positions, row):
        return ABSENT
    begin = number_at(&column.positions, row)
    end = number_at(&column.positions, row + 1)
    if begin < 0 or end < begin or end > column.block_size:
        return OUTSIDE
    start[0] = column.block + begin
    return end - begin


cdef class Column:
    """Holds buffers, so that they stay in place as long as this object lives."""

    cdef Cells cells
    cdef list views

    cdef const uint8_t *hold(self, object buffer, int64_t needed) except? NULL:
        """Hold a buffer, and return its address; ValueError if it has fewer bytes than needed."""
        cdef object view = memoryview(buffer)
        if view.nbytes < needed or not view.c_contiguous:
            raise ValueError(f"a buffer of {view.nbytes} bytes, {needed} are needed")
        self.views.append(view)
        return <const uint8_t *> PyMemoryView_GET_BUFFER(view).buf

    cdef int hold_cells(
        self, int64_t rows, object data, object validity, int64_t first, bint wide, int64_t more
    ) except -1:
        if rows < 0 or first < 0:
            raise ValueError(f"{rows} rows from row {first}")
        self.views = []
        self.cells.rows = rows
        self.cells.first = first
        self.cells.wide = wide
        self.cells.data = self.hold(data, (first + rows + more) * (8 if wide else 4))
        if validity is not None:
            self.cells.validity = self.hold(validity, (first + rows + 7) // 8)
        return 0


cdef class NumbersColumn(Column):
    """Numbers of 32 bits, or of 64 (`wide`)."""

    def __init__(
        self, long long rows, data not None, validity=None, *, long long first=0, bint wide=False
    ):
        self.hold_cells(rows, data, validity, first, wide, 0)


cdef class BytesColumn(Column):
    """Strings or bytes; `wide`: their positions have 64 bits. Row 0 is at index `first`."""

    cdef Bytes bytes

    def __init__(
        self, long long rows, positions not None, block not None, validity=None, *,
        long long first=0, bint wide=False,
    ):
        self.hold_cells(rows, positions, validity, first, wide, 1)
        self.bytes.block = self.hold(block, 0)
        self.bytes.block_size = self.views[-1].nbytes
        self.bytes.positions = self.cells


cdef class HeadersColumn(Column):
    """Lists of a name and a value; `positions` count rows of `names` and `values`."""

    cdef BytesColumn names, values

    def __init__(
        self, long long rows, positions not None, BytesColumn names not None,
        BytesColumn values not None, validity=None, *, long long first=0, bint wide=False,
    ):
        if names.cells.rows != values.cells.rows:
            raise ValueError(f"{names.cells.rows} names of {values.cells.rows} headers")
        self.hold_cells(rows, positions, validity, first, wide, 1)
        self.names = names
        self.values = values


# -- from rows to batches ------------------------------------------------------------------------


cdef enum Stop:
    ALL_DONE
    STICK_ANEW
    OUT_FULL
    NO_SUCH_ROW
    BAD_POSITIONS
    NULL_KEY
    NULL_NAME
    NO_PARTITION
    NEGATIVE_TIME
    TOO_OLD
    TOO_NEW
    TOO_LARGE


cdef struct Part:
    # The output for one partition.
    Batches batches
    int64_t total  # records taken so far
    bint exists


cdef struct Input:
    int64_t rows
    int64_t next
    int64_t end
    const uint8_t *selection  # i64 each; NULL: all rows
    bint has_keys
    bint has_headers
    bint has_timestamps
    bint has_partitions
    Bytes keys
    Bytes values
    Cells timestamps
    Cells partitions
    Cells headers
    Bytes names
    Bytes contents


cdef struct Rules:
    uint32_t count  # of partitions
    int64_t batch_bytes
    int64_t max_batch_bytes
    int64_t before_ms
    int64_t after_ms
    int64_t now_ms
    bint keys_required


cdef struct Work:
    Input input
    Rules rules
    Part *parts
    int64_t stuck_to  # the partition that gets records without a key
    int64_t stays  # bytes of such records that it still gets, before another one gets them
    bint sticks  # whether the current row goes to `stuck_to`
    # The fields of the row at which the loop stopped, and the room that it needs:
    int64_t row
    int64_t partition
    int64_t timestamp
    int64_t needed


cdef struct Row:
    const uint8_t *key
    const uint8_t *value
    int64_t key_size
    int64_t value_size
    int64_t first_header
    int64_t end_header
    int64_t headers_size
    int64_t timestamp


cdef int64_t measure_headers(const Input *input, int64_t at, Row *row) noexcept nogil:
    """Return the bytes of a row's header count and headers, OUTSIDE or NAMELESS."""
    cdef const uint8_t *start
    cdef int64_t size, total, item
    row.first_header = row.end_header = 0
    if not input.has_headers or is_null(&input.headers, at):
        return 1
    row.first_header = number_at(&input.headers, at)
    row.end_header = number_at(&input.headers, at + 1)
    if (
        row.first_header < 0
        or row.end_header < row.first_header
        or row.end_header > input.names.positions.rows
    ):
        return OUTSIDE
    total = varint_size(<uint64_t> (row.end_header - row.first_header) << 1)
    for item in range(row.first_header, row.end_header):
        size = bytes_at(&input.names, item, &start)
        if size < 0:
            return NAMELESS if size == ABSENT else OUTSIDE
        total += field_size(size)
        size = bytes_at(&input.contents, item, &start)
        if size == OUTSIDE:
            return OUTSIDE
        total += field_size(size)
        if total > LARGEST_BATCH:
            break  # no topic takes a record so large
    return total


cdef inline uint8_t *put_cell(
    uint8_t *out, const uint8_t *start, int64_t size, const Bytes *column
) noexcept nogil:
    """Write a cell as a field; it may write up to COPY_STEP bytes behind the field."""
    return put_field(out, start, size, column.block + column.block_size - start)


cdef uint8_t *put_headers(uint8_t *out, const Input *input, const Row *row) noexcept nogil:
    cdef const uint8_t *start = NULL
    cdef int64_t size, item
    out = put_varint(out, <uint64_t> (row.end_header - row.first_header) << 1)
    for item in range(row.first_header, row.end_header):
        size = bytes_at(&input.names, item, &start)
        out = put_cell(out, start, size, &input.names)
        size = bytes_at(&input.contents, item, &start)
        out = put_cell(out, start, size, &input.contents)
    return out


cdef Stop read_row(Work *work, int64_t at, Row *row) noexcept nogil:
    """Find a row's fields and check them; ALL_DONE if they can become a record."""
    cdef const Input *input = &work.input
    cdef const Rules *rules = &work.rules
    cdef int64_t timestamp = rules.now_ms
    row.key_size = ABSENT
    if input.has_keys:
        row.key_size = bytes_at(&input.keys, at, &row.key)
    row.value_size = bytes_at(&input.values, at, &row.value)
    row.headers_size = measure_headers(input, at, row)
    if row.key_size == OUTSIDE or row.value_size == OUTSIDE or row.headers_size == OUTSIDE:
        return BAD_POSITIONS
    if row.headers_size == NAMELESS:
        return NULL_NAME
    if row.key_size == ABSENT and rules.keys_required:
        return NULL_KEY
    if input.has_timestamps and not is_null(&input.timestamps, at):
        # Round microseconds down to milliseconds, also before 1970.
        timestamp = number_at(&input.timestamps, at)
        timestamp = timestamp // 1000
        work.timestamp = timestamp
        if timestamp < NO_TIMESTAMP:
            return NEGATIVE_TIME
        if timestamp != NO_TIMESTAMP and rules.now_ms - timestamp > rules.before_ms:
            return TOO_OLD
        if timestamp - rules.now_ms > rules.after_ms:
            return TOO_NEW
    row.timestamp = timestamp
    return ALL_DONE


cdef inline Stop choose_partition(Work *work, int64_t at, const Row *row) noexcept nogil:
    cdef int64_t number
    work.sticks = False
    if work.input.has_partitions and not is_null(&work.input.partitions, at):
        number = number_at(&work.input.partitions, at)
    elif row.key_size >= 0:
        number = (hash_of(row.key, row.key_size) & POSITIVE) % work.rules.count
    elif work.stays <= 0:
        return STICK_ANEW
    else:
        number = work.stuck_to
        work.sticks = True
    work.partition = number
    if number < 0 or number >= work.rules.count or not work.parts[number].exists:
        return NO_PARTITION
    return ALL_DONE


cdef inline Stop put_row(Work *work, Part *part, const Row *row) noexcept nogil:
    """Write a row's record. If there is no room, write nothing and set `needed` to the room."""
    cdef int64_t rest = field_size(row.key_size) + field_size(row.value_size) + row.headers_size
    cdef Batches *batches = &part.batches
    cdef NextRecord record
    cdef uint8_t *out
    fit_record(batches, row.timestamp, rest, work.rules.batch_bytes, &record)
    work.needed = HEADER_SIZE + record.size
    if batches.records == 0 and work.needed > work.rules.max_batch_bytes:
        return TOO_LARGE
    work.needed += COPY_STEP
    if batches.room - batches.used < work.needed:
        return OUT_FULL
    out = add_record(batches, row.timestamp, &record)
    out = put_cell(out, row.key, row.key_size, &work.input.keys)
    out = put_cell(out, row.value, row.value_size, &work.input.values)
    if row.headers_size == 1:
        out[0] = 0
    else:
        put_headers(out, &work.input, row)
    part.total += 1
    work.needed = record.size
    return ALL_DONE


cdef Stop run(Work *work) noexcept nogil:
    """Encode rows until they end, or until the caller must act: the result says on what."""
    cdef Input *input = &work.input
    cdef Row row
    cdef int64_t at
    cdef Stop stop
    memset(&row, 0, sizeof(row))
    while input.next < input.end:
        at = input.next
        if input.selection != NULL:
            at = native64(input.selection + 8 * at)
        work.row = at
        if at < 0 or at >= input.rows:
            return NO_SUCH_ROW
        stop = read_row(work, at, &row)
        if stop == ALL_DONE:
            stop = choose_partition(work, at, &row)
        if stop == ALL_DONE:
            stop = put_row(work, work.parts + work.partition, &row)
        if stop != ALL_DONE:
            return stop
        if work.sticks:
            work.stays -= work.needed
        input.next += 1
    return ALL_DONE


cdef class RowEncoder:
    """Makes batches of the rows of a topic, and hands them over partition by partition.

    It calls `write(partition, batches)` with complete batches back to back, in a memoryview that is
    valid until `write` returns. It calls `another(before)` for the partition that gets the next
    `stay_bytes` of records without a key. A batch of several records takes at most `batch_bytes`, a
    batch of one record at most `max_batch_bytes`. Keys are spread over at least `least_count`
    partitions: of some of them another directory may have the files.

    row    the row at which `add` raised
    held   bytes of memory for batches that are not handed over yet
    """

    cdef Work work
    cdef list blocks
    cdef object write
    cdef object another
    cdef int64_t stay_bytes
    cdef readonly long long held

    def __init__(
        self, partitions not None, write not None, another not None, *, long long batch_bytes,
        long long max_batch_bytes, long long stay_bytes, uint32_t least_count=0,
        bint keys_required=False, long long before_ms=0x7FFFFFFFFFFFFFFF,
        long long after_ms=0x7FFFFFFFFFFFFFFF,
    ):
        cdef int number
        cdef uint32_t count = max(least_count, max(partitions) + 1)
        self.write = write
        self.another = another
        self.stay_bytes = stay_bytes
        self.work.rules.count = count
        self.work.rules.max_batch_bytes = min(max_batch_bytes, <long long> LARGEST_BATCH)
        self.work.rules.batch_bytes = min(batch_bytes, self.work.rules.max_batch_bytes)
        self.work.rules.before_ms = before_ms
        self.work.rules.after_ms = after_ms
        self.work.rules.keys_required = keys_required
        self.work.stuck_to = -1
        self.work.parts = <Part *> calloc(count, sizeof(Part))
        if self.work.parts == NULL:
            raise MemoryError
        self.blocks = [None] * count
        for number in partitions:
            if number < 0:
                raise ValueError(f"partition {number}")
            self.work.parts[number].exists = True

    def __dealloc__(self):
        free(self.work.parts)

    @property
    def row(self):
        return self.work.row

    def records(self, int partition):
        """How many records a partition has got."""
        return self._part(partition).total

    def add(
        self, long long now_ms, BytesColumn keys, BytesColumn values not None, *,
        HeadersColumn headers=None, NumbersColumn timestamps=None, NumbersColumn partitions=None,
        selection=None,
    ):
        """Take all rows, or the rows whose numbers (i64) `selection` has, in its order.

        `timestamps` are in microseconds; a row without one gets `now_ms`.

        Raises InvalidRecord, InvalidTimestamp, RecordTooLarge or UnknownTopicOrPartition for a row
        that the topic does not take. It has then taken the rows before that one; the caller must
        not add more.
        """
        cdef Input *input = &self.work.input
        cdef object view
        memset(input, 0, sizeof(Input))
        input.rows = input.end = values.cells.rows
        input.values = values.bytes
        for column in (keys, headers, timestamps, partitions):
            if column is not None and (<Column> column).cells.rows != input.rows:
                raise ValueError(f"{(<Column> column).cells.rows} rows of {input.rows}")
        if keys is not None:
            input.has_keys = True
            input.keys = keys.bytes
        if headers is not None:
            input.has_headers = True
            input.headers = headers.cells
            input.names = headers.names.bytes
            input.contents = headers.values.bytes
        if timestamps is not None:
            if not timestamps.cells.wide:
                raise ValueError("timestamps have 64 bits")
            input.has_timestamps = True
            input.timestamps = timestamps.cells
        if partitions is not None:
            input.has_partitions = True
            input.partitions = partitions.cells
        if selection is not None:
            view = memoryview(selection)
            input.end = view.nbytes // 8
            if input.end:
                input.selection = <const uint8_t *> PyMemoryView_GET_BUFFER(view).buf
        self.work.rules.now_ms = now_ms
        self._run()

    cdef int _run(self) except -1:
        cdef Stop stop
        cdef Input *input = &self.work.input
        cdef bint large = input.values.block_size + 8 * input.end >= RELEASE_GIL_FROM
        while True:
            if large:
                with nogil:
                    stop = run(&self.work)
            else:
                stop = run(&self.work)
            if stop == ALL_DONE:
                return 0
            if stop == OUT_FULL:
                self._make_room(self.work.partition)
            elif stop == STICK_ANEW:
                self.work.stuck_to = self.another(self.work.stuck_to)
                self.work.stays = self.stay_bytes
                self._part(self.work.stuck_to)
            else:
                raise self._refusal(stop)

    cdef Part *_part(self, int64_t number) except NULL:
        if not 0 <= number < self.work.rules.count or not self.work.parts[number].exists:
            raise ValueError(f"partition {number} of {self.work.rules.count}")
        return self.work.parts + number

    cdef object _refusal(self, Stop stop):
        """Return the exception for the reason why the loop stopped."""
        cdef Rules *rules = &self.work.rules
        cdef int64_t timestamp = self.work.timestamp
        if stop == NULL_KEY:
            return InvalidRecord(
                "a compacted topic requires a key in each record"
            )
        if stop == NULL_NAME:
            return InvalidRecord("a header's name is null")
        if stop == NO_PARTITION:
            return UnknownTopicOrPartition(f"there is no partition {self.work.partition}")
        if stop == TOO_LARGE:
            return RecordTooLarge(self.work.needed, rules.max_batch_bytes)
        if stop == NEGATIVE_TIME:
            return InvalidTimestamp(f"timestamp {timestamp} ms is before 1970")
        if stop == TOO_OLD:
            return InvalidTimestamp(
                f"timestamp {timestamp} is {rules.now_ms - timestamp} ms old, more than "
                f"message.timestamp.before.max.ms={rules.before_ms}"
            )
        if stop == TOO_NEW:
            return InvalidTimestamp(
                f"timestamp {timestamp} is {timestamp - rules.now_ms} ms in the future, more than "
                f"message.timestamp.after.max.ms={rules.after_ms}"
            )
        return ValueError(f"row {self.work.row} is outside its columns")

    cdef int _make_room(self, int64_t number) except -1:
        """Make the room in a partition that the loop needs: hand over batches, then allocate."""
        cdef Batches *part = &self._part(number).batches
        cdef int64_t room
        if part.last >= WRITE_BYTES:
            self._write_complete(part, number)
        if part.room - part.used < self.work.needed:
            # Double it, but to no more than a partition takes before its batches are handed over.
            room = min(2 * part.used, WRITE_BYTES + self.work.rules.batch_bytes)
            self._resize(part, number, max(room, part.used + self.work.needed, FIRST_ROOM))
        return 0

    cdef int _resize(self, Batches *part, int64_t number, int64_t room) except -1:
        cdef bytearray block = self.blocks[number]
        if block is None:
            block = self.blocks[number] = bytearray()
        PyByteArray_Resize(block, room)
        part.data = <uint8_t *> PyByteArray_AS_STRING(block)
        self.held += room - part.room
        part.room = room
        return 0

    cdef int _write_complete(self, Batches *part, int64_t number) except -1:
        """Hand over the complete batches, and move the batch that grows to the front."""
        if part.last == 0:
            return 0
        with memoryview(self.blocks[number]) as whole, whole[:part.last] as complete:
            self.write(number, complete)
        memmove(part.data, part.data + part.last, part.used - part.last)
        part.used -= part.last
        part.last = 0
        return 0

    def flush(self, int partition):
        """Complete a partition's batch, hand over all its batches, and free its memory."""
        cdef Batches *part = &self._part(partition).batches
        complete_batch(part)
        self._write_complete(part, partition)
        self._resize(part, partition, 0)
