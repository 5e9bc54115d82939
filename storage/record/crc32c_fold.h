/* CRC-32C by folding, included by `crc32c.h` for x86-64.

   Carry-less multiplication turns 256 bytes into 256 bytes with the same remainder, and XORs them
   into the next 256. The lanes then take the last ones (Intel's "Fast CRC Computation Using
   PCLMULQDQ", with registers of 512 bits). */

#define KAFKAFS_FOLDED 256
#define KAFKAFS_FOLD_FROM 2048

#if __GNUC__ >= 9 || defined(__clang__)
#include <immintrin.h>

/* x to the power of 8 * KAFKAFS_FOLDED + 64 - 33 and 8 * KAFKAFS_FOLDED - 33, the lowest bit
   first: the factors of the first 8 and of the last 8 of each 16 bytes. The exponents are 1 lower
   because the product of numbers with the lowest bit first is one bit off, and 32 lower because
   the factors have 32 bits. */
#define KAFKAFS_FACTORS 0xB9E02B86, 0xDCB17AA4

#define KAFKAFS_FOLD(part, next) \
    _mm512_ternarylogic_epi64( \
        _mm512_clmulepi64_epi128(part, by, 0x00), \
        _mm512_clmulepi64_epi128(part, by, 0x11), next, 0x96)

static inline int kafkafs_can_fold(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("vpclmulqdq");
}

__attribute__((target("avx512f,vpclmulqdq")))
static uint32_t kafkafs_crc_by_folding(uint32_t crc, const uint8_t *at, int64_t size)
{
    uint8_t last[KAFKAFS_FOLDED];
    __m512i part[4];
    const __m512i by = _mm512_set_epi64(
        KAFKAFS_FACTORS, KAFKAFS_FACTORS, KAFKAFS_FACTORS, KAFKAFS_FACTORS);
    for (int i = 0; i < 4; i++)
        part[i] = _mm512_loadu_si512(at + 64 * i);
    part[0] = _mm512_xor_si512(part[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, crc));
    for (at += KAFKAFS_FOLDED, size -= KAFKAFS_FOLDED; size >= KAFKAFS_FOLDED;
         at += KAFKAFS_FOLDED, size -= KAFKAFS_FOLDED)
        for (int i = 0; i < 4; i++)
            part[i] = KAFKAFS_FOLD(part[i], _mm512_loadu_si512(at + 64 * i));
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(last + 64 * i, part[i]);
    return kafkafs_crc_by_lanes(kafkafs_crc_by_lanes(0, last, KAFKAFS_FOLDED), at, size);
}
#else
#define kafkafs_can_fold() 0
#define kafkafs_crc_by_folding kafkafs_crc_by_lanes
#endif
