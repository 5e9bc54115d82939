/* CRC-32C (Castagnoli), by the fastest way that the processor has.

   *Lanes*: the processor's CRC instruction takes 8 bytes and has its result three cycles later,
   but one can begin in each cycle. So the loop works on three lanes of the input at a time. It
   combines their CRCs by computing what LANE zero bytes do to a CRC, which is linear in the CRC's
   bits, so four tables hold it (the method of Mark Adler's crc32c.c). Lanes are short: if all
   three lie within a kilobyte, the processor prefetches memory as for one stream.

   *Folding*, for long input: carry-less multiplication turns 256 bytes into 256 bytes with the
   same remainder, and XORs them into the next 256. The CRC instruction then takes the last ones
   (Intel's "Fast CRC Computation Using PCLMULQDQ", with registers of 512 bits).

   *Tables*, for a processor without that instruction, take 8 bytes at a time.

   All run without the GIL, and call no library. */

#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define KAFKAFS_LONG_LANE 256
#define KAFKAFS_SHORT_LANE 64
#define KAFKAFS_FOLDED 256
#define KAFKAFS_FOLD_FROM 2048

#if defined(__x86_64__) && defined(__GNUC__) && (__GNUC__ >= 9 || defined(__clang__))
#define KAFKAFS_CAN_FOLD
#include <immintrin.h>
#endif

static uint32_t kafkafs_by_byte[8][256];
static uint32_t kafkafs_after_long[4][256];
static uint32_t kafkafs_after_short[4][256];
static uint32_t kafkafs_after_zeros[64];
static uint64_t kafkafs_fold[2];
static int kafkafs_has_instruction;
static int kafkafs_has_folding;

static void kafkafs_make_shift(uint32_t table[4][256], int zeros)
{
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = 1u << bit;
        for (int byte = 0; byte < zeros; byte++)
            crc = (crc >> 8) ^ kafkafs_by_byte[0][crc & 0xFF];
        of_bit[bit] = crc;
    }
    for (int at = 0; at < 4; at++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1)
                    crc ^= of_bit[8 * at + bit];
            table[at][byte] = crc;
        }
}

/* x to the power of `exponent` modulo the polynomial, the lowest bit first. */
static uint64_t kafkafs_power(int exponent)
{
    uint32_t rest = 0x80000000u;
    while (exponent-- > 0)
        rest = rest & 1 ? (rest >> 1) ^ 0x82F63B78u : rest >> 1;
    return rest;
}

/* The product of two polynomials modulo the polynomial, the lowest bit first. */
static uint32_t kafkafs_product(uint32_t one, uint32_t other)
{
    uint32_t product = 0;
    for (; one; one <<= 1) {
        if (one & 0x80000000u)
            product ^= other;
        other = other & 1 ? (other >> 1) ^ 0x82F63B78u : other >> 1;
    }
    return product;
}

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
    kafkafs_make_shift(kafkafs_after_long, KAFKAFS_LONG_LANE);
    kafkafs_make_shift(kafkafs_after_short, KAFKAFS_SHORT_LANE);
    kafkafs_after_zeros[0] = (uint32_t) kafkafs_power(8);
    for (int bit = 1; bit < 64; bit++)
        kafkafs_after_zeros[bit] = kafkafs_product(
            kafkafs_after_zeros[bit - 1], kafkafs_after_zeros[bit - 1]);
#if defined(__x86_64__) && defined(__GNUC__)
    kafkafs_has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#endif
#ifdef KAFKAFS_CAN_FOLD
    kafkafs_has_folding = kafkafs_has_instruction && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("vpclmulqdq");
    /* The factors of the first 8 and of the last 8 of each 16 bytes. The exponents are 1 lower
       because the product of numbers with the lowest bit first is one bit off, and 32 lower
       because the factors have 32 bits. */
    kafkafs_fold[0] = kafkafs_power(8 * KAFKAFS_FOLDED + 64 - 32 - 1);
    kafkafs_fold[1] = kafkafs_power(8 * KAFKAFS_FOLDED - 32 - 1);
#endif
}

static uint32_t kafkafs_crc_on_by_table(uint32_t crc, const uint8_t *at, int64_t size)
{
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word = le64toh(word) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= kafkafs_by_byte[7 - byte][(word >> 8 * byte) & 0xFF];
    }
    for (; size > 0; size--, at++)
        crc = (crc >> 8) ^ kafkafs_by_byte[0][(crc ^ *at) & 0xFF];
    return crc;
}

static uint32_t kafkafs_crc_by_table(const uint8_t *at, int64_t size)
{
    return ~kafkafs_crc_on_by_table(0xFFFFFFFFu, at, size);
}

static int64_t kafkafs_prefix_by_table(
    const uint8_t *at, int64_t shortest, int64_t size, uint32_t wanted)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (int64_t done = 0; done <= size; done++) {
        if (~crc == wanted && done >= shortest)
            return done;
        if (done < size)
            crc = (crc >> 8) ^ kafkafs_by_byte[0][(crc ^ at[done]) & 0xFF];
    }
    return -1;
}

#if defined(__x86_64__) && defined(__GNUC__)
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
static uint32_t kafkafs_crc_on_by_instruction(uint64_t crc, const uint8_t *at, int64_t size)
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

static uint32_t kafkafs_crc_by_instruction(const uint8_t *at, int64_t size)
{
    return ~kafkafs_crc_on_by_instruction(0xFFFFFFFFu, at, size);
}
#else
#define kafkafs_crc_by_instruction kafkafs_crc_by_table
#endif

#ifdef KAFKAFS_CAN_FOLD
#define KAFKAFS_FOLD(part, next) \
    _mm512_ternarylogic_epi64( \
        _mm512_clmulepi64_epi128(part, by, 0x00), \
        _mm512_clmulepi64_epi128(part, by, 0x11), next, 0x96)

__attribute__((target("avx512f,vpclmulqdq")))
static uint32_t kafkafs_crc_by_folding(const uint8_t *at, int64_t size)
{
    uint8_t last[KAFKAFS_FOLDED];
    __m512i by, part[4];
    if (size < KAFKAFS_FOLDED)
        return kafkafs_crc_by_instruction(at, size);
    by = _mm512_set_epi64(
        kafkafs_fold[1], kafkafs_fold[0], kafkafs_fold[1], kafkafs_fold[0],
        kafkafs_fold[1], kafkafs_fold[0], kafkafs_fold[1], kafkafs_fold[0]);
    for (int i = 0; i < 4; i++)
        part[i] = _mm512_loadu_si512(at + 64 * i);
    part[0] = _mm512_xor_si512(part[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, 0xFFFFFFFF));
    for (;;) {
        at += KAFKAFS_FOLDED;
        size -= KAFKAFS_FOLDED;
        if (size < KAFKAFS_FOLDED)
            break;
        for (int i = 0; i < 4; i++)
            part[i] = KAFKAFS_FOLD(part[i], _mm512_loadu_si512(at + 64 * i));
    }
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(last + 64 * i, part[i]);
    return ~kafkafs_crc_on_by_instruction(
        kafkafs_crc_on_by_instruction(0, last, KAFKAFS_FOLDED), at, size);
}
#else
#define kafkafs_crc_by_folding kafkafs_crc_by_instruction
#endif

static inline uint32_t kafkafs_crc(const uint8_t *at, int64_t size)
{
    if (kafkafs_has_folding && size >= KAFKAFS_FOLD_FROM)
        return kafkafs_crc_by_folding(at, size);
    if (kafkafs_has_instruction)
        return kafkafs_crc_by_instruction(at, size);
    return kafkafs_crc_by_table(at, size);
}

/* The CRC of bytes whose own is `crc`, with these behind them. */
static uint32_t kafkafs_crc_after(uint32_t crc, const uint8_t *at, int64_t size)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (kafkafs_has_instruction)
        return ~kafkafs_crc_on_by_instruction(~crc, at, size);
#endif
    return ~kafkafs_crc_on_by_table(~crc, at, size);
}

/* CRCs of many parts of the same bytes, each in about the same time, however long the part is.

   A CRC is linear: of what lies before a part, its CRC remains, multiplied by x once for each bit of
   the part. So the CRCs up to both ends of a part give its own. `sums` has the CRC up to each
   multiple of KAFKAFS_STEP bytes, of a register that begins with 0. */
#define KAFKAFS_STEP 64

static void kafkafs_make_sums(uint32_t *sums, const uint8_t *data, int64_t size)
{
    sums[0] = 0;
    for (int64_t at = 1; at <= size / KAFKAFS_STEP; at++)
        sums[at] = kafkafs_crc_on_by_table(
            sums[at - 1], data + KAFKAFS_STEP * (at - 1), KAFKAFS_STEP);
}

static inline uint32_t kafkafs_sum_to(const uint32_t *sums, const uint8_t *data, int64_t end)
{
    const int64_t step = end / KAFKAFS_STEP;
    return kafkafs_crc_on_by_table(
        sums[step], data + KAFKAFS_STEP * step, end % KAFKAFS_STEP);
}

static uint32_t kafkafs_crc_of_part(
    const uint32_t *sums, const uint8_t *data, int64_t start, int64_t end)
{
    uint32_t before = kafkafs_sum_to(sums, data, start) ^ 0xFFFFFFFFu;
    int64_t size = end - start;
    for (int bit = 0; size; bit++, size >>= 1)
        if (size & 1)
            before = kafkafs_product(before, kafkafs_after_zeros[bit]);
    return ~(kafkafs_sum_to(sums, data, end) ^ before);
}
