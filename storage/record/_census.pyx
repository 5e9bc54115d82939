"""Counts the batches in a piece of a log by codec, format and kind, from their headers alone.

The piece holds whole batches, back to back, that have been checked. An entry of v0 or v1 counts as
a batch. Batches that end outside of the wanted offsets do not count, nor does a batch that a reader
hands in a second time, because it had to begin again.
"""

from libc.stdint cimport int64_t, uint8_t

from storage.record._batch cimport (
    ATTRIBUTES, BASE_OFFSET, CODEC_BITS, CONTROL_BIT, HEADER_SIZE, LEGACY_ATTRIBUTES, LOG_OVERHEAD,
    MAGIC, SMALLEST_ENTRY, TRANSACTIONAL_BIT, Held, hold_part, last_offset_of, load64, size_of,
)

cdef enum:
    CODECS = 8
    FORMATS = 3


cdef class Census:
    """Of the batches whose last offset is from `from_offset` to before `to_offset`.

    `batches` and `bytes` by codec number, `formats` by magic.
    """

    cdef int64_t _from_offset, _to_offset
    cdef int64_t _batches[CODECS]
    cdef int64_t _bytes[CODECS]
    cdef int64_t _formats[FORMATS]
    cdef readonly int64_t control
    cdef readonly int64_t transactional
    cdef readonly int64_t largest

    def __init__(self, int64_t from_offset, int64_t to_offset):
        self._from_offset = from_offset
        self._to_offset = to_offset

    @property
    def batches(self):
        return [self._batches[codec] for codec in range(CODECS)]

    @property
    def bytes(self):
        return [self._bytes[codec] for codec in range(CODECS)]

    @property
    def formats(self):
        return [self._formats[magic] for magic in range(FORMATS)]

    def add(self, data, Py_ssize_t position, Py_ssize_t size):
        """Count those in `data[position : position + size]`; ValueError where that is no part."""
        cdef Held held = hold_part(data, position, position + size)
        with nogil:
            self._count(held.start + position, size)

    cdef void _count(self, const uint8_t *at, int64_t left) noexcept nogil:
        cdef int64_t length, offset
        cdef uint8_t attributes, codec
        # The shortest entry has all that is looked at in one of v0 or v1.
        while left >= SMALLEST_ENTRY + LOG_OVERHEAD:
            length = size_of(at)
            if length < SMALLEST_ENTRY + LOG_OVERHEAD or length > left or at[MAGIC] >= FORMATS:
                return
            offset = <int64_t> load64(at + BASE_OFFSET)
            if at[MAGIC] == 2:
                if length < HEADER_SIZE:
                    return
                offset = last_offset_of(at)
                attributes = at[ATTRIBUTES + 1]
            else:
                attributes = at[LEGACY_ATTRIBUTES] & CODEC_BITS
            if self._from_offset <= offset < self._to_offset:
                self._from_offset = offset + 1
                codec = attributes & CODEC_BITS
                self._batches[codec] += 1
                self._bytes[codec] += length
                self._formats[at[MAGIC]] += 1
                self.control += attributes & CONTROL_BIT != 0
                self.transactional += attributes & TRANSACTIONAL_BIT != 0
                self.largest = max(self.largest, length)
            at += length
            left -= length
