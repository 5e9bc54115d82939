"""Inline functions that collect record headers in an Arrow column.

The column has Arrow's type list<struct<key: string, value: binary>>. The number of headers is
unknown until the last record, so the buffers with one entry for each header grow here; the caller
allocates those with one entry for each record. Header names become text as in Kafka's consumers
(Java's `new String(bytes, UTF_8)`): U+FFFD replaces malformed bytes.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport abs, free, realloc
from libc.string cimport memcpy

from storage.record._batch cimport bounded_varint
from storage.record._utf8 cimport sequence_at

cdef enum:
    LARGEST_BLOCK = 0x7FFFFFFF  # the largest position, an i32
    REPLACEMENT_SIZE = 3  # U+FFFD is EF BF BD


cdef enum Outcome:
    ADDED
    MALFORMED
    NO_MEMORY
    NAMES_TOO_LONG


cdef struct Grown:
    uint8_t *start
    int64_t used
    int64_t room


cdef struct Headers:
    int32_t *positions  # one more than rows; NULL: the caller wants no headers
    uint8_t *validity  # a bit for each row; a row without headers is null
    int64_t nulls
    int64_t count
    int64_t value_nulls
    Grown name_positions
    Grown names
    Grown value_positions
    Grown values
    Grown value_validity


cdef inline bint make_room(Grown *block, int64_t size) noexcept nogil:
    """Allocate room for `size` more bytes; False if there is no memory.

    There is memory then also for no bytes: `memcpy` takes no NULL.
    """
    cdef int64_t room = block.room
    cdef uint8_t *start
    if block.used + size < room:
        return True
    room = max(room + (room >> 1), block.used + size + 64)
    start = <uint8_t *> realloc(block.start, room)
    if start == NULL:
        return False
    block.start = start
    block.room = room
    return True


cdef inline void free_headers(Headers *headers) noexcept nogil:
    free(headers.name_positions.start)
    free(headers.names.start)
    free(headers.value_positions.start)
    free(headers.values.start)
    free(headers.value_validity.start)


cdef inline bint put_position(Grown *positions, int64_t position) noexcept nogil:
    if not make_room(positions, 4):
        return False
    (<int32_t *> (positions.start + positions.used))[0] = <int32_t> position
    positions.used += 4
    return True


cdef inline bint begin_headers(Headers *headers) noexcept nogil:
    """Write the positions before the first row; False if there is no memory."""
    headers.positions[0] = 0
    return put_position(&headers.name_positions, 0) and put_position(&headers.value_positions, 0)


cdef inline bint is_text(const uint8_t *at, const uint8_t *end) noexcept nogil:
    cdef int size
    while at < end:
        size = 1 if at[0] < 0x80 else sequence_at(at, end - at)
        if size < 0:
            return False
        at += size
    return True


cdef inline void put_text(Grown *names, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Copy bytes that are not all UTF-8, with U+FFFD for the malformed ones.

    The caller makes room for three times as many bytes.
    """
    cdef int size
    while at < end:
        size = 1 if at[0] < 0x80 else sequence_at(at, end - at)
        if size > 0:
            memcpy(names.start + names.used, at, size)
            names.used += size
        else:
            memcpy(names.start + names.used, b"\xEF\xBF\xBD", REPLACEMENT_SIZE)
            names.used += REPLACEMENT_SIZE
        at += abs(size)


cdef inline Outcome put_header(
    Headers *headers, const uint8_t *name, int32_t name_size, const uint8_t *value,
    int32_t value_size,
) noexcept nogil:
    """Add one header; a `value_size` of -1 is null."""
    cdef int64_t longest = name_size
    cdef bint text = is_text(name, name + name_size)
    if not text:
        longest *= REPLACEMENT_SIZE
    if longest > LARGEST_BLOCK - headers.names.used:
        return NAMES_TOO_LONG
    if not (
        make_room(&headers.names, longest)
        and make_room(&headers.values, max(value_size, 0))
        and make_room(&headers.value_validity, 1)
    ):
        return NO_MEMORY
    if text:
        memcpy(headers.names.start + headers.names.used, name, name_size)
        headers.names.used += name_size
    else:
        put_text(&headers.names, name, name + name_size)
    if headers.count & 7 == 0:
        headers.value_validity.start[headers.value_validity.used] = 0
        headers.value_validity.used += 1
    if value_size >= 0:
        memcpy(headers.values.start + headers.values.used, value, value_size)
        headers.values.used += value_size
        headers.value_validity.start[headers.count >> 3] |= <uint8_t> (1 << (headers.count & 7))
    else:
        headers.value_nulls += 1
    headers.count += 1
    if not (
        put_position(&headers.name_positions, headers.names.used)
        and put_position(&headers.value_positions, headers.values.used)
    ):
        return NO_MEMORY
    return ADDED


cdef inline Outcome put_headers(
    Headers *headers, int64_t row, const uint8_t *at, const uint8_t *end
) noexcept nogil:
    """Add a row: a record's header count and headers, which must fill the bytes up to `end`.

    If they do not, it returns MALFORMED and may have added some of them.
    """
    cdef int32_t count = 0
    cdef int32_t name_size = 0
    cdef int32_t value_size = 0
    cdef int32_t left
    cdef const uint8_t *name
    cdef Outcome outcome
    at = bounded_varint(at, end, &count)
    if at == NULL or count < 0:
        return MALFORMED
    # Each turn takes at least two bytes, so the loop ends with the bytes if the count is damaged.
    for left in range(count):
        name = bounded_varint(at, end, &name_size)
        if name == NULL or name_size < 0 or name_size > end - name:
            return MALFORMED
        at = bounded_varint(name + name_size, end, &value_size)
        if at == NULL or value_size < -1 or value_size > end - at:
            return MALFORMED
        outcome = put_header(headers, name, name_size, at, value_size)
        if outcome != ADDED:
            return outcome
        at += max(value_size, 0)
    if at != end:
        return MALFORMED
    if count:
        headers.validity[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        headers.nulls += 1
    headers.positions[row + 1] = <int32_t> headers.count
    return ADDED
