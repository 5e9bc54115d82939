"""What the views' hot loops share: where they stand, and how a line index comes out of them."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from storage.record._batch cimport Fault, Place, Window


cdef struct Entry:
    uint64_t text
    uint32_t batch_position
    uint32_t record_position
    uint32_t batch_end
    uint32_t ordinal


cdef struct Facts:
    # What a batch's header says of all its records.
    int64_t base_offset
    int64_t timestamp  # that the deltas are added to; of all records where `append_time`
    bint append_time


cdef Facts facts_of(const uint8_t *header) noexcept nogil

cdef int take_facts(Facts *facts, object header) except -1


cdef class Cursor:
    cdef public long long position
    cdef public long long batch_end
    cdef public long long record_end
    cdef public long long value_left
    cdef public bint encoded
    cdef readonly long long needed
    cdef Facts facts
    cdef bytes spill
    cdef int64_t spill_size  # bytes of text in it
    cdef int64_t spilled  # of those that have been fetched


cdef class Measure:
    cdef readonly long long granularity
    cdef readonly long long text_length
    cdef readonly long long records
    cdef readonly long long needed
    cdef readonly bytearray entries
    cdef readonly bint encoded
    cdef Place place
    cdef Facts facts
    cdef int64_t next_entry

    cdef int leave_stop(self, int64_t size) except -1


# A view's loop: measures until the window is used up: then NEEDS_MORE, else the fault. NO_FAULT
# when ENTRY_ROOM entries have been made and there is another one. `context` is the view's own.
ctypedef Fault (*Count)(
    Measure state, const Window *window, Entry *entries, int *made, const void *context
) noexcept nogil


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


cdef int measure_by(
    Count count, const void *context, object data, int64_t position, int64_t size, Measure state
) except -1

cdef int open_window(
    Window *window, const Py_buffer *view, int64_t start, int64_t size, int64_t position
) except -1

cdef object refuse(Fault fault, const Window *window, int64_t position, bint in_batch)
