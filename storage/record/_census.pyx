"""Counts the batches in a piece of a log by codec, format and kind, from their headers alone.

The piece has whole, checked batches back to back. An entry of v0 or v1 counts as a batch. A batch
that ends outside the wanted offsets does not count. A batch counts once, even if a reader that had
to begin again passes it in twice. Layouts: `storage/record/header.py`.
"""

from libc.stdint cimport int64_t, uint8_t

from storage.record._batch cimport (
    ATTRIBUTES, BASE_OFFSET, CODEC_BITS, CONTROL_BIT, HEADER_SIZE, LEGACY_ATTRIBUTES, LOG_OVERHEAD,
    MAGIC, SMALLEST_ENTRY, TRANSACTIONAL_BIT, PinnedBuffer, hold_part, last_offset_of, load64,
    size_of,
)

cdef enum:
    CODECS = 8
    FORMATS = 3


cdef class Census:
    """Counts the batches whose last offset is at least `from_offset` and below `to_offset`.

    `batches` (their number) and `bytes` are lists by codec number, `formats` is a list by magic.
    `control` and `transactional` are numbers of batches; `largest` is the largest batch in bytes.
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
        """Count the batches in `data[position : position + size]`.

        Raises ValueError if `data` does not have these bytes.
        """
        cdef PinnedBuffer held = hold_part(data, position, position + size)
        with nogil:
            self._count(held.start + position, size)

    cdef void _count(self, const uint8_t *at, int64_t left) noexcept nogil:
        cdef int64_t length, offset
        cdef uint8_t attributes, codec
        # The shortest entry has every field that this loop reads in an entry of v0 or v1.
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
