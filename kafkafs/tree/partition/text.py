"""Rendering: from an absolute position of a generation, text into a buffer, over its segments.

A reader that goes on where it stopped passes in what the last call returned, and nothing is looked
up. What is inside a segment: `line_index.readers`.

Not here: which positions a file has (`view_file.py`).
"""

from __future__ import annotations

from kafkafs.generations import Generation
from kafkafs.line_index import Damaged, Extent, Reader
from storage.errors import CorruptRecord


def render_text(
    generation: Generation[Extent],
    absolute: int,
    out: bytearray,
    done: int,
    reader: Reader | None,
) -> Reader:
    """Fill `out` from its byte `done` on with the text at `absolute`, all of which must be there.

    `reader` is where a rendering stopped that ended at `absolute`, or None; it is left as it is.

    BlockingIOError where it would wait and may not, SegmentGone, Damaged, CorruptRecord, OSError.
    """
    size = len(out)
    origin = absolute - done
    extent, start = None, 0
    if reader is None:
        extent, start = generation.locate(absolute)
        reader = extent.reader(absolute - start)
    else:
        reader = reader.copy()
    while True:
        try:
            done = reader.fill(out, done)
        except Damaged as error:
            if extent is None or error.done > done or not error.is_news:
                raise
            # The text may begin behind the damage: where can be told now.
        else:
            if done == size:
                return reader
            before = extent
            extent, start = generation.locate(origin + done)
            is_next = start == origin + done or generation.may_begin_inside(origin + done)
            if not is_next or reader.skip or extent is before:
                raise CorruptRecord("shows less than was measured", path=extent.segment.log_path)
        try:
            reader = extent.reader(origin + done - start)
        except CorruptRecord as error:
            raise Damaged(error, done) from None
