"""Functions that read record batches, for every hot loop: numbers, varints, fields, batch walks.

The functions run without the GIL on plain pointers. They are inline because a loop calls some of
them for each record, and a call into another module costs as much as reading a short record. A
function that takes a pointer does not know where the bytes end: its docstring says how many bytes
it touches, and the caller makes sure that they are there. A function that takes a Window reads
nothing outside it. If the window ends too early, it returns NEEDS_MORE and leaves the place at the
batch or field whose bytes are missing.

Layouts: `storage/record/header.py` for headers, `storage/record/batch.py` for records. Writing:
`_write.pxd`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from storage.record._crc cimport crc32c_of


cdef extern from "storage/record/bytes.h":
    uint32_t load32 "kafkafs_load32"(const uint8_t *at) noexcept nogil
    uint64_t load64 "kafkafs_load64"(const uint8_t *at) noexcept nogil
    uint32_t load32_little "kafkafs_load32_little"(const uint8_t *at) noexcept nogil
    uint64_t load64_little "kafkafs_load64_little"(const uint8_t *at) noexcept nogil
    void store32 "kafkafs_store32"(uint8_t *at, uint32_t bits) noexcept nogil
    void store64 "kafkafs_store64"(uint8_t *at, uint64_t bits) noexcept nogil


# `storage/record/header.py` documents the layouts and gives these numbers to Python code.
cpdef enum:
    # Byte positions in a batch's header (DefaultRecordBatch.java).
    BASE_OFFSET = 0
    BATCH_LENGTH = 8
    LEADER_EPOCH = 12
    MAGIC = 16
    CRC = 17
    ATTRIBUTES = 21
    LAST_OFFSET_DELTA = 23
    BASE_TIMESTAMP = 27
    MAX_TIMESTAMP = 35
    PRODUCER_ID = 43
    PRODUCER_EPOCH = 51
    BASE_SEQUENCE = 53
    RECORDS_COUNT = 57
    HEADER_SIZE = 61

    # Byte positions in an entry of v0 or v1 (LegacyRecord.java).
    LEGACY_CRC = 12
    LEGACY_ATTRIBUTES = 17
    LEGACY_TIMESTAMP = 18  # v1 only

    LOG_OVERHEAD = 12  # the fields offset and size, which the batch length does not count
    SMALLEST_ENTRY = 14  # the smallest valid size field of any format: v0's
    SMALLEST_V1 = 22  # the smallest valid size field of v1

    # Bits of the attributes.
    CODEC_BITS = 0x07
    APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    HORIZON_BIT = 0x40


cdef enum:
    SMALLEST_RECORD = 7  # length, attributes, two deltas, two null lengths, header count
    RECORD_HEAD = 26  # the most bytes from a record's length field to the end of its key length
    VARINT = 5  # the most bytes of a varint
    WINDOW = 32  # bytes that plain_record may touch: a head and the value length after it

    LAST_OFFSET = 0x7FFFFFFFFFFFFFFF
    LAST_CODEC = 4
    LAST_LEGACY_CODEC = 3  # no zstd in v0 and v1

    # A loop over fewer bytes than this keeps the GIL: it takes some 30 microseconds, and a thread
    # that releases the GIL may wait a whole switch interval (5 ms) to get it back.
    RELEASE_GIL_FROM = 262144


cdef struct Sound:
    # The sound batches that `sound_start` finds: their total size in bytes, the offset after the
    # last of them, and the size of the last batch that it walked.
    int64_t size
    int64_t next_offset
    int64_t last_size


cdef Sound sound_start(
    const uint8_t *data, int64_t size, int64_t left, int64_t base_offset, int64_t next_offset,
    int64_t named, int64_t limit,
) except *


cdef class PinnedBuffer:
    cdef Py_buffer view
    cdef const uint8_t *start
    cdef int64_t size

cdef PinnedBuffer hold(object data)

# Raises ValueError if the buffer does not have the bytes from `at` to `end`.
cdef PinnedBuffer hold_part(object data, int64_t at, int64_t end)


cdef bint crc_fits(const uint8_t *batch, int64_t size) except -1


cdef inline int64_t size_of(const uint8_t *batch) noexcept nogil:
    """The size in bytes of a batch of any format, by its length field; if damaged, any number."""
    return <int64_t> <int32_t> load32(batch + BATCH_LENGTH) + LOG_OVERHEAD


cdef inline int64_t sum_of(int64_t one, int64_t other) noexcept nogil:
    """one + other, which wraps as a Java long does: anything may stand in a header's fields."""
    return <int64_t> (<uint64_t> one + <uint64_t> other)


cdef inline int64_t last_offset_of(const uint8_t *batch) noexcept nogil:
    """The last offset of a v2 batch."""
    return sum_of(
        <int64_t> load64(batch + BASE_OFFSET), <int32_t> load32(batch + LAST_OFFSET_DELTA)
    )


cdef inline uint32_t crc_of(const uint8_t *batch, int64_t size) noexcept nogil:
    """The CRC-32C that the header of this whole v2 batch should have."""
    return crc32c_of(batch + ATTRIBUTES, size - ATTRIBUTES)


cdef enum Fault:
    """Why a loop stopped; `refusal` in _batch.pyx turns one into an exception."""
    NO_FAULT = 0
    NEEDS_MORE
    CONTROL_BATCH  # not a fault: a well-formed batch whose records a reader does not show
    BAD_BATCH_LENGTH
    BAD_MAGIC
    ENCODED  # not a fault: the loop can read the batch in plain form only (`plain.py`)
    BAD_RECORDS_COUNT
    BAD_VARINT
    BAD_RECORD_LENGTH
    BAD_KEY_LENGTH
    BAD_VALUE_LENGTH
    BAD_HEADERS
    BAD_CURSOR
    BAD_OFFSETS


cdef struct RecordHead:
    int64_t size  # of the whole record, its length field included
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length  # -1: null
    int32_t head  # bytes from the record's start to its key


cdef inline int32_t zigzag(uint32_t bits) noexcept nogil:
    return <int32_t> ((bits >> 1) ^ (0 - (bits & 1)))


cdef inline int64_t zigzag_long(uint64_t bits) noexcept nogil:
    return <int64_t> ((bits >> 1) ^ (0 - (bits & 1)))


cdef inline const uint8_t *read_varint(const uint8_t *at, int32_t *value) noexcept nogil:
    """Read a zig-zag varint; return the byte after it. Touches 5 bytes.

    Returns NULL if the fifth byte says that another follows. Drops bits beyond the 32nd, as Kafka's
    ByteUtils does.
    """
    cdef uint32_t byte = at[0]
    cdef uint32_t bits = byte & 0x7F
    cdef int shift
    if byte < 0x80:
        value[0] = zigzag(bits)
        return at + 1
    byte = at[1]
    bits |= (byte & 0x7F) << 7
    if byte < 0x80:
        value[0] = zigzag(bits)
        return at + 2
    at += 2
    for shift in range(14, 35, 7):
        byte = at[0]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = zigzag(bits)
            return at
    return NULL


cdef inline const uint8_t *read_varlong(const uint8_t *at, int64_t *value) noexcept nogil:
    """Read a zig-zag varlong; return the byte after it. Touches 10 bytes.

    Returns NULL if the tenth byte says that another follows.
    """
    cdef uint64_t byte = at[0]
    cdef uint64_t bits = byte & 0x7F
    cdef int shift
    at += 1
    if byte >= 0x80:
        for shift in range(7, 70, 7):
            byte = at[0]
            at += 1
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            return NULL
    value[0] = zigzag_long(bits)
    return at


cdef inline const uint8_t *bounded_varint(
    const uint8_t *at, const uint8_t *end, int32_t *value
) noexcept nogil:
    """Read the varint at `at`; return the byte after it, NULL if it does not end before `end`."""
    cdef uint8_t pad[VARINT]
    cdef const uint8_t *after
    if end - at >= VARINT:
        return read_varint(at, value)
    if end <= at:
        return NULL
    memset(pad, 0, VARINT)
    memcpy(pad, at, end - at)
    after = at + (read_varint(pad, value) - pad)
    return after if after <= end else NULL


cdef inline bint headers_fill(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether a record's header count and headers fill the bytes up to `end` exactly."""
    cdef int32_t count = 0
    cdef int32_t length = 0
    cdef int32_t left
    if end - at == 1 and at[0] == 0:
        return True
    at = bounded_varint(at, end, &count)
    if at == NULL or count < 0:
        return False
    # Each turn takes at least two bytes, so the loop ends with the bytes if the count is damaged.
    for left in range(count):
        at = bounded_varint(at, end, &length)
        if at == NULL or length < 0 or length > end - at:
            return False
        at = bounded_varint(at + length, end, &length)
        if at == NULL or length < -1 or length > end - at:
            return False
        at += max(length, 0)
    return at == end


cdef inline Fault parse_head(const uint8_t *at, RecordHead *head) noexcept nogil:
    """Read a record from its length field up to its key. Touches RECORD_HEAD bytes.

    Checks only that the varints end: the caller first decides whether all of the head was there.
    """
    cdef const uint8_t *start = at
    cdef int32_t length
    at = read_varint(at, &length)
    if at == NULL:
        return BAD_VARINT
    head.size = (at - start) + <int64_t> length
    at = read_varlong(at + 1, &head.timestamp_delta)
    if at == NULL:
        return BAD_VARINT
    at = read_varint(at, &head.offset_delta)
    if at == NULL:
        return BAD_VARINT
    at = read_varint(at, &head.key_length)
    if at == NULL:
        return BAD_VARINT
    head.head = <int32_t> (at - start)
    return NO_FAULT


cdef inline Fault judge_head(const RecordHead *head, int64_t room) noexcept nogil:
    """Check that a record fits in the `room` bytes left in its batch, and its key in the record."""
    if head.size > room or head.size < head.head + 2:
        return BAD_RECORD_LENGTH
    # A value length and a header count, each of at least one byte, follow the key.
    if head.key_length < -1 or head.key_length > head.size - head.head - 2:
        return BAD_KEY_LENGTH
    return NO_FAULT


cdef inline Fault read_head(
    const uint8_t *at, int64_t there, int64_t room, RecordHead *head
) noexcept nogil:
    """Read a record up to its key, and check that it fits in the `room` bytes left in its batch.

    `there` bytes are readable, fewer or more than `room`. Returns NEEDS_MORE if they are too few.
    """
    cdef uint8_t pad[WINDOW]
    cdef Fault fault
    if there >= WINDOW:
        fault = parse_head(at, head)
    else:
        memset(pad, 0, WINDOW)
        memcpy(pad, at, max(there, 0))
        fault = parse_head(pad, head)
        # The padding means nothing. If all of the batch is there, a head that ends in the padding
        # does not fit, and `judge_head` refuses it.
        if there < room and (fault != NO_FAULT or head.head > there):
            return NEEDS_MORE
    if fault == NO_FAULT:
        fault = judge_head(head, room)
    return fault


cdef struct Fields:
    # Where the fields behind a record's head are.
    const uint8_t *key
    const uint8_t *value
    int32_t value_length  # -1: null
    const uint8_t *headers  # the header count, which the headers follow
    const uint8_t *end


cdef inline Fault read_fields(
    const uint8_t *at, const RecordHead *head, Fields *fields
) noexcept nogil:
    """Find the fields of a whole record. It does not check the headers: `headers_fill` does."""
    fields.key = at + head.head
    fields.end = at + head.size
    fields.value_length = 0
    fields.value = bounded_varint(
        fields.key + max(head.key_length, 0), fields.end, &fields.value_length
    )
    # A header count of at least one byte follows the value.
    if (
        fields.value == NULL
        or fields.value_length < -1
        or max(fields.value_length, 0) >= fields.end - fields.value
    ):
        return BAD_VALUE_LENGTH
    fields.headers = fields.value + max(fields.value_length, 0)
    return NO_FAULT


cdef inline Fault judge_batch(const uint8_t *at) noexcept nogil:
    """Check that a batch's header lets a loop read its records. Touches HEADER_SIZE bytes.

    Returns CONTROL_BATCH for a control batch. Returns ENCODED for a batch that is compressed or of
    an older format, and for a transactional one: the caller decides whether it is aborted.
    """
    cdef int32_t length = <int32_t> load32(at + BATCH_LENGTH)
    cdef uint8_t attributes = at[ATTRIBUTES + 1]
    if length < SMALLEST_ENTRY:
        return BAD_BATCH_LENGTH
    if at[MAGIC] != 2:
        return ENCODED if at[MAGIC] < 2 else BAD_MAGIC
    if length < HEADER_SIZE - LOG_OVERHEAD:
        return BAD_BATCH_LENGTH
    if attributes & (CODEC_BITS | TRANSACTIONAL_BIT | CONTROL_BIT):
        return CONTROL_BATCH if attributes & CONTROL_BIT else ENCODED
    return NO_FAULT


cdef struct PlainRecord:
    int64_t value  # bytes from the record's start to its value
    int64_t value_size
    int64_t size  # of the whole record


cdef inline bint plain_record(const uint8_t *at, int64_t room, PlainRecord *record) noexcept nogil:
    """Read a record of the most frequent kind, with a single branch.

    That kind has a null key, a timestamp delta of one byte, no varint longer than two bytes, and a
    value. Returns False for any other record, well-formed or not. Touches WINDOW bytes; `room`
    bytes are left in the batch.
    """
    cdef uint64_t bits = load64_little(at)
    cdef uint64_t more = (bits >> 7) & 1
    cdef uint64_t length = ((bits >> 1) & 0x3F) | ((bits >> 2) & 0x1FC0 & (0 - more))
    cdef uint64_t odd = bits | (more & (bits >> 15))
    cdef uint64_t width = 1 + more
    # `bits` begins with attributes, timestamp delta, offset delta of one or two bytes.
    bits = load64_little(at + width)
    record.size = <int64_t> (width + length)
    more = (bits >> 23) & 1
    odd |= (bits >> 15) | (more & (bits >> 31))
    width += 5 + more
    # `bits` begins with key length (1 is null), value length of one or two bytes.
    bits >>= 24 + 8 * more
    more = (bits >> 15) & 1
    odd |= (bits >> 8) | (more & (bits >> 23))
    record.value_size = <int64_t> (((bits >> 9) & 0x3F) | ((bits >> 10) & 0x1FC0 & (0 - more)))
    record.value = <int64_t> (width + more)
    return (
        odd & 1 == 0
        and bits & 0xFF == 1
        and record.value + record.value_size < record.size
        and record.size <= room
    )


cdef struct Window:
    # The part of a `.log` file that is in memory: file positions `start` to `end`.
    const uint8_t *data
    int64_t start
    int64_t end


cdef inline const uint8_t *at_position(const Window *window, int64_t position) noexcept nogil:
    return window.data + (position - window.start)


cdef struct Place:
    # Where a walk through a `.log` file stands, in file positions.
    int64_t position
    int64_t batch_position  # the start of the batch that the walk entered last
    int64_t batch_end  # the end of that batch; 0: a batch begins at `position`
    int64_t record_end  # the end of the current record; 0: a record or batch begins at `position`


cdef inline void leave_record(Place *place) noexcept nogil:
    place.position = place.record_end
    place.record_end = 0


cdef inline Fault enter_batches(const Window *window, Place *place) noexcept nogil:
    """Move from the start of a record or a batch to the next record, past any batch headers.

    On a fault the place stays at the faulty batch, on NEEDS_MORE at the batch that is missing.
    """
    cdef const uint8_t *batch
    cdef int64_t end
    cdef Fault fault
    while place.batch_end == 0 or place.position == place.batch_end:
        place.batch_end = 0
        batch = at_position(window, place.position)
        if window.end - place.position < HEADER_SIZE:
            # A whole entry of an older format may be shorter than a v2 header.
            if window.end - place.position > MAGIC and batch[MAGIC] < 2:
                return ENCODED
            return NEEDS_MORE
        fault = judge_batch(batch)
        end = place.position + size_of(batch)
        if fault == CONTROL_BATCH:
            place.position = end
        elif fault == NO_FAULT:
            place.batch_position = place.position
            place.batch_end = end
            place.position += HEADER_SIZE
        else:
            return fault
    return NO_FAULT


cdef inline Fault enter_head(
    const Window *window, const Place *place, RecordHead *head
) noexcept nogil:
    """Read the head of the record at the place."""
    cdef int64_t there = min(place.batch_end, window.end) - place.position
    if there <= 0:
        return NEEDS_MORE if place.position < place.batch_end else BAD_CURSOR
    return read_head(
        at_position(window, place.position), there, place.batch_end - place.position, head
    )


cdef inline Fault enter_record(const Window *window, Place *place) noexcept nogil:
    """Move from a record's start to its value length. A fault leaves the place unchanged."""
    cdef RecordHead head
    cdef Fault fault = enter_head(window, place, &head)
    if fault == NO_FAULT:
        place.record_end = place.position + head.size
        place.position += head.head + max(head.key_length, 0)
    return fault


cdef inline Fault enter_value(
    const Window *window, Place *place, int64_t *length
) noexcept nogil:
    """Move from the value length to the value; a null value has length 0.

    A fault leaves the place unchanged.
    """
    cdef const uint8_t *start, *at
    cdef int32_t stored = 0
    cdef int64_t available = min(place.record_end, window.end) - place.position
    if available <= 0:
        return NEEDS_MORE if place.position < place.record_end else BAD_CURSOR
    start = at_position(window, place.position)
    at = bounded_varint(start, start + available, &stored)
    if at == NULL:
        if available >= VARINT:
            return BAD_VARINT
        return NEEDS_MORE if window.end < place.record_end else BAD_VALUE_LENGTH
    # A header count of at least one byte follows the value.
    if stored < -1 or max(stored, 0) > place.record_end - place.position - (at - start) - 1:
        return BAD_VALUE_LENGTH
    place.position += at - start
    length[0] = max(stored, 0)
    return NO_FAULT
