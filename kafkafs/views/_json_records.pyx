"""The `jsonl` view's way in, behind the JSON parser: objects to record batches.

The objects are `json_records.JsonRecord`, which have been checked. Text becomes its UTF-8 bytes; an
object stands for the bytes in its field `base64`. Each record has its own timestamp: a batch's base
timestamp is its first record's, and the largest is in its header. A batch is ready but for its
offsets, as those of `_parse.pyx`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from kafkafs.views._parse cimport RECORD_ROOM, finish_batch
from storage.record._batch cimport HEADER_SIZE, put_varint, varint_size, zigzag_bits

from storage.errors import RecordTooLarge

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    LARGEST_BATCH = 0x7FFFFFFF

cdef struct Field:
    # A key, a value, or what a header has; -1: null.
    const uint8_t *start
    int64_t size


cdef int take(object text, Field *field) except -1:
    """Where a field's bytes are. They stay there as long as its record does."""
    cdef Py_ssize_t size
    cdef bytes data
    if text is None:
        field.start = NULL
        field.size = -1
    elif PyUnicode_Check(text):
        field.start = <const uint8_t *> PyUnicode_AsUTF8AndSize(text, &size)
        field.size = size
    else:
        data = text.base64
        field.start = <const uint8_t *> PyBytes_AS_STRING(data)
        field.size = PyBytes_GET_SIZE(data)
    return 0


cdef class Encoder:
    """Records to batches, one by one."""

    cdef bytearray result
    cdef int64_t room  # bytes that `result` has
    cdef int64_t batch  # where the batch begins that is being made
    cdef int64_t out  # and where it ends
    cdef int64_t limit
    cdef int64_t records  # in that batch
    cdef int64_t lines  # in all
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    # The headers of the record at hand, as they are stored.
    cdef bytearray headers
    cdef int64_t headers_size

    def __cinit__(self, int64_t room, int64_t limit):
        self.result = PyByteArray_FromStringAndSize(NULL, room)
        self.room = room
        self.out = HEADER_SIZE
        self.limit = min(limit, <int64_t> LARGEST_BATCH)
        self.headers = bytearray(64)

    cdef int take_headers(self, tuple headers) except -1:
        """Put the headers down as they are stored, without their number."""
        cdef int64_t at = 0
        cdef Field field
        cdef uint8_t *out
        for header in headers:
            for text in <tuple> header:
                take(text, &field)
                if PyByteArray_GET_SIZE(self.headers) - at < field.size + RECORD_ROOM:
                    PyByteArray_Resize(self.headers, 2 * at + field.size + RECORD_ROOM)
                out = put_field(<uint8_t *> PyByteArray_AS_STRING(self.headers) + at, &field)
                at = out - <uint8_t *> PyByteArray_AS_STRING(self.headers)
        self.headers_size = at
        return 0

    cdef int add(self, object record, int64_t now_ms) except -1:
        cdef Field key
        cdef Field value
        cdef int64_t timestamp = record.timestamp
        cdef tuple headers = record.headers
        cdef int64_t count = len(headers)
        cdef int64_t fields
        cdef int64_t body
        cdef int64_t size
        cdef uint8_t *out
        if timestamp < -1:
            timestamp = now_ms
        take(record.key, &key)
        take(record.value, &value)
        self.headers_size = 0
        if count:
            self.take_headers(headers)
        fields = field_size(&key) + field_size(&value) + self.headers_size
        fields += varint_size(<uint64_t> count << 1)
        while True:
            if self.records == 0:
                self.base_timestamp = self.max_timestamp = timestamp
            # The difference wraps as Kafka's does.
            body = 1 + fields + varint_size(self.delta_bits(timestamp))
            body += varint_size(<uint64_t> self.records << 1)
            size = varint_size(<uint64_t> body << 1) + body
            if self.out - self.batch + size <= self.limit:
                break
            if self.records == 0:
                raise RecordTooLarge(HEADER_SIZE + size, self.limit, line=self.lines + 1)
            self.finish()
            self.batch = self.out
            self.out += HEADER_SIZE
        if self.room - self.out < size:
            self.room = 2 * self.room + size
            PyByteArray_Resize(self.result, self.room)
        out = <uint8_t *> PyByteArray_AS_STRING(self.result) + self.out
        out = put_varint(out, <uint64_t> body << 1)
        out[0] = 0
        out = put_varint(out + 1, self.delta_bits(timestamp))
        out = put_varint(out, <uint64_t> self.records << 1)
        out = put_field(put_field(out, &key), &value)
        out = put_varint(out, <uint64_t> count << 1)
        memcpy(out, PyByteArray_AS_STRING(self.headers), self.headers_size)
        self.out += size
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.records += 1
        self.lines += 1
        return 0

    cdef uint64_t delta_bits(self, int64_t timestamp) noexcept:
        return zigzag_bits(
            <int64_t> (<uint64_t> timestamp - <uint64_t> self.base_timestamp)
        )

    cdef int finish(self) except -1:
        cdef uint8_t *batch = <uint8_t *> PyByteArray_AS_STRING(self.result) + self.batch
        finish_batch(
            batch, self.out - self.batch, self.records, self.base_timestamp, self.max_timestamp
        )
        self.records = 0
        return 0


cdef inline int64_t field_size(const Field *field) noexcept nogil:
    return varint_size(zigzag_bits(field.size)) + max(field.size, 0)


cdef inline uint8_t *put_field(uint8_t *out, const Field *field) noexcept nogil:
    out = put_varint(out, zigzag_bits(field.size))
    if field.size > 0:
        memcpy(out, field.start, field.size)
        out += field.size
    return out


def encode_records(
    records not None, long long text_size, long long timestamp_ms, long long max_batch_bytes
):
    """Encode objects as (batches back to back, records). `text_size` is a guess of the size.

    One batch, or as few as keep each within `max_batch_bytes`, its header included; a record
    without a timestamp has `timestamp_ms`. Raises RecordTooLarge, with the record's number from 1
    as the line that it came from.
    """
    cdef Encoder encoder
    if not records:
        return bytearray(), 0
    encoder = Encoder(HEADER_SIZE + RECORD_ROOM + text_size, max_batch_bytes)
    for record in records:
        encoder.add(record, timestamp_ms)
    encoder.finish()
    PyByteArray_Resize(encoder.result, encoder.out)
    return encoder.result, encoder.lines


cdef inline bint is_space(uint8_t byte) noexcept nogil:
    return byte == c" " or byte == c"\t" or byte == c"\r"


def count_lines(data not None, long long start, long long end):
    """How many lines `data[start:end]` has, each an object as far as its first and last byte tell;
    0: another line is among them.

    Where a parser then finds as many objects in them as there are lines, each line is one: between
    a `}` and a `{` no object goes on, so that none reaches beyond its line.
    """
    cdef Py_buffer view
    cdef const uint8_t *line
    cdef const uint8_t *input_end
    cdef const uint8_t *newline
    cdef const uint8_t *last
    cdef long long lines = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end < start or end > view.len:
            raise ValueError(f"lines {start} to {end} of a buffer of {view.len}")
        line = <const uint8_t *> view.buf + start
        input_end = <const uint8_t *> view.buf + end
        if start < end and input_end[-1] != c"\n":
            raise ValueError("the last line has no newline")
        while line < input_end:
            newline = <const uint8_t *> memchr(line, c"\n", input_end - line)
            if newline == NULL:  # someone writes to the input while it is read
                return 0
            last = newline
            while last > line and is_space(last[-1]):
                last -= 1
            while line < last and is_space(line[0]):
                line += 1
            if line == last or line[0] != c"{" or last[-1] != c"}":
                return 0
            line = newline + 1
            lines += 1
        return lines
    finally:
        PyBuffer_Release(&view)
