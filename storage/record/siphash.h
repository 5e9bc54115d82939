/* SipHash of bytes, and the home slot of a hash in a table. */

#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint64_t low, high; } kafkafs_hash;

#define KAFKAFS_ROTATED(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define KAFKAFS_ROUND \
    v0 += v1; v1 = KAFKAFS_ROTATED(v1, 13); v1 ^= v0; v0 = KAFKAFS_ROTATED(v0, 32); \
    v2 += v3; v3 = KAFKAFS_ROTATED(v3, 16); v3 ^= v2; \
    v0 += v3; v3 = KAFKAFS_ROTATED(v3, 21); v3 ^= v0; \
    v2 += v1; v1 = KAFKAFS_ROTATED(v1, 17); v1 ^= v2; v2 = KAFKAFS_ROTATED(v2, 32);

static inline uint64_t kafkafs_word(const uint8_t *at)
{ uint64_t bits; memcpy(&bits, at, 8); return le64toh(bits); }

/* The last size % 8 bytes of a key as a little-endian number. It reads nothing outside the key. */
static inline uint64_t kafkafs_tail(const uint8_t *key, int64_t size)
{
    int left = (int) (size & 7);
    uint32_t start, end;
    if (left == 0)
        return 0;
    if (size >= 8)
        return kafkafs_word(key + size - 8) >> (64 - 8 * left);
    if (size < 4)
        return key[0] | (uint64_t) key[size >> 1] << 8 * (size >> 1)
            | (uint64_t) key[size - 1] << 8 * (size - 1);
    memcpy(&start, key, 4);
    memcpy(&end, key + size - 4, 4);
    return le32toh(start) | (uint64_t) le32toh(end) << 8 * (size - 4);
}

/* Eight bytes with ASCII letters in lower case. */
static inline uint64_t kafkafs_lower(uint64_t bytes)
{
    const uint64_t ones = 0x0101010101010101u, high = ones << 7;
    uint64_t low = bytes & ~high;
    uint64_t from_a = low + ones * (0x80 - 'A'), beyond_z = low + ones * (0x7f - 'Z');
    return bytes | (from_a & ~beyond_z & ~bytes & high) >> 2;
}

/* SipHash-1-3 with a result of 128 bits (Aumasson and Bernstein's siphash.c). `folds`: the key's
   ASCII letters count as those in lower case. */
static inline kafkafs_hash kafkafs_siphash(
    uint64_t k0, uint64_t k1, const uint8_t *key, int64_t size, int folds)
{
    uint64_t v0 = k0 ^ 0x736f6d6570736575u;
    uint64_t v1 = k1 ^ 0x646f72616e646f6du ^ 0xee;
    uint64_t v2 = k0 ^ 0x6c7967656e657261u;
    uint64_t v3 = k1 ^ 0x7465646279746573u;
    uint64_t bits;
    kafkafs_hash made;
    for (int64_t at = 0; at + 8 <= size; at += 8) {
        bits = kafkafs_word(key + at);
        bits = folds ? kafkafs_lower(bits) : bits;
        v3 ^= bits;
        KAFKAFS_ROUND
        v0 ^= bits;
    }
    bits = kafkafs_tail(key, size);
    bits = (folds ? kafkafs_lower(bits) : bits) | (uint64_t) size << 56;
    v3 ^= bits;
    KAFKAFS_ROUND
    v0 ^= bits;
    v2 ^= 0xee;
    KAFKAFS_ROUND
    KAFKAFS_ROUND
    KAFKAFS_ROUND
    made.low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    KAFKAFS_ROUND
    KAFKAFS_ROUND
    KAFKAFS_ROUND
    made.high = v0 ^ v1 ^ v2 ^ v3;
    return made;
}

/* The index of a hash's home slot: low / 2**64 of the table's slots. */
static inline uint64_t kafkafs_home(uint64_t low, uint64_t slots)
{ return (uint64_t) ((unsigned __int128) low * slots >> 64); }

static inline void kafkafs_prefetch(const void *at) { __builtin_prefetch(at); }
