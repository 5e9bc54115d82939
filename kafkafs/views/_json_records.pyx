"""The `jsonl` view's way in: lines of JSON to record batches.

A line as the view itself writes it (`_json_lines.pyx`), to the byte, is read here, with the loops
that wrote it: so a copy of a partition takes a quarter of the time. Any other line goes to the
JSON parser, which alone decides what is allowed; what is read here it takes for the same record.

Each record has its own timestamp: a batch's base timestamp is its first record's, and the largest
is in its header. A batch is ready but for its offsets, as those of `_parse.pyx`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, strlen

from kafkafs.views._json_text cimport prepare, take_base64, take_string
from kafkafs.views._parse cimport RECORD_ROOM
from storage.record._batch cimport HEADER_SIZE
from storage.record._write cimport (
    LARGEST_BATCH, Batches, NextRecord, add_record, complete_batch, field_size, fit_record,
    put_field, put_varint, varint_size,
)

from storage.errors import RecordTooLarge

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    # Bytes behind what is read that may be touched.
    SLACK = 64

prepare()


cdef struct Field:
    # A key, a value, or what a header has; -1: null.
    const uint8_t *start
    int64_t size


cdef struct Fields:
    # What a line says of a record.
    int64_t timestamp
    Field key
    Field value
    int64_t header_count
    Field headers  # as they are stored, without their number


# -- lines as the view writes them ---------------------------------------------------------------

cdef inline const uint8_t *skip(
    const uint8_t *at, const uint8_t *end, const char *text
) noexcept nogil:
    """Behind `text`; NULL where something else comes, or nothing."""
    cdef int64_t size = strlen(text)
    if at == NULL or end - at < size or memcmp(at, text, size) != 0:
        return NULL
    return at + size


cdef inline const uint8_t *take_integer(
    const uint8_t *at, const uint8_t *end, int64_t *number
) noexcept nogil:
    """Behind an integer of at most 18 digits, which something that is no digit follows."""
    cdef const uint8_t *start
    cdef bint negative
    cdef int64_t found = 0
    if at == NULL:
        return NULL
    negative = at[0] == c"-"
    at += negative
    start = at
    while c"0" <= at[0] <= c"9":
        if at - start == 18:
            return NULL
        found = 10 * found + (at[0] - c"0")
        at += 1
    if at == start or (start[0] == c"0" and (at - start > 1 or negative)):
        return NULL
    number[0] = -found if negative else found
    return at


cdef inline const uint8_t *take_field(
    const uint8_t *at, const uint8_t *end, uint8_t **out, Field *field
) noexcept nogil:
    """Behind a string, Base64 or null; the bytes are put to `out`."""
    if at == NULL:
        return NULL
    field.start = out[0]
    if at[0] == c'"':
        at = take_string(out, at + 1, end)
    elif at[0] == c"{":
        at = skip(at, end, b'{"base64":"')
        if at != NULL:
            at = skip(take_base64(out, at, end), end, b'"}')
    else:
        field.size = -1
        return skip(at, end, b"null")
    field.size = out[0] - field.start
    return at


cdef const uint8_t *take_headers(
    const uint8_t *at, const uint8_t *end, uint8_t *out, uint8_t *stored, Fields *fields
) noexcept nogil:
    """Behind the headers of a line; `stored` is where they are put down."""
    cdef Field field
    fields.headers.start = stored
    while True:
        at = take_field(skip(at, end, b"["), end, &out, &field)
        if at == NULL or field.size < 0:
            return NULL
        stored = put_field(stored, field.start, field.size, 0)
        at = take_field(skip(at, end, b","), end, &out, &field)
        at = skip(at, end, b"]")
        if at == NULL:
            return NULL
        stored = put_field(stored, field.start, field.size, 0)
        fields.header_count += 1
        if at[0] != c",":
            fields.headers.size = stored - fields.headers.start
            return at
        at += 1


cdef const uint8_t *take_line(
    const uint8_t *at, const uint8_t *end, uint8_t *out, uint8_t *stored, Fields *fields
) noexcept nogil:
    """Behind a line as the view writes it; NULL: it is another one.

    A newline comes before `end`. `out` and `stored` have room for the line, and SLACK.
    """
    cdef int64_t offset
    at = take_integer(skip(at, end, b'{"offset":'), end, &offset)
    at = take_integer(skip(at, end, b',"timestamp":'), end, &fields.timestamp)
    at = skip(at, end, b',"timestampType":"')
    if at == NULL or fields.timestamp < -1:
        return NULL
    at = skip(at, end, b"CreateTime" if at[0] == c"C" else b"LogAppendTime")
    at = take_field(skip(at, end, b'","key":'), end, &out, &fields.key)
    at = take_field(skip(at, end, b',"value":'), end, &out, &fields.value)
    at = skip(at, end, b',"headers":[')
    if at == NULL:
        return NULL
    fields.header_count = 0
    fields.headers.size = 0
    if at[0] != c"]":
        at = take_headers(at, end, out, stored, fields)
    return skip(at, end, b"]}\n")


# -- batches -------------------------------------------------------------------------------------

cdef int take_object(object text, Field *field) except -1:
    """Where the bytes of a key, a value or a part of a header are. They stay there as long as the
    object does that has it.
    """
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


cdef class LineEncoder:
    """Lines to batches, once.

    `decode` is the parser: of a line without its newline it makes a `json_records.JsonRecord`, or
    raises; that goes through, and then `lines` are the lines before it, and `line` is it.
    """

    cdef readonly long long lines
    cdef readonly bytes line
    cdef object decode
    cdef int64_t now_ms
    cdef int64_t limit
    cdef bytearray result
    cdef Batches batches  # in `result`
    # A record's fields, and behind them or alone its headers as they are stored.
    cdef bytearray scratch

    def __init__(self, decode not None, long long timestamp_ms, long long max_batch_bytes):
        self.decode = decode
        self.now_ms = timestamp_ms
        self.limit = min(max_batch_bytes, <long long> LARGEST_BATCH)
        self.scratch = bytearray()

    def encode(self, data not None, long long start, long long end):
        """As `_parse.encode_lines`; what `decode` raises, too. `data` must not change meanwhile."""
        cdef Py_buffer view
        cdef const uint8_t *line
        cdef const uint8_t *input_end
        cdef const uint8_t *newline
        cdef uint8_t *scratch
        cdef uint8_t *stored
        cdef Fields fields
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if start < 0 or end < start or end > view.len:
                raise ValueError(f"lines {start} to {end} of a buffer of {view.len}")
            if start == end:
                return bytearray(), 0
            line = <const uint8_t *> view.buf + start
            input_end = <const uint8_t *> view.buf + end
            if input_end[-1] != c"\n":
                raise ValueError("the last line has no newline")
            self.result = bytearray()
            self.make_room(HEADER_SIZE + RECORD_ROOM + end - start)
            while line < input_end:
                newline = <const uint8_t *> memchr(line, c"\n", input_end - line)
                self.need(2 * (newline - line + SLACK))
                scratch = <uint8_t *> PyByteArray_AS_STRING(self.scratch)
                stored = scratch + (newline - line + SLACK)
                if take_line(line, input_end, scratch, stored, &fields) != NULL:
                    self.add(&fields)
                else:
                    self.line = PyBytes_FromStringAndSize(<const char *> line, newline - line)
                    self.add_object(self.decode(self.line))
                line = newline + 1
            complete_batch(&self.batches)
            PyByteArray_Resize(self.result, self.batches.used)
            return self.result, self.lines
        finally:
            PyBuffer_Release(&view)

    cdef int need(self, int64_t size) except -1:
        """Have `size` bytes in `scratch`."""
        if PyByteArray_GET_SIZE(self.scratch) < size:
            PyByteArray_Resize(self.scratch, 2 * size)
        return 0

    cdef int add_object(self, object record) except -1:
        cdef Fields fields
        cdef Field field
        cdef tuple headers = record.headers
        cdef uint8_t *out
        fields.timestamp = record.timestamp
        if fields.timestamp < -1:
            fields.timestamp = self.now_ms
        take_object(record.key, &fields.key)
        take_object(record.value, &fields.value)
        fields.header_count = len(headers)
        fields.headers.size = 0
        for header in headers:
            for text in <tuple> header:
                take_object(text, &field)
                self.need(fields.headers.size + field.size + RECORD_ROOM)
                out = <uint8_t *> PyByteArray_AS_STRING(self.scratch) + fields.headers.size
                out = put_field(out, field.start, field.size, 0)
                fields.headers.size = out - <uint8_t *> PyByteArray_AS_STRING(self.scratch)
        fields.headers.start = <uint8_t *> PyByteArray_AS_STRING(self.scratch)
        return self.add(&fields)

    cdef int add(self, const Fields *fields) except -1:
        cdef int64_t rest = field_size(fields.key.size) + field_size(fields.value.size)
        cdef Batches *batches = &self.batches
        cdef NextRecord record
        cdef uint8_t *out
        rest += varint_size(<uint64_t> fields.header_count << 1) + fields.headers.size
        fit_record(batches, fields.timestamp, rest, self.limit, &record)
        if batches.records == 0 and HEADER_SIZE + record.size > self.limit:
            raise RecordTooLarge(HEADER_SIZE + record.size, self.limit, line=self.lines + 1)
        if batches.room - batches.used < HEADER_SIZE + record.size:
            self.make_room(2 * batches.room + HEADER_SIZE + record.size)
        out = add_record(batches, fields.timestamp, &record)
        out = put_field(out, fields.key.start, fields.key.size, 0)
        out = put_field(out, fields.value.start, fields.value.size, 0)
        out = put_varint(out, <uint64_t> fields.header_count << 1)
        if fields.headers.size:
            memcpy(out, fields.headers.start, fields.headers.size)
        self.lines += 1
        return 0

    cdef int make_room(self, int64_t room) except -1:
        PyByteArray_Resize(self.result, room)
        self.batches.data = <uint8_t *> PyByteArray_AS_STRING(self.result)
        self.batches.room = room
        return 0
