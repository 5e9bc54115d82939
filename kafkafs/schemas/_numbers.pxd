# cython: cdivision=True
"""Inline functions that write doubles and decimals as text. They take no lock and no memory."""

from libc.math cimport INFINITY, signbit
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kafkafs.views._json_text cimport put, put_integer

cdef extern from "kafkafs/schemas/shortest.h":
    ctypedef struct Decimal "kafkafs_decimal":
        uint64_t digits
        int exponent
    enum:
        LEAST_POWER "KAFKAFS_LEAST_POWER"
        POWERS "KAFKAFS_POWERS"
    uint64_t powers "kafkafs_powers"[617][2]
    Decimal shortest "kafkafs_shortest"(double number) noexcept nogil


cdef enum:
    # A decimal of more bytes is written as bytes; its digits would take long.
    DECIMAL_WORDS = 256
    DECIMAL_BYTES = 4 * DECIMAL_WORDS
    DECIMAL_DIGITS = 2500


cdef inline int fill_powers() except -1:
    """Fill the table of powers. Call it before any other function."""
    cdef int number
    for number in range(POWERS):
        exponent = LEAST_POWER + number
        shift = ((exponent * 1741647) >> 19) - 127
        top, bottom = 10 ** max(exponent, 0), 10 ** max(-exponent, 0)
        value = -(-(top << max(-shift, 0)) // (bottom << max(shift, 0)))
        powers[number][0] = value >> 64
        powers[number][1] = value & 0xFFFFFFFFFFFFFFFF
    return 0


cdef inline uint8_t *put_double(uint8_t *out, double number) noexcept nogil:
    """Write the shortest text that reads back as this number, as Python's `repr` does."""
    cdef uint8_t digits[32]
    cdef Decimal found
    cdef int count, point
    if number != number:
        return put(out, b'"NaN"')
    if number == INFINITY:
        return put(out, b'"Infinity"')
    if number == -INFINITY:
        return put(out, b'"-Infinity"')
    if signbit(number):
        out[0] = c"-"
        out += 1
        number = -number
    if number == 0:
        return put(out, b"0.0")
    found = shortest(number)
    while found.digits % 10 == 0:
        found.digits //= 10
        found.exponent += 1
    count = put_integer(digits, <int64_t> found.digits) - digits
    # Where the decimal point lies, counted from the first digit.
    point = count + found.exponent
    if -4 < point <= 0:
        out = put(out, b"0.")
        memset(out, c"0", -point)
        out += -point
        memcpy(out, digits, count)
        return out + count
    if 0 < point <= 16:
        if count <= point:
            memcpy(out, digits, count)
            memset(out + count, c"0", point - count)
            return put(out + point, b".0")
        memcpy(out, digits, point)
        out[point] = c"."
        memcpy(out + point + 1, digits + point, count - point)
        return out + count + 1
    out[0] = digits[0]
    out += 1
    if count > 1:
        out[0] = c"."
        memcpy(out + 1, digits + 1, count - 1)
        out += count
    out = put(out, b"e-" if point <= 0 else b"e+")
    point = 1 - point if point <= 0 else point - 1
    if point < 10:
        out[0] = c"0"
        out += 1
    return put_integer(out, point)


cdef inline int64_t put_digits(uint8_t *out, const uint8_t *at, int64_t size) noexcept nogil:
    """Write the digits of a signed big-endian integer without its sign; return how many."""
    cdef uint32_t words[DECIMAL_WORDS]
    cdef uint8_t digits[DECIMAL_DIGITS]
    cdef bint negative = size > 0 and at[0] >= 0x80
    cdef int64_t number = -1 if negative else 0
    cdef int64_t first, index, byte
    cdef int64_t count = (size + 3) // 4
    cdef int64_t end = DECIMAL_DIGITS
    cdef uint64_t rest
    cdef uint8_t piece[32]
    if size <= 8:
        for byte in range(size):
            number = <int64_t> (<uint64_t> number << 8 | at[byte])
        if number == INT64_MIN:
            return put(out, b"9223372036854775808") - out
        return put_integer(out, -number if negative else number) - out
    # The absolute number, the highest word first.
    memset(words, 0xFF if negative else 0, 4 * count)
    for byte in range(size):
        index = count - 1 - (size - 1 - byte) // 4
        words[index] = words[index] << 8 | at[byte]
    if negative:
        for index in range(count):
            words[index] = ~words[index]
        index = count - 1
        words[index] += 1
        while words[index] == 0 and index:
            index -= 1
            words[index] += 1
    first = 0
    while first < count:
        rest = 0
        for index in range(first, count):
            rest = rest << 32 | words[index]
            words[index] = <uint32_t> (rest // 1000000000)
            rest %= 1000000000
        # Nine digits with their leading zeros.
        put_integer(piece, <int64_t> (rest + 1000000000))
        end -= 9
        memcpy(digits + end, piece + 1, 9)
        while first < count and words[first] == 0:
            first += 1
    while end < DECIMAL_DIGITS - 1 and digits[end] == c"0":
        end += 1
    memcpy(out, digits + end, DECIMAL_DIGITS - end)
    return DECIMAL_DIGITS - end
