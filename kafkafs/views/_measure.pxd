"""What the views' hot loops share: where they stand, how text and a line index come out of them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from storage.record._batch cimport NO_FAULT, Fault, Place, Window


cdef struct Entry:
    uint64_t text
    uint32_t batch_position
    uint32_t record_position
    uint32_t batch_end
    uint32_t ordinal


cdef struct RecordBase:
    # What a batch's header says of all its records.
    int64_t offset
    int64_t timestamp  # that the deltas are added to; of all records where `append_time`
    bint append_time


cdef RecordBase base_of(const uint8_t *header) noexcept nogil


cdef class Cursor:
    cdef Place place
    cdef RecordBase base
    cdef readonly long long value_left
    cdef readonly bint encoded
    cdef readonly long long needed
    # The text of a record that did not fit into the output; its size, and how much is written.
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


# A view's loops; `context` is the view's own.
#
# Renders until the output is full or has to be fetched from the cursor (NO_FAULT), the window is
# used up (NEEDS_MORE), or there is a fault.
ctypedef Fault (*RenderLoop)(
    Cursor cursor, const Window *window, uint8_t **out, uint8_t *out_end, int64_t *skip,
    const void *context
) except? NO_FAULT nogil

# Measures until ENTRY_ROOM entries are made and there is another one (NO_FAULT), the window is used
# up (NEEDS_MORE), or there is a fault.
ctypedef Fault (*MeasureLoop)(
    Measure measure, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil


cdef class Loops:
    cdef RenderLoop render_loop
    cdef MeasureLoop measure_loop
    cdef const void *context


cdef Loops loops_of(RenderLoop render_loop, MeasureLoop measure_loop, const void *context)


cdef enum:
    # Entries that one run of a measuring loop collects before they go to the bytearray.
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
    """Keep where a loop stopped."""
    kept[0] = place[0]
    if place.position == place.batch_end:
        kept.batch_end = 0
