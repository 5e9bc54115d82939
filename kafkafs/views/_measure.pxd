"""The declarations that the views' hot loops share (`_measure.pyx`): cursors, measures, entries."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from storage.record._batch cimport NO_FAULT, Fault, Place, Window


cdef struct Entry:
    uint64_t text
    uint32_t batch_position
    uint32_t record_position
    uint32_t batch_end
    uint32_t ordinal


cdef struct RecordBase:
    # The fields of a batch's header from which its records' offsets and timestamps follow.
    int64_t offset  # the base offset
    int64_t timestamp  # the base timestamp; with `append_time` the timestamp of all records
    bint append_time


cdef RecordBase base_of(const uint8_t *header) noexcept nogil


cdef class Cursor:
    cdef Place place
    cdef RecordBase base
    cdef readonly long long value_left
    cdef readonly bint encoded
    cdef readonly long long needed
    cdef readonly long long long_line
    cdef int64_t longest
    # The text of a record that did not fit into the output, its size, and how much `fetch` has
    # moved to an output.
    cdef bytes spill
    cdef int64_t spill_size
    cdef int64_t spilled


cdef class Measure:
    cdef Place place
    cdef RecordBase base
    cdef readonly long long granularity
    cdef readonly long long text_length
    cdef readonly long long records
    cdef readonly bint encoded
    cdef readonly long long needed
    cdef readonly bytearray entries
    cdef int64_t next_entry

    cdef int leave_stop(self, int64_t size) except -1


# The loops of a view; `context` is the view's own.
#
# A RenderLoop renders until the output is full or the caller must call `fetch` (NO_FAULT), until
# the window ends (NEEDS_MORE), or until a fault.
ctypedef Fault (*RenderLoop)(
    Cursor cursor, const Window *window, uint8_t **out, uint8_t *out_end, int64_t *skip,
    const void *context
) except? NO_FAULT nogil

# A MeasureLoop measures until it has made ENTRY_ROOM entries and needs room for another (NO_FAULT),
# until the window ends (NEEDS_MORE), or until a fault.
ctypedef Fault (*MeasureLoop)(
    Measure measure, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil


cdef class Loops:
    cdef RenderLoop render_loop
    cdef MeasureLoop measure_loop
    cdef const void *context


cdef Loops loops_of(RenderLoop render_loop, MeasureLoop measure_loop, const void *context)


cdef enum:
    # The most entries that one call of a MeasureLoop makes; `measure` adds them to the bytearray.
    ENTRY_ROOM = 128


cdef inline void set_entry(
    Entry *entry, const Place *place, int64_t text, int64_t records
) noexcept nogil:
    entry.text = text
    entry.batch_position = <uint32_t> place.batch_position
    entry.record_position = <uint32_t> place.position
    entry.batch_end = <uint32_t> place.batch_end
    entry.ordinal = <uint32_t> records


cdef inline void set_place(Place *kept, const Place *place) noexcept nogil:
    """Store the place where a loop stopped in `kept`."""
    kept[0] = place[0]
    if place.position == place.batch_end:
        kept.batch_end = 0
