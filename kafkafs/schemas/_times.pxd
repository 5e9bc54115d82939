# cython: cdivision=True
"""Inline functions that write dates and times in the form of ISO 8601."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kafkafs.views._json_text cimport PAIRS, digits_in, put, put_integer


cdef inline int64_t floor_div(int64_t number, int64_t by) noexcept nogil:
    return number // by - (number % by < 0)


cdef inline uint8_t *put_pair(uint8_t *out, int64_t number, char before) noexcept nogil:
    out[0] = before
    memcpy(out + 1, PAIRS[number], 2)
    return out + 3


cdef inline uint8_t *put_date(uint8_t *out, int64_t days) noexcept nogil:
    """Write the days since 1970 as YYYY-MM-DD; NULL if the year has not four digits."""
    cdef int64_t day_of_era, year_of_era, day, month, year
    if not -719162 <= days <= 2932896:
        return NULL
    # Eras of 400 years that begin on 1 March.
    days += 719468
    day_of_era = days % 146097
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096
    ) // 365
    day = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day + 2) // 153
    year = year_of_era + days // 146097 * 400 + (month >= 10)
    day += 1 - (153 * month + 2) // 5
    memcpy(out, PAIRS[year // 100], 2)
    memcpy(out + 2, PAIRS[year % 100], 2)
    return put_pair(put_pair(out + 4, month + 3 if month < 10 else month - 9, c"-"), day, c"-")


cdef inline uint8_t *put_time(uint8_t *out, int64_t time, int64_t second) noexcept nogil:
    """Write a time of the day. `second`: units per second. Returns NULL if it is out of range.

    The byte before it is a quote or a T, and stays.
    """
    cdef uint8_t digits[32]
    cdef int64_t fraction = time % second
    cdef int width = digits_in(<uint64_t> second) - 1
    if not 0 <= time < 86400 * second:
        return NULL
    time //= second
    out = put_pair(out - 1, time // 3600, out[-1])
    out = put_pair(put_pair(out, time // 60 % 60, c":"), time % 60, c":")
    put_integer(digits, second + fraction)
    digits[0] = c"."
    memcpy(out, digits, width + 1)
    return out + width + 1


cdef inline uint8_t *put_timestamp(
    uint8_t *out, int64_t time, int64_t second, bint is_utc
) noexcept nogil:
    """Write a timestamp in such units; NULL if the year has not four digits."""
    cdef int64_t days = floor_div(time, 86400 * second)
    out = put_date(out, days)
    if out == NULL:
        return NULL
    out = put_time(put(out, b"T"), time - days * 86400 * second, second)
    return put(out, b"Z") if is_utc else out
