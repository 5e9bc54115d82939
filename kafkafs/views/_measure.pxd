"""The declarations that the views' hot loops share (`_measure.pyx`): cursors, measures, entries."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

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


cdef struct LongLine:
    # The line of a long record, which a view renders in pieces (`_whole.pyx`). Positions are those
    # of the `.log` file, as in Place.
    int64_t left  # bytes of the line's text that are not rendered yet; 0: no line is begun
    int64_t inside  # bytes of the next piece's text that are rendered
    int64_t offset
    int64_t timestamp  # as in WholeRecord
    bint append_time
    int64_t key
    int64_t key_size  # -1: null
    int64_t value
    int64_t value_size
    int64_t headers  # behind their count
    int32_t headers_left
    int part  # which part of the line comes next; the view has the list
    int64_t at  # the next byte of the record that is needed
    int64_t field_end  # the end of the field that `at` lies in
    int field  # how this field is written; 0: `at` lies in none
    int key_as
    int value_as
    int64_t needed  # bytes from `at` on that the next piece needs
    bint at_once  # as of the Cursor
    bint takes_long
    Place after


cdef class Cursor:
    cdef Place place
    cdef RecordBase base
    cdef readonly long long value_left
    cdef readonly bint encoded
    cdef readonly long long needed
    cdef public bint at_once
    cdef readonly bint takes_long
    cdef LongLine line
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
