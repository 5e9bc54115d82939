/* Finds the bytes of a key or a value that the `kv` view escapes: TAB, newline and backslash. */

#pragma once

#include <stdint.h>
#include <string.h>

#define KAFKAFS_EVERY_BYTE(byte) (0x0101010101010101u * (byte))

/* Returns a word with the highest bit of each byte set that needs an escape. The first byte is the
   lowest. TAB and newline are 9 and 10: at least 9 and below 11. */
static inline uint64_t kafkafs_escaped_bytes(uint64_t word)
{
    uint64_t low = word & KAFKAFS_EVERY_BYTE(0x7F);
    uint64_t control = (low + KAFKAFS_EVERY_BYTE(0x80 - 9))
        & ~(low + KAFKAFS_EVERY_BYTE(0x80 - 11));
    uint64_t not_backslash = (low ^ KAFKAFS_EVERY_BYTE(0x5C)) + KAFKAFS_EVERY_BYTE(0x7F);
    return (control | ~not_backslash) & ~word & KAFKAFS_EVERY_BYTE(0x80);
}

/* Returns a word with the highest bit of each backslash set. It may also set the bits of other
   bytes after the first backslash. */
static inline uint64_t kafkafs_backslashes(uint64_t word)
{
    word ^= KAFKAFS_EVERY_BYTE(0x5C);
    return (word - KAFKAFS_EVERY_BYTE(1)) & ~word & KAFKAFS_EVERY_BYTE(0x80);
}

static inline int kafkafs_trailing_zeros(uint64_t bits)
{ return __builtin_ctzll(bits); }

static inline uint8_t kafkafs_is_escaped(uint8_t byte)
{ return (byte == 9) | (byte == 10) | (byte == 0x5C); }

/* The compiler makes vector code of the next two loops, because they have a fixed length and no
   branch.

   Copies 64 bytes; returns whether any of them needs an escape. */
static inline int kafkafs_copy_block(uint8_t *restrict out, const uint8_t *restrict at)
{
    uint8_t found = 0;
    memcpy(out, at, 64);
    for (int i = 0; i < 64; i++)
        found |= kafkafs_is_escaped(at[i]);
    return found;
}

/* Returns how many of the first `size` of 64 bytes need an escape. */
static inline unsigned kafkafs_escaped_in_block(const uint8_t *at, uint8_t size)
{
    uint8_t count = 0;
    for (uint8_t i = 0; i < 64; i++)
        count += kafkafs_is_escaped(at[i]) & (i < size);
    return count;
}
