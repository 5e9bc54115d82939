"""The hot loops of views that show whole records: key, headers, timestamp and all.

Such a view says how it writes one record (`Format`). The loops find the records in the log's bytes,
stop where the output is full, and go on from there.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkafs.views._measure cimport Loops


cdef enum:
    # Bytes behind the text of a record that `write` may touch.
    WRITE_SLACK = 128


cdef struct WholeRecord:
    # A record, taken apart. Every length has been checked; headers too, where there are any.
    const uint8_t *key
    int64_t key_size  # -1: null
    const uint8_t *value
    int64_t value_size  # -1: null
    # The headers' bytes, behind their count: of each a name and a value, with varint lengths.
    const uint8_t *headers
    int64_t headers_size  # with the count
    int32_t header_count
    int64_t offset
    int64_t timestamp  # milliseconds; -1: none
    bint append_time  # whether the timestamp is the broker's (LogAppendTime), not the producer's
    # Where the readable bytes end: not before the record does, and often behind it.
    const uint8_t *readable_end


cdef struct Format:
    # The three that a view has to write. `most` is a bound of `size`, and quick; `size` is exact;
    # `write` returns where the text ends. All count the newline. `write` may touch WRITE_SLACK
    # bytes behind the text; all may read up to `readable_end`, and not beyond.
    int64_t (*most)(const WholeRecord *record) noexcept nogil
    int64_t (*size)(const WholeRecord *record) noexcept nogil
    uint8_t *(*write)(const WholeRecord *record, uint8_t *out) noexcept nogil


cdef Loops whole_records(const Format *format)
