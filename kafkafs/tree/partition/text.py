"""Rendering: from an absolute position of a generation, text into a buffer, over its segments.

A reader that goes on where it stopped passes in what the last call returned, and nothing is looked
up. What is inside a segment: `line_index.places`.

Not here: which positions a file has (`view_file.py`).
"""

from __future__ import annotations

from kafkafs.generations import Generation
from kafkafs.line_index import Damaged, Piece, Place
from storage.errors import CorruptRecord


def render_text(
    generation: Generation[Piece],
    absolute: int,
    out: bytearray,
    done: int,
    place: Place | None,
) -> Place:
    """Fill `out` from its byte `done` on with the text at `absolute`, all of which must be there.

    `place` is where a rendering stopped that ended at `absolute`, or None; it is left as it is.

    BlockingIOError where it would wait and may not, SegmentGone, Damaged, CorruptRecord, OSError.
    """
    size = len(out)
    origin = absolute - done
    piece, start = None, 0
    if place is None:
        piece, start = generation.locate(absolute)
        place = piece.place(absolute - start)
    else:
        place = place.copy()
    while True:
        try:
            done = place.fill(out, done)
        except Damaged as error:
            if piece is None or error.done > done or not error.is_news:
                raise
            # The text may begin behind the damage: where can be told now.
        else:
            if done == size:
                return place
            before = piece
            piece, start = generation.locate(origin + done)
            is_next = start == origin + done or generation.goes_on_inside(origin + done)
            if not is_next or place.skip or piece is before:
                raise CorruptRecord("shows less than was measured", path=piece.segment.log_path)
        try:
            place = piece.place(origin + done - start)
        except CorruptRecord as error:
            raise Damaged(error, done) from None
