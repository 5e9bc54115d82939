"""The way in of views by lines, and the `values` view's loop: lines to record batches.

In `values` each line is a record: null key, the line without its newline as value, no headers, the
time given. A batch is ready but for its offsets: it has base offset 0 and leader epoch 0, and its
CRC, which covers neither. Layouts: `storage/record/batch.py`.

Invariants: a record is written only where its batch has room for it; what comes out depends on
the lines alone, not on the sizes of the buffers on the way.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
)
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr

from storage.record._batch cimport HEADER_SIZE, RELEASE_GIL_FROM
from storage.record._write cimport (
    COPY_STEP, LARGEST_BATCH, body_size, copy_bytes, put_head, put_new_header, put_varint,
    record_size, varint_size,
)

from storage.errors import InvalidRecord, RecordTooLarge


cdef Stop encode(Block *block, const uint8_t *data, uint8_t *result) noexcept nogil:
    """`Encode` for lines that are values."""
    cdef const uint8_t *line = data + block.line
    cdef const uint8_t *input_end = data + block.input_end
    cdef const uint8_t *newline
    cdef uint8_t *out = result + block.out
    cdef uint8_t *out_end = result + block.out_size
    cdef uint64_t delta = <uint64_t> block.batch_lines << 1
    cdef int64_t batch_room = block.batch_room
    cdef int64_t size
    cdef int64_t body
    cdef int64_t record
    cdef Stop stop = ALL_DONE
    while line < input_end:
        newline = <const uint8_t *> memchr(line, c"\n", input_end - line)
        if newline == NULL:  # someone writes to the input while it is read
            newline = input_end
        size = newline - line
        # A null key and no headers take a byte each.
        body = 2 + body_size(0, delta, size) + varint_size(<uint64_t> size << 1)
        record = record_size(body)
        if record > batch_room:
            stop = BATCH_FULL
            block.needed = record
            break
        if record > out_end - out:
            stop = OUT_FULL
            block.needed = record
            break
        batch_room -= record
        out = put_head(out, body, 0, 0, delta)
        out[0] = 1  # null key
        out = put_varint(out + 1, <uint64_t> size << 1)
        copy_bytes(out, line, size, min(out_end - out, input_end - line))
        out += size
        out[0] = 0
        out += 1
        delta += 2
        line = newline + 1
    block.line = min(line, input_end) - data
    block.out = out - result
    block.batch_lines = delta >> 1
    block.batch_room = batch_room
    return stop


def encode_lines(
    data not None, long long start, long long end, long long timestamp_ms,
    long long max_batch_bytes,
):
    """Encode the lines `data[start:end]`, each with its newline, as (batches back to back, lines).

    One batch, or as few as keep each within `max_batch_bytes`, its header included.

    Raises RecordTooLarge, with the line's number from 1, where a line alone exceeds that;
    ValueError where the last line has no newline.
    """
    return encode_by(encode, data, start, end, timestamp_ms, max_batch_bytes)


cdef tuple encode_by(
    Encode encode, object data, int64_t start, int64_t end, int64_t timestamp_ms,
    int64_t max_batch_bytes,
):
    """`encode_lines` for lines of any kind. InvalidRecord, with the line's number, for wrong ones.
    """
    cdef Py_buffer view
    cdef Block block
    cdef Stop stop
    cdef int64_t batch = 0
    cdef int64_t lines = 0
    cdef bytearray result
    cdef const uint8_t *input
    cdef uint8_t *out
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end < start or end > view.len:
            raise ValueError(f"lines {start} to {end} of a buffer of {view.len}")
        if start == end:
            return bytearray(), 0
        input = <const uint8_t *> view.buf
        if input[end - 1] != c"\n":
            raise ValueError("the last line has no newline")
        max_batch_bytes = min(max_batch_bytes, LARGEST_BATCH)
        block.line = start
        block.input_end = end
        block.out_size = HEADER_SIZE + RECORD_ROOM + COPY_STEP + (end - start) * 9 // 8
        result = PyByteArray_FromStringAndSize(NULL, block.out_size)
        block.out = HEADER_SIZE
        block.batch_lines = 0
        block.batch_room = max_batch_bytes - HEADER_SIZE
        while True:
            out = <uint8_t *> PyByteArray_AS_STRING(result)
            if end - block.line >= RELEASE_GIL_FROM:
                with nogil:
                    stop = encode(&block, input, out)
            else:
                stop = encode(&block, input, out)
            if stop == OUT_FULL:
                make_room(result, &block, start)
                continue
            if stop == WRONG_LINE:
                number = lines + block.batch_lines + 1
                raise InvalidRecord(
                    f"line {number}: byte {block.wrong_byte + 1}: {block.reason.decode()}"
                )
            if stop == BATCH_FULL and block.batch_lines == 0:
                raise RecordTooLarge(HEADER_SIZE + block.needed, max_batch_bytes, line=lines + 1)
            put_new_header(
                out + batch, block.out - batch, block.batch_lines, timestamp_ms, timestamp_ms
            )
            lines += block.batch_lines
            if stop == ALL_DONE:
                break
            batch = block.out
            block.needed += HEADER_SIZE
            if block.out_size - batch < block.needed:
                make_room(result, &block, start)
            block.out = batch + HEADER_SIZE
            block.batch_lines = 0
            block.batch_room = max_batch_bytes - HEADER_SIZE
        PyByteArray_Resize(result, block.out)
        return result, lines
    finally:
        PyBuffer_Release(&view)


cdef int make_room(bytearray result, Block *block, int64_t start) except -1:
    """Make the output larger: by what the rest will take if it is like what was encoded."""
    cdef double ratio = <double> block.out / max(block.line - start, 1)
    cdef int64_t rest = block.input_end - block.line
    block.out_size = block.out + block.needed + COPY_STEP + <int64_t> (rest * ratio * 1.125)
    PyByteArray_Resize(result, block.out_size)
    return 0
