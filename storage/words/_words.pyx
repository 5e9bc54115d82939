"""Collects the entries of batches, and makes parts of a `.words` file of them.

Pure. Entries: `storage/words/query.py`; the file: `storage/words/layout.py`; records:
`storage/record/batch.py`.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from storage.record._batch cimport (
    ATTRIBUTES, BAD_BATCH_LENGTH, BAD_HEADERS, BAD_OFFSETS, BASE_OFFSET, CONTROL_BIT, HEADER_SIZE,
    LAST_OFFSET, LAST_OFFSET_DELTA, NO_FAULT, RELEASE_GIL_FROM, Fault, Fields, PinnedBuffer,
    RecordHead, bounded_varint, headers_fill, hold, load32, load64, read_fields, read_head, size_of,
)
from storage.record._crc cimport crc32c_of
from storage.record._utf8 cimport sequence_at

from storage.record._batch import refusal


cdef extern from "storage/words/words.h":
    enum:
        CHUNK "KAFKAFS_CHUNK"
    ctypedef struct Set "kafkafs_words":
        uint32_t *slots
        uint64_t size
        uint64_t count
        bint full
        uint64_t k0
        uint64_t k1
    ctypedef struct Numbers "kafkafs_numbers":
        const uint8_t *end
        unsigned count
    bint clear "kafkafs_words_clear"(Set *words) noexcept nogil
    void add "kafkafs_words_add"(Set *words, uint32_t hash) noexcept nogil
    void add_word "kafkafs_add_word"(
        Set *words, Numbers *numbers, const uint8_t *at, const uint8_t *end
    ) noexcept nogil
    uint32_t entry_hash "kafkafs_entry_hash"(
        uint64_t k0, uint64_t k1, const uint8_t *at, int64_t size, bint is_key
    ) noexcept nogil
    void classes "kafkafs_classes"(
        const uint8_t *at, uint64_t *words, uint64_t *leads
    ) noexcept nogil
    int lowest_bit "__builtin_ctzll"(unsigned long long bits) noexcept nogil


# `storage/words/layout.py` documents these.
cpdef enum:
    MOST_BLOCKS = 256
    PAGE_BUCKETS = 512
    BUCKET_BYTES = 8
    ANY_BLOCK = 0xFF
    MOST_RARE = 18
    BITS_SIZE = 32
    # The most entries of a part, an entry of several blocks being several, unless one block has
    # more: memory for twice as many u64 is needed.
    MOST_ENTRIES = 2500000

cdef enum:
    # A sort by the 32 bits of a hash, in three turns.
    TURN_BITS = 11
    TURNS = 3
    BLOCK_BITS = 8


def hash_of(data not None, unsigned long long secret, unsigned long long secret_2, bint is_key):
    """Return the hash of an entry, or of a whole key (`is_key`)."""
    cdef PinnedBuffer held = hold(data)
    return entry_hash(secret, secret_2, held.start, held.size, is_key)


cdef void add_field(
    Set *words, const uint8_t *at, const uint8_t *end, const uint8_t *limit
) noexcept nogil:
    """Add the entries of bytes. It reads nothing from `limit` on."""
    cdef uint8_t padded[CHUNK]
    cdef Numbers numbers
    cdef const uint8_t *word = NULL  # the start of the word in which a chunk ends
    cdef uint64_t in_word, leads, edges
    cdef int size
    cdef int each
    numbers.end, numbers.count = NULL, 0
    while at < end and not words.full:
        if limit - at >= CHUNK:
            classes(at, &in_word, &leads)
        else:
            memset(padded, 0, CHUNK)
            memcpy(padded, at, min(end - at, <int64_t> CHUNK))
            classes(padded, &in_word, &leads)
        if end - at < CHUNK:
            in_word &= (<uint64_t> 1 << (end - at)) - 1
            leads &= (<uint64_t> 1 << (end - at)) - 1
        edges = in_word ^ (in_word << 1 | (word != NULL))
        while edges:
            each = lowest_bit(edges)
            edges &= edges - 1
            if word == NULL:
                word = at + each
            else:
                add_word(words, &numbers, word, at + each)
                word = NULL
        while leads:
            each = lowest_bit(leads)
            leads &= leads - 1
            size = sequence_at(at + each, end - at - each)
            if size > 0:
                add(words, entry_hash(words.k0, words.k1, at + each, size, False))
        at += CHUNK
    if word != NULL and not words.full:
        add_word(words, &numbers, word, end)


cdef void add_record(
    Set *words, const RecordHead *head, const Fields *fields, const uint8_t *limit
) noexcept nogil:
    cdef const uint8_t *at
    cdef int32_t count = 0
    cdef int32_t length = 0
    cdef int32_t left
    if head.key_length >= 0:
        add(words, entry_hash(words.k0, words.k1, fields.key, head.key_length, True))
        add_field(words, fields.key, fields.key + head.key_length, limit)
    if fields.value_length > 0:
        add_field(words, fields.value, fields.value + fields.value_length, limit)
    at = bounded_varint(fields.headers, fields.end, &count)
    for left in range(2 * count):
        at = bounded_varint(at, fields.end, &length)
        if length > 0:
            add_field(words, at, at + length, limit)
            at += length


cdef Fault add_batches(
    Set *words, const uint8_t *start, int64_t size, int64_t *next_offset, int64_t *position
) noexcept nogil:
    """Add the records of plain batches. If there is a fault, `position` is that of its batch."""
    cdef const uint8_t *limit = start + size
    cdef const uint8_t *batch = start
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t base
    cdef int32_t last_delta
    cdef RecordHead head
    cdef Fields fields
    cdef Fault fault
    while batch < limit:
        position[0] = batch - start
        if limit - batch < HEADER_SIZE or not HEADER_SIZE <= size_of(batch) <= limit - batch:
            return BAD_BATCH_LENGTH
        end = batch + size_of(batch)
        at = batch + HEADER_SIZE
        base = <int64_t> load64(batch + BASE_OFFSET)
        last_delta = <int32_t> load32(batch + LAST_OFFSET_DELTA)
        # A block is a range of offsets.
        if base < next_offset[0] or last_delta < 0 or base >= <int64_t> LAST_OFFSET - last_delta:
            return BAD_OFFSETS
        if batch[ATTRIBUTES + 1] & CONTROL_BIT:
            at = end
        while at < end:
            fault = read_head(at, end - at, end - at, &head)
            if fault == NO_FAULT:
                fault = read_fields(at, &head, &fields)
            if fault != NO_FAULT:
                return fault
            if not headers_fill(fields.headers, fields.end):
                return BAD_HEADERS
            if not 0 <= head.offset_delta <= last_delta:
                return BAD_OFFSETS
            if not words.full:
                add_record(words, &head, &fields, limit)
            at = fields.end
        next_offset[0] = base + last_delta + 1
        batch = end
    return NO_FAULT


cdef struct Table:
    # The entries of a part, sorted by hash.
    const uint64_t *pairs
    int64_t count
    int64_t buckets


cdef inline int64_t run_at(const Table *table, int64_t at) noexcept nogil:
    """The end of the pairs with the hash of the one at `at`."""
    cdef uint64_t hash = table.pairs[at] >> BLOCK_BITS
    while True:
        at += 1
        if at == table.count or table.pairs[at] >> BLOCK_BITS != hash:
            return at


cdef inline int64_t bucket_of(const Table *table, int64_t at) noexcept nogil:
    return <int64_t> ((table.pairs[at] >> BLOCK_BITS) * <uint64_t> table.buckets >> 32)


cdef int64_t bytes_of(const Table *table) noexcept nogil:
    """The bytes of all slots and common entries."""
    cdef int64_t size = 0
    cdef int64_t at = 0
    cdef int64_t end
    while at < table.count:
        end = run_at(table, at)
        size += 2 * (end - at) if end - at <= MOST_RARE else 4 + BITS_SIZE
        at = end
    return size


cdef uint8_t *put_page(
    const Table *table, int64_t bucket, int64_t *first, uint8_t *out
) noexcept nogil:
    """Write a page without its checksum, from a bucket on; return its end. `first`: its first pair,
    then that of the next page.
    """
    cdef int64_t counts[PAGE_BUCKETS]
    cdef int64_t at = first[0]
    cdef int64_t common = 0
    cdef int64_t end, last, each
    cdef uint8_t *slots = out + PAGE_BUCKETS
    cdef uint8_t *hashes = slots
    cdef uint8_t *bits
    memset(counts, 0, sizeof(counts))
    while at < table.count and bucket_of(table, at) - bucket < PAGE_BUCKETS:
        end = run_at(table, at)
        if end - at > MOST_RARE:
            common += 1
        else:
            counts[bucket_of(table, at) - bucket] += end - at
        at = end
    for each in range(PAGE_BUCKETS):
        if counts[each] >= ANY_BLOCK:
            counts[each] = ANY_BLOCK
        else:
            hashes += 2 * counts[each]
        out[each] = <uint8_t> counts[each]
    bits = hashes + 4 * common
    memset(bits, 0, common * BITS_SIZE)
    last, at, first[0] = at, first[0], at
    while at < last:
        end = run_at(table, at)
        if end - at > MOST_RARE:
            put32(hashes, <uint32_t> (table.pairs[at] >> BLOCK_BITS))
            hashes += 4
            for each in range(at, end):
                bits[(table.pairs[each] & 0xFF) >> 3] |= 1 << (table.pairs[each] & 7)
            bits += BITS_SIZE
        elif counts[bucket_of(table, at) - bucket] != ANY_BLOCK:
            for each in range(at, end):
                # The block, and above it the last bits of the hash.
                put16(slots, <uint16_t> table.pairs[each])
                slots += 2
        at = end
    return bits


cdef inline void put16(uint8_t *at, uint16_t bits) noexcept nogil:
    at[0], at[1] = bits & 0xFF, bits >> 8


cdef inline void put32(uint8_t *at, uint32_t bits) noexcept nogil:
    put16(at, bits & 0xFFFF)
    put16(at + 2, bits >> 16)


cdef inline uint32_t checksum_of(
    const uint8_t *start, int64_t size, uint64_t secret, int64_t position
) noexcept nogil:
    return crc32c_of(start, size) ^ <uint32_t> (secret + <uint64_t> position)


def checksum(data not None, unsigned long long secret, long long position):
    """Return the checksum of the bytes at a position of the file: their CRC-32C, changed so that
    the same bytes elsewhere, or in another file, have another one.
    """
    cdef PinnedBuffer held = hold(data)
    return checksum_of(held.start, held.size, secret, position)


cdef uint8_t *put_checksum(
    const uint8_t *start, uint8_t *end, uint64_t secret, int64_t position
) noexcept nogil:
    put32(end, checksum_of(start, end - start, secret, position))
    return end + 4


cdef void sort(uint64_t *pairs, uint64_t *others, int64_t count) noexcept nogil:
    """Sort by hash, from `pairs` to `others`; pairs with the same hash keep their order."""
    cdef int64_t places[1 << TURN_BITS]
    cdef int64_t place, size, at
    cdef uint64_t digit
    cdef int turn
    cdef int shift
    for turn in range(TURNS):
        shift = BLOCK_BITS + turn * TURN_BITS
        memset(places, 0, sizeof(places))
        for at in range(count):
            places[(pairs[at] >> shift) & ((1 << TURN_BITS) - 1)] += 1
        place = 0
        for at in range(1 << TURN_BITS):
            size, places[at] = places[at], place
            place += size
        for at in range(count):
            digit = (pairs[at] >> shift) & ((1 << TURN_BITS) - 1)
            others[places[digit]] = pairs[at]
            places[digit] += 1
        pairs, others = others, pairs


cdef class PartBuilder:
    """Collects the entries of a block, and of the blocks of a part.

    count        pairs of an entry and a block of the part
    next_offset  the offset after the batches that were read
    """

    cdef Set words
    cdef uint64_t *pairs
    cdef int64_t room
    cdef readonly long long count
    cdef readonly long long next_offset

    def __cinit__(
        self, unsigned long long secret, unsigned long long secret_2, long long next_offset
    ):
        self.words.k0, self.words.k1 = secret, secret_2
        self.next_offset = next_offset
        if not clear(&self.words):
            raise MemoryError

    def __dealloc__(self):
        free(self.words.slots)
        free(self.pairs)

    def read(self, batches not None):
        """Add the entries of whole batches in plain form to the block.

        Raises CorruptRecord if a reader would refuse a record, or if an offset is in no order.
        """
        cdef PinnedBuffer held = hold(batches)
        cdef int64_t next_offset = self.next_offset
        cdef int64_t position = 0
        cdef Fault fault
        # (A byte takes longer here than in other loops.)
        if held.size < RELEASE_GIL_FROM // 8:
            fault = add_batches(&self.words, held.start, held.size, &next_offset, &position)
        else:
            with nogil:
                fault = add_batches(&self.words, held.start, held.size, &next_offset, &position)
        if fault != NO_FAULT:
            size = min(held.size - position, <int64_t> HEADER_SIZE)
            raise refusal(fault, position, (<const char *> held.start + position)[:size])
        self.next_offset = next_offset

    @property
    def block_count(self):
        """The entries of the block; None if there is no room for all, so that it may have any."""
        return None if self.words.full else self.words.count

    def end_block(self, int block):
        """Add the entries of the block, if it has room for all, to the part; begin another one."""
        cdef uint64_t at
        cdef int64_t wanted = self.count + (0 if self.words.full else self.words.count)
        cdef int64_t room
        cdef uint64_t *moved
        if wanted > self.room:
            room = max(wanted, min(2 * self.room, <int64_t> MOST_ENTRIES))
            moved = <uint64_t *> realloc(self.pairs, room * sizeof(uint64_t))
            if moved == NULL:
                raise MemoryError
            self.pairs, self.room = moved, room
        with nogil:
            for at in range(0 if self.words.full else self.words.size):
                if self.words.slots[at]:
                    self.pairs[self.count] = (
                        <uint64_t> self.words.slots[at] << BLOCK_BITS | <uint64_t> block
                    )
                    self.count += 1
        if not clear(&self.words):
            raise MemoryError

    def end(self, long long position):
        """Return the pages of the part at a position of the file, its directory, and its number of
        buckets; begin another part.
        """
        cdef Table table
        cdef bytearray pages, directory
        cdef int64_t size, count, page
        cdef int64_t first = 0
        cdef uint8_t *start
        cdef uint8_t *out
        cdef uint8_t *end
        cdef uint8_t *ends
        cdef uint64_t secret = self.words.k0
        cdef uint64_t *sorted_ = <uint64_t *> malloc(
            max(self.count, <int64_t> 1) * sizeof(uint64_t)
        )
        if sorted_ == NULL:
            raise MemoryError
        try:
            table.pairs, table.count = sorted_, self.count
            with nogil:
                sort(self.pairs, sorted_, self.count)
                size = bytes_of(&table)
            table.buckets = max((size + BUCKET_BYTES - 1) // BUCKET_BYTES, 1)
            count = (table.buckets + PAGE_BUCKETS - 1) // PAGE_BUCKETS
            pages = PyByteArray_FromStringAndSize(NULL, size + count * (PAGE_BUCKETS + 4))
            directory = PyByteArray_FromStringAndSize(NULL, 4 * count + 4)
            start = out = <uint8_t *> PyByteArray_AS_STRING(pages)
            ends = <uint8_t *> PyByteArray_AS_STRING(directory)
            with nogil:
                for page in range(count):
                    end = put_page(&table, page * PAGE_BUCKETS, &first, out)
                    out = put_checksum(out, end, secret, position + (out - start))
                    put32(ends + 4 * page, <uint32_t> (out - start))
                put_checksum(ends, ends + 4 * count, secret, position + (out - start))
            size = out - start
        finally:
            free(sorted_)
        self.count = 0
        del pages[size:]
        return pages, directory, table.buckets
