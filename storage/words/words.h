/* Finds the entries of bytes (`storage/words/query.py`) and collects their hashes in a set. */

#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "storage/record/siphash.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    /* Slots of a set that fits into a cache, and of the largest one, which is half full at most. */
    KAFKAFS_SMALL_SET = 1 << 16,
    KAFKAFS_LARGEST_SET = 1 << 21,
    /* Bytes whose classes are found at once. */
    KAFKAFS_CHUNK = 64
};

/* A set of hashes that are not 0; 0 is a free slot. */
typedef struct {
    uint32_t *slots;
    uint64_t size;
    uint64_t count;
    int full; /* it has no room for another one */
    uint64_t k0, k1;
} kafkafs_words;

static inline void kafkafs_words_put(kafkafs_words *set, uint32_t hash)
{
    uint64_t at = hash & (set->size - 1);
    while (set->slots[at] && set->slots[at] != hash)
        at = (at + 1) & (set->size - 1);
    set->count += !set->slots[at];
    set->slots[at] = hash;
}

static void kafkafs_words_grow(kafkafs_words *set)
{
    kafkafs_words grown = *set;
    grown.size = 2 * set->size;
    grown.count = 0;
    grown.slots = grown.size > KAFKAFS_LARGEST_SET
        ? NULL : (uint32_t *) calloc(grown.size, sizeof(uint32_t));
    if (!grown.slots) {
        set->full = 1;
        return;
    }
    for (uint64_t at = 0; at < set->size; at++)
        if (set->slots[at])
            kafkafs_words_put(&grown, set->slots[at]);
    free(set->slots);
    *set = grown;
}

/* Empties the set; returns 0 if there is no memory for it. */
static inline int kafkafs_words_clear(kafkafs_words *set)
{
    if (set->size > 2 * KAFKAFS_SMALL_SET) {
        free(set->slots);
        set->slots = NULL;
    }
    if (set->slots)
        memset(set->slots, 0, set->size * sizeof(uint32_t));
    else {
        set->size = KAFKAFS_SMALL_SET;
        set->slots = (uint32_t *) calloc(set->size, sizeof(uint32_t));
    }
    set->count = 0;
    set->full = 0;
    return set->slots != NULL;
}

static inline void kafkafs_words_add(kafkafs_words *set, uint32_t hash)
{
    kafkafs_words_put(set, hash);
    if (2 * set->count > set->size)
        kafkafs_words_grow(set);
}

/* Returns the hash of an entry: the upper half of SipHash's first 64 bits; 1 instead of 0. A whole key
   has another secret, and is not changed to lower case. */
static inline uint32_t kafkafs_entry_hash(
    uint64_t k0, uint64_t k1, const uint8_t *at, int64_t size, int is_key)
{
    kafkafs_hash made = kafkafs_siphash(is_key ? ~k0 : k0, k1, at, size, !is_key);
    uint32_t hash = (uint32_t) (made.low >> 32);
    return hash ? hash : 1;
}

/* Finds the bytes of words among KAFKAFS_CHUNK bytes, and the first bytes of UTF-8 sequences: a bit
   for each. */
static inline void kafkafs_classes(const uint8_t *at, uint64_t *words, uint64_t *leads)
{
    *words = *leads = 0;
#ifdef __SSE2__
    for (int each = 0; each < KAFKAFS_CHUNK; each += 16) {
        __m128i text = _mm_loadu_si128((const __m128i *) (at + each));
        __m128i lower = _mm_or_si128(text, _mm_set1_epi8(0x20));
        __m128i letter = _mm_cmplt_epi8(
            _mm_add_epi8(lower, _mm_set1_epi8((char) (0x80 - 'a'))), _mm_set1_epi8(-128 + 26));
        __m128i digit = _mm_cmplt_epi8(
            _mm_add_epi8(text, _mm_set1_epi8((char) (0x80 - '0'))), _mm_set1_epi8(-128 + 10));
        __m128i word = _mm_or_si128(
            _mm_or_si128(letter, digit), _mm_cmpeq_epi8(text, _mm_set1_epi8('_')));
        /* From 0xC0 to 0xFF: negative, but not below -64. */
        __m128i follows = _mm_cmplt_epi8(text, _mm_set1_epi8(-64));
        *words |= (uint64_t) (unsigned) _mm_movemask_epi8(word) << each;
        *leads |= (uint64_t) (unsigned) _mm_movemask_epi8(_mm_andnot_si128(follows, text)) << each;
    }
#else
    for (int each = 0; each < KAFKAFS_CHUNK; each++) {
        uint8_t byte = at[each], lower = byte | 0x20;
        uint64_t is_word = (lower >= 'a' && lower <= 'z') || (byte >= '0' && byte <= '9')
            || byte == '_';
        *words |= is_word << each;
        *leads |= (uint64_t) (byte >= 0xC0) << each;
    }
#endif
}

/* The last four numbers that single dots join. */
typedef struct {
    const uint8_t *starts[4];
    const uint8_t *end;
    unsigned count;
} kafkafs_numbers;

static inline int kafkafs_is_digit(uint8_t byte) { return (uint8_t) (byte - '0') < 10; }

static inline void kafkafs_add_word(
    kafkafs_words *set, kafkafs_numbers *numbers, const uint8_t *at, const uint8_t *end)
{
    kafkafs_words_add(set, kafkafs_entry_hash(set->k0, set->k1, at, end - at, 0));
    if (end - at > 3)
        return;
    for (const uint8_t *digit = at; digit < end; digit++)
        if (!kafkafs_is_digit(*digit))
            return;
    if (!numbers->count || numbers->end + 1 != at || *numbers->end != '.')
        numbers->count = 0;
    numbers->starts[numbers->count++ & 3] = at;
    numbers->end = end;
    if (numbers->count >= 4) {
        at = numbers->starts[numbers->count & 3];
        kafkafs_words_add(set, kafkafs_entry_hash(set->k0, set->k1, at, end - at, 0));
    }
}
