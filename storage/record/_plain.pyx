"""Hot loops of the plain form: put one together, and write what a stored batch's header must say.

Pure. What a plain form is: `storage/record/plain.py`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    ATTRIBUTES, BAD_RECORD_LENGTH, BAD_RECORDS_COUNT, BATCH_LENGTH, CODEC_BITS, CRC, HEADER_SIZE,
    LOG_OVERHEAD, RECORDS_COUNT, bounded_varint, crc_of, load32, store32,
)
from storage.record cimport _write

from storage.errors import CorruptRecord
from storage.record._batch import REASONS


def plain_v2(data not None, Py_ssize_t at, Py_ssize_t size, decompress not None):
    """The plain form of the whole v2 batch `data[at:at + size]` (`storage/record/plain.py`).

    `decompress` is called with a codec and a stream. Raises CorruptRecord, without a position.
    """
    cdef Py_buffer view
    cdef Py_buffer stream
    cdef const uint8_t *batch
    cdef bytearray made
    cdef uint8_t codec
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if at < 0 or size < HEADER_SIZE or at > view.len - size:
            raise ValueError(f"{size} bytes at {at} of a buffer of {view.len}")
        batch = <const uint8_t *> view.buf + at
        if crc_of(batch, size) != load32(batch + CRC):
            raise CorruptRecord("a batch's CRC is wrong")
        codec = batch[ATTRIBUTES + 1] & CODEC_BITS
        # A batch without records may have no stream either (DefaultRecordBatch.iterator).
        if codec and (size > HEADER_SIZE or load32(batch + RECORDS_COUNT)):
            records = decompress(codec, memoryview(data)[at + HEADER_SIZE:at + size])
            PyObject_GetBuffer(records, &stream, PyBUF_SIMPLE)
            try:
                made = with_header(batch, <const uint8_t *> stream.buf, stream.len)
            finally:
                PyBuffer_Release(&stream)
        else:
            made = with_header(batch, batch + HEADER_SIZE, size - HEADER_SIZE)
    finally:
        PyBuffer_Release(&view)
    check_fill(<const uint8_t *> PyByteArray_AS_STRING(made), len(made))
    return made


cdef bytearray with_header(const uint8_t *batch, const uint8_t *records, Py_ssize_t size):
    """A plain form of the batch's header and these records."""
    cdef bytearray made = PyByteArray_FromStringAndSize(NULL, HEADER_SIZE + size)
    cdef uint8_t *out = <uint8_t *> PyByteArray_AS_STRING(made)
    memcpy(out, batch, HEADER_SIZE)
    memcpy(out + HEADER_SIZE, records, size)
    store32(out + BATCH_LENGTH, <uint32_t> (HEADER_SIZE + size - LOG_OVERHEAD))
    store32(out + CRC, 0)
    out[ATTRIBUTES + 1] &= <uint8_t> ~CODEC_BITS
    return made


def seal(bytearray batch not None):
    """Write the length and the CRC that this v2 batch should have."""
    if len(batch) < HEADER_SIZE:
        raise ValueError(f"a batch of {len(batch)} bytes")
    _write.seal(batch, len(batch))


cdef int check_fill(const uint8_t *at, int64_t size) except -1:
    """See that a plain form's records fill it exactly, by their lengths alone."""
    cdef const uint8_t *end = at + size
    cdef int32_t length = 0
    cdef int32_t count = <int32_t> load32(at + RECORDS_COUNT)
    cdef int32_t left = count
    at += HEADER_SIZE
    while left > 0 and at < end:
        at = bounded_varint(at, end, &length)
        if at == NULL or length < 0 or length > end - at:
            raise CorruptRecord(REASONS[BAD_RECORD_LENGTH])
        at += length
        left -= 1
    if left != 0 or at != end:
        raise CorruptRecord(REASONS[BAD_RECORDS_COUNT].format(count=count))
    return 0
