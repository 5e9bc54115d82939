"""Finds the superseded records of a log, those with a later record of the same key, in processes.

Each `KeyScan` goes through a range of the log. It maps the keys of the dirty part of the range, and
so notes every record that is superseded within the range. It cannot judge the last record of each
key, because a record in another range may supersede it; nor any record below the first dirty
offset, because by the cleaner's rules only dirty records supersede. For these it returns *keys*:
hash and offset, 24 bytes, in the format of a map's slots (`_offset_map.pxd`), dealt out to buckets
by hash. Each bucket has one `KeyMerge`, which gets the bucket's keys of all ranges, all dirty ones
first, and notes the remaining superseded records.

Both return the superseded records by groups of segments, as u32 offsets relative to a group's first
offset. A `Superseded` has all of one group, a bit for each offset; with it a `Keeper` needs no map.

The maps of all processes must have the same secret, so that a key has the same hash in each.
Numbers are in the machine's byte order: the processes run on machines of one kind.

A range's map has its keys in the order of the lower halves of their hashes, and a bucket gets them
in that order. The bucket's map orders them by the upper halves: keys that come in the order of
their slots would crowd at the front of a table that grows. A bucket is a run of upper halves.
`KeyMerge` stretches that run over all numbers, because its keys would else have the same few home
slots.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from storage.compaction._offset_map cimport Hash, OffsetMap, Slot, find, home, prefetch, put
from storage.compaction._records cimport (
    KEYS, Records, Seen, enter, have_room, judge_plain, read_some, simple_size,
)
from storage.record._batch cimport HEADER_SIZE, LAST_OFFSET, NO_FAULT, Fault

from storage.errors import CorruptRecord
from storage.record._batch import refusal

cdef enum:
    AHEAD = 32  # a loop prefetches a slot's memory this many keys before it needs it
    LARGEST_GROUP = 0x100000000


cdef class Offsets:
    """A list of offsets, in any order."""

    cdef int64_t *items
    cdef int64_t count
    cdef int64_t room

    def __dealloc__(self):
        free(self.items)

    cdef bint add(self, int64_t offset) noexcept nogil:
        """Add an offset; False if there is no memory for it."""
        if not have_room(<void **> &self.items, &self.room, self.count + 1, sizeof(int64_t)):
            return False
        self.items[self.count] = offset
        self.count += 1
        return True

    cdef list by_group(self, bounds):
        """(number of the group, u32 offsets relative to its base) for each group that has any."""
        cdef int64_t groups = len(bounds) - 1
        cdef int64_t *starts = <int64_t *> malloc(max(groups + 1, 1) * sizeof(int64_t))
        cdef int64_t *sizes = <int64_t *> calloc(max(groups, 1), sizeof(int64_t))
        cdef uint32_t **ends = <uint32_t **> calloc(max(groups, 1), sizeof(uint32_t *))
        cdef int64_t i
        cdef int64_t at = 0
        cdef bint fits = True
        cdef bytes made
        try:
            if starts == NULL or sizes == NULL or ends == NULL:
                raise MemoryError
            for i, bound in enumerate(bounds):
                starts[i] = bound
                assert i == 0 or 0 < starts[i] - starts[i - 1] <= <int64_t> LARGEST_GROUP
            with nogil:
                for i in range(self.count):
                    at = group_of(starts, groups, self.items[i], at)
                    if at < 0 or at == groups:
                        fits = False
                        break
                    sizes[at] += 1
            if not fits:
                # No CRC covers a batch's base offset.
                offset = self.items[i]
                raise CorruptRecord("a record's offset is outside its log", offset=offset)
            found = []
            for i in range(groups):
                if sizes[i]:
                    made = PyBytes_FromStringAndSize(NULL, sizes[i] * sizeof(uint32_t))
                    ends[i] = <uint32_t *> PyBytes_AS_STRING(made)
                    found.append((i, made))
            at = 0
            with nogil:
                for i in range(self.count):
                    at = group_of(starts, groups, self.items[i], at)
                    ends[at][0] = <uint32_t> (self.items[i] - starts[at])
                    ends[at] += 1
            return found
        finally:
            free(starts)
            free(sizes)
            free(ends)


cdef int64_t group_of(
    const int64_t *starts, int64_t groups, int64_t offset, int64_t last
) noexcept nogil:
    """The group with an offset; -1 below the first, `groups` behind the last.

    `last` is the group of the offset before, which the search tries first.
    """
    cdef int64_t low = 0
    cdef int64_t high = groups + 1
    cdef int64_t middle
    if last < groups and starts[last] <= offset < starts[last + 1]:
        return last
    while low < high:
        middle = (low + high) >> 1
        if starts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef class KeyScan:
    """Takes the batches of a range in order; the caller leaves out control and aborted batches.

    `map` is a new map for this range. The methods raise MemoryError if its keys do not fit.
    """

    cdef OffsetMap map
    cdef int64_t first_dirty
    cdef Slot *listed
    cdef int64_t listed_count
    cdef int64_t listed_room
    cdef Offsets superseded
    cdef bint full

    def __cinit__(self, OffsetMap map not None, long long first_dirty):
        self.map = map
        self.first_dirty = first_dirty
        self.superseded = Offsets()

    def __dealloc__(self):
        free(self.listed)

    def take_batches(self, data not None, long long at, long long end):
        """Take the simple batches in `data[at:end]`; return where it stops (see `map_batches`)."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= at <= end <= view.len:
                raise ValueError(f"{at} to {end} of a buffer of {view.len}")
            with nogil:
                at = self.run(<const uint8_t *> view.buf, at, end)
        finally:
            PyBuffer_Release(&view)
        self.check_full()
        return at

    def take_batch(self, batch not None):
        """Take one batch in plain form.  Raises CorruptRecord."""
        cdef Py_buffer view
        cdef Fault fault
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            fault = judge_plain(<const uint8_t *> view.buf, view.len)
            if fault == NO_FAULT:
                fault = self.take(<const uint8_t *> view.buf, view.len)
            if fault != NO_FAULT:
                raise refusal(fault, 0, (<const char *> view.buf)[:min(view.len, HEADER_SIZE)])
        finally:
            PyBuffer_Release(&view)
        self.check_full()

    cdef int check_full(self) except -1:
        if self.full:
            raise MemoryError("not enough memory for the keys of a range of a log")
        return 0

    cdef int64_t run(self, const uint8_t *data, int64_t at, int64_t end) noexcept nogil:
        cdef int64_t size
        while at < end and not self.full:
            size = simple_size(data + at, end - at)
            if size == 0 or self.take(data + at, size) != NO_FAULT:
                break
            at += size
        return at

    cdef Fault take(self, const uint8_t *batch, int64_t size) noexcept nogil:
        cdef Records records
        cdef Seen seen[KEYS]
        cdef int count
        cdef int i
        cdef Fault fault = enter(batch, size, &records)
        while fault == NO_FAULT and records.left:
            fault = read_some(&records, self.map, 0, LAST_OFFSET, seen, &count)
            if fault != NO_FAULT:
                break
            for i in range(count):
                if not seen[i].looked_up:
                    continue
                if seen[i].offset < self.first_dirty:
                    self.full |= not self.enter_listed(seen[i].hash, seen[i].offset)
                else:
                    self.full |= not replace(
                        self.map, seen[i].hash, seen[i].offset, self.superseded
                    )
        return fault

    cdef bint enter_listed(self, Hash hash, int64_t offset) noexcept nogil:
        if not have_room(
            <void **> &self.listed, &self.listed_room, self.listed_count + 1, sizeof(Slot)
        ):
            return False
        self.listed[self.listed_count] = Slot(hash.low, hash.high, offset + 1)
        self.listed_count += 1
        return True

    def dirty_keys(self, int buckets):
        """The last dirty record of each key, as keys by bucket."""
        return dealt(self.map.table, self.map.room, buckets)

    def clean_keys(self, int buckets):
        """The records below the first dirty offset, as keys by bucket."""
        return dealt(self.listed, self.listed_count, buckets)

    def superseded_by_group(self, bounds not None):
        """The offsets that are superseded within the range: (group number, u32 offsets as bytes).

        `bounds` has the first offsets of all groups, rising, and the end of the last one. Raises
        CorruptRecord if an offset lies in no group.
        """
        return self.superseded.by_group(bounds)


cdef bint replace(OffsetMap map, Hash hash, int64_t offset, Offsets superseded) noexcept nogil:
    """Put a dirty key into the map, and note the earlier one of its two records as superseded.

    Returns False if there is no memory for it.
    """
    cdef int64_t before = find(map, hash)
    if before >= offset:
        return before == offset or superseded.add(offset)
    return put(map, hash, offset) and (before < 0 or superseded.add(before))


cdef list dealt(const Slot *slots, int64_t count, int buckets):
    """Copy the used slots into one bytes object for each bucket."""
    cdef int64_t *sizes
    cdef Slot **ends
    cdef int64_t i
    cdef int64_t number
    cdef bytes some
    if buckets < 1:
        raise ValueError(f"{buckets} buckets")
    sizes = <int64_t *> calloc(buckets, sizeof(int64_t))
    ends = <Slot **> calloc(buckets, sizeof(Slot *))
    try:
        if sizes == NULL or ends == NULL:
            raise MemoryError
        with nogil:
            for i in range(count):
                if slots[i].next_offset != 0:
                    sizes[home(slots[i].high, buckets)] += 1
        made = []
        for i in range(buckets):
            some = PyBytes_FromStringAndSize(NULL, sizes[i] * sizeof(Slot))
            ends[i] = <Slot *> PyBytes_AS_STRING(some)
            made.append(some)
        with nogil:
            for i in range(count):
                if slots[i].next_offset != 0:
                    number = home(slots[i].high, buckets)
                    memcpy(ends[number], slots + i, sizeof(Slot))
                    ends[number] += 1
        return made
    finally:
        free(sizes)
        free(ends)


cdef class KeyMerge:
    """Finds the superseded records among the keys of one of `buckets`; `map` has room for them."""

    cdef OffsetMap map
    cdef Offsets superseded
    cdef uint64_t buckets
    cdef bint listing

    def __cinit__(self, OffsetMap map not None, int buckets):
        if buckets < 1:
            raise ValueError(f"{buckets} buckets")
        self.buckets = buckets
        self.map = map
        self.superseded = Offsets()

    def add_dirty(self, keys not None):
        """Add the dirty keys of one range."""
        assert not self.listing, "all dirty keys come before the clean ones"
        self.add(keys, True)

    def add_clean(self, keys not None):
        """Add a range's keys below the first dirty offset, after the dirty keys of all ranges."""
        self.listing = True
        self.add(keys, False)

    cdef int add(self, keys, bint dirty) except -1:
        cdef Py_buffer view
        cdef bint done
        PyObject_GetBuffer(keys, &view, PyBUF_SIMPLE)
        try:
            if view.len % sizeof(Slot):
                raise ValueError(f"{view.len} bytes of keys")
            with nogil:
                done = self.run(<const uint8_t *> view.buf, view.len // sizeof(Slot), dirty)
        finally:
            PyBuffer_Release(&view)
        if not done:
            raise MemoryError("not enough memory for the keys of a bucket")
        return 0

    cdef bint run(self, const uint8_t *keys, int64_t count, bint dirty) noexcept nogil:
        cdef Slot key
        cdef Hash hash = Hash(0, 0)
        cdef int64_t i
        for i in range(count):
            if i + AHEAD < count:
                memcpy(&key, keys + (i + AHEAD) * sizeof(Slot), sizeof(Slot))
                hash.low = key.high * self.buckets
                prefetch(self.map, hash)
            memcpy(&key, keys + i * sizeof(Slot), sizeof(Slot))
            hash.low = key.high * self.buckets
            hash.high = key.low
            if dirty:
                if not replace(self.map, hash, key.next_offset - 1, self.superseded):
                    return False
            elif find(self.map, hash) >= key.next_offset and not self.superseded.add(
                key.next_offset - 1
            ):
                return False
        return True

    @property
    def keys(self):
        """The number of different dirty keys."""
        return len(self.map)

    def superseded_by_group(self, bounds not None):
        """The offsets that another range supersedes, as in `KeyScan.superseded_by_group`."""
        return self.superseded.by_group(bounds)


cdef class Superseded:
    """Has a bit for each of the `count` offsets from `first` on: whether it is superseded."""

    def __cinit__(self, long long first, long long count):
        if not 0 <= count <= <int64_t> LARGEST_GROUP:
            raise ValueError(f"{count} offsets")
        self.first = first
        self.count = count
        # Pages that nothing is written to take no memory.
        self.bits = <uint8_t *> calloc(count // 8 + 1, 1)
        if self.bits == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.bits)

    def add(self, offsets not None):
        """Mark offsets of the group as superseded: u32, relative to its first offset."""
        cdef Py_buffer view
        cdef int64_t i
        cdef uint32_t at
        cdef bint fits = True
        PyObject_GetBuffer(offsets, &view, PyBUF_SIMPLE)
        try:
            if view.len % sizeof(uint32_t):
                raise ValueError(f"{view.len} bytes of offsets")
            with nogil:
                for i in range(view.len // <int64_t> sizeof(uint32_t)):
                    memcpy(&at, <const uint8_t *> view.buf + i * sizeof(uint32_t), sizeof(uint32_t))
                    if at >= self.count:
                        fits = False
                        break
                    self.bits[at >> 3] |= 1 << (at & 7)
        finally:
            PyBuffer_Release(&view)
        if not fits:
            raise ValueError("an offset that is not of the group")
