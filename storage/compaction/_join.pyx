"""Joins batches: writes the records of batches in plain form into one batch.

Pure. Only the deltas of offset and timestamp change in a joined record: they count from the first
batch. Layouts: `storage/record/batch.py`.
"""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport (
    BAD_HEADERS, BAD_OFFSETS, BASE_OFFSET, BASE_TIMESTAMP, HEADER_SIZE, LAST_OFFSET_DELTA,
    MAX_TIMESTAMP, NO_FAULT, RECORDS_COUNT, Fault, Fields, PinnedBuffer, RecordHead, headers_fill,
    hold, last_offset_of, load32, load64, read_fields, read_head, read_varint, read_varlong,
    store32, store64, sum_of,
)
from storage.record._write cimport body_size, difference, put_head, seal, zigzag_bits

from storage.record._batch import refusal

cdef enum:
    # The most bytes that a record grows by new deltas: 9 and 4, and 4 in its length.
    RECORD_GAIN = 17


cdef Fault put_records(
    const uint8_t *batch, int64_t size, int64_t offset_shift, int64_t timestamp_shift,
    uint8_t *out, int64_t *written,
) noexcept nogil:
    """Copy the records of a batch, with these numbers added to their deltas.

    Returns a fault if a reader would refuse a record, or show it at an offset outside the batch.
    """
    cdef const uint8_t *at = batch + HEADER_SIZE
    cdef const uint8_t *end = batch + size
    cdef const uint8_t *rest
    cdef uint8_t *start = out
    cdef uint32_t left = load32(batch + RECORDS_COUNT)
    cdef int32_t last_delta = <int32_t> load32(batch + LAST_OFFSET_DELTA)
    cdef RecordHead head
    cdef Fields fields
    cdef Fault fault
    cdef int32_t number = 0
    cdef int64_t delta = 0
    cdef uint8_t attributes
    cdef uint64_t timestamp_bits
    cdef uint64_t offset_bits
    while left:
        fault = read_head(at, end - at, end - at, &head)
        if fault == NO_FAULT:
            fault = read_fields(at, &head, &fields)
        if fault != NO_FAULT:
            return fault
        if not headers_fill(fields.headers, fields.end):
            return BAD_HEADERS
        if not 0 <= head.offset_delta <= last_delta:
            return BAD_OFFSETS
        rest = read_varint(at, &number)
        attributes = rest[0]
        rest = read_varlong(rest + 1, &delta)
        rest = read_varint(rest, &number)
        timestamp_bits = zigzag_bits(sum_of(delta, timestamp_shift))
        offset_bits = zigzag_bits(number + offset_shift)
        size = at + head.size - rest
        out = put_head(
            out, body_size(timestamp_bits, offset_bits, size), attributes, timestamp_bits,
            offset_bits,
        )
        memcpy(out, rest, size)
        out += size
        at += head.size
        left -= 1
    written[0] = out - start
    return NO_FAULT


cdef class Joiner:
    """Joins batches in plain form, of one epoch and timestamp type, up to `limit` bytes.

    count  the batches that were added since `take`
    """

    cdef readonly long long limit
    cdef readonly long long count
    cdef bytearray out

    def __init__(self, long long limit):
        self.limit = limit
        self.out = bytearray()
        self.count = 0

    def add(self, batch not None):
        """Add a batch whose records fill it; return False, and change nothing, if the batch then
        exceeds the limit, or does not begin after the last one, or its offsets exceed an i32. A
        first batch always fits.

        Raises CorruptRecord, and changes nothing, if a reader would refuse a record.
        """
        cdef PinnedBuffer held = hold(batch)
        cdef bytearray made = self.out
        cdef int64_t used
        cdef int64_t base
        cdef int64_t first
        cdef int64_t last
        cdef int64_t written = 0
        cdef uint8_t *out
        cdef Fault fault
        if held.size < HEADER_SIZE:
            raise ValueError(f"a batch of {held.size} bytes")
        if self.count == 0:
            made = PyByteArray_FromStringAndSize(<const char *> held.start, HEADER_SIZE)
            store32(<uint8_t *> PyByteArray_AS_STRING(made) + RECORDS_COUNT, 0)
        used = len(made)
        if self.count and used + held.size - HEADER_SIZE > self.limit:
            return False
        out = <uint8_t *> PyByteArray_AS_STRING(made)
        first = <int64_t> load64(out + BASE_OFFSET)
        base = <int64_t> load64(held.start + BASE_OFFSET)
        last = last_offset_of(held.start)
        if self.count and not (last_offset_of(out) < base and 0 <= last - first <= 0x7FFFFFFF):
            return False
        PyByteArray_Resize(
            made,
            used + held.size + <int64_t> load32(held.start + RECORDS_COUNT) * RECORD_GAIN,
        )
        out = <uint8_t *> PyByteArray_AS_STRING(made)
        fault = put_records(
            held.start,
            held.size,
            base - first,
            difference(
                <int64_t> load64(held.start + BASE_TIMESTAMP), <int64_t> load64(out + BASE_TIMESTAMP)
            ),
            out + used,
            &written,
        )
        if fault != NO_FAULT or self.count and used + written > self.limit:
            PyByteArray_Resize(made, used)
            if fault != NO_FAULT:
                raise refusal(fault, 0, (<const char *> held.start)[:HEADER_SIZE])
            return False
        PyByteArray_Resize(made, used + written)
        out = <uint8_t *> PyByteArray_AS_STRING(made)
        store32(out + LAST_OFFSET_DELTA, <uint32_t> (last - first))
        store64(
            out + MAX_TIMESTAMP,
            <uint64_t> max(
                <int64_t> load64(out + MAX_TIMESTAMP), <int64_t> load64(held.start + MAX_TIMESTAMP)
            ),
        )
        store32(out + RECORDS_COUNT, load32(out + RECORDS_COUNT) + load32(held.start + RECORDS_COUNT))
        self.out = made
        self.count += 1
        return True

    def take(self):
        """Return the joined batch in stored form, uncompressed, and begin another one."""
        cdef bytearray made = self.out
        seal(<uint8_t *> PyByteArray_AS_STRING(made), len(made))
        self.out = bytearray()
        self.count = 0
        return made
