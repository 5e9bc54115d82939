/* Finds bytes in bytes, and words. */

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* The longest needle that is compared with every place that may have it. */
enum { KAFKAFS_COMPARED = 256 };

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
    if (size > KAFKAFS_COMPARED) /* its time does not grow with the needle */
        return (const uint8_t *) memmem(at, (size_t) (end - at), needle, (size_t) size);
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

/* Returns the byte in lower case, as the C locale folds it. */
static inline uint8_t kafkafs_folded(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? (uint8_t) (byte | 0x20) : byte;
}

/* Finds as kafkafs_find does, but takes ASCII letters of either case for the same. The needle is in
   lower case. */
static inline const uint8_t *kafkafs_find_folded(
    const uint8_t *at, const uint8_t *end, const uint8_t *needle, int64_t size)
{
    if (end - at < size)
        return NULL;
    if (size == 0)
        return at;
    uint8_t *folded = size > KAFKAFS_COMPARED ? (uint8_t *) malloc((size_t) (end - at)) : NULL;
    if (folded) {
        for (int64_t each = 0; each < end - at; each++)
            folded[each] = kafkafs_folded(at[each]);
        const uint8_t *found = kafkafs_find(folded, folded + (end - at), needle, size);
        const uint8_t *place = found ? at + (found - folded) : NULL;
        free(folded);
        return place;
    }
    const uint8_t head = needle[0], tail = needle[size - 1];
#ifdef __SSE2__
    /* The bit that makes a letter lower case; other bytes are compared as they are. */
    const __m128i head_bit = _mm_set1_epi8(head >= 'a' && head <= 'z' ? 0x20 : 0);
    const __m128i tail_bit = _mm_set1_epi8(tail >= 'a' && tail <= 'z' ? 0x20 : 0);
    const __m128i first = _mm_set1_epi8((char) head);
    const __m128i last = _mm_set1_epi8((char) tail);
    for (; end - at >= size + 15; at += 16) {
        __m128i here = _mm_or_si128(_mm_loadu_si128((const __m128i *) at), head_bit);
        __m128i there = _mm_or_si128(
            _mm_loadu_si128((const __m128i *) (at + size - 1)), tail_bit);
        unsigned fits = (unsigned) _mm_movemask_epi8(
            _mm_and_si128(_mm_cmpeq_epi8(here, first), _mm_cmpeq_epi8(there, last)));
        for (; fits; fits &= fits - 1) {
            const uint8_t *place = at + __builtin_ctz(fits);
            int64_t same = 1;
            while (same < size && kafkafs_folded(place[same]) == needle[same])
                same++;
            if (same >= size)
                return place;
        }
    }
#endif
    for (; end - at >= size; at++) {
        int64_t same = 0;
        while (same < size && kafkafs_folded(at[same]) == needle[same])
            same++;
        if (same == size)
            return at;
    }
    return NULL;
}

/* Returns whether the byte is a letter, a digit or _: a part of a word in the C locale. */
static inline int kafkafs_is_of_word(uint8_t byte)
{
    const uint8_t folded = kafkafs_folded(byte);
    return (folded >= 'a' && folded <= 'z') || (byte >= '0' && byte <= '9') || byte == '_';
}

/* Fills in, for each start of the needle, the size of the longest shorter one with which it ends. */
static inline void kafkafs_fill_borders(const uint8_t *needle, int64_t size, int32_t *borders)
{
    borders[0] = 0;
    for (int64_t at = 1, same = 0; at < size; at++) {
        while (same && needle[at] != needle[same])
            same = borders[same - 1];
        same += needle[at] == needle[same];
        borders[at] = (int32_t) same;
    }
}

/* Returns whether the needle is between `start` and `end` and is no part of a longer word. `fold`:
   as in kafkafs_find_folded.

   The needle may be there many times as a part of longer words, and these may overlap. So no byte
   is compared again after a place that fits (Knuth, Morris and Pratt). */
static inline int kafkafs_has_whole(
    const uint8_t *start, const uint8_t *end, const uint8_t *needle, int64_t size,
    const int32_t *borders, int fold)
{
    int64_t same = 0;
    for (const uint8_t *at = start; at < end; at++) {
        const uint8_t byte = fold ? kafkafs_folded(*at) : *at;
        while (same && byte != needle[same])
            same = borders[same - 1];
        same += byte == needle[same];
        if (same < size)
            continue;
        const uint8_t *place = at + 1 - size;
        if ((place == start || !kafkafs_is_of_word(place[-1]))
            && (at + 1 == end || !kafkafs_is_of_word(at[1])))
            return 1;
        same = borders[same - 1];
    }
    return 0;
}
