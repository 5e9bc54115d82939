/* Finds the shortest decimal number that reads back as a given double (the algorithm Schubfach of
   Raffaello Giulietti). Of the shortest ones it is the nearest. It needs no lock and no memory. */

#pragma once

#include <stdint.h>
#include <string.h>

enum {
    KAFKAFS_LEAST_POWER = -292,
    KAFKAFS_POWERS = 617,
};

/* The powers of ten from 10^-292 to 10^324: the highest 128 bits of each, rounded up, as two words
   with the upper one first. The module that includes this file fills the table. */
static uint64_t kafkafs_powers[KAFKAFS_POWERS][2];

typedef struct { uint64_t digits; int exponent; } kafkafs_decimal;

/* floor(log2(10^e)), floor(log10(2^e)) and floor(log10(2^e * 3 / 4)). Shifts round down. */
static inline int kafkafs_log2_of_power10(int e) { return (e * 1741647) >> 19; }
static inline int kafkafs_log10_of_power2(int e) { return (e * 1262611) >> 22; }
static inline int kafkafs_log10_of_three_quarters(int e) { return (e * 1262611 - 524031) >> 22; }

/* The upper 64 bits of the product; the lowest bit is set if any lower bit is. */
static inline uint64_t kafkafs_rounded_to_odd(const uint64_t power[2], uint64_t factor)
{
    const unsigned __int128 low = (unsigned __int128) power[1] * factor;
    const unsigned __int128 high = (unsigned __int128) power[0] * factor + (uint64_t) (low >> 64);
    return (uint64_t) (high >> 64) | ((uint64_t) high > 1);
}

/* The decimal of a positive finite number. The digits may end with zeros. */
static inline kafkafs_decimal kafkafs_shortest(double number)
{
    kafkafs_decimal found;
    uint64_t bits, fraction, lower, upper, middle, tens;
    int biased, exponent, shift, is_odd, lower_is_closer;
    memcpy(&bits, &number, 8);
    fraction = bits & (((uint64_t) 1 << 52) - 1);
    biased = (int) (bits >> 52 & 0x7FF);
    exponent = (biased ? biased : 1) - 1075;
    lower_is_closer = fraction == 0 && biased > 1;
    if (biased)
        fraction |= (uint64_t) 1 << 52;
    if (-53 < exponent && exponent <= 0 && !(fraction & (((uint64_t) 1 << -exponent) - 1))) {
        found.digits = fraction >> -exponent;
        found.exponent = 0;
        return found;
    }
    found.exponent = lower_is_closer ? kafkafs_log10_of_three_quarters(exponent)
                                     : kafkafs_log10_of_power2(exponent);
    shift = exponent + kafkafs_log2_of_power10(-found.exponent) + 1;
    is_odd = (int) (fraction & 1);
    {
        const uint64_t *power = kafkafs_powers[-found.exponent - KAFKAFS_LEAST_POWER];
        const uint64_t four = 4 * fraction;
        lower = kafkafs_rounded_to_odd(power, (four - 2 + lower_is_closer) << shift) + is_odd;
        middle = kafkafs_rounded_to_odd(power, four << shift);
        upper = kafkafs_rounded_to_odd(power, (four + 2) << shift) - is_odd;
    }
    found.digits = middle / 4;
    if (found.digits >= 10) {
        tens = found.digits / 10;
        const int below = lower <= 40 * tens;
        const int above = 40 * tens + 40 <= upper;
        if (below != above) {
            found.digits = tens + above;
            found.exponent++;
            return found;
        }
    }
    {
        const int below = lower <= 4 * found.digits;
        const int above = 4 * found.digits + 4 <= upper;
        if (below != above) {
            found.digits += above;
            return found;
        }
    }
    tens = 4 * found.digits + 2;
    found.digits += middle > tens || (middle == tens && (found.digits & 1));
    return found;
}
