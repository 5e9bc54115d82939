"""Renders the text of a generation, from an absolute position on, into a buffer.

A caller that reads on passes in the reader that the last call returned; then nothing is looked up.
`line_index.readers` renders within one segment.
"""

from __future__ import annotations

from kafkafs.line_index import Damaged, Reader, reader_at
from kafkafs.tree.partition.generations import Generation
from storage.errors import CorruptRecord


def render_text(
    generation: Generation,
    absolute: int,
    out: bytearray,
    done: int,
    reader: Reader | None,
) -> Reader:
    """Fill `out` from its byte `done` on with the text at `absolute`, which must be long enough.

    `reader`: one that stands at `absolute`, which is not changed, or None. Returns one at the end.

    BlockingIOError where it would wait and may not, SegmentGone, Damaged, CorruptRecord, OSError.
    """
    size = len(out)
    origin = absolute - done
    extent, start = None, 0
    if reader is None:
        extent, start = generation.locate(absolute)
        reader = reader_at(extent, absolute - start)
    else:
        reader = reader.copy()
    while True:
        try:
            done = reader.fill(out, done)
        except Damaged as error:
            if extent is None or error.done > done or not error.is_news:
                raise
            # The text may begin after the damage, whose gap is known now.
        else:
            if done == size:
                return reader
            before = extent
            extent, start = generation.locate(origin + done)
            is_next = start == origin + done or generation.may_begin_inside(origin + done)
            if not is_next or reader.skip or extent is before:
                raise CorruptRecord("shows less than was measured", path=extent.segment.log_path)
        try:
            reader = reader_at(extent, origin + done - start)
        except CorruptRecord as error:
            raise Damaged(error, done) from None
