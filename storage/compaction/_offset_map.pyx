"""The offset map of compaction: the latest offset of each key, in bounded memory.

Like Kafka's SkimpyOffsetMap, the map stores only a hash of 128 bits of each key: keys with equal
hashes count as equal. Kafka uses MD5, for which anyone who may write records can make two keys
with one hash, so that the record of one removes the record of the other. This map uses SipHash-1-3
with a random secret for each map, which is also much faster.

The table has slots of 24 bytes: the hash as two u64, and the offset + 1 as i64. 0 marks an empty
slot, so fresh memory is an empty table. The hash gives the key's home slot; if that is used, the
key is in one of the next slots, in a circle. Keys are in the order of their homes (Robin Hood
hashing). So the search for a missing key ends at the first key whose home is behind the missing
key's: in a table that is nine tenths full, after five slots and not after fifty. The map uses at
most `usable` slots (log.cleaner.io.buffer.load.factor), and never all of them.

The table begins small and doubles up to its limit, so it takes only the memory that its keys need.
While keys move to a new table, the map frees the old table step by step: both together
are hardly larger than the new one.

`latest_offset` is the last offset of the log that the map covers: it knows no later offsets.
"""

import os

from storage.record._batch cimport load64_little

cdef enum:
    SECRET_SIZE = 16
    FIRST_SLOTS = 4096
    GIVEN_BACK = 1 << 17  # slots whose memory is returned at a time
    NEVER = 0x7FFFFFFFFFFFFFFF


cdef extern from "storage/compaction/memory.h":
    void *new_memory "kafkafs_new_memory"(uint64_t size) noexcept nogil
    void end_memory "kafkafs_end_memory"(void *memory, uint64_t size) noexcept nogil
    void give_back "kafkafs_give_back"(void *memory, uint64_t size) noexcept nogil


cdef class OffsetMap:
    """Maps each key to its latest offset.

    The map takes as many keys as `memory_bytes` have slots for, times `load_factor`. `most` is the
    largest number of keys that there can be; the map has no more `slots` than these need. `secret`,
    16 bytes, is random by default. `is_full`: the map takes no key any more, new or known; Kafka
    stops building its map at that point (Cleaner.buildOffsetMapForSegment). A map is full earlier
    if the system gives it no more memory.
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
            raise ValueError(f"a map of {memory_bytes} bytes is too small for a key")
        if secret is None:
            secret = os.urandom(SECRET_SIZE)
        if len(secret) != SECRET_SIZE:
            raise ValueError(f"a secret of {len(secret)} bytes")
        bits = secret
        self.k0 = load64_little(bits)
        self.k1 = load64_little(bits + 8)
        self.latest_offset = -1
        take_table(self, min(self.slots, <long long> FIRST_SLOTS))
        if self.table == NULL:
            raise MemoryError("not enough memory for an offset map")

    def __dealloc__(self):
        if self.table != NULL:
            end_memory(self.table, self.room * sizeof(Slot))

    def __len__(self):
        return self.used

    @property
    def is_full(self):
        return self.used >= self.usable

    @property
    def memory(self):
        """Bytes of the current table."""
        return self.room * <int64_t> sizeof(Slot)

    def get(self, bytes key not None):
        """The key's latest offset; -1 if the map does not have the key."""
        return find(self, hash_key(self, key, len(key)))

    def put(self, bytes key not None, long long offset):
        """Set the key's latest offset. The map must not be full."""
        assert offset >= 0, offset
        assert put(self, hash_key(self, key, len(key)), offset), "the map is full"

    def hash(self, bytes key not None):
        """The hash of a key in this map, 16 bytes."""
        cdef Hash made = hash_key(self, key, len(key))
        return made.low.to_bytes(8, "little") + made.high.to_bytes(8, "little")


cdef bint take_table(OffsetMap map, int64_t room) noexcept nogil:
    """Give the map an empty table of `room` slots; False if there is no memory for it."""
    cdef Slot *table = <Slot *> new_memory(room * sizeof(Slot))
    if table == NULL:
        return False
    map.table = table
    map.room = room
    # Grow at five eighths, so that few keys are far from home; the largest table cannot grow.
    map.grow_at = room // 8 * 5 if room < map.slots else <int64_t> NEVER
    return True


cdef void grow(OffsetMap map) noexcept nogil:
    """Move the keys to a table of twice as many slots, or of `slots`, the limit.

    If there is no memory for it, the map keeps its table and never grows again.
    """
    cdef Slot *old = map.table
    cdef int64_t old_room = map.room
    cdef int64_t i
    if not take_table(map, min(2 * old_room, <int64_t> map.slots)):
        map.slots = old_room
        map.usable = min(map.usable, old_room - 1)
        map.grow_at = NEVER
        return
    for i in range(old_room):
        if old[i].next_offset != 0:
            place(map.table, map.room, old[i])
        if (i + 1) % GIVEN_BACK == 0:
            give_back(old + i + 1 - GIVEN_BACK, GIVEN_BACK * sizeof(Slot))
    end_memory(old, old_room * sizeof(Slot))
