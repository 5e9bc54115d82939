"""The offset map of compaction (`_offset_map.pyx`) for loops without the GIL, as inline functions.

Loops call the functions for each record. `prefetch` fetches the memory of a hash's slot: a loop
that hashes and prefetches several keys before it looks up the first does not wait for each.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef extern from "storage/record/siphash.h":
    ctypedef struct Hash "kafkafs_hash":
        uint64_t low
        uint64_t high
    Hash siphash "kafkafs_siphash"(
        uint64_t k0, uint64_t k1, const uint8_t *key, int64_t size, bint folds
    ) noexcept nogil
    uint64_t home "kafkafs_home"(uint64_t low, uint64_t slots) noexcept nogil
    void prefetch_memory "kafkafs_prefetch"(const void *at) noexcept nogil


cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t next_offset  # the key's offset + 1; 0: the slot is empty


cdef class OffsetMap:
    cdef Slot *table
    cdef int64_t room  # slots that the table has now
    cdef int64_t grow_at  # the number of used slots at which the table grows
    cdef readonly long long slots
    cdef readonly long long usable
    cdef public long long latest_offset
    cdef int64_t used
    cdef uint64_t k0
    cdef uint64_t k1


cdef void grow(OffsetMap map) noexcept nogil


cdef inline Hash hash_key(OffsetMap map, const uint8_t *key, int64_t size) noexcept nogil:
    return siphash(map.k0, map.k1, key, size, False)


cdef inline void prefetch(OffsetMap map, Hash hash) noexcept nogil:
    prefetch_memory(map.table + home(hash.low, map.room))


cdef inline uint64_t next_index(uint64_t index, uint64_t room) noexcept nogil:
    index += 1
    return index if index < room else 0


cdef inline uint64_t away(uint64_t low, uint64_t index, uint64_t room) noexcept nogil:
    """How many slots the key in a slot is from its home."""
    cdef uint64_t first = home(low, room)
    return index - first if index >= first else index + room - first


cdef inline int64_t find(OffsetMap map, Hash hash) noexcept nogil:
    """The key's offset; -1 if the map does not have the key."""
    cdef uint64_t index = home(hash.low, map.room)
    cdef uint64_t passed = 0
    cdef Slot *slot = map.table + index
    while slot.next_offset != 0:
        if slot.low == hash.low and slot.high == hash.high:
            return slot.next_offset - 1
        if passed > away(slot.low, index, map.room):
            break
        index = next_index(index, map.room)
        slot = map.table + index
        passed += 1
    return -1


cdef inline bint place(Slot *table, uint64_t room, Slot key) noexcept nogil:
    """Put a key into a table that is not full; return whether the key is new."""
    cdef uint64_t index = home(key.low, room)
    cdef uint64_t passed = 0
    cdef Slot *slot = table + index
    cdef Slot moved
    while slot.next_offset != 0:
        if slot.low == key.low and slot.high == key.high:
            slot.next_offset = key.next_offset
            return False
        if passed > away(slot.low, index, room):
            break
        index = next_index(index, room)
        slot = table + index
        passed += 1
    # The key belongs here; the keys from here to the next empty slot move on by one slot.
    while slot.next_offset != 0:
        moved = slot[0]
        slot[0] = key
        key = moved
        index = next_index(index, room)
        slot = table + index
    slot[0] = key
    return True


cdef inline bint put(OffsetMap map, Hash hash, int64_t offset) noexcept nogil:
    """Set the key's offset, 0 or more. If the map is full, set nothing and return False."""
    cdef Slot key
    if map.used >= map.grow_at:
        grow(map)
    if map.used >= map.usable:
        return False
    key.low = hash.low
    key.high = hash.high
    key.next_offset = offset + 1
    map.used += place(map.table, map.room, key)
    map.latest_offset = offset
    return True
