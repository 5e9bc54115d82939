"""CRC-32C functions for loops that do not hold the GIL (`crc32c.h`)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef uint32_t crc32c_of(const uint8_t *at, int64_t size) noexcept nogil

# The length of the shortest prefix, of at least `shortest` bytes, with the CRC `wanted`; -1: none.
cdef int64_t crc32c_prefix(
    const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted
) noexcept nogil
