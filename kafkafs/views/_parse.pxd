"""What parsers of lines share: the way from a loop over lines to finished batches.

A view's own is one function, `Encode`, which makes records of lines; batches, their limits and
the output's room are seen to here (`encode_by`).
"""

from libc.stdint cimport int64_t, uint8_t


cdef enum:
    # What a record takes beside its key and value, at most.
    RECORD_ROOM = 24
    # What a null and the length of a key or a value take, at most.
    LENGTH = 6


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
