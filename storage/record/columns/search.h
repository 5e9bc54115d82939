/* Finds bytes in bytes. */

#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Returns the first place from `at` on where `size` bytes are those of `needle` and end before
   `end`; NULL if there is none.

   In short texts, which records are, most of memmem's time goes into its preparation. This compares
   the first and the last byte of the needle at sixteen places at once, and all of it only where
   both fit. */
static inline const uint8_t *kafkafs_find(
    const uint8_t *at, const uint8_t *end, const uint8_t *needle, int64_t size)
{
    if (end - at < size)
        return NULL;
    if (size == 0)
        return at;
    if (size == 1)
        return (const uint8_t *) memchr(at, needle[0], (size_t) (end - at));
#ifdef __SSE2__
    const __m128i first = _mm_set1_epi8((char) needle[0]);
    const __m128i last = _mm_set1_epi8((char) needle[size - 1]);
    for (; end - at >= size + 15; at += 16) {
        __m128i here = _mm_loadu_si128((const __m128i *) at);
        __m128i there = _mm_loadu_si128((const __m128i *) (at + size - 1));
        unsigned fits = (unsigned) _mm_movemask_epi8(
            _mm_and_si128(_mm_cmpeq_epi8(here, first), _mm_cmpeq_epi8(there, last)));
        for (; fits; fits &= fits - 1) {
            const uint8_t *place = at + __builtin_ctz(fits);
            if (!memcmp(place + 1, needle + 1, (size_t) size - 1))
                return place;
        }
    }
#endif
    for (; end - at >= size; at++) {
        at = (const uint8_t *) memchr(at, needle[0], (size_t) (end - at - size + 1));
        if (!at)
            return NULL;
        if (!memcmp(at + 1, needle + 1, (size_t) size - 1))
            return at;
    }
    return NULL;
}
