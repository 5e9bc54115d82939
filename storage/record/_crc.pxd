"""The CRC-32C of bytes in memory, for loops that do not hold the GIL."""

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef uint32_t crc32c_of(const uint8_t *at, int64_t size) noexcept nogil

# The length, from `shortest` on, of the shortest prefix that has that CRC; -1: none has.
cdef int64_t crc32c_prefix(
    const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted
) noexcept nogil
