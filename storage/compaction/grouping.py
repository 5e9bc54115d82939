"""Which segments are cleaned into one, so that they do not get ever smaller.

Each group becomes one segment with the base offset of its first member.  What a group may hold is
``Cleaner.groupSegmentsBySize``: not more log than segment.bytes, not more entries of an index than
segment.index.bytes, and offsets that fit an index entry.  As cleaning can make v0 and v1 batches
longer, and index other batches than before, a group may still not fit into one segment (``rewrite``
then makes another).

Pure: facts in, a decision out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage.segment.segment import MAX_OFFSET_SPAN


class SegmentSize(NamedTuple):
    """What grouping asks of a segment.  Sizes in bytes, of the indexes those of their entries."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int


def group(
    segments: Sequence[SegmentSize], *, most: int, most_index: int, first_uncleanable: int
) -> list[int]:
    """How many segments each group has, in order; ``most``: segment.bytes, and of an index.

    ``first_uncleanable``: where what may be cleaned ends.
    """
    counts: list[int] = []
    size = index_size = time_index_size = first_base = 0
    for number, segment in enumerate(segments):
        size += segment.size
        index_size += segment.index_size
        time_index_size += segment.time_index_size
        if number + 1 < len(segments):
            last = segments[number + 1].base_offset - 1
        else:
            last = first_uncleanable - 1
        fits = (
            bool(counts)
            and size <= most
            and index_size <= most_index
            and time_index_size <= most_index
            and (segment.size == 0 or last - first_base <= MAX_OFFSET_SPAN)
        )
        if fits:
            counts[-1] += 1
        else:
            counts.append(1)
            _, size, index_size, time_index_size = segment
            first_base = segment.base_offset
    return counts
