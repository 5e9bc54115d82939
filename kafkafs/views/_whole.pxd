"""The hot loops of views that show whole records, with key, headers and timestamp (`_whole.pyx`).

Such a view defines how it writes one record (`Format`). The loops find the records in the log's
bytes, stop when the output is full, and go on from there.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkafs.views._measure cimport Loops, LongLine
from storage.record._batch cimport Window


cdef enum:
    # How many bytes behind a record's text `write` may touch.
    WRITE_SLACK = 128
    # The most bytes of a record that one piece of a long line shows. It is a multiple of 3, so that
    # pieces of Base64 need no padding.
    PIECE = 3 * 1024
    # Results of `piece`: it needs `line.needed` bytes from `line.at` on; the bytes have changed since
    # the line was begun; it would take long and may not.
    # The size of a record or a header that takes long to measure.
    LONG_RECORD = 1 << 20
    NEEDS_BYTES = -1
    CHANGED = -2
    TAKES_LONG = -3
    # How a field is written. FIELD: as it is always written; UNKNOWN: its bytes tell.
    NO_FIELD = 0
    NULL_FIELD
    FIELD
    UNKNOWN_FIELD


cdef struct WholeRecord:
    # The fields of a record. `next_record` has checked every length, also those of the headers.
    const uint8_t *key
    int64_t key_size  # -1: null
    const uint8_t *value
    int64_t value_size  # -1: null
    # The headers behind their count: for each a name and a value, with varint lengths.
    const uint8_t *headers
    int64_t headers_size  # including the count
    int32_t header_count
    int64_t offset
    int64_t timestamp  # milliseconds; -1: none
    bint append_time  # whether the timestamp is the broker's (LogAppendTime), not the producer's
    # The end of the readable bytes: at the record's end or after it.
    const uint8_t *readable_end


cdef struct Format:
    # The functions of a view. `most` returns an upper bound of `size` fast; `size` returns
    # the exact size of the text; `write` writes the text and returns its end. All count the
    # newline. `write` may touch WRITE_SLACK bytes behind the text. All may read up to
    # `readable_end`.
    #
    # `begin` and `piece` are for lines in pieces. `begin` sets `key_as` and `value_as` of a line
    # that has the record's fields already. `piece` writes the next piece of the line to `text`,
    # moves the line to its end, and returns the size of the piece: 0 at the line's end. It may touch
    # PIECE_BEFORE bytes before the text and PIECE_ROOM bytes from there on. All fields lie before
    # `record_end`, but the window may end earlier.
    int64_t (*most)(const WholeRecord *record) noexcept nogil
    int64_t (*size)(const WholeRecord *record) noexcept nogil
    uint8_t *(*write)(const WholeRecord *record, uint8_t *out) noexcept nogil
    void (*begin)(LongLine *line, const WholeRecord *record) noexcept nogil
    int64_t (*piece)(LongLine *line, const Window *window, uint8_t *text) noexcept nogil


cdef enum:
    PIECE_BEFORE = 16
    PIECE_ROOM = 6 * PIECE + 1024


cdef inline void enter_field(LongLine *line, int64_t start, int64_t size, int written_as) noexcept nogil:
    """Begin a field of the record; size -1: null."""
    line.at = start
    line.field_end = start + max(size, <int64_t> 0)
    line.field = NULL_FIELD if size < 0 else written_as


cdef inline int64_t bytes_at_hand(LongLine *line, const Window *window) noexcept nogil:
    """How many bytes of the field the next piece shows; NEEDS_BYTES."""
    cdef int64_t left = line.field_end - line.at
    cdef int64_t here = window.end - line.at
    if here >= left or here > PIECE:
        return min(left, <int64_t> PIECE)
    line.needed = min(left, <int64_t> PIECE + 1)
    return NEEDS_BYTES


cdef Loops whole_records(const Format *format)
