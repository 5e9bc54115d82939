"""What stays of a batch, and writing it anew (`_rewrite.pyx`)."""

from libc.stdint cimport int64_t, uint8_t


cdef enum:
    # What a record can gain by another timestamp delta: nine bytes, and one for its length.
    RECORD_GAIN = 10


cdef struct Kept:
    const uint8_t *at
    int64_t size
    int64_t offset
    int64_t timestamp_delta


cdef struct Choice:
    # What stays of a batch.
    int64_t records
    int64_t kept
    int64_t invalid
    int64_t tombstones


cdef int64_t rewrite(
    const uint8_t *batch,
    const Choice *choice,
    const Kept *kept,
    bint legacy,
    int64_t horizon_ms,
    uint8_t *out,
) noexcept nogil
