/* The C part of `_json_text.pxd`: its tables, and functions that find special bytes in blocks of
   16. A special byte needs an escape in a JSON string or is not ASCII.

   The functions use SSE2 if the compiler may assume it, as on each x86-64 (three times as fast for
   long texts), else words of 8 bytes. A function reads all of each block that it examines. */

#pragma once

#include <stdint.h>
#include <string.h>

#include "storage/record/bytes.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* For 16 bytes: a bit in `quotes` for each quote or backslash, a bit in `others` for each byte
   below 0x20 or above 0x7F. The lowest bit belongs to the first byte. */
typedef struct { uint32_t quotes; uint32_t others; } kafkafs_specials;

#ifdef __SSE2__
static inline __m128i kafkafs_quotes_in(__m128i bytes)
{
    return _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                        _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
}

/* As signed numbers, bytes above 0x7F are also below 0x20. */
static inline __m128i kafkafs_others_in(__m128i bytes)
{ return _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x20)); }

static inline __m128i kafkafs_load16(const uint8_t *at)
{ return _mm_loadu_si128((const __m128i *) at); }

static inline kafkafs_specials kafkafs_specials_of(const uint8_t *at)
{
    const __m128i bytes = kafkafs_load16(at);
    kafkafs_specials found;
    found.quotes = (uint32_t) _mm_movemask_epi8(kafkafs_quotes_in(bytes));
    found.others = (uint32_t) _mm_movemask_epi8(kafkafs_others_in(bytes));
    return found;
}

/* Copies 16 bytes; returns the bits of both kinds of special bytes. */
static inline uint32_t kafkafs_copy16(uint8_t *out, const uint8_t *at)
{
    const __m128i bytes = kafkafs_load16(at);
    _mm_storeu_si128((__m128i *) out, bytes);
    return (uint32_t) _mm_movemask_epi8(
        _mm_or_si128(kafkafs_quotes_in(bytes), kafkafs_others_in(bytes)));
}

/* Copies blocks of 32 bytes up to and with the first that has a special byte. Returns how many
   bytes lie before that block. */
static inline int64_t kafkafs_copy_plain(uint8_t *out, const uint8_t *at, int64_t size)
{
    int64_t done = 0;
    while (size - done >= 32) {
        const __m128i first = kafkafs_load16(at + done);
        const __m128i second = kafkafs_load16(at + done + 16);
        const __m128i found = _mm_or_si128(
            _mm_or_si128(kafkafs_quotes_in(first), kafkafs_others_in(first)),
            _mm_or_si128(kafkafs_quotes_in(second), kafkafs_others_in(second)));
        _mm_storeu_si128((__m128i *) (out + done), first);
        _mm_storeu_si128((__m128i *) (out + done + 16), second);
        if (_mm_movemask_epi8(found))
            break;
        done += 32;
    }
    return done;
}

/* Examines blocks of 32 bytes up to the first that has a byte of the kind `others`. Returns how
   many bytes lie before that block, and sets `quotes` to the number of quotes and backslashes in
   them. */
static inline int64_t kafkafs_count_plain(const uint8_t *at, int64_t size, int64_t *quotes)
{
    const __m128i ones = _mm_set1_epi8(1);
    __m128i sum = _mm_setzero_si128();
    int64_t halves[2];
    int64_t done = 0;
    while (size - done >= 32) {
        const __m128i first = kafkafs_load16(at + done);
        const __m128i second = kafkafs_load16(at + done + 16);
        const __m128i counts = _mm_add_epi8(
            _mm_and_si128(kafkafs_quotes_in(first), ones),
            _mm_and_si128(kafkafs_quotes_in(second), ones));
        if (_mm_movemask_epi8(
                _mm_or_si128(kafkafs_others_in(first), kafkafs_others_in(second))))
            break;
        sum = _mm_add_epi64(sum, _mm_sad_epu8(counts, _mm_setzero_si128()));
        done += 32;
    }
    _mm_storeu_si128((__m128i *) halves, sum);
    *quotes = halves[0] + halves[1];
    return done;
}
#else
/* Collects the top bit of each byte of a word; the lowest bit belongs to the first byte. */
static inline uint32_t kafkafs_top_bits(uint64_t word)
{
    return (uint32_t) (((word >> 7 & 0x0101010101010101u) * 0x0102040810204080u) >> 56);
}

static inline kafkafs_specials kafkafs_specials_of(const uint8_t *at)
{
    const uint64_t each = 0x0101010101010101u;
    kafkafs_specials found = {0, 0};
    int half;
    for (half = 0; half < 2; half++) {
        const uint64_t word = kafkafs_load64_little(at + 8 * half);
        const uint64_t low = word & 0x7F * each;
        const uint64_t quotes = ~((low ^ '"' * each) + 0x7F * each)
                                | ~((low ^ '\\' * each) + 0x7F * each);
        found.quotes |= kafkafs_top_bits(quotes & ~word) << 8 * half;
        found.others |= kafkafs_top_bits(word | ~(low + 0x60 * each)) << 8 * half;
    }
    return found;
}

static inline uint32_t kafkafs_copy16(uint8_t *out, const uint8_t *at)
{
    const kafkafs_specials found = kafkafs_specials_of(at);
    memcpy(out, at, 16);
    return found.quotes | found.others;
}

static inline int64_t kafkafs_copy_plain(uint8_t *out, const uint8_t *at, int64_t size)
{
    int64_t done = 0;
    while (size - done >= 16 && !kafkafs_copy16(out + done, at + done))
        done += 16;
    return done;
}

static inline int64_t kafkafs_count_plain(const uint8_t *at, int64_t size, int64_t *quotes)
{
    int64_t done = 0;
    *quotes = 0;
    while (size - done >= 16) {
        const kafkafs_specials found = kafkafs_specials_of(at + done);
        if (found.others)
            break;
        *quotes += __builtin_popcount(found.quotes);
        done += 16;
    }
    return done;
}
#endif

static inline int kafkafs_lowest_bit(uint32_t bits) { return __builtin_ctz(bits); }
static inline int kafkafs_bits_in(uint32_t bits) { return __builtin_popcount(bits); }

/* The tables that `prepare` fills:
   escapes, escape_sizes  the text of a byte below 0x80 in a string, and its length
   unescapes              the byte that a byte behind a backslash stands for; 0 if none
   hex                    the value of a byte as a hexadecimal digit; 0xFF if it is none
   pairs                  the two decimal digits of each number up to 99
   base64                 the two Base64 digits of each number of 12 bits
   digits                 the value of a byte as a Base64 digit; 0xFF if it is none */
static uint8_t kafkafs_escapes[128][8];
static uint8_t kafkafs_escape_sizes[128];
static uint8_t kafkafs_unescapes[256];
static uint8_t kafkafs_hex[256];
static uint8_t kafkafs_pairs[100][2];
static uint8_t kafkafs_base64[4096][2];
static uint8_t kafkafs_digits[256];
