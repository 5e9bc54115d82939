"""Says without the GIL whether a group's record is superseded (`_superseded.pyx`)."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class Superseded:
    cdef uint8_t *bits
    cdef readonly long long first
    cdef readonly long long count


cdef inline bint is_superseded(Superseded superseded, int64_t offset) noexcept nogil:
    cdef uint64_t at = <uint64_t> (offset - superseded.first)
    return at < <uint64_t> superseded.count and superseded.bits[at >> 3] >> (at & 7) & 1
