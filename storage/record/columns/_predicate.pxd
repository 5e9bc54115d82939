from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t

from storage.record._batch cimport (
    APPEND_TIME_BIT, ATTRIBUTES, BASE_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, Fields, RecordHead,
    last_offset_of, load64, sum_of,
)


cdef struct Subject:
    # A record. Lengths are -1 for null; `headers` is the header count, which the headers follow.
    # They fill the bytes up to `end` exactly.
    int64_t offset
    int64_t timestamp
    int32_t timestamp_type
    int32_t key_length
    int32_t value_length
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    const uint8_t *end


cdef struct Limits:
    # The limits in the header of a batch, ends included.
    int64_t first_offset
    int64_t last_offset
    int64_t first_timestamp
    int64_t last_timestamp
    int32_t timestamp_type


cdef struct Node:
    int32_t kind
    int32_t column
    int32_t first  # the first of `count` children, runs or bounds
    int32_t count
    int32_t header  # the run with the header's name
    int64_t fewest  # characters of what is like a pattern
    bint is_not
    bint fold  # in what contains words: the case of letters does not count
    bint whole  # in what contains words: no part of a longer word


cdef struct Run:
    const uint8_t *start
    int64_t size
    const int32_t *borders  # of a long needle that is no part of a longer word; else NULL


cdef inline Subject subject_of(
    const uint8_t *batch, bint without_times, const RecordHead *head, const Fields *fields
) noexcept nogil:
    """A record of a plain batch. `without_times`: as `decode_columns`."""
    cdef Subject made
    cdef bint append_time = batch[ATTRIBUTES + 1] & APPEND_TIME_BIT
    made.offset = sum_of(<int64_t> load64(batch + BASE_OFFSET), head.offset_delta)
    made.timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
    if not append_time:
        made.timestamp = sum_of(
            <int64_t> load64(batch + BASE_TIMESTAMP), head.timestamp_delta
        )
    made.timestamp_type = -1 if without_times else 1 if append_time else 0
    made.key, made.key_length = fields.key, head.key_length
    made.value, made.value_length = fields.value, fields.value_length
    made.headers, made.end = fields.headers, fields.end
    return made


cdef inline Limits limits_of(const uint8_t *batch, bint without_times) noexcept nogil:
    """The limits in the header of a v2 batch, which does not have the smallest timestamp."""
    cdef Limits made
    cdef bint append_time = batch[ATTRIBUTES + 1] & APPEND_TIME_BIT
    made.first_offset = <int64_t> load64(batch + BASE_OFFSET)
    made.last_offset = last_offset_of(batch)
    made.last_timestamp = <int64_t> load64(batch + MAX_TIMESTAMP)
    made.first_timestamp = made.last_timestamp if append_time else INT64_MIN
    made.timestamp_type = -1 if without_times else 1 if append_time else 0
    return made


cdef class Predicate:
    cdef Node *nodes
    cdef int32_t *children
    cdef Run *runs
    cdef int64_t *bounds
    cdef int32_t used
    cdef int32_t children_used
    cdef int32_t runs_used
    cdef int32_t bounds_used
    cdef list kept

    cdef int32_t add(self, tuple part) except -1
    cdef int32_t add_run(self, object data) except -1
    cdef int add_borders(self, Run *run) except -1
    cdef bint holds(self, const Subject *subject) noexcept nogil
    cdef bint may_hold(self, const Limits *limits) noexcept nogil
    cdef bint may_hold_in(self, const uint8_t *start, int64_t size) noexcept nogil
