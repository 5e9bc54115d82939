"""Hot loops over the log entries of Kafka 0.7: walk them, and write them as v2 records.

Pure: the loops take bytes and return bytes and numbers. Layouts: `storage/kafka07/entries.py`. A
loop ends with a fault, which is a key of `REASONS`, or with WHOLE, CUT_OFF or COMPRESSED, which are
not faults.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from storage.record._batch cimport HEADER_SIZE, PinnedBuffer, hold_part, load32
from storage.record._write cimport (
    body_size, field_size, put_field, put_head, put_header, record_size
)

cdef extern from "storage/kafka07/crc32.h":
    void make_crc_table "kafkafs_make_crc_table"() noexcept nogil
    uint32_t crc32 "kafkafs_crc32"(const uint8_t *at, int64_t size) noexcept nogil

make_crc_table()


cdef enum:
    _WHOLE = 0
    _CUT_OFF
    _COMPRESSED
    _BAD_SIZE
    _BAD_MAGIC
    _BAD_CODEC
    _BAD_CRC

    MAGIC = 4  # the position of an entry's magic; attributes (magic 1) and CRC follow
    SMALLEST = 9  # length, magic, CRC, no payload
    HEAD_0 = 9  # bytes before the payload with magic 0
    HEAD_1 = 10  # bytes before the payload with magic 1
    CODEC_BITS = 0x03

WHOLE, CUT_OFF, COMPRESSED, BAD_CRC = _WHOLE, _CUT_OFF, _COMPRESSED, _BAD_CRC
REASONS = {
    _BAD_SIZE: "an entry's length is less than its header size",
    _BAD_MAGIC: "an entry's magic is neither 0 nor 1",
    _BAD_CODEC: "an entry has the unknown codec 3",
    _BAD_CRC: "an entry's CRC is wrong",
}


cdef struct Entry:
    int64_t size  # in bytes; the smallest possible size if the length field is cut off
    int64_t head  # bytes before the payload
    int codec


cdef inline int judge(
    const uint8_t *at, int64_t room, bint check_crc, Entry *entry
) noexcept nogil:
    """Read the entry at `at`, where `room` bytes are readable.

    Returns _WHOLE, or why a loop cannot take the entry as it is.
    """
    entry.size = SMALLEST
    entry.head = HEAD_0
    entry.codec = 0
    if room < MAGIC:
        return _CUT_OFF
    entry.size = <int64_t> <int32_t> load32(at) + MAGIC
    if entry.size < SMALLEST:
        return _BAD_SIZE
    if room > MAGIC and at[MAGIC] != 0:
        if at[MAGIC] != 1:
            return _BAD_MAGIC
        if entry.size < HEAD_1:
            return _BAD_SIZE
        entry.head = HEAD_1
        if room > MAGIC + 1:
            entry.codec = at[MAGIC + 1] & CODEC_BITS
        if entry.codec == 3:
            return _BAD_CODEC
    if entry.size > room:
        return _CUT_OFF
    if check_crc and crc32(at + entry.head, entry.size - entry.head) != load32(at + entry.head - 4):
        return _BAD_CRC
    return _COMPRESSED if entry.codec else _WHOLE


def walk(data not None, long long at, long long end, long long until, *, bint check_crc):
    """Step over whole entries from data[at] on; return where the last one ends, and WHOLE.

    The walk ends at or behind `until`, or at `end`. It stops before an entry that `end` cuts off or
    that is wrong, and returns that entry's position and CUT_OFF or the fault.
    """
    cdef PinnedBuffer held = hold_part(data, at, end)
    cdef int64_t position = at
    cdef int fault = _WHOLE
    cdef Entry entry
    with nogil:
        while position < until and position < end:
            fault = judge(held.start + position, end - position, check_crc, &entry)
            if fault != _WHOLE and fault != _COMPRESSED:
                break
            fault = _WHOLE
            position += entry.size
    return position, fault


def head(data not None, long long at, long long end, *, bint check_crc):
    """Return (fault, size in bytes, bytes before the payload, codec) of the entry at data[at].

    If the length field is cut off, the size is the smallest possible one.
    """
    cdef PinnedBuffer held = hold_part(data, at, end)
    cdef Entry entry
    cdef int fault = judge(held.start + at, end - at, check_crc, &entry)
    return fault, entry.size, entry.head, entry.codec


def append_records(
    bytearray out not None, data not None, long long at, long long end, long long limit,
    bint numbered,
):
    """Write the uncompressed entries from data[at] on as v2 records at the end of `out`.

    It ends behind `limit` bytes of entries, or before an entry that is compressed, wrong, or cut
    off by `end`. With `numbered`, a record's offset delta is its entry's distance in bytes from
    `at`, else 0. Timestamp deltas are 0. It checks each CRC.

    Returns the position of the next entry, the number of records, the offset delta of the last one,
    and why it ended: WHOLE at the limit and at `end`.
    """
    cdef PinnedBuffer held = hold_part(data, at, end)
    cdef int64_t position = at
    cdef int64_t total = 0
    cdef int64_t count = 0
    cdef int64_t last = 0
    cdef int64_t before = len(out)
    cdef int64_t taken
    cdef int fault = _WHOLE
    cdef Entry entry
    cdef uint8_t *to
    # The first pass checks the entries and adds up the sizes of their records.
    while position < end and position - at < limit:
        fault = judge(held.start + position, end - position, True, &entry)
        if fault != _WHOLE:
            break
        if numbered:
            last = position - at
        total += record_size(body_of(&entry, last))
        count += 1
        position += entry.size
    if count == 0:
        return position, 0, 0, fault
    PyByteArray_Resize(out, before + total)
    to = <uint8_t *> PyByteArray_AS_STRING(out) + before
    taken = at
    last = 0
    while taken < position:
        judge(held.start + taken, end - taken, False, &entry)
        if numbered:
            last = taken - at
        to = put_head(to, body_of(&entry, last), 0, 0, <uint64_t> last << 1)
        to = put_field(to, NULL, -1, 0)
        to = put_field(to, held.start + taken + entry.head, entry.size - entry.head, 0)
        to[0] = 0  # headers
        to += 1
        taken += entry.size
    return position, count, last, fault


cdef inline int64_t body_of(const Entry *entry, int64_t delta) noexcept nogil:
    """The value of the length field of this entry's record, which has no key and no headers."""
    return body_size(0, <uint64_t> delta << 1, field_size(-1) + field_size(entry.size - entry.head) + 1)


def complete(bytearray batch not None, long long base_offset, long long last_delta, int count):
    """Write the batch header before the records that `append_records` has appended."""
    if len(batch) < HEADER_SIZE:
        raise ValueError(f"a batch of {len(batch)} bytes")
    put_header(
        <uint8_t *> PyByteArray_AS_STRING(batch), len(batch), base_offset, last_delta, -1, 0, -1,
        -1, count,
    )
