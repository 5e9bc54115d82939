"""The hash of a key, from which Kafka's clients compute its partition.

Inline, because loops compute it for each record.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef enum:
    SEED = <int> 0x9747B28C
    MULTIPLIER = 0x5BD1E995
    POSITIVE = 0x7FFFFFFF


cdef inline uint32_t hash_of(const uint8_t *key, int64_t size) noexcept nogil:
    """The hash that Utils.murmur2 of Kafka's clients returns, as an unsigned number."""
    cdef uint32_t hash = <uint32_t> SEED ^ <uint32_t> size
    cdef uint32_t word
    cdef int64_t left = size
    while left >= 4:
        word = (
            <uint32_t> key[0]
            | <uint32_t> key[1] << 8
            | <uint32_t> key[2] << 16
            | <uint32_t> key[3] << 24
        )
        word *= MULTIPLIER
        word ^= word >> 24
        word *= MULTIPLIER
        hash *= MULTIPLIER
        hash ^= word
        key += 4
        left -= 4
    if left >= 3:
        hash ^= <uint32_t> key[2] << 16
    if left >= 2:
        hash ^= <uint32_t> key[1] << 8
    if left >= 1:
        hash ^= <uint32_t> key[0]
        hash *= MULTIPLIER
    hash ^= hash >> 13
    hash *= MULTIPLIER
    hash ^= hash >> 15
    return hash
