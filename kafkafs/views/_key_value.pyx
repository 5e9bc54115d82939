"""The hot loops of the `kv` view: they write records as lines of key, TAB and value and parse them.

    record                       line
    null key                     value
    key                          key TAB value
    null value                   \\N in the value's place

In keys and values the two bytes \\\\, \\t and \\n stand for backslash, TAB and newline; all other
bytes are as stored. So the two bytes \\N, and nothing else, are null, and a line that is appended
gives the same key and value.

The parser ends a line's key at the first TAB; later TABs belong to the value. A line without TAB is
a value with a null key; a line whose key is \\N has a null key, too. A backslash that begins none
of the above is an error.

Invariants: a record's text is exactly as long as `text_size` says; a field is never longer than its
text, so a line's length bounds its fields.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memcpy

from kafkafs.views._measure cimport Loops, LongLine
from kafkafs.views._parse cimport (
    DONE, SCRATCH_FULL, WRONG_LINE, LineRecord, Parsing, Progress, Stop, next_line, parse_by, put_record
)
from kafkafs.views._whole cimport (
    FIELD, NO_FIELD, NULL_FIELD, Format, WholeRecord, bytes_at_hand, enter_field, whole_records
)
from storage.record._batch cimport Window, at_position, load64_little


cdef enum:
    # How many bytes a loop examines at a time, and how many `write_text` may touch behind the text.
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
    """The next 8 bytes; if fewer are readable, `size` of them (at most 8) and zeros."""
    cdef uint8_t pad[WORD]
    if readable_end - at >= WORD:
        return load64_little(at)
    memcpy(pad, b"\0\0\0\0\0\0\0\0", WORD)
    memcpy(pad, at, min(size, <int64_t> WORD))
    return load64_little(pad)


cdef inline uint8_t *escape_word(uint8_t *out, uint64_t word, int64_t size) noexcept nogil:
    """Write the first `size` bytes of a word, at most 8, escaped. Touches up to 8 bytes more."""
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
    """Write a key or a value, escaped. Touches up to BLOCK bytes after it."""
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
        # Each escaped byte adds one to the highest byte of the product.
        text += ((marks >> 7) * <uint64_t> 0x0101010101010101) >> 56
        at += WORD
        size -= WORD
    return text


cdef int64_t most_text(const WholeRecord *record) noexcept nogil:
    # At most two bytes for each byte, two for a null value, and TAB and newline.
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


cdef void begin_line(LongLine *line, const WholeRecord *record) noexcept nogil:
    line.key_as = line.value_as = FIELD


cdef int64_t next_piece(LongLine *line, const Window *window, uint8_t *text) noexcept nogil:
    """The parts are: the key, the TAB, the value, the newline, the end."""
    cdef const uint8_t *window_end = window.data + (window.end - window.start)
    cdef int64_t size
    while line.field == FIELD:
        size = bytes_at_hand(line, window)
        if size > 0:
            line.at += size
            return escape(text, at_position(window, line.at - size), size, window_end) - text
        if size < 0:
            return size
        line.field = NO_FIELD
    if line.field == NULL_FIELD:
        line.field = NO_FIELD
        text[0] = c"\\"
        text[1] = c"N"
        return 2
    line.part += 1
    if line.part == 1:
        if line.key_size >= 0:
            enter_field(line, line.key, line.key_size, line.key_as)
            return next_piece(line, window, text)
        line.part = 2
    elif line.part == 2:
        text[0] = c"\t"
        return 1
    if line.part == 2 or line.part == 3:
        line.part = 3
        enter_field(line, line.value, line.value_size, line.value_as)
        return next_piece(line, window, text)
    if line.part == 4:
        text[0] = c"\n"
        return 1
    return 0


cdef Format FORMAT = Format(most_text, text_size, write_text, begin_line, next_piece)
LOOPS = whole_records(&FORMAT)


# -- lines to batches ----------------------------------------------------------------------------


cdef const char *REASON = (
    b"a backslash without a valid escape: valid are \\\\, \\t and \\n, and \\N for a whole field"
)


cdef inline const uint8_t *unescape(
    const uint8_t *at, const uint8_t *end, uint8_t **out_position
) noexcept nogil:
    """Write the bytes that a field's text stands for; touches up to a word after them.

    Returns NULL, or the backslash that begins no escape.
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
        # A backslash at the end of the field begins no escape.
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
    """Unescape a field into the output, and point `field` there; \\N becomes null (size -1).

    Returns what `unescape` returns.
    """
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


cdef inline Stop take_fields(
    Progress *at, Parsing *parsing, LineRecord *record
) noexcept nogil:
    """Find and unescape the key and the value of the line."""
    cdef const uint8_t *line = at.line
    cdef int64_t size = at.newline - line
    cdef const uint8_t *tab = <const uint8_t *> memchr(line, c"\t", size)
    cdef const uint8_t *wrong
    cdef uint8_t *out = parsing.scratch
    record.key = line
    record.key_size = -1 if tab == NULL else tab - line
    record.value = line if tab == NULL else tab + 1
    record.value_size = at.newline - record.value
    record.readable_end = at.input_end
    if memchr(line, c"\\", size) == NULL:
        return DONE
    if parsing.scratch_size < size + WORD:
        at.needed = size + WORD
        return SCRATCH_FULL
    record.readable_end = parsing.scratch + parsing.scratch_size
    wrong = unescape_field(&record.key, &record.key_size, &out)
    if wrong == NULL:
        wrong = unescape_field(&record.value, &record.value_size, &out)
    if wrong == NULL:
        return DONE
    parsing.reason = REASON
    parsing.wrong = wrong
    return WRONG_LINE


cdef Stop parse_fields(Parsing *parsing, LineRecord *_) noexcept nogil:
    """`ParseLines` for lines of key and value."""
    cdef Progress at = parsing.at
    cdef LineRecord record
    cdef Stop stop = DONE
    record.headers_size = record.header_count = 0
    record.timestamp_bits = 0
    while stop == DONE and next_line(&at):
        stop = take_fields(&at, parsing, &record)
        if stop == DONE:
            stop = put_record(&at, &record)
    parsing.at = at
    return stop


def encode_lines(
    data not None, long long start, long long end, long long timestamp_ms,
    long long max_batch_bytes, begun not None=b"",
):
    """Encode lines of key and value as `_parse.encode_lines` does.

    Also raises InvalidRecord, with the number of the first malformed line.
    """
    return parse_by(parse_fields, data, start, end, timestamp_ms, max_batch_bytes, begun)
