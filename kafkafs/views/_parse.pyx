"""Parses lines to record batches: `parse_by` for all views, and the parser of the `values` view.

In the `values` view each line is a record: a null key, the line without its newline as value, no
headers, and the timestamp that the caller passes. A batch has base offset 0 and leader epoch 0,
which the append replaces; its CRC covers neither. Its base timestamp is its first record's.
Layouts: `storage/record/batch.py` and `storage/record/header.py`.

Invariants: a loop writes a record only if its batch has room for it; the batches depend on the
lines alone, not on the sizes of the buffers.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc

from storage.record._batch cimport HEADER_SIZE, RELEASE_GIL_FROM
from storage.record._write cimport COPY_STEP, LARGEST_BATCH, put_new_header

from storage.errors import InvalidRecord, RecordTooLarge


cdef Stop parse_values(Parsing *parsing, LineRecord *_) noexcept nogil:
    """`ParseLines` for lines that are values."""
    cdef Progress at = parsing.at
    cdef LineRecord record
    cdef Stop stop = DONE
    record.key = NULL
    record.key_size = -1
    record.readable_end = at.input_end
    record.headers_size = record.header_count = 0
    record.timestamp_bits = 0
    while stop == DONE and next_line(&at):
        record.value = at.line
        record.value_size = max(at.newline - at.line, 0)  # tells the compiler: never null
        stop = put_record(&at, &record)
    parsing.at = at
    return stop


def encode_lines(
    data not None, long long start, long long end, long long timestamp_ms,
    long long max_batch_bytes, begun not None=b"",
):
    """Encode the lines `begun + data[start:end]`, each with its newline; `begun` has none.

    Returns (batches back to back, number of lines). A batch takes as many records as fit in
    `max_batch_bytes`, its header included. `timestamp_ms` is the records' timestamp.

    Raises RecordTooLarge, with the line's number from 1, if one record alone exceeds that;
    ValueError if the last line has no newline.
    """
    return parse_by(parse_values, data, start, end, timestamp_ms, max_batch_bytes, begun)


cdef tuple parse_by(
    ParseLines parse, object data, int64_t start, int64_t end, int64_t timestamp_ms,
    int64_t max_batch_bytes, object begun, ParseForeign parse_foreign=NULL, object parser=None,
):
    """Encode lines as `encode_lines` does, with a view's parser.

    Also raises InvalidRecord, with the line's number, for a malformed line.
    """
    cdef Py_buffer buffer
    cdef Parsing parsing
    cdef LineRecord record
    cdef Stop stop
    cdef const uint8_t *others = NULL  # the lines after the one that `begun` begins, while it is parsed
    cdef int64_t left = 0  # how many bytes they have
    cdef bytes first  # that line
    cdef int64_t batch = 0  # where the batch that grows begins
    cdef int64_t lines = 0  # in the batches before
    cdef int64_t number
    cdef int64_t size
    cdef uint8_t *out
    cdef bytearray result
    parsing.scratch = NULL
    parsing.scratch_size = 0
    parsing.has_record = False
    parsing.now_ms = timestamp_ms
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if start < 0 or end < start or end > buffer.len:
            raise ValueError(f"lines {start} to {end} of a buffer of {buffer.len}")
        if start == end:
            return bytearray(), 0
        parsing.at.line = <const uint8_t *> buffer.buf + start
        parsing.at.input_end = <const uint8_t *> buffer.buf + end
        if parsing.at.input_end[-1] != c"\n":
            raise ValueError("the last line has no newline")
        if len(begun):
            # Only this line is copied, since the rest may be long.
            next_line(&parsing.at)
            others = min(parsing.at.newline + 1, parsing.at.input_end)
            left = parsing.at.input_end - others
            first = bytes(begun) + parsing.at.line[:others - parsing.at.line]
            parsing.at.line = <const uint8_t *> PyBytes_AS_STRING(first)
            parsing.at.input_end = parsing.at.line + PyBytes_GET_SIZE(first)
            end += len(begun)
        max_batch_bytes = min(max_batch_bytes, LARGEST_BATCH)
        size = HEADER_SIZE + RECORD_ROOM + (end - start) * 9 // 8
        result = PyByteArray_FromStringAndSize(NULL, size + COPY_STEP)
        parsing.at.out = <uint8_t *> PyByteArray_AS_STRING(result)
        parsing.at.out_end = parsing.at.out + size
        begin_batch(&parsing, max_batch_bytes)
        while True:
            if parsing.at.input_end - parsing.at.line >= RELEASE_GIL_FROM:
                with nogil:
                    stop = parse(&parsing, &record)
            else:
                stop = parse(&parsing, &record)
            number = lines + (parsing.at.offset_bits >> 1) + 1
            if stop == DONE and left:
                parsing.at.line = others
                parsing.at.input_end = others + left
                left = 0
            elif stop == OUT_FULL:
                make_room(result, &parsing, end - start, left)
            elif stop == SCRATCH_FULL:
                need_scratch(&parsing, parsing.at.needed)
            elif stop == FOREIGN_LINE:
                kept = parse_foreign(parser, &parsing, &record)
                parsing.has_record = True
            elif stop == WRONG_LINE:
                raise InvalidRecord(
                    f"line {number}: byte {parsing.wrong - parsing.at.line + 1}: "
                    f"{parsing.reason.decode()}"
                )
            elif stop == BATCH_FULL and parsing.at.offset_bits == 0:
                raise RecordTooLarge(HEADER_SIZE + parsing.at.needed, max_batch_bytes, line=number)
            else:
                out = <uint8_t *> PyByteArray_AS_STRING(result)
                put_new_header(
                    out + batch, parsing.at.out - out - batch, parsing.at.offset_bits >> 1,
                    parsing.base_timestamp, parsing.max_timestamp,
                )
                lines = number - 1
                if stop == DONE:
                    PyByteArray_Resize(result, parsing.at.out - out)
                    return result, lines
                batch = parsing.at.out - out
                parsing.at.needed += HEADER_SIZE
                if parsing.at.out_end - parsing.at.out < parsing.at.needed:
                    make_room(result, &parsing, end - start, left)
                begin_batch(&parsing, max_batch_bytes)
    finally:
        free(parsing.scratch)
        PyBuffer_Release(&buffer)


cdef inline void begin_batch(Parsing *parsing, int64_t limit) noexcept:
    parsing.at.out += HEADER_SIZE
    parsing.at.offset_bits = 0
    parsing.at.batch_room = limit - HEADER_SIZE
    parsing.base_timestamp = parsing.max_timestamp = parsing.now_ms


cdef int make_room(
    bytearray result, Parsing *parsing, int64_t input_size, int64_t left
) except -1:
    """Enlarge the output for the rest of the input, if that takes as much as the lines before.

    `left`: bytes of input behind `input_end`.
    """
    cdef int64_t used = parsing.at.out - <uint8_t *> PyByteArray_AS_STRING(result)
    cdef int64_t rest = parsing.at.input_end - parsing.at.line + left
    cdef double ratio = <double> used / max(input_size - rest, 1)
    cdef int64_t size = used + parsing.at.needed + <int64_t> (rest * ratio * 1.125)
    PyByteArray_Resize(result, size + COPY_STEP)
    parsing.at.out = <uint8_t *> PyByteArray_AS_STRING(result) + used
    parsing.at.out_end = parsing.at.out + size - used
    return 0


cdef int need_scratch(Parsing *parsing, int64_t size) except -1:
    """Make the scratch at least `size` bytes."""
    cdef uint8_t *scratch
    if parsing.scratch_size < size:
        scratch = <uint8_t *> realloc(parsing.scratch, 2 * size)
        if scratch == NULL:
            raise MemoryError(f"a line of {size} bytes")
        parsing.scratch = scratch
        parsing.scratch_size = 2 * size
    return 0
