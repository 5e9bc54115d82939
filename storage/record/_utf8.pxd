"""Inline functions that find UTF-8 characters in bytes, and malformed bytes as Java finds them.

UTF-8 is RFC 3629's: no overlong form, no surrogate, nothing above U+10FFFF. Java's
`new String(bytes, UTF_8)` defines how many malformed bytes become one U+FFFD.
"""

from libc.stdint cimport int64_t, uint8_t


cdef inline bint continues(uint8_t byte) noexcept nogil:
    return byte & 0xC0 == 0x80


cdef inline int sequence_at(const uint8_t *at, int64_t left) noexcept nogil:
    """The length of the character at `at`, whose first byte is above 0x7F.

    If the bytes are malformed: minus the number of bytes that become one U+FFFD
    (String.decodeUTF8_UTF16). The three bytes of a surrogate become one.
    """
    cdef uint8_t first = at[0]
    if first < 0xE0:
        return 2 if first >= 0xC2 and left > 1 and continues(at[1]) else -1
    if left == 1 or not continues(at[1]):
        return -1
    if first < 0xF0:
        if first == 0xE0 and at[1] < 0xA0:
            return -1
        if left == 2 or not continues(at[2]):
            return -2
        return -3 if first == 0xED and at[1] >= 0xA0 else 3
    if first > 0xF4 or (first == 0xF0 and at[1] < 0x90) or (first == 0xF4 and at[1] >= 0x90):
        return -1
    if left == 2 or not continues(at[2]):
        return -2
    return 4 if left > 3 and continues(at[3]) else -3
