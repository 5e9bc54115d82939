# cython: cdivision=True
"""Decodes values in Avro's binary encoding to JSON text.

`kafkafs.schemas.avro` compiles a schema to a table of nodes, and the loop here follows the table.
A node has a kind, a range of edges, and a size. An edge has a node and a text:

    record          an edge for each field: the text before the field's value
    union           an edge for each branch: the text before the value, with Avro's own JSON
    enum            an edge for each symbol: the symbol
    array, map      an edge for the items
    fixed           the size is the number of bytes
    decimal         the size is the scale; a fixed one has its number of bytes in `first`
    timestamps      the size is the number of units in a second

Invariants: each read is checked against the end of the value. Each item of an array writes at least
one byte, and the text has a limit, so every loop ends. Depth is limited, so the stack is, too.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from kafkafs.schemas._numbers cimport (
    DECIMAL_BYTES, DECIMAL_DIGITS, fill_powers, put_digits, put_double,
)
from kafkafs.schemas._times cimport put_date, put_time, put_timestamp
from kafkafs.views._json_text cimport (
    ESCAPES, ESCAPE_SIZES, base64_size, bytes_size, most_of, prepare, put, put_base64, put_bytes,
    put_integer, put_string,
)
from storage.record._batch cimport zigzag_long

from kafkafs.schemas.errors import SchemaError

cdef enum:
    # The most that records, arrays and maps are nested.
    DEEPEST = 200
    # The text has at most LARGEST_FACTOR times the bytes of the value and SPARE_TEXT more.
    LARGEST_FACTOR = 64
    SPARE_TEXT = 1 << 20
    # How many bytes behind the text a function may touch, and the most that a number, a time or a
    # bracket takes.
    SLACK = 128
    NUMBER = 64
    # A shorter text of an edge is copied as this many bytes.
    SHORT_TEXT = 32
    # A longer string is measured before it is written.
    LONG_STRING = 1 << 16

cdef enum Kind:
    NULL_, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING, FIXED, ENUM, RECORD, ARRAY, MAP
    UNION, BYTES_STRING, FIXED_STRING, DECIMAL, FIXED_DECIMAL, BIG_DECIMAL, FIXED_UUID, DURATION
    DATE, TIME, TIMESTAMP, LOCAL_TIMESTAMP

KINDS = {
    "null": NULL_, "boolean": BOOLEAN, "int": INT, "long": LONG, "float": FLOAT, "double": DOUBLE,
    "bytes": BYTES, "string": STRING, "fixed": FIXED, "enum": ENUM, "record": RECORD,
    "array": ARRAY, "map": MAP, "union": UNION, "bytes-string": BYTES_STRING,
    "fixed-string": FIXED_STRING, "decimal": DECIMAL, "fixed-decimal": FIXED_DECIMAL,
    "big-decimal": BIG_DECIMAL, "fixed-uuid": FIXED_UUID, "duration": DURATION, "date": DATE,
    "time": TIME, "timestamp": TIMESTAMP, "local-timestamp": LOCAL_TIMESTAMP,
}

cdef enum Fault:
    SOUND, TOO_SHORT, BAD_NUMBER, BAD_INT, BAD_BOOLEAN, BAD_LENGTH, BAD_COUNT, BAD_BRANCH
    BAD_SYMBOL, BAD_KEY, TOO_DEEP, TOO_LONG, NO_MEMORY

cdef dict REASONS = {
    TOO_SHORT: "the value ends too early",
    BAD_NUMBER: "a number has more than 64 bits",
    BAD_INT: "an int has more than 32 bits",
    BAD_BOOLEAN: "a boolean is neither 0 nor 1",
    BAD_LENGTH: "a length is negative",
    BAD_COUNT: "the count of a block is out of range",
    BAD_BRANCH: "a union has no such branch",
    BAD_SYMBOL: "an enum has no such symbol",
    BAD_KEY: "the key of a map is not UTF-8",
    TOO_DEEP: f"the value is nested more than {DEEPEST} deep",
    TOO_LONG: f"the text has more than {LARGEST_FACTOR} times the bytes of the value and 1 MiB",
}

cdef struct Node:
    Kind kind
    int32_t first
    int32_t count
    int64_t size

cdef struct Edge:
    int32_t node
    int32_t size
    int64_t text

cdef struct State:
    const uint8_t *at
    const uint8_t *end
    uint8_t *out
    uint8_t *out_end  # SLACK bytes before the end of the memory
    uint8_t *text
    int64_t limit
    const Node *nodes
    const Edge *edges
    const uint8_t *texts


prepare()
fill_powers()


# -- input and output ------------------------------------------------------------------------------

cdef inline Fault room(State *state, int64_t size) noexcept nogil:
    """Make sure that `size` bytes, and SLACK more, can be written."""
    return SOUND if state.out_end - state.out >= size else more_room(state, size)


cdef Fault more_room(State *state, int64_t size) noexcept nogil:
    cdef int64_t used = state.out - state.text
    cdef int64_t capacity = 2 * (state.out_end - state.text) + size
    cdef uint8_t *text
    if used > state.limit:
        return TOO_LONG
    text = <uint8_t *> realloc(state.text, capacity + SLACK)
    if text == NULL:
        return NO_MEMORY
    state.text = text
    state.out = text + used
    state.out_end = text + capacity
    return SOUND


cdef inline Fault put_text(State *state, const Edge *edge) noexcept nogil:
    cdef Fault fault = room(state, edge.size + NUMBER)
    if fault != SOUND:
        return fault
    if edge.size <= SHORT_TEXT:
        memcpy(state.out, state.texts + edge.text, SHORT_TEXT)
    else:
        memcpy(state.out, state.texts + edge.text, edge.size)
    state.out += edge.size
    return SOUND


cdef inline Fault take_long(State *state, int64_t *number) noexcept nogil:
    cdef const uint8_t *at = state.at
    cdef uint64_t bits
    cdef int shift = 7
    if at == state.end:
        return TOO_SHORT
    bits = at[0] & 0x7F
    while at[0] >= 0x80:
        at += 1
        if at == state.end:
            return TOO_SHORT
        if shift == 63 and at[0] > 1:
            return BAD_NUMBER
        bits |= <uint64_t> (at[0] & 0x7F) << shift
        shift += 7
    state.at = at + 1
    number[0] = zigzag_long(bits)
    return SOUND


cdef inline Fault take_length(State *state, int64_t *length) noexcept nogil:
    """Take the length of bytes that follow."""
    cdef Fault fault = take_long(state, length)
    if fault != SOUND:
        return fault
    if length[0] < 0:
        return BAD_LENGTH
    return SOUND if length[0] <= state.end - state.at else TOO_SHORT


cdef inline Fault take_count(State *state, int64_t *count) noexcept nogil:
    """Take the count of items of the next block; 0 at the end. A size in bytes is not needed."""
    cdef int64_t size
    cdef Fault fault = take_long(state, count)
    if fault != SOUND or count[0] >= 0:
        return fault
    if count[0] == INT64_MIN:
        return BAD_COUNT
    count[0] = -count[0]
    return take_long(state, &size)


# -- numbers ---------------------------------------------------------------------------------------

cdef Fault put_decimal(State *state, const uint8_t *at, int64_t size, int64_t scale) noexcept nogil:
    """Write an unscaled integer as a string with `scale` digits behind the point."""
    cdef Fault fault
    cdef uint8_t *out
    cdef int64_t count
    if size > DECIMAL_BYTES or not 0 <= scale <= DECIMAL_DIGITS:
        return put_plain_bytes(state, at, size)
    fault = room(state, DECIMAL_DIGITS + scale + NUMBER)
    if fault != SOUND:
        return fault
    out = state.out
    out[0] = c'"'
    out += 1
    if size and at[0] >= 0x80:
        out[0] = c"-"
        out += 1
    count = put_digits(out, at, size)
    if count <= scale:
        memmove(out + scale + 1 - count, out, count)
        memset(out, c"0", scale + 1 - count)
        count = scale + 1
    if scale:
        memmove(out + count - scale + 1, out + count - scale, scale)
        out[count - scale] = c"."
        count += 1
    out[count] = c'"'
    state.out = out + count + 1
    return SOUND


cdef Fault put_big_decimal(State *state, const uint8_t *at, int64_t size) noexcept nogil:
    """Write a decimal that has its own scale: the unscaled integer as bytes, then the scale."""
    cdef State inner
    cdef int64_t length = 0
    cdef int64_t scale = 0
    cdef const uint8_t *unscaled
    inner.at = at
    inner.end = at + size
    if take_length(&inner, &length) == SOUND:
        unscaled = inner.at
        inner.at += length
        if take_long(&inner, &scale) == SOUND and inner.at == inner.end:
            return put_decimal(state, unscaled, length, scale)
    return put_plain_bytes(state, at, size)


# -- bytes -----------------------------------------------------------------------------------------

cdef Fault put_plain_bytes(State *state, const uint8_t *at, int64_t size) noexcept nogil:
    cdef Fault fault = room(state, base64_size(size))
    if fault == SOUND:
        state.out = put_base64(state.out, at, size, state.end)
    return fault


cdef Fault put_latin1(State *state, const uint8_t *at, int64_t size) noexcept nogil:
    """Write a string with a character below U+0100 for each byte, as Avro's own JSON does."""
    cdef Fault fault = room(state, 6 * size + 2)
    cdef uint8_t *out = state.out
    cdef int64_t index
    if fault != SOUND:
        return fault
    out = put(out, b'"')
    for index in range(size):
        if at[index] < 0x80:
            memcpy(out, ESCAPES[at[index]], 8)
            out += ESCAPE_SIZES[at[index]]
        else:
            out[0] = 0xC0 | at[index] >> 6
            out[1] = 0x80 | at[index] & 0x3F
            out += 2
    state.out = put(out, b'"')
    return SOUND


cdef Fault put_utf8(State *state, const uint8_t *at, int64_t size) noexcept nogil:
    """Write a string; bytes that are not UTF-8 as bytes."""
    cdef Fault fault = room(
        state, bytes_size(at, size, state.end) if size > LONG_STRING else most_of(size)
    )
    if fault == SOUND:
        state.out = put_bytes(state.out, at, size, state.end)
    return fault


cdef Fault put_sized(State *state, const Node *node, int64_t size) noexcept nogil:
    """Write the next bytes, as many as the value has."""
    cdef const uint8_t *at = state.at
    state.at += size
    if node.kind == STRING:
        return put_utf8(state, at, size)
    elif node.kind == BYTES:
        return put_plain_bytes(state, at, size)
    elif node.kind == BYTES_STRING:
        return put_latin1(state, at, size)
    elif node.kind == DECIMAL:
        return put_decimal(state, at, size, node.size)
    return put_big_decimal(state, at, size)


cdef uint8_t *put_uuid(uint8_t *out, const uint8_t *at) noexcept nogil:
    cdef const char *digits = b"0123456789abcdef"
    cdef int index
    out = put(out, b'"')
    for index in range(16):
        if index == 4 or index == 6 or index == 8 or index == 10:
            out[0] = c"-"
            out += 1
        out[0] = digits[at[index] >> 4]
        out[1] = digits[at[index] & 15]
        out += 2
    return put(out, b'"')


cdef inline uint32_t little32(const uint8_t *at) noexcept nogil:
    return at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24


cdef uint8_t *put_duration(uint8_t *out, const uint8_t *at) noexcept nogil:
    out = put_integer(put(out, b'{"months":'), little32(at))
    out = put_integer(put(out, b',"days":'), little32(at + 4))
    out = put_integer(put(out, b',"millis":'), little32(at + 8))
    return put(out, b"}")


cdef uint8_t *put_iso(uint8_t *out, const Node *node, int64_t time) noexcept nogil:
    """Write a date, time or timestamp as a string; one out of range as a number."""
    cdef uint8_t *at = put(out, b'"')
    if node.kind == DATE:
        at = put_date(at, time)
    elif node.kind == TIME:
        at = put_time(at, time, node.size)
    else:
        at = put_timestamp(at, time, node.size, node.kind == TIMESTAMP)
    return put_integer(out, time) if at == NULL else put(at, b'"')


cdef inline bint is_bytes(Kind kind) noexcept nogil:
    """Whether the type is `bytes`, perhaps with a logical type."""
    return kind == BYTES or kind == BYTES_STRING or kind == DECIMAL or kind == BIG_DECIMAL


# -- values ----------------------------------------------------------------------------------------

cdef Fault decode_record(State *state, const Node *node, int depth) noexcept nogil:
    cdef const Edge *edge = state.edges + node.first
    cdef int32_t left
    cdef Fault fault
    if depth == DEEPEST:
        return TOO_DEEP
    for left in range(node.count):
        fault = put_text(state, edge)
        if fault == SOUND:
            fault = decode_value(state, edge.node, depth + 1)
        if fault != SOUND:
            return fault
        edge += 1
    fault = room(state, NUMBER)
    if fault == SOUND:
        state.out = put(state.out, b"}" if node.count else b"{}")
    return fault


cdef Fault decode_items(State *state, const Node *node, int depth) noexcept nogil:
    """Decode an array or a map."""
    cdef bint is_map = node.kind == MAP
    cdef int32_t item = state.edges[node.first].node
    cdef int64_t left, length
    cdef bint is_first = True
    cdef uint8_t *out
    cdef Fault fault
    if depth == DEEPEST:
        return TOO_DEEP
    state.out = put(state.out, b"{" if is_map else b"[")
    while True:
        fault = take_count(state, &left)
        if fault != SOUND:
            return fault
        if left == 0:
            break
        while left:
            if not is_first:
                state.out = put(state.out, b",")
            is_first = False
            if is_map:
                fault = take_length(state, &length)
                if fault == SOUND:
                    fault = room(state, most_of(length) + NUMBER)
                if fault != SOUND:
                    return fault
                out = put_string(state.out, state.at, length, state.end)
                if out == NULL:
                    return BAD_KEY
                state.at += length
                state.out = put(out, b":")
            fault = decode_value(state, item, depth + 1)
            if fault == SOUND:
                fault = room(state, NUMBER)
            if fault != SOUND:
                return fault
            left -= 1
    state.out = put(state.out, b"}" if is_map else b"]")
    return SOUND


cdef Fault decode_union(State *state, const Node *node, int depth) noexcept nogil:
    cdef const Edge *edge
    cdef int64_t number = 0
    cdef Fault fault = take_long(state, &number)
    if fault != SOUND:
        return fault
    if not 0 <= number < node.count:
        return BAD_BRANCH
    edge = state.edges + node.first + number
    if edge.size == 0:
        return decode_value(state, edge.node, depth)
    fault = put_text(state, edge)
    if fault == SOUND:
        fault = decode_value(state, edge.node, depth)
    if fault == SOUND:
        fault = room(state, NUMBER)
    if fault == SOUND:
        state.out = put(state.out, b"}")
    return fault


cdef Fault decode_value(State *state, int32_t number, int depth) noexcept nogil:
    cdef const Node *node = state.nodes + number
    cdef const uint8_t *at
    cdef int64_t integer = 0
    cdef float single
    cdef double real
    cdef Fault fault = room(state, NUMBER)
    cdef Kind kind = node.kind
    if fault != SOUND:
        return fault
    if kind == RECORD:
        return decode_record(state, node, depth)
    elif kind == UNION:
        return decode_union(state, node, depth)
    elif kind == ARRAY or kind == MAP:
        return decode_items(state, node, depth)
    elif kind == STRING or is_bytes(kind):
        fault = take_length(state, &integer)
        return put_sized(state, node, integer) if fault == SOUND else fault
    elif kind == INT or kind == LONG:
        fault = take_long(state, &integer)
        if fault != SOUND:
            return fault
        if kind == INT and not INT32_MIN <= integer <= INT32_MAX:
            return BAD_INT
        state.out = put_integer(state.out, integer)
    elif kind == DATE or kind == TIME or kind == TIMESTAMP or kind == LOCAL_TIMESTAMP:
        fault = take_long(state, &integer)
        if fault != SOUND:
            return fault
        if (kind == DATE or (kind == TIME and node.size == 1000)) and not (
            INT32_MIN <= integer <= INT32_MAX
        ):
            return BAD_INT
        state.out = put_iso(state.out, node, integer)
    elif kind == ENUM:
        fault = take_long(state, &integer)
        if fault != SOUND:
            return fault
        if not 0 <= integer < node.count:
            return BAD_SYMBOL
        return put_text(state, state.edges + node.first + integer)
    elif kind == NULL_:
        state.out = put(state.out, b"null")
    else:
        at = state.at
        integer = node.first if kind == FIXED_DECIMAL else node.size
        if state.end - at < integer:
            return TOO_SHORT
        state.at += integer
        if kind == BOOLEAN:
            if at[0] > 1:
                state.at = at
                return BAD_BOOLEAN
            state.out = put(state.out, b"true" if at[0] else b"false")
        elif kind == FLOAT:
            memcpy(&single, at, 4)
            state.out = put_double(state.out, single)
        elif kind == DOUBLE:
            memcpy(&real, at, 8)
            state.out = put_double(state.out, real)
        elif kind == FIXED:
            return put_plain_bytes(state, at, integer)
        elif kind == FIXED_STRING:
            return put_latin1(state, at, integer)
        elif kind == FIXED_DECIMAL:
            return put_decimal(state, at, integer, node.size)
        elif kind == FIXED_UUID:
            state.out = put_uuid(state.out, at)
        else:
            fault = room(state, 2 * NUMBER)
            if fault != SOUND:
                return fault
            state.out = put_duration(state.out, at)
    return SOUND


cdef class Avro:
    """The decoder of a schema.

    `nodes` has (kind, first edge, number of edges, size), and `edges` has (node, text). The node 0
    is the schema's.
    """

    cdef Node *nodes
    cdef Edge *edges
    cdef bytes texts

    def __init__(self, list nodes not None, list edges not None):
        cdef int64_t position = 0
        self.nodes = <Node *> malloc(max(len(nodes), 1) * sizeof(Node))
        self.edges = <Edge *> malloc(max(len(edges), 1) * sizeof(Edge))
        if self.nodes == NULL or self.edges == NULL:
            raise MemoryError
        for number, (node, text) in enumerate(edges):
            assert 0 <= node < len(nodes)
            self.edges[number] = Edge(node, len(text), position)
            position += len(text)
        for number, (kind, first, count, size) in enumerate(nodes):
            assert 0 <= count and (count == 0 or 0 <= first <= len(edges) - count)
            self.nodes[number] = Node(kind, first, count, size)
        self.texts = b"".join([text for _, text in edges]) + bytes(SHORT_TEXT)

    def __dealloc__(self):
        free(self.nodes)
        free(self.edges)

    def decode(self, data not None, Py_ssize_t start=0, bint whole=False):
        """Decode the value that begins at `start`. Return its JSON text and the position after it.

        `whole`: if the schema is `bytes`, the value has no length, but is all bytes. Errors:
        SchemaError with the position.
        """
        cdef Py_buffer buffer
        cdef State state
        cdef Fault fault
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        state.text = NULL
        try:
            if not 0 <= start <= buffer.len:
                raise ValueError(f"position {start} of {buffer.len} bytes")
            state.at = <const uint8_t *> buffer.buf + start
            state.end = <const uint8_t *> buffer.buf + buffer.len
            state.limit = LARGEST_FACTOR * (buffer.len - start) + SPARE_TEXT
            state.nodes = self.nodes
            state.edges = self.edges
            state.texts = self.texts
            state.out = state.out_end = NULL
            with nogil:
                fault = more_room(&state, 4 * (buffer.len - start) + 512)
                if fault == SOUND and whole and is_bytes(self.nodes[0].kind):
                    fault = put_sized(&state, self.nodes, buffer.len - start)
                elif fault == SOUND:
                    fault = decode_value(&state, 0, 0)
                if fault == SOUND and state.out - state.text > state.limit:
                    fault = TOO_LONG
            position = state.at - <const uint8_t *> buffer.buf
            if fault == NO_MEMORY:
                raise MemoryError
            if fault != SOUND:
                raise SchemaError(REASONS[fault], position=position)
            return PyBytes_FromStringAndSize(
                <const char *> state.text, state.out - state.text
            ), position
        finally:
            free(state.text)
            PyBuffer_Release(&buffer)
