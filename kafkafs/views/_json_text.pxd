"""Inline functions that measure and write bytes and numbers as JSON text (RFC 8259), and read it.

Bytes that are UTF-8 (`_utf8.pxd`) become a string. It escapes only what JSON requires: quote,
backslash and bytes below 0x20, in the form of two characters if JSON has one. Other bytes become an
object, {"base64":"…"}.

The functions work in blocks of 16 bytes. They read nothing from `readable_end` on, which may lie
behind the bytes that the caller passes, and write up to 128 bytes behind the text. The last byte
may be the first that is not UTF-8. So `put_bytes` first writes a string; if that fails, it writes
the object over it, and the string has stayed within the object's size and the 128 bytes.

They are inline because a loop calls them for each key, value and number.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset, strlen

from storage.record._batch cimport load64
from storage.record._utf8 cimport sequence_at


cdef extern from "kafkafs/views/json_text.h":
    ctypedef struct Specials "kafkafs_specials":
        uint32_t quotes
        uint32_t others
    Specials specials_of "kafkafs_specials_of"(const uint8_t *at) noexcept nogil
    uint32_t copy16 "kafkafs_copy16"(uint8_t *out, const uint8_t *at) noexcept nogil
    int64_t copy_plain "kafkafs_copy_plain"(
        uint8_t *out, const uint8_t *at, int64_t size
    ) noexcept nogil
    int64_t count_plain "kafkafs_count_plain"(
        const uint8_t *at, int64_t size, int64_t *quotes
    ) noexcept nogil
    int lowest_bit "kafkafs_lowest_bit"(uint32_t bits) noexcept nogil
    int bits_in "kafkafs_bits_in"(uint32_t bits) noexcept nogil
    uint8_t ESCAPES "kafkafs_escapes"[128][8]
    uint8_t ESCAPE_SIZES "kafkafs_escape_sizes"[128]
    uint8_t UNESCAPES "kafkafs_unescapes"[256]
    uint8_t HEX "kafkafs_hex"[256]
    uint8_t PAIRS "kafkafs_pairs"[100][2]
    uint8_t BASE64 "kafkafs_base64"[4096][2]
    uint8_t DIGITS "kafkafs_digits"[256]


cdef inline int prepare() except -1:
    """Fill the tables. Call it before any other function."""
    cdef bytes digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef bytes text
    cdef dict short = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}
    cdef const uint8_t *digit = digits
    cdef int number
    for number in range(128):
        text = bytes([number])
        if number < 0x20:
            text = short.get(number, b"\\u00%02x" % number)
        elif number == 34 or number == 92:
            text = b"\\" + text
        if len(text) == 2:
            UNESCAPES[<uint8_t> text[1]] = <uint8_t> number
        ESCAPE_SIZES[number] = <uint8_t> len(text)
        memcpy(ESCAPES[number], <const char *> text, len(text))
    UNESCAPES[c"/"] = c"/"
    for number in range(256):
        DIGITS[number] = <uint8_t> digits.find(number)
        HEX[number] = <uint8_t> b"0123456789abcdef".find(bytes([number]).lower())
    for number in range(100):
        PAIRS[number][0] = <uint8_t> (48 + number // 10)
        PAIRS[number][1] = <uint8_t> (48 + number % 10)
    for number in range(4096):
        BASE64[number][0] = digit[number >> 6]
        BASE64[number][1] = digit[number & 63]
    return 0


cdef inline uint8_t *put(uint8_t *out, const char *text) noexcept nogil:
    cdef size_t size = strlen(text)
    memcpy(out, text, size)
    return out + size


# -- numbers -------------------------------------------------------------------------------------

cdef inline int digits_in(uint64_t number) noexcept nogil:
    cdef int digits = 1
    while number >= 10000:
        number //= 10000
        digits += 4
    return digits + (number >= 10) + (number >= 100) + (number >= 1000)


cdef inline int64_t integer_size(int64_t number) noexcept nogil:
    if number < 0:
        return 1 + digits_in(0 - <uint64_t> number)
    return digits_in(<uint64_t> number)


cdef inline uint8_t *put_four(uint8_t *out, uint32_t number) noexcept nogil:
    memcpy(out, PAIRS[number // 100], 2)
    memcpy(out + 2, PAIRS[number % 100], 2)
    return out + 4


cdef inline uint8_t *put_eight(uint8_t *out, uint32_t number) noexcept nogil:
    return put_four(put_four(out, number // 10000), number % 10000)


cdef inline uint8_t *put_short(uint8_t *out, uint32_t number) noexcept nogil:
    """Write a number below 100,000,000 without leading zeros."""
    cdef uint8_t digits[16]
    cdef int size = digits_in(number)
    put_eight(digits, number)
    memcpy(out, digits + 8 - size, 8)
    return out + size


cdef inline uint8_t *put_integer(uint8_t *out, int64_t number) noexcept nogil:
    cdef uint64_t rest = <uint64_t> number
    cdef uint64_t upper
    if number < 0:
        out[0] = c"-"
        out += 1
        rest = 0 - rest
    if rest < 100000000:
        return put_short(out, <uint32_t> rest)
    upper = rest // 100000000
    if upper < 100000000:
        out = put_short(out, <uint32_t> upper)
    else:
        out = put_short(out, <uint32_t> (upper // 100000000))
        out = put_eight(out, <uint32_t> (upper % 100000000))
    return put_eight(out, <uint32_t> (rest % 100000000))


# -- strings -------------------------------------------------------------------------------------

cdef inline int64_t base64_size(int64_t size) noexcept nogil:
    """How many bytes `put_base64` writes, including the object around the digits."""
    return 13 + (size + 2) // 3 * 4


cdef inline const uint8_t *after_sequences(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """The byte after characters that begin with a byte above 0x7F; NULL if one is not UTF-8."""
    cdef int length
    while True:
        length = sequence_at(at, end - at)
        if length < 0:
            return NULL
        at += length
        if at == end or at[0] < 0x80:
            return at


cdef inline int64_t string_size(
    const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """How many bytes `put_string` writes; -1 if the bytes are not UTF-8."""
    cdef const uint8_t *end = at + size
    cdef uint8_t pad[16]
    cdef Specials found
    cdef uint32_t seen
    cdef int64_t text = 2 + size
    cdef int64_t plain
    cdef int64_t quotes
    cdef int64_t left
    while at < end:
        plain = count_plain(at, end - at, &quotes)
        text += quotes
        at += plain
        left = end - at
        if left == 0:
            break
        if readable_end - at >= 16:
            found = specials_of(at)
        else:
            memset(pad, 0, 16)
            memcpy(pad, at, left)
            found = specials_of(pad)
        # Count up to the first byte that is above 0x7F.
        seen = 0xFFFF if left >= 16 else (<uint32_t> 1 << left) - 1
        found.others &= seen
        while found.others:
            plain = lowest_bit(found.others)
            if at[plain] >= 0x80:
                break
            text += ESCAPE_SIZES[at[plain]] - 1
            found.others &= found.others - 1
        else:
            text += bits_in(found.quotes & seen)
            at += min(left, <int64_t> 16)
            continue
        text += bits_in(found.quotes & ((<uint32_t> 1 << plain) - 1))
        at = after_sequences(at + plain, end)
        if at == NULL:
            return -1
    return text


cdef inline bint is_utf8(const uint8_t *at, int64_t size) noexcept nogil:
    """Whether the bytes are UTF-8. It is faster than `string_size`."""
    cdef const uint8_t *end = at + size
    cdef uint64_t high_bits = <uint64_t> 0x80808080 << 32 | <uint64_t> 0x80808080
    while at < end:
        if end - at >= 8 and load64(at) & high_bits == 0:
            at += 8
        elif at[0] < 0x80:
            at += 1
        else:
            at = after_sequences(at, end)
            if at == NULL:
                return False
    return True


cdef inline uint8_t *put_sequences(
    uint8_t *out, const uint8_t **position, const uint8_t *end
) noexcept nogil:
    """Copy the characters that begin with a byte above 0x7F; NULL if one is not UTF-8."""
    cdef const uint8_t *at = position[0]
    cdef int length
    while True:
        length = sequence_at(at, end - at)
        if length < 0:
            return NULL
        out[0] = at[0]
        out[1] = at[1]
        if length > 2:
            out[2] = at[2]
            if length > 3:
                out[3] = at[3]
        out += length
        at += length
        if at == end or at[0] < 0x80:
            position[0] = at
            return out


cdef inline uint32_t put_escaped(
    uint8_t **position, const uint8_t *at, uint32_t found
) noexcept nogil:
    """Escape a block of 16 bytes, which is already copied to `position`.

    It stops at the first byte above 0x7F, and returns how many bytes it took. Reads 32 bytes.
    """
    cdef uint8_t *out = position[0]
    cdef uint32_t done = 0
    cdef uint32_t special
    while found:
        special = lowest_bit(found)
        out += special - done
        done = special
        if at[special] >= 0x80:
            break
        memcpy(out, ESCAPES[at[special]], 8)
        out += ESCAPE_SIZES[at[special]]
        done += 1
        memcpy(out, at + done, 16)
        found &= found - 1
    else:
        out += 16 - done
        done = 16
    position[0] = out
    return done


cdef inline uint8_t *put_string(
    uint8_t *out, const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """Write a string with its quotes, and return the byte after it; NULL if it is not UTF-8.

    In that case it has touched at most the bytes that `put_base64` writes, and 128 more.
    """
    cdef const uint8_t *start = at
    cdef const uint8_t *end = at + size
    cdef uint8_t *text
    cdef uint8_t pad[32]
    cdef const uint8_t *block
    cdef uint32_t found
    cdef int64_t plain
    cdef int64_t left
    # How many bytes escapes may add before the loop measures the rest. It leaves room for one more
    # block, which adds at most 80 bytes, for 16 bytes after it, and for the two quotes.
    cdef int64_t spare = base64_size(size) - size + 128 - 80 - 16 - 2
    out[0] = c'"'
    out += 1
    text = out
    while at < end:
        left = end - at
        block = at
        if readable_end - at < 32:
            memset(pad, 0, 32)
            memcpy(pad, at, min(left, <int64_t> 32))
            block = pad
        found = copy16(out, block)
        if left < 16:
            # Drop the bytes after the end, at most 16.
            found &= (<uint32_t> 1 << left) - 1
            plain = put_escaped(&out, block, found)
            if plain == 16:
                plain = left
                out -= 16 - left
        elif found:
            plain = put_escaped(&out, block, found)
        else:
            out += 16
            plain = copy_plain(out, at + 16, left - 16)
            out += plain
            plain += 16
        at += plain
        if (out - text) - (at - start) > spare:
            if string_size(at, end - at, readable_end) < 0:
                return NULL
            spare = 6 * size
        if at < end and at[0] >= 0x80:
            out = put_sequences(out, &at, end)
            if out == NULL:
                return NULL
    out[0] = c'"'
    return out + 1


cdef inline uint32_t take_escapes(
    uint8_t **position, const uint8_t *at, uint32_t found
) noexcept nogil:
    """Unescape a block of 16 bytes, which is already copied to `position`.

    It stops at the first special byte that does not begin an escape of two characters. Returns how
    many bytes it took: 17 if the last escape ends behind the block. Reads 33 bytes.
    """
    cdef uint8_t *out = position[0]
    cdef uint32_t done = 0
    cdef uint32_t special
    while found:
        special = lowest_bit(found)
        out += special - done
        done = special
        if at[special] != c"\\" or UNESCAPES[at[special + 1]] == 0:
            break
        out[0] = UNESCAPES[at[special + 1]]
        out += 1
        done += 2
        memcpy(out, at + done, 16)
        found &= ~(<uint32_t> 3 << special)
    else:
        if done < 16:
            out += 16 - done
            done = 16
    position[0] = out
    return done


cdef inline const uint8_t *take_string(
    uint8_t **position, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Read a string, whose first quote lies before `at`, and write the bytes that it stands for.

    Returns the byte after its last quote; NULL if it has something that `put_string` does not
    write. The caller makes sure that a newline comes before `end`. It reads nothing from `end` on.
    """
    cdef uint8_t *out = position[0]
    cdef uint8_t pad[16]
    cdef uint32_t found
    cdef int64_t plain
    while True:
        if end - at >= 48:
            found = copy16(out, at)
            if found == 0:
                plain = 16 + copy_plain(out + 16, at + 16, end - at - 16)
                at += plain
                out += plain
                continue
            at += take_escapes(&out, at, found)
        else:
            # The zeros after the end are special bytes, so the copy stops there.
            memset(pad, 0, 16)
            memcpy(pad, at, min(end - at, <int64_t> 16))
            plain = lowest_bit(copy16(out, pad) | 0x10000)
            at += plain
            out += plain
            if plain == 16:
                continue
        if at[0] == c'"':
            position[0] = out
            return at + 1
        if at[0] == c"\\":
            if UNESCAPES[at[1]]:
                out[0] = UNESCAPES[at[1]]
                at += 2
            elif at[1] == c"u" and at[2] == c"0" and at[3] == c"0" and HEX[at[4]] < 8 and (
                HEX[at[5]] < 16
            ):
                out[0] = HEX[at[4]] << 4 | HEX[at[5]]
                at += 6
            else:
                return NULL
            out += 1
        elif at[0] >= 0x80:
            out = put_sequences(out, &at, end)
            if out == NULL:
                return NULL
        elif at[0] < 0x20:
            return NULL


# -- bytes that are not UTF-8 --------------------------------------------------------------------

cdef inline uint8_t *put_base64(
    uint8_t *out, const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """Write bytes as {"base64":"…"}, in RFC 4648's standard alphabet, with padding."""
    cdef const uint8_t *end = at + size
    cdef uint64_t bits
    out = put(out, b'{"base64":"')
    while end - at >= 6 and readable_end - at >= 8:
        bits = load64(at)
        memcpy(out, BASE64[bits >> 52], 2)
        memcpy(out + 2, BASE64[bits >> 40 & 0xFFF], 2)
        memcpy(out + 4, BASE64[bits >> 28 & 0xFFF], 2)
        memcpy(out + 6, BASE64[bits >> 16 & 0xFFF], 2)
        at += 6
        out += 8
    while at < end:
        bits = <uint64_t> at[0] << 16
        if end - at > 1:
            bits |= <uint64_t> at[1] << 8
        if end - at > 2:
            bits |= at[2]
        memcpy(out, BASE64[bits >> 12], 2)
        memcpy(out + 2, BASE64[bits & 0xFFF], 2)
        at += 3
        out += 4
    if at - end > 0:
        memset(out - (at - end), c"=", at - end)
    return put(out, b'"}')


cdef inline const uint8_t *take_base64(
    uint8_t **position, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Write the bytes that the Base64 digits from `at` on stand for.

    Returns the byte after the last digit or the padding; NULL if the digits are not as `put_base64`
    writes them. The caller makes sure that a newline comes before `end`.
    """
    cdef uint8_t *out = position[0]
    cdef uint32_t bits
    while end - at >= 4:
        # In the table, the highest bit marks a byte that is not a digit.
        if (DIGITS[at[0]] | DIGITS[at[1]] | DIGITS[at[2]] | DIGITS[at[3]]) & 0x80:
            break
        bits = (
            <uint32_t> DIGITS[at[0]] << 18 | <uint32_t> DIGITS[at[1]] << 12
            | <uint32_t> DIGITS[at[2]] << 6 | DIGITS[at[3]]
        )
        out[0] = <uint8_t> (bits >> 16)
        out[1] = <uint8_t> (bits >> 8)
        out[2] = <uint8_t> bits
        out += 3
        at += 4
    if DIGITS[at[0]] < 64:
        # The last digit has more bits than the last byte needs; they are zeros.
        if DIGITS[at[1]] >= 64:
            return NULL
        out[0] = DIGITS[at[0]] << 2 | DIGITS[at[1]] >> 4
        out += 1
        if at[2] == c"=":
            if at[3] != c"=" or DIGITS[at[1]] & 15:
                return NULL
        else:
            if DIGITS[at[2]] >= 64 or at[3] != c"=" or DIGITS[at[2]] & 3:
                return NULL
            out[0] = (DIGITS[at[1]] & 15) << 4 | DIGITS[at[2]] >> 2
            out += 1
        at += 4
    position[0] = out
    return at


# -- bytes of either kind ------------------------------------------------------------------------

cdef inline int64_t most_of(int64_t size) noexcept nogil:
    """An upper bound of `bytes_size`: a byte becomes at most six."""
    return 6 * size + 16 if size > 0 else 17


cdef inline int64_t bytes_size(
    const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """How many bytes `put_bytes` writes."""
    cdef int64_t text
    if size < 0:
        return 4
    text = string_size(at, size, readable_end)
    return base64_size(size) if text < 0 else text


cdef inline uint8_t *put_bytes(
    uint8_t *out, const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """Write bytes as a string or an object, or a size of -1 as null; return the byte after it."""
    cdef uint8_t *after
    if size < 0:
        return put(out, b"null")
    after = put_string(out, at, size, readable_end)
    return put_base64(out, at, size, readable_end) if after == NULL else after
