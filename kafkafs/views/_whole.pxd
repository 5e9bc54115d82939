"""The hot loops of views that show whole records, with key, headers and timestamp (`_whole.pyx`).

Such a view defines how it writes one record (`Format`). The loops find the records in the log's
bytes, stop when the output is full, and go on from there.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkafs.views._measure cimport Loops


cdef enum:
    # How many bytes behind a record's text `write` may touch.
    WRITE_SLACK = 128


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
    # The end of the readable bytes: at the record's end or behind it.
    const uint8_t *readable_end


cdef struct Format:
    # The three functions of a view. `most` returns an upper bound of `size` fast; `size` returns
    # the exact size of the text; `write` writes the text and returns its end. All count the
    # newline. `write` may touch WRITE_SLACK bytes behind the text. All may read up to
    # `readable_end`.
    int64_t (*most)(const WholeRecord *record) noexcept nogil
    int64_t (*size)(const WholeRecord *record) noexcept nogil
    uint8_t *(*write)(const WholeRecord *record, uint8_t *out) noexcept nogil


cdef Loops whole_records(const Format *format)
