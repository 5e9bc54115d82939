"""Inline functions that append words, numbers and bytes to a growing UTF-8 text.

They print bytes as Java prints a string of them: U+FFFD replaces malformed UTF-8 (`_utf8.pxd`).
They are inline because a line takes a dozen calls.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy, strlen

from storage.record._utf8 cimport sequence_at


cdef struct Text:
    char *data
    int64_t length
    int64_t room


cdef inline int grow(Text *text, int64_t more) except -1:
    cdef int64_t room = max(2 * text.room, text.length + more, 1 << 16)
    cdef char *data = <char *> realloc(text.data, room)
    if data == NULL:
        raise MemoryError(f"a text of {room} bytes")
    text.data = data
    text.room = room
    return 0


cdef inline int need(Text *text, int64_t more) except -1:
    """Make room for `more` bytes: `put`, `put_number`, `put_field`, `put_bool` do not check it.

    There is memory then also for no bytes: `memcpy` takes no NULL.
    """
    if text.room - text.length <= more:
        grow(text, more)
    return 0


cdef inline void put(Text *text, const char *word) noexcept:
    cdef size_t size = strlen(word)
    memcpy(text.data + text.length, word, size)
    text.length += size


cdef inline void put_number(Text *text, int64_t number) noexcept:
    cdef char digits[20]
    cdef int at = 20
    cdef uint64_t rest = <uint64_t> number
    if number < 0:
        rest = 0 - rest
    while True:
        at -= 1
        digits[at] = <char> (48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if number < 0:
        text.data[text.length] = 45
        text.length += 1
    memcpy(text.data + text.length, digits + at, 20 - at)
    text.length += 20 - at


cdef inline void put_field(Text *text, const char *word, int64_t number) noexcept:
    put(text, word)
    put_number(text, number)


cdef inline void put_bool(Text *text, const char *word, bint value) noexcept:
    put(text, word)
    put(text, b"true" if value else "false")


cdef inline int put_utf8(Text *text, const uint8_t *at, int64_t size) except -1:
    cdef const uint8_t *start = at
    cdef const uint8_t *end = at + size
    cdef uint64_t eight
    # The top bit of each of eight bytes. Cython makes one literal of that size a Python object.
    cdef uint64_t not_ascii = <uint64_t> 0x80808080 << 32 | <uint64_t> 0x80808080
    cdef int length
    need(text, size)
    while True:
        while end - at >= 8:
            memcpy(&eight, at, 8)
            if eight & not_ascii:
                break
            at += 8
        while at < end and at[0] < 0x80:
            at += 1
        if at == end:
            break
        length = sequence_at(at, end - at)
        if length > 0:
            at += length
            continue
        memcpy(text.data + text.length, start, at - start)
        text.length += at - start
        need(text, end - at + 3)
        put(text, b"\xef\xbf\xbd")
        at -= length
        start = at
    memcpy(text.data + text.length, start, end - start)
    text.length += end - start
    return 0


cdef inline int put_object(Text *text, object value) except -1:
    """Append a Python bytes object that is already text."""
    cdef const char *data = value
    cdef int64_t size = len(value)
    need(text, size)
    memcpy(text.data + text.length, data, size)
    text.length += size
    return 0
