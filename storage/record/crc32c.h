/* CRC-32C (Castagnoli) for loops without the GIL. Python code uses `storage/record/crc.py`.

   *Lanes*: the processor's CRC instruction takes 8 bytes and has its result three cycles later,
   but one can begin in each cycle. So the loop works on three lanes of the input at a time. It
   combines their CRCs by computing what LANE zero bytes do to a CRC, which is linear in the CRC's
   bits, so four tables hold it (the method of Mark Adler's crc32c.c). Lanes are short: if all
   three lie within a kilobyte, the processor prefetches memory as for one stream.

   *Tables*, for a processor without that instruction, take 8 bytes at a time.

   *Folding* (`crc32c_fold.h`) is for long input on a processor with AVX-512. */

#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define KAFKAFS_LONG_LANE 256
#define KAFKAFS_SHORT_LANE 64

static uint32_t kafkafs_by_byte[8][256];

static inline uint32_t kafkafs_next_byte(uint32_t crc, uint8_t byte)
{
    return (crc >> 8) ^ kafkafs_by_byte[0][(crc ^ byte) & 0xFF];
}

static uint32_t kafkafs_crc_by_table(const uint8_t *at, int64_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word = le64toh(word) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= kafkafs_by_byte[7 - byte][(word >> 8 * byte) & 0xFF];
    }
    for (; size > 0; size--, at++)
        crc = kafkafs_next_byte(crc, *at);
    return ~crc;
}

/* The size of the shortest prefix, of at least `shortest` bytes, with the CRC `wanted`; -1: none. */
static int64_t kafkafs_crc_prefix(
    const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (int64_t done = 0; done <= size; done++) {
        if (~crc == wanted && done >= shortest)
            return done;
        if (done < size)
            crc = kafkafs_next_byte(crc, at[done]);
    }
    return -1;
}

#if defined(__x86_64__) && defined(__GNUC__)
static uint32_t kafkafs_after_long[4][256];
static uint32_t kafkafs_after_short[4][256];

static void kafkafs_make_shift(uint32_t table[4][256], int zeros)
{
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        of_bit[bit] = 1u << bit;
        for (int done = 0; done < zeros; done++)
            of_bit[bit] = kafkafs_next_byte(of_bit[bit], 0);
    }
    for (int at = 0; at < 4; at++)
        for (int byte = 0; byte < 256; byte++) {
            table[at][byte] = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1)
                    table[at][byte] ^= of_bit[8 * at + bit];
        }
}

static inline uint32_t kafkafs_shifted(uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF]
        ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

#define KAFKAFS_LANES(LANE, AFTER) \
    for (; size >= 3 * LANE; size -= 3 * LANE, at += 3 * LANE) { \
        uint64_t second = 0, third = 0, bits; \
        for (int64_t i = 0; i < LANE; i += 8) { \
            memcpy(&bits, at + i, 8); \
            crc = __builtin_ia32_crc32di(crc, bits); \
            memcpy(&bits, at + LANE + i, 8); \
            second = __builtin_ia32_crc32di(second, bits); \
            memcpy(&bits, at + 2 * LANE + i, 8); \
            third = __builtin_ia32_crc32di(third, bits); \
        } \
        crc = kafkafs_shifted(AFTER, (uint32_t) crc) ^ second; \
        crc = kafkafs_shifted(AFTER, (uint32_t) crc) ^ third; \
    }

__attribute__((target("sse4.2")))
static uint32_t kafkafs_crc_by_lanes(uint64_t crc, const uint8_t *at, int64_t size)
{
    uint64_t bits;
    KAFKAFS_LANES(KAFKAFS_LONG_LANE, kafkafs_after_long)
    KAFKAFS_LANES(KAFKAFS_SHORT_LANE, kafkafs_after_short)
    for (; size >= 8; size -= 8, at += 8) {
        memcpy(&bits, at, 8);
        crc = __builtin_ia32_crc32di(crc, bits);
    }
    for (; size > 0; size--, at++)
        crc = __builtin_ia32_crc32qi((uint32_t) crc, *at);
    return (uint32_t) crc;
}

#include "crc32c_fold.h"
#endif

static void kafkafs_make_crc_tables(void)
{
    for (int byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        kafkafs_by_byte[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = kafkafs_by_byte[table - 1][byte];
            kafkafs_by_byte[table][byte] =
                (before >> 8) ^ kafkafs_by_byte[0][before & 0xFF];
        }
#if defined(__x86_64__) && defined(__GNUC__)
    kafkafs_make_shift(kafkafs_after_long, KAFKAFS_LONG_LANE);
    kafkafs_make_shift(kafkafs_after_short, KAFKAFS_SHORT_LANE);
#endif
}

static inline uint32_t kafkafs_crc(const uint8_t *at, int64_t size)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (size >= KAFKAFS_FOLD_FROM && kafkafs_can_fold())
        return ~kafkafs_crc_by_folding(0xFFFFFFFFu, at, size);
    if (__builtin_cpu_supports("sse4.2"))
        return ~kafkafs_crc_by_lanes(0xFFFFFFFFu, at, size);
#endif
    return kafkafs_crc_by_table(at, size);
}
