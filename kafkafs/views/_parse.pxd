"""What parsers of lines share: the way from a loop over lines to finished batches.

A view's own is one function, `Encode`, which makes records of lines; batches, their limits and
the output's room are seen to here (`encode_by`).
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy


cdef enum:
    # What a record takes beside its key and value, at most.
    RECORD_ROOM = 24
    # Keys and values up to this long are copied COPY_STEP bytes at a time, without a call.
    SHORT = 256
    COPY_STEP = 32


cdef enum Stop:
    ALL_DONE
    BATCH_FULL
    OUT_FULL
    WRONG_LINE  # the one at `line`


cdef struct Block:
    # Where an encoding stands: positions in the input, in the output, and in a batch.
    int64_t line
    int64_t input_end
    int64_t out
    int64_t out_size
    int64_t batch_room
    int64_t batch_lines
    int64_t needed  # by the record for which there was no room
    # What is wrong with the line, and at which of its bytes.
    const char *reason
    int64_t wrong_byte


# Encodes lines until they end, the batch is full, the output is or a line is wrong, and says so in
# `block`. `data` is the input from its start, `result` the output.
ctypedef Stop (*Encode)(Block *block, const uint8_t *data, uint8_t *result) noexcept nogil


cdef tuple encode_by(
    Encode encode, object data, int64_t start, int64_t end, int64_t timestamp_ms,
    int64_t max_batch_bytes,
)


cdef int finish_batch(
    uint8_t *batch, int64_t size, int64_t lines, int64_t base_timestamp_ms,
    int64_t max_timestamp_ms,
) except -1


cdef inline void copy_field(
    uint8_t *out, const uint8_t *start, int64_t size, const uint8_t *out_end,
    const uint8_t *input_end,
) noexcept nogil:
    """Copy a key or a value; where both sides have room, up to COPY_STEP bytes more."""
    cdef int64_t at = 0
    if (
        size <= SHORT
        and size + COPY_STEP <= out_end - out
        and size + COPY_STEP <= input_end - start
    ):
        while at < size:
            memcpy(out + at, start + at, COPY_STEP)
            at += COPY_STEP
    else:
        memcpy(out, start, size)
