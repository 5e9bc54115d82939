"""Helps the codecs: bounds what a stream decompresses to, and allocates unset memory.

Pure. The format of zstd frames is RFC 8878's. `storage/record/compression.py` compresses and
decompresses.
"""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from storage.record._batch cimport PinnedBuffer, hold, load32, load32_little, load64_little

from storage.errors import CorruptRecord

cdef enum:
    XERIAL_AGAIN = 0x82534E41  # in the place of a chunk's length: a header of XERIAL_HEADER bytes
    XERIAL_HEADER = 16
    ZSTD_MAGIC = 0xFD2FB528
    SKIPPABLE_MAGIC = 0x184D2A5  # without its lowest four bits, which are free
    ZSTD_BLOCK = 131072  # the most bytes that a block decompresses to


def uninitialised(Py_ssize_t size):
    """Return a bytearray of `size` unset bytes. Pages that nothing is written to take no memory."""
    return PyByteArray_FromStringAndSize(NULL, size)


def zstd_bound(data not None):
    """Return the most bytes that these zstd frames decompress to, and the number of their blocks.

    It reads the blocks' headers only; a skippable frame counts as a block. Raises CorruptRecord if
    `data` is not whole zstd frames (RFC 8878).
    """
    cdef PinnedBuffer held = hold(data)
    cdef const uint8_t *at, *end
    cdef int64_t bound = 0
    cdef int64_t blocks = 0
    at = held.start
    end = at + held.size
    if at == end:
        raise CorruptRecord("zstd: invalid frame magic")
    with nogil:
        while at != NULL and at < end:
            at = frame_end(at, end, &bound, &blocks)
    if at == NULL:
        raise CorruptRecord("zstd: a frame is truncated or invalid")
    return bound, blocks


cdef const uint8_t *frame_end(
    const uint8_t *at, const uint8_t *end, int64_t *bound, int64_t *blocks
) noexcept nogil:
    """Add a frame's content size to `bound`, and the number of its blocks to `blocks`.

    Returns the byte after the frame; NULL if it is not whole.
    """
    cdef uint32_t header
    cdef int64_t size
    cdef int64_t before = bound[0]
    cdef uint64_t content = 0
    cdef int width, flags, kind
    if end - at < 5:
        return NULL
    header = load32_little(at)
    if header >> 4 == SKIPPABLE_MAGIC:
        if end - at < 8:
            return NULL
        size = load32_little(at + 4)
        blocks[0] += 1
        return at + 8 + size if size <= end - at - 8 else NULL
    if header != ZSTD_MAGIC:
        return NULL
    flags = at[4]
    # The flags give the widths of window descriptor, dictionary id and content size.
    size = 5 + (not flags & 0x20)
    size += (flags & 3) if flags & 3 < 3 else 4
    width = (1 << (flags >> 6)) if flags >> 6 else (flags >> 5) & 1
    if end - at < size + width:
        return NULL
    memcpy(&content, at + size, width)
    content = load64_little(<const uint8_t *> &content) + (256 if width == 2 else 0)
    size += width
    while True:
        if end - at < size + 3:
            return NULL
        at += size
        header = at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16
        kind = (header >> 1) & 3
        blocks[0] += 1
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


def xerial_bound(data not None, int64_t at, int64_t ratio):
    """Return how many bytes the snappy chunks from `data[at]` on say that they decompress to.

    Each begins with its length, an i32, and the size of what it decompresses to, a varint of at
    most 32 bits; none decompresses to more than `ratio` times its bytes. The chunks may be cut off.
    """
    cdef PinnedBuffer held = hold(data)
    cdef int64_t bound = 0
    cdef int64_t length
    cdef uint64_t size, byte
    cdef int shift
    with nogil:
        while held.size - at >= 4:
            length = load32(held.start + at)
            if length == XERIAL_AGAIN:
                at += XERIAL_HEADER
                continue
            at += 4
            if length > held.size - at:
                break
            size = 0
            for shift in range(0, min(length, 5)):
                byte = held.start[at + shift]
                size |= (byte & 0x7F) << 7 * shift
                if byte < 0x80:
                    break
            bound += min(<int64_t> <uint32_t> size, ratio * length)
            at += length
    return bound


def lz4_bound(data not None, int64_t at, int64_t largest, int64_t checksum, int64_t ratio):
    """Return the most bytes that the blocks of an LZ4 frame decompress to, and their number.

    The first block is at `data[at]`; a block decompresses to at most `largest` bytes, and `ratio`
    times its own, and `checksum` bytes follow it. The frame may be cut off.
    """
    cdef PinnedBuffer held = hold(data)
    cdef int64_t bound = 0
    cdef int64_t blocks = 0
    cdef int64_t size
    cdef uint32_t length
    with nogil:
        while held.size - at >= 4:
            length = load32_little(held.start + at)
            size = length & 0x7FFFFFFF
            if size == 0:
                break
            bound += min(largest, size if length != size else ratio * size)
            blocks += 1
            at += 4 + size + checksum
    return bound, blocks
