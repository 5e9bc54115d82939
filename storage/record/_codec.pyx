"""What the codecs need beside their libraries: a checksum, a bound, memory without zeros.

Pure. The frames themselves: `storage/record/compression.py`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.errors import CorruptRecord

cdef extern from *:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>

    static inline uint32_t kafkafs_little32(const uint8_t *at)
    { uint32_t bits; memcpy(&bits, at, 4); return le32toh(bits); }
    static inline uint32_t kafkafs_rotate(uint32_t bits, int by)
    { return (bits << by) | (bits >> (32 - by)); }
    static inline uint64_t kafkafs_from_little64(uint64_t bits) { return le64toh(bits); }
    """
    uint32_t little32 "kafkafs_little32"(const uint8_t *at) noexcept nogil
    uint32_t rotate "kafkafs_rotate"(uint32_t bits, int by) noexcept nogil
    uint64_t from_little64 "kafkafs_from_little64"(uint64_t bits) noexcept nogil


cdef enum:
    ZSTD_MAGIC = 0xFD2FB528
    SKIPPABLE_MAGIC = 0x184D2A50  # its lowest four bits are free
    ZSTD_BLOCK = 131072  # what a block decompresses to at most


cdef extern from *:
    """
    static const uint32_t P1 = 2654435761u, P2 = 2246822519u, P3 = 3266489917u;
    static const uint32_t P4 = 668265263u, P5 = 374761393u;
    """
    const uint32_t P1, P2, P3, P4, P5


def uninitialised(Py_ssize_t size):
    """A bytearray of so many bytes that mean nothing: what is not written takes no memory."""
    return PyByteArray_FromStringAndSize(NULL, size)


def xxh32(data not None):
    """XXH32 with seed 0, which LZ4 frames use (xxHash's specification)."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return hash_of(<const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef uint32_t hash_of(const uint8_t *at, int64_t size) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef uint32_t lanes[4]
    cdef uint32_t total = P5
    cdef int lane
    if size >= 16:
        lanes[0] = P1 + P2
        lanes[1] = P2
        lanes[2] = 0
        lanes[3] = 0 - P1
        while end - at >= 16:
            for lane in range(4):
                lanes[lane] = rotate(lanes[lane] + little32(at + 4 * lane) * P2, 13) * P1
            at += 16
        total = rotate(lanes[0], 1) + rotate(lanes[1], 7)
        total += rotate(lanes[2], 12) + rotate(lanes[3], 18)
    total += <uint32_t> size
    while end - at >= 4:
        total = rotate(total + little32(at) * P3, 17) * P4
        at += 4
    while at < end:
        total = rotate(total + at[0] * P5, 11) * P1
        at += 1
    total = (total ^ (total >> 15)) * P2
    total = (total ^ (total >> 13)) * P3
    return total ^ (total >> 16)


def zstd_bound(data not None):
    """How many bytes these zstd frames decompress to at most, as their blocks' headers tell.

    Raises CorruptRecord where the frames are not whole, or no frames (RFC 8878).
    """
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t bound = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *> view.buf
        end = at + view.len
        if at == end:
            raise CorruptRecord("zstd: no frame begins here")
        while at < end:
            at = frame_end(at, end, &bound)
            if at == NULL:
                raise CorruptRecord("zstd: a frame is cut off, or is none")
        return bound
    finally:
        PyBuffer_Release(&view)


cdef const uint8_t *frame_end(const uint8_t *at, const uint8_t *end, int64_t *bound) noexcept:
    """The byte after a frame, whose content is added to `bound`; NULL where it is not whole."""
    cdef uint32_t header
    cdef int64_t size
    cdef int64_t before = bound[0]
    cdef uint64_t content = 0
    cdef int width
    cdef int flags
    cdef int kind
    if end - at < 5:
        return NULL
    header = little32(at)
    if header & 0xFFFFFFF0 == SKIPPABLE_MAGIC:
        if end - at < 8:
            return NULL
        size = little32(at + 4)
        return at + 8 + size if size <= end - at - 8 else NULL
    if header != ZSTD_MAGIC:
        return NULL
    flags = at[4]
    # Window descriptor, dictionary id, content size: as wide as the flags say.
    size = 5 + (not flags & 0x20)
    size += (flags & 3) if flags & 3 < 3 else 4
    width = (1 << (flags >> 6)) if flags >> 6 else (flags >> 5) & 1
    if end - at < size + width:
        return NULL
    memcpy(&content, at + size, width)
    content = from_little64(content) + (256 if width == 2 else 0)
    size += width
    while True:
        if end - at < size + 3:
            return NULL
        at += size
        header = at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16
        kind = (header >> 1) & 3
        size = header >> 3
        if kind < 2:  # stored, or one byte repeated
            bound[0] += size
        else:
            bound[0] += ZSTD_BLOCK
        size = 3 + (1 if kind == 1 else size)
        if header & 1:
            break
    size += 4 * ((flags >> 2) & 1)  # content checksum
    if width and content < <uint64_t> (bound[0] - before):
        bound[0] = before + <int64_t> content
    return at + size if size <= end - at else NULL
