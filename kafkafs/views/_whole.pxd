"""The hot loops of views that show whole records: key, headers, timestamp and all.

Such a view says how one record is written (`Format`); finding the records in the log's bytes,
stopping where the output is full and going on from there is done here, once for all of them.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkafs.views._measure cimport Cursor, Measure


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


cdef class WholeRecords:
    """A view's `render` and `measure`, by its format, which a subclass sets in `__cinit__`."""

    cdef Format format
