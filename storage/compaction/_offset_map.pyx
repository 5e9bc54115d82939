"""The key map of compaction: the latest offset of each key, in bounded memory.

Of a key only a hash of 128 bits is kept, as in Kafka's SkimpyOffsetMap: keys are taken for equal
where their hashes are. Kafka's hash is MD5, for which whoever may write records can make two keys
that have the same one, so that the record of one removes that of the other. This one is
SipHash-1-3 under a secret of the map's own, and much faster.

A table of slots of 24 bytes: the hash, twice u64, and the offset + 1 as i64, 0 where the slot is
empty, so that fresh memory is an empty table and what is never used is never there. A key stands
in the slot that its hash gives, its home, or one of the next, in a circle, where those before are
used. They stand in the order of their homes (Robin Hood hashing): so a search for a key that is
not there ends at the first one from behind its home, which in a table that is nine tenths full
is after five slots and not after fifty. At most `usable` slots are used
(log.cleaner.io.buffer.load.factor), never the last one.

`latest_offset` is how far the log has been read into the map: nothing is known of later offsets.
"""

import os

from libc.stdlib cimport calloc, free

from storage.record._batch cimport load64_little

cdef enum:
    SECRET_SIZE = 16


cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>

    /* A large table is read all over: with large pages there is less to look up on the way. */
    static void kafkafs_use_large_pages(void *memory, uint64_t size)
    {
    #ifdef MADV_HUGEPAGE
        const uint64_t page = 2 << 20;
        uint64_t start = ((uint64_t) (uintptr_t) memory + page - 1) / page * page;
        uint64_t end = ((uint64_t) (uintptr_t) memory + size) / page * page;
        if (start < end)
            (void) madvise((void *) (uintptr_t) start, end - start, MADV_HUGEPAGE);
    #endif
    }
    """
    void use_large_pages "kafkafs_use_large_pages"(void *memory, uint64_t size) noexcept nogil


cdef class OffsetMap:
    """Key to latest offset; as many keys as `memory_bytes` have slots for, times `load_factor`.

    `most`: how many keys there can be at most; the table is then no larger than they need.
    `secret`, 16 bytes, is random by default. `is_full` says that no key, new or known, can be
    put any more: that is where Kafka stops building its map (Cleaner.buildOffsetMapForSegment).
    """

    def __cinit__(
        self, long long memory_bytes, double load_factor=0.9, *, most=None, bytes secret=None
    ):
        cdef const uint8_t *bits
        if not 0 < load_factor <= 1:
            raise ValueError(f"a load factor of {load_factor}")
        self.slots = memory_bytes // <int64_t> sizeof(Slot)
        if most is not None:
            self.slots = min(self.slots, <long long> (max(most, 1) / load_factor) + 2)
        self.usable = min(<long long> (self.slots * load_factor), self.slots - 1)
        if self.usable < 1:
            raise ValueError(f"no key fits into {memory_bytes} bytes of map")
        if secret is None:
            secret = os.urandom(SECRET_SIZE)
        if len(secret) != SECRET_SIZE:
            raise ValueError(f"a secret of {len(secret)} bytes")
        bits = secret
        self.k0 = load64_little(bits)
        self.k1 = load64_little(bits + 8)
        self.latest_offset = -1
        self.table = <Slot *> calloc(self.slots, sizeof(Slot))
        if self.table == NULL:
            raise MemoryError(f"{self.memory} bytes for a key map")
        use_large_pages(self.table, self.memory)

    def __dealloc__(self):
        free(self.table)

    def __len__(self):
        return self.used

    @property
    def is_full(self):
        return self.used >= self.usable

    @property
    def memory(self):
        """Bytes of the table."""
        return self.slots * <int64_t> sizeof(Slot)

    def get(self, bytes key not None):
        """The key's latest offset; -1 where it is not in the map."""
        return find(self, hash_key(self, key, len(key)))

    def put(self, bytes key not None, long long offset):
        """Note that the key's latest offset is this one. The map must not be full."""
        assert offset >= 0, offset
        assert put(self, hash_key(self, key, len(key)), offset), "the map is full"

    def hash(self, bytes key not None):
        """The hash of a key in this map, 16 bytes."""
        cdef Hash made = hash_key(self, key, len(key))
        return made.low.to_bytes(8, "little") + made.high.to_bytes(8, "little")
