"""What the loop from rows to batches works on (`_rows.pyx`)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from storage.record._write cimport Batches
from storage.record.columns._cells cimport Bytes, Cells


cdef enum Stop:
    ALL_DONE
    STICK_ANEW
    OUT_FULL
    NO_SUCH_ROW
    BAD_POSITIONS
    NULL_KEY
    NULL_NAME
    NO_PARTITION
    NEGATIVE_TIME
    TOO_OLD
    TOO_NEW
    TOO_LARGE


cdef struct Part:
    # What goes to one partition.
    Batches batches
    int64_t total  # records taken so far
    bint exists


cdef struct Input:
    int64_t rows
    int64_t next
    int64_t end
    const uint8_t *selection  # i64 each; NULL: all rows
    bint has_keys
    bint has_headers
    bint has_timestamps
    bint has_partitions
    Bytes keys
    Bytes values
    Cells timestamps
    Cells partitions
    Cells headers
    Bytes names
    Bytes contents


cdef struct Rules:
    uint32_t count  # of partitions: one more than the highest
    int64_t batch_bytes
    int64_t max_batch_bytes
    int64_t before_ms
    int64_t after_ms
    int64_t now_ms
    bint keys_required


cdef struct Work:
    Input input
    Rules rules
    Part *parts
    int64_t stuck_to  # the partition of records without a key
    int64_t stays  # bytes of such records before it is another one's turn
    bint sticks  # whether the row at hand is one
    # Of the row at which the loop stopped:
    int64_t row
    int64_t partition
    int64_t timestamp
    int64_t needed


cdef struct Row:
    const uint8_t *key
    const uint8_t *value
    int64_t key_size
    int64_t value_size
    int64_t first_header
    int64_t end_header
    int64_t headers_size
    int64_t timestamp
