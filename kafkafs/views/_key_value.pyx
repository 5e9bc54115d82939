"""The `kv` view's hot loops: records to lines of key, TAB and value, and such lines to batches.

    record                       line
    null key                     value
    key                          key TAB value
    null value                   \\N in the value's place

In keys and values backslash, TAB and newline are written as the two bytes \\\\, \\t and \\n; no
other byte is changed. So a field that is the two bytes \\N says null and nothing else does, and
key and value come back as they were.

A line that is parsed ends its key at its first TAB, and the TABs after that one are the value's. A
line without TAB is a value of a null key; so is one whose key is \\N. A backslash that begins none
of the above is an error.

Invariants: what is written of a record is as long as `size` says, byte for byte; parsing never
makes a line longer, so a line's own length bounds what it becomes.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcpy, memmove

from kafkafs.views._parse cimport (
    ALL_DONE, BATCH_FULL, LENGTH, OUT_FULL, RECORD_ROOM, WRONG_LINE, Block, Stop, encode_by
)
from kafkafs.views._whole cimport WholeRecord, WholeRecords
from storage.record._batch cimport load64_little
from storage.record._write cimport body_size, field_size, put_field, put_head, put_varint, record_size, zigzag_bits


cdef enum:
    # Bytes that are looked at together. What `write` may touch behind the text is as many.
    BLOCK = 64
    WORD = 8


cdef extern from "kafkafs/views/escapes.h":
    uint64_t escaped_bytes "kafkafs_escaped_bytes"(uint64_t word) noexcept nogil
    uint64_t backslashes "kafkafs_backslashes"(uint64_t word) noexcept nogil
    int trailing_zeros "kafkafs_trailing_zeros"(uint64_t bits) noexcept nogil
    bint copy_block "kafkafs_copy_block"(uint8_t *out, const uint8_t *at) noexcept nogil
    unsigned escaped_in_block "kafkafs_escaped_in_block"(
        const uint8_t *at, uint8_t size
    ) noexcept nogil


# -- records to text -----------------------------------------------------------------------------


cdef inline uint64_t load_word(
    const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """The next 8 bytes; where fewer are readable, `size` of them and zeros."""
    cdef uint8_t pad[WORD]
    if readable_end - at >= WORD:
        return load64_little(at)
    memcpy(pad, b"\0\0\0\0\0\0\0\0", WORD)
    memcpy(pad, at, min(size, <int64_t> WORD))
    return load64_little(pad)


cdef inline uint8_t *escape_word(uint8_t *out, uint64_t word, int64_t size) noexcept nogil:
    """Write the first `size` bytes of a word, 8 at most, escaped. Touches 8 bytes more."""
    cdef uint64_t marks = escaped_bytes(word)
    cdef int clean
    cdef uint8_t byte
    memcpy(out, &word, WORD)
    if size < WORD:
        marks &= (<uint64_t> 1 << (8 * size)) - 1
    while marks:
        clean = trailing_zeros(marks) & ~7
        word >>= clean
        byte = word & 0xFF
        word >>= 8
        marks = marks >> clean >> 8
        clean >>= 3
        size -= clean + 1
        out += clean
        out[0] = c"\\"
        out[1] = c"t" if byte == c"\t" else c"n" if byte == c"\n" else c"\\"
        out += 2
        memcpy(out, &word, WORD)
    return out + size


cdef inline uint8_t *escape(
    uint8_t *out, const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """Write a key or a value. Touches up to BLOCK bytes behind it."""
    cdef const uint8_t *block_end
    while size >= BLOCK:
        if copy_block(out, at):
            block_end = at + BLOCK
            while at < block_end:
                out = escape_word(out, load64_little(at), WORD)
                at += WORD
        else:
            out += BLOCK
            at += BLOCK
        size -= BLOCK
    while size > WORD:
        out = escape_word(out, load64_little(at), WORD)
        at += WORD
        size -= WORD
    if size:
        out = escape_word(out, load_word(at, size, readable_end), size)
    return out


cdef inline int64_t escaped_size(
    const uint8_t *at, int64_t size, const uint8_t *readable_end
) noexcept nogil:
    """How many bytes `escape` writes."""
    cdef int64_t text = size
    cdef uint64_t marks
    while size >= BLOCK:
        text += escaped_in_block(at, BLOCK)
        at += BLOCK
        size -= BLOCK
    if readable_end - at >= BLOCK:
        return text + escaped_in_block(at, <uint8_t> size)
    while size > 0:
        marks = escaped_bytes(load_word(at, size, readable_end))
        if size < WORD:
            marks &= (<uint64_t> 1 << (8 * size)) - 1
        # Each mark adds one to the highest byte of the product.
        text += ((marks >> 7) * <uint64_t> 0x0101010101010101) >> 56
        at += WORD
        size -= WORD
    return text


cdef int64_t most_text(const WholeRecord *record) noexcept nogil:
    # Two bytes for each, and for a null; TAB and newline.
    return 2 * (max(record.key_size, 0) + max(record.value_size, 1) + 1)


cdef int64_t text_size(const WholeRecord *record) noexcept nogil:
    cdef int64_t size = 3  # a null and the newline
    if record.value_size >= 0:
        size = escaped_size(record.value, record.value_size, record.readable_end) + 1
    if record.key_size >= 0:
        size += escaped_size(record.key, record.key_size, record.readable_end) + 1
    return size


cdef uint8_t *write_text(const WholeRecord *record, uint8_t *out) noexcept nogil:
    if record.key_size >= 0:
        out = escape(out, record.key, record.key_size, record.readable_end)
        out[0] = c"\t"
        out += 1
    if record.value_size >= 0:
        out = escape(out, record.value, record.value_size, record.readable_end)
    else:
        out[0] = c"\\"
        out[1] = c"N"
        out += 2
    out[0] = c"\n"
    return out + 1


cdef class KeyValueLoops(WholeRecords):
    """The view's `render` and `measure`; has no state."""

    def __cinit__(self):
        self.format.most = most_text
        self.format.size = text_size
        self.format.write = write_text


# -- lines to batches ----------------------------------------------------------------------------


cdef const char *REASON = (
    b"a backslash that begins no escape: there are \\\\, \\t and \\n, and \\N for all of a field"
)


cdef struct Fields:
    const uint8_t *key
    int64_t key_size  # -1: null
    const uint8_t *value
    int64_t value_size


cdef inline void split(const uint8_t *line, const uint8_t *end, Fields *fields) noexcept nogil:
    """A line's fields as they stand in it, both there or the key null."""
    cdef const uint8_t *tab = <const uint8_t *> memchr(line, c"\t", end - line)
    fields.key = line
    if tab == NULL:
        fields.key_size = -1
        fields.value = line
    else:
        fields.key_size = tab - line
        fields.value = tab + 1
    fields.value_size = end - fields.value


cdef inline const uint8_t *unescape(
    const uint8_t *at, const uint8_t *end, uint8_t **out_position
) noexcept nogil:
    """Write a field as what it stands for; NULL, or the backslash that begins no escape.

    Touches no more than a word behind what it writes.
    """
    cdef uint8_t *out = out_position[0]
    cdef uint64_t marks
    cdef int clean
    cdef uint8_t code
    while at < end:
        if end - at >= WORD:
            memcpy(out, at, WORD)
            marks = backslashes(load64_little(at))
            clean = trailing_zeros(marks) >> 3 if marks else WORD
            at += clean
            out += clean
            if marks == 0:
                continue
        elif at[0] != c"\\":
            out[0] = at[0]
            at += 1
            out += 1
            continue
        # One that ends the field begins nothing.
        code = at[1] if end - at > 1 else 0
        if code == c"\\":
            out[0] = c"\\"
        elif code == c"t":
            out[0] = c"\t"
        elif code == c"n":
            out[0] = c"\n"
        else:
            return at
        out += 1
        at += 2
    out_position[0] = out
    return NULL


cdef inline const uint8_t *unescape_field(
    const uint8_t **field, int64_t *size, uint8_t **out_position
) noexcept nogil:
    """Have what a field stands for at `out`, and the field there, or it null; as `unescape`."""
    cdef const uint8_t *start = field[0]
    cdef uint8_t *out = out_position[0]
    cdef const uint8_t *wrong
    if size[0] == 2 and start[0] == c"\\" and start[1] == c"N":
        size[0] = -1
    if size[0] < 0:
        return NULL
    wrong = unescape(start, start + size[0], out_position)
    field[0] = out
    size[0] = out_position[0] - out
    return wrong


cdef const uint8_t *unescape_fields(Fields *fields, uint8_t *out) noexcept nogil:
    """Both, the value behind the key, which `split` has found; as `unescape`."""
    cdef const uint8_t *wrong = unescape_field(&fields.key, &fields.key_size, &out)
    if wrong != NULL:
        return wrong
    return unescape_field(&fields.value, &fields.value_size, &out)


cdef inline uint8_t *put_line_field(
    uint8_t *out, const uint8_t *field, int64_t size, bint moved, const uint8_t *out_end,
    const uint8_t *input_end,
) noexcept nogil:
    """Write a field of the line or, where `moved`, one that lies a little further on in `out`."""
    if moved and size >= 0:
        out = put_varint(out, zigzag_bits(size))
        memmove(out, field, size)
        return out + size
    return put_field(out, field, size, min(out_end - out - LENGTH, input_end - field))


cdef Stop encode(Block *block, const uint8_t *data, uint8_t *result) noexcept nogil:
    """`Encode` for lines of key and value."""
    cdef const uint8_t *line = data + block.line
    cdef const uint8_t *input_end = data + block.input_end
    cdef const uint8_t *newline
    cdef const uint8_t *wrong
    cdef uint8_t *out = result + block.out
    cdef uint8_t *out_end = result + block.out_size
    cdef uint64_t delta = <uint64_t> block.batch_lines << 1
    cdef int64_t body
    cdef int64_t record
    cdef bint escaped
    cdef Fields fields
    cdef Stop stop = ALL_DONE
    while line < input_end:
        newline = <const uint8_t *> memchr(line, c"\n", input_end - line)
        if newline == NULL:  # someone writes to the input while it is read
            newline = input_end
        split(line, newline, &fields)
        escaped = memchr(line, c"\\", newline - line) != NULL
        if escaped:
            # The fields are put where what comes before them in the record cannot reach, and are
            # moved when their sizes are known.
            record = RECORD_ROOM + (newline - line) + WORD
            if record > out_end - out:
                stop = OUT_FULL
                block.needed = record
                break
            wrong = unescape_fields(&fields, out + RECORD_ROOM)
            if wrong != NULL:
                stop = WRONG_LINE
                block.reason = REASON
                block.wrong_byte = wrong - line
                break
        # No headers take a byte.
        body = body_size(
            0, delta, field_size(fields.key_size) + field_size(fields.value_size) + 1
        )
        record = record_size(body)
        if record > block.batch_room:
            stop = BATCH_FULL
            block.needed = record
            break
        if record > out_end - out:
            stop = OUT_FULL
            block.needed = record
            break
        block.batch_room -= record
        out = put_head(out, body, 0, 0, delta)
        out = put_line_field(out, fields.key, fields.key_size, escaped, out_end, input_end)
        out = put_line_field(out, fields.value, fields.value_size, escaped, out_end, input_end)
        out[0] = 0
        out += 1
        delta += 2
        line = newline + 1
    block.line = min(line, input_end) - data
    block.out = out - result
    block.batch_lines = delta >> 1
    return stop


def parse_lines(
    data not None, long long start, long long end, long long timestamp_ms,
    long long max_batch_bytes,
):
    """As `_parse.encode_lines`, of lines of key and value.

    Raises InvalidRecord besides, with the number of the first line that is wrong.
    """
    return encode_by(encode, data, start, end, timestamp_ms, max_batch_bytes)
