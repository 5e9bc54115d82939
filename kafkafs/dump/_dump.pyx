"""The hot loop of `kafkafs dump`: it prints the batches of a `.log` file as DumpLogSegments does.

A Walk goes through a `.log` file batch by batch and collects text, or, with `rows`, dicts with the
same contents. The lines, their words, and where the text ends at a fault follow DumpLogSegments
4.4.0. It splits the file as FileLogInputStream does, and reads records as DefaultRecord and
LegacyRecord do. Where DumpLogSegments fails, a Walk raises CorruptRecord with the position of the
batch in the file. The text then ends where that program's text ends, even within a line.

Invariants: a Walk reads nothing outside a batch's own bytes; the number of these bytes bounds every
count of records and headers.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free

from kafkafs.dump._records cimport (
    CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE, Batch, Record, header_row, later_sequence,
    record_row, slice_of, take_message, take_record,
)
from kafkafs.dump._text cimport Text, need, put, put_bool, put_field, put_object, put_utf8
from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BASE_OFFSET, BASE_SEQUENCE, BASE_TIMESTAMP, BATCH_LENGTH,
    CODEC_BITS, CONTROL_BIT, CRC, HEADER_SIZE, HORIZON_BIT, LAST_OFFSET_DELTA, LEADER_EPOCH, LOG_OVERHEAD,
    MAGIC, MAX_TIMESTAMP, PRODUCER_EPOCH, PRODUCER_ID, RECORDS_COUNT, SMALLEST_ENTRY,
    TRANSACTIONAL_BIT, crc_of, load32, load64, read_varint, sum_of,
)
from storage.record._write cimport difference

import zlib

from storage.errors import CorruptRecord

cdef enum:
    FRAME = 17  # bytes from a batch's start to the end of its magic
    # The walk pauses after a batch once it has this many bytes of text, or more rows than that.
    PAUSE_AT = 1 << 18
    PAUSE_AT_ROWS = 4096
    # The most bytes that the fixed words and the numbers of one line take.
    LINE = 1024

cdef char *CODEC_NAMES[5]
CODEC_NAMES[:] = [b"none", b"gzip", b"snappy", b"lz4", b"zstd"]
cdef char *TYPE_NAMES[3]
TYPE_NAMES[:] = [b" NoTimestampType: ", b" CreateTime: ", b" LogAppendTime: "]


cdef inline object crc32(const uint8_t *message, int64_t size):
    return zlib.crc32(PyMemoryView_FromMemory(<char *> (message + 4), size - 4, PyBUF_READ))


cdef class Walk:
    """Prints one `.log` file from `position` on, as text or as rows.

    `deep`: print the records, too. `contents`: print their keys and values. `metadata`: if False,
    print nothing else of a record. `decompress(codec, bytes, magic=…)` raises CorruptRecord.
    `control(key, value)` returns the text that ends a control record's line. `decode(offset, key,
    value)` returns the texts of a record's key and value, or None for one that the line leaves out;
    without `decode` the line has the bytes as Java prints them. `control` and `decode` take None
    for a null key or value.

    `rows`: collect dicts instead of text. A batch's dict has a "position", a record's dict has
    "key", "value" and "headers" as stored.
    """
    cdef Text text
    cdef readonly int64_t position
    cdef int64_t last_offset
    cdef readonly dict gaps
    cdef bint deep
    cdef bint contents
    cdef bint metadata
    cdef object decompress
    cdef object control
    cdef object decode
    cdef list rows

    def __cinit__(
        self,
        decompress,
        control=None,
        decode=None,
        *,
        long long position=0,
        bint deep=True,
        bint contents=True,
        bint metadata=True,
        bint rows=False,
    ):
        self.position = position
        self.decompress = decompress
        self.control = control
        self.decode = decode
        self.deep = deep
        self.contents = contents
        self.metadata = metadata
        self.rows = [] if rows else None
        self.last_offset = -1
        self.gaps = {}

    def __dealloc__(self):
        free(self.text.data)

    def take(self, write):
        """Call `write` with the text since the last call. `write` must not keep the memoryview."""
        if self.text.length:
            size = self.text.length
            self.text.length = 0
            write(PyMemoryView_FromMemory(self.text.data, size, PyBUF_READ))

    def take_rows(self):
        """Return the rows since the last call."""
        rows = self.rows
        self.rows = []
        return rows

    def step(self, data not None, long long start, long long size, long long end, long long file):
        """Go through the batches in `data[:size]` from `position` on.

        `data` begins at file position `start`. The walk ends at `end`; `file` is the file's size.
        Returns 0 at the end, else how many bytes from `position` on the next step needs. Raises
        CorruptRecord.
        """
        cdef Py_buffer buffer
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            if size > buffer.len or not start <= self.position <= start + size:
                raise ValueError(f"position {self.position} in {size} bytes at {start}")
            return self.walk(<const uint8_t *> buffer.buf, start, start + size, end, file)
        finally:
            PyBuffer_Release(&buffer)

    cdef int64_t walk(
        self, const uint8_t *data, int64_t start, int64_t there, int64_t end, int64_t file
    ) except -1:
        """Walk; `data` has the file's bytes from `start` to `there`."""
        cdef const uint8_t *batch
        cdef int32_t length
        cdef int64_t size
        cdef int64_t wanted
        while self.position < end - FRAME:
            if self.text.length >= PAUSE_AT or len(self.rows or ()) > PAUSE_AT_ROWS:
                return 1
            if there - self.position < FRAME:
                return FRAME
            batch = data + (self.position - start)
            length = <int32_t> load32(batch + BATCH_LENGTH)
            if length < SMALLEST_ENTRY:
                raise self.fault(f"the size field says {length}, less than any entry's")
            size = LOG_OVERHEAD + <int64_t> length
            if self.position > end - size:
                return 0
            wanted = size
            if <int8_t> batch[MAGIC] >= 2 and size < HEADER_SIZE:
                # Read the rest of the header from the next bytes, as DumpLogSegments does.
                wanted = HEADER_SIZE
                if file - self.position < HEADER_SIZE:
                    raise self.fault("a batch's header is cut off")
            if there - self.position < wanted:
                return wanted
            if <int8_t> batch[MAGIC] >= 2:
                self.put_batch(batch, size)
            else:
                self.put_legacy(batch, size)
            self.position += size
        return 0

    cdef object fault(self, str reason):
        return CorruptRecord(reason, position=self.position)

    # -- format v2 -----------------------------------------------------------------------------

    cdef int put_batch(self, const uint8_t *at, int64_t size) except -1:
        cdef Batch batch
        cdef Text *text = &self.text
        cdef uint8_t attributes = at[ATTRIBUTES + 1]
        cdef int codec = attributes & CODEC_BITS
        cdef int32_t delta = <int32_t> load32(at + LAST_OFFSET_DELTA)
        cdef bint is_valid = size >= HEADER_SIZE and crc_of(at, size) == load32(at + CRC)
        batch.base_offset = <int64_t> load64(at + BASE_OFFSET)
        batch.base_timestamp = <int64_t> load64(at + BASE_TIMESTAMP)
        batch.append_time = <int64_t> load64(at + MAX_TIMESTAMP)
        batch.base_sequence = <int32_t> load32(at + BASE_SEQUENCE)
        batch.timestamp_type = LOG_APPEND_TIME if attributes & APPEND_TIME_BIT else CREATE_TIME
        batch.is_control = attributes & CONTROL_BIT != 0
        batch.is_message = False
        cdef int64_t last_offset = sum_of(batch.base_offset, delta)
        cdef int32_t last_sequence = -1
        if batch.base_sequence != -1:
            last_sequence = later_sequence(batch.base_sequence, delta)
        if self.rows is not None:
            self.rows.append(header_row(at, &batch, last_offset, last_sequence))
        else:
            need(text, LINE)
            put_field(text, b"baseOffset: ", batch.base_offset)
            put_field(text, b" lastOffset: ", last_offset)
            put_field(text, b" count: ", <int32_t> load32(at + RECORDS_COUNT))
            put_field(text, b" baseSequence: ", batch.base_sequence)
            put_field(text, b" lastSequence: ", last_sequence)
            put_field(text, b" producerId: ", <int64_t> load64(at + PRODUCER_ID))
            put_field(text, b" producerEpoch: ", (<int32_t> load32(at + PRODUCER_EPOCH)) >> 16)
            put_field(text, b" partitionLeaderEpoch: ", <int32_t> load32(at + LEADER_EPOCH))
            put_bool(text, b" isTransactional: ", attributes & TRANSACTIONAL_BIT != 0)
            put_bool(text, b" isControl: ", batch.is_control)
            if attributes & HORIZON_BIT:
                put_field(text, b" deleteHorizonMs: OptionalLong[", batch.base_timestamp)
                put(text, b"]")
            else:
                put(text, b" deleteHorizonMs: OptionalLong.empty")
        self.put_rest(
            size, batch.timestamp_type, batch.append_time, at[MAGIC], codec, load32(at + CRC),
            is_valid,
        )
        if self.deep:
            if size < HEADER_SIZE:
                raise self.fault("a batch is shorter than its header")
            self.put_records(at, size, &batch, codec)
        return 0

    cdef int put_rest(
        self, int64_t size, int timestamp_type, int64_t timestamp, int magic, int codec,
        uint32_t crc, bint is_valid,
    ) except -1:
        """Print the end of a batch's line, which all formats share."""
        cdef Text *text = &self.text
        if codec > 4:
            raise self.fault(f"no codec has number {codec}")
        if self.rows is not None:
            self.rows[-1].update(
                position=self.position, timestampType=TYPE_NAMES[timestamp_type].decode()[1:-2],
                maxTimestamp=timestamp, size=size, magic=magic,
                compression=CODEC_NAMES[codec].decode(), crc=crc, isValid=is_valid,
            )
            return 0
        put_field(text, b" position: ", self.position)
        put_field(text, TYPE_NAMES[timestamp_type], timestamp)
        put_field(text, b" size: ", size)
        put_field(text, b" magic: ", magic)
        put(text, b" compresscodec: ")
        put(text, CODEC_NAMES[codec])
        put_field(text, b" crc: ", crc)
        put_bool(text, b" isvalid: ", is_valid)
        put(text, b"\n")
        return 0

    cdef int put_records(
        self, const uint8_t *at, int64_t size, const Batch *batch, int codec
    ) except -1:
        cdef Py_buffer buffer
        cdef const uint8_t *start
        cdef int32_t count = <int32_t> load32(at + RECORDS_COUNT)
        if count == 0:
            return 0
        if count < 0:
            raise self.fault(f"record count {count}")
        if codec == 0:
            self.put_all(at + HEADER_SIZE, at + size, batch, count, True)
            return 0
        records = self.decompressed(codec, at + HEADER_SIZE, size - HEADER_SIZE, 2)
        PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
        try:
            start = <const uint8_t *> buffer.buf
            # Kafka reads a whole compressed batch before it prints any record of it.
            self.put_all(start, start + buffer.len, batch, count, False)
            self.put_all(start, start + buffer.len, batch, count, True)
        finally:
            PyBuffer_Release(&buffer)
        return 0

    cdef object decompressed(self, int codec, const uint8_t *at, int64_t size, int magic):
        packed = PyMemoryView_FromMemory(<char *> at, size, PyBUF_READ)
        try:
            return self.decompress(codec, packed, magic=magic)
        except CorruptRecord as error:
            raise self.fault(error.message) from None

    cdef int put_all(
        self, const uint8_t *at, const uint8_t *end, const Batch *batch, int32_t count, bint shown
    ) except -1:
        cdef Record record
        while count:
            at = take_record(at, end, batch, &record)
            count -= 1
            if at == NULL:
                raise self.fault("a record is malformed")
            if count == 0 and at != end:
                raise self.fault("bytes are left after a batch's records")
            if shown:
                self.put_record(batch, &record, record.value_size)
        return 0

    # -- formats v0 and v1 ---------------------------------------------------------------------

    cdef int put_legacy(self, const uint8_t *at, int64_t size) except -1:
        cdef Batch batch
        cdef Text *text = &self.text
        cdef const uint8_t *message = at + LOG_OVERHEAD
        cdef int8_t magic = <int8_t> at[MAGIC]
        cdef int codec = message[5] & CODEC_BITS
        cdef int64_t timestamp = -1
        cdef bint is_valid
        batch.base_offset = <int64_t> load64(at)
        batch.timestamp_type = NO_TIMESTAMP_TYPE
        batch.is_control = False
        batch.is_message = True
        if self.rows is not None:
            self.rows.append({"lastOffset": batch.base_offset})
        else:
            need(text, LINE)
            put_field(text, b"offset: ", batch.base_offset)
        if magic < 0:
            raise self.fault(f"no record format has magic {magic}")
        if magic == 1:
            timestamp = <int64_t> load64(message + 6)
            batch.timestamp_type = (
                LOG_APPEND_TIME if message[5] & APPEND_TIME_BIT else CREATE_TIME
            )
        batch.append_time = timestamp
        is_valid = crc32(message, size - LOG_OVERHEAD) == load32(message)
        self.put_rest(
            size, batch.timestamp_type, timestamp, magic, codec, load32(message), is_valid
        )
        if self.deep and codec == 0:
            self.put_message(message, size - LOG_OVERHEAD, &batch, batch.base_offset, is_valid)
        elif self.deep:
            self.put_wrapped(message, size - LOG_OVERHEAD, &batch, codec)
        return 0

    cdef int put_wrapped(
        self, const uint8_t *message, int64_t size, const Batch *batch, int codec
    ) except -1:
        """Print the messages of a compressed message set."""
        cdef Record record
        cdef Py_buffer buffer
        if codec == 4:
            raise self.fault("the older formats know no zstd")
        if not take_message(message, size, batch, &record) or record.value_size < 0:
            raise self.fault("a compressed message set has no value")
        if record.value_size > size - (record.value - message):
            raise self.fault("a compressed message set is cut off")
        messages = self.decompressed(codec, record.value, record.value_size, message[4])
        PyObject_GetBuffer(messages, &buffer, PyBUF_SIMPLE)
        try:
            self.put_messages(<const uint8_t *> buffer.buf, buffer.len, batch, message[4])
        finally:
            PyBuffer_Release(&buffer)
        return 0

    cdef int put_messages(
        self, const uint8_t *data, int64_t size, const Batch *batch, int magic
    ) except -1:
        cdef int64_t at = 0
        cdef int64_t last = -1
        cdef int64_t base = 0
        cdef int64_t whole
        cdef const uint8_t *inner
        # The last inner offset gives the set's base offset, so the first loop walks all of the set.
        while size - at >= LOG_OVERHEAD:
            whole = <int32_t> load32(data + at + 8)
            if whole < SMALLEST_ENTRY:
                raise self.fault(f"an inner message's size field says {whole}")
            if whole > size - at - LOG_OVERHEAD:
                break
            last = at
            at += LOG_OVERHEAD + whole
        if last < 0:
            raise self.fault("a compressed message set is empty")
        if magic == 1 and batch.base_offset != 0:
            base = <int64_t> load64(data + last)
            if batch.base_offset < base:
                raise self.fault("a compressed message set's offset is below its last message's")
            base = difference(batch.base_offset, base)
        at = 0
        while at <= last:
            whole = <int32_t> load32(data + at + 8)
            if data[at + LOG_OVERHEAD + 5] & CODEC_BITS:
                raise self.fault("a compressed message lies in another")
            inner = data + at + LOG_OVERHEAD
            self.put_message(
                inner, whole, batch, sum_of(base, <int64_t> load64(data + at)),
                crc32(inner, whole) == load32(inner),
            )
            at += LOG_OVERHEAD + whole
        return 0

    cdef int put_message(
        self, const uint8_t *message, int64_t size, const Batch *batch, int64_t offset,
        bint is_valid,
    ) except -1:
        cdef Record record
        if not take_message(message, size, batch, &record):
            raise self.fault("a message's key does not fit it")
        record.offset = offset
        record.is_valid = is_valid
        self.put_record(batch, &record, size - (record.value - message))
        return 0

    # -- one record ----------------------------------------------------------------------------

    cdef int put_record(self, const Batch *batch, const Record *record, int64_t room) except -1:
        """Print one record; `room` is the number of bytes that its value may take."""
        cdef Text *text = &self.text
        if record.offset != sum_of(self.last_offset, 1):
            self.gaps[self.last_offset] = record.offset
        self.last_offset = record.offset
        if self.rows is not None:
            if record.value_size > room:
                raise self.fault("a message's value is cut off")
            self.rows.append(record_row(batch, record))
            return 0
        need(text, LINE)
        if self.metadata:
            self.put_metadata(batch, record)
        if self.contents and not batch.is_control:
            if record.value_size > room:
                raise self.fault("a message's value is cut off")
            self.put_contents(record)
        need(text, 1)
        put(text, b"\n")
        return 0

    cdef int put_metadata(self, const Batch *batch, const Record *record) except -1:
        cdef Text *text = &self.text
        cdef const uint8_t *at = record.headers_at
        cdef int32_t size = 0
        put_field(text, b"| offset: ", record.offset)
        put_field(text, TYPE_NAMES[batch.timestamp_type], record.timestamp)
        put_field(text, b" keySize: ", record.key_size)
        put_field(text, b" valueSize: ", record.value_size)
        if batch.is_message:
            put_bool(text, b" isValid: ", record.is_valid)
            put_field(text, b" crc: ", record.crc)
            return 0
        put_field(text, b" sequence: ", record.sequence)
        put(text, b" headerKeys: [")
        for number in range(record.headers):
            # take_headers has checked that the headers end, so this loop needs no bound.
            at = read_varint(at, &size)
            if number:
                put(text, b",")
            put_utf8(text, at, size)
            need(text, LINE)
            at = read_varint(at + size, &size)
            at += max(size, 0)
        put(text, b"]")
        if batch.is_control:
            key = slice_of(record.key, record.key_size)
            put_object(text, self.control(key, slice_of(record.value, record.value_size)))
        return 0

    cdef int put_contents(self, const Record *record) except -1:
        cdef Text *text = &self.text
        cdef const char *prefix = b" " if self.metadata else b"| "
        if self.decode is not None:
            key, value = self.decode(
                record.offset,
                slice_of(record.key, record.key_size),
                slice_of(record.value, record.value_size),
            )
            for word, content in ((b"key: ", key), (b"payload: ", value)):
                if content is not None:
                    need(text, LINE)
                    put(text, prefix)
                    put_object(text, word)
                    put_object(text, content)
                    prefix = b" "
            return 0
        if record.key_size >= 0:
            put(text, prefix)
            put(text, b"key: ")
            put_utf8(text, record.key, record.key_size)
            need(text, LINE)
            prefix = b" "
        if record.value_size >= 0:
            put(text, prefix)
            put(text, b"payload: ")
            put_utf8(text, record.value, record.value_size)
        return 0


def java_text(data not None):
    """Return the UTF-8 that Java prints for these bytes: U+FFFD replaces malformed ones."""
    cdef Text text
    cdef Py_buffer buffer
    text.data = NULL
    text.length = text.room = 0
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        put_utf8(&text, <const uint8_t *> buffer.buf, buffer.len)
        return PyBytes_FromStringAndSize(text.data, text.length)
    finally:
        PyBuffer_Release(&buffer)
        free(text.data)
