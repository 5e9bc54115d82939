"""Parses lines of the `jsonl` view to record batches.

`take_line` reads a line that is, byte for byte, as the view writes it (`_json_lines.pyx`), with
fast loops: a copy of a partition takes a quarter of the time. Any other line goes to the JSON
parser (`json_records.py`), which alone defines what is allowed. For each line that `take_line`
reads, the parser would return the same record.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, strlen

from kafkafs.views._json_text cimport prepare, take_base64, take_string
from kafkafs.views._parse cimport (
    DONE, FOREIGN_LINE, RECORD_ROOM, SCRATCH_FULL, LineRecord, Parsing, Stop, need_scratch,
    next_line, parse_by, put_record,
)
from storage.record._write cimport difference, put_field, zigzag_bits

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    # How many bytes behind its output a loop may touch.
    SLACK = 64

prepare()


# -- lines as the view writes them ---------------------------------------------------------------

cdef inline const uint8_t *skip(
    const uint8_t *at, const uint8_t *end, const char *text
) noexcept nogil:
    """Return the byte after `text`; NULL if the bytes at `at` are not `text`."""
    cdef int64_t size = strlen(text)
    if at == NULL or end - at < size or memcmp(at, text, size) != 0:
        return NULL
    return at + size


cdef inline const uint8_t *take_integer(
    const uint8_t *at, const uint8_t *end, int64_t *number
) noexcept nogil:
    """Read an integer of at most 18 digits, as the view writes it; return the byte after it."""
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
    const uint8_t *at, const uint8_t *end, uint8_t **out, const uint8_t **field, int64_t *size
) noexcept nogil:
    """Read a string, Base64 or null, and write the field's bytes to `out`.

    Returns the byte after it, and sets `size` to -1 for null.
    """
    if at == NULL:
        return NULL
    field[0] = out[0]
    if at[0] == c'"':
        at = take_string(out, at + 1, end)
    elif at[0] == c"{":
        at = skip(at, end, b'{"base64":"')
        if at != NULL:
            at = skip(take_base64(out, at, end), end, b'"}')
    else:
        size[0] = -1
        return skip(at, end, b"null")
    size[0] = out[0] - field[0]
    return at


cdef const uint8_t *take_headers(
    const uint8_t *at, const uint8_t *end, uint8_t *out, uint8_t *stored, LineRecord *record
) noexcept nogil:
    """Read a line's headers, and write them to `stored` in the record format.

    Returns the byte after them.
    """
    cdef const uint8_t *field
    cdef int64_t size
    record.headers = stored
    while True:
        at = take_field(skip(at, end, b"["), end, &out, &field, &size)
        if at == NULL or size < 0:
            return NULL
        stored = put_field(stored, field, size, 0)
        at = take_field(skip(at, end, b","), end, &out, &field, &size)
        at = skip(at, end, b"]")
        if at == NULL:
            return NULL
        stored = put_field(stored, field, size, 0)
        record.header_count += 1
        if at[0] != c",":
            record.headers_size = stored - record.headers
            return at
        at += 1


cdef Stop take_line(Parsing *parsing, LineRecord *record) noexcept nogil:
    """Read the line's record; FOREIGN_LINE if the line is not as the view writes it."""
    cdef const uint8_t *at = parsing.at.line
    cdef const uint8_t *end = parsing.at.input_end
    cdef int64_t size = parsing.at.newline - at + SLACK
    cdef uint8_t *out = parsing.scratch
    cdef int64_t offset
    if parsing.scratch_size < 2 * size:
        parsing.at.needed = 2 * size
        return SCRATCH_FULL
    record.readable_end = out + parsing.scratch_size
    record.header_count = record.headers_size = 0
    at = take_integer(skip(at, end, b'{"offset":'), end, &offset)
    at = take_integer(skip(at, end, b',"timestamp":'), end, &record.timestamp)
    at = skip(at, end, b',"timestampType":"')
    if at == NULL or record.timestamp < -1:
        return FOREIGN_LINE
    at = skip(at, end, b"CreateTime" if at[0] == c"C" else b"LogAppendTime")
    at = take_field(skip(at, end, b'","key":'), end, &out, &record.key, &record.key_size)
    at = take_field(skip(at, end, b',"value":'), end, &out, &record.value, &record.value_size)
    at = skip(at, end, b',"headers":[')
    if at != NULL and at[0] != c"]":
        at = take_headers(at, end, out, parsing.scratch + size, record)
    return FOREIGN_LINE if skip(at, end, b"]}\n") == NULL else DONE


cdef Stop parse_objects(Parsing *parsing, LineRecord *record) noexcept nogil:
    """`ParseLines` for lines as the view writes them."""
    cdef Stop stop
    while next_line(&parsing.at):
        if not parsing.has_record:
            stop = take_line(parsing, record)
            if stop != DONE:
                return stop
            parsing.has_record = True
        if parsing.at.offset_bits == 0:
            parsing.base_timestamp = parsing.max_timestamp = record.timestamp
        record.timestamp_bits = zigzag_bits(difference(record.timestamp, parsing.base_timestamp))
        stop = put_record(&parsing.at, record)
        if stop != DONE:
            return stop
        parsing.has_record = False
        parsing.max_timestamp = max(parsing.max_timestamp, record.timestamp)
    return DONE


# -- other lines ---------------------------------------------------------------------------------

cdef int take_bytes(object text, const uint8_t **field, int64_t *size) except -1:
    """Point `field` at the bytes of a key, a value or a part of a header.

    The bytes belong to `text`, and are valid as long as it lives.
    """
    cdef Py_ssize_t length
    if text is None:
        size[0] = -1
    elif PyUnicode_Check(text):
        field[0] = <const uint8_t *> PyUnicode_AsUTF8AndSize(text, &length)
        size[0] = length
    else:
        text = text.base64
        field[0] = <const uint8_t *> PyBytes_AS_STRING(text)
        size[0] = PyBytes_GET_SIZE(text)
    return 0


cdef object parse_object(object decode, Parsing *parsing, LineRecord *record):
    """`ParseForeign`: `decode(line)` returns a line's `json_records.JsonRecord`."""
    cdef const uint8_t *field = NULL
    cdef int64_t size = 0
    cdef int64_t used = 0
    line = PyBytes_FromStringAndSize(<const char *> parsing.at.line, parsing.at.newline - parsing.at.line)
    found = decode(line)
    cdef tuple headers = found.headers
    record.timestamp = found.timestamp
    if record.timestamp < -1:
        record.timestamp = parsing.now_ms
    take_bytes(found.key, &record.key, &record.key_size)
    take_bytes(found.value, &record.value, &record.value_size)
    record.readable_end = NULL
    for header in headers:
        for text in <tuple> header:
            take_bytes(text, &field, &size)
            need_scratch(parsing, used + size + RECORD_ROOM)
            used = put_field(parsing.scratch + used, field, size, 0) - parsing.scratch
    record.headers = parsing.scratch
    record.headers_size = used
    record.header_count = len(headers)
    return found


def encode_lines(
    decode not None, data not None, long long start, long long end, long long timestamp_ms,
    long long max_batch_bytes, begun not None=b"",
):
    """Encode lines of JSON as `_parse.encode_lines` does. `data` must not change meanwhile.

    `decode(line)` returns a line's `json_records.JsonRecord`; its exceptions pass to the caller.
    """
    return parse_by(
        parse_objects, data, start, end, timestamp_ms, max_batch_bytes, begun, parse_object, decode
    )
