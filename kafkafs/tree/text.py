"""Rendering: from an absolute position of a generation, text into a buffer.

The log's bytes come in one read of about what is needed (the segment's own ratio of log to text),
and go through the view's renderer. A reader that goes on where it stopped passes in what the last
call returned, and nothing is looked up.

Not here: which positions a file has (`view_file.py`).
"""

from __future__ import annotations

from kafkafs.generations import Generation
from kafkafs.line_index import SegmentLines
from kafkafs.views._render import Cursor
from storage.errors import CorruptRecord, StorageError

SLACK = 512
"""Bytes of log that are read beyond what is likely needed."""
CHUNK = 5 << 18
"""Bytes of log that are read at a time at most: 1 MiB of text of records of 40 bytes and more."""

# For the owner's thread only; what may wait runs elsewhere and has a buffer of its own.
_scratch = memoryview(bytearray(CHUNK))

Place = tuple[SegmentLines, Cursor]
"""Where a rendering has stopped."""


def render_text(
    generation: Generation[SegmentLines],
    absolute: int,
    out: bytearray,
    done: int,
    place: Place | None,
    wait: bool,
) -> Place:
    """Fill `out` from its byte `done` on with the text at `absolute`, all of which must be there.

    `place` is where a rendering stopped that ended at `absolute`, or None; it is left as it is.

    BlockingIOError where it would wait and may not, SegmentGone, CorruptRecord,
    UnsupportedFormat, OSError.
    """
    size = len(out)
    skip = 0
    origin = absolute - done
    if place is None:
        lines, start = generation.locate(absolute)
        text = absolute - start
        before, position, batch_end = lines.find(text, wait)
        cursor = Cursor(position, batch_end)
        skip = text - before
    else:
        lines = place[0]
        cursor = place[1].copy()
    render = lines.view.render
    while True:
        segment = lines.segment
        position = cursor.position
        room = segment.size - position
        if room <= 0:
            lines, start = generation.locate(origin + done)
            if start != origin + done or skip:
                raise CorruptRecord("shows less than was measured", path=segment.log_path)
            cursor = Cursor(0)
            continue
        need = (size - done + skip) * segment.size // lines.text_length + SLACK
        if need > room:
            need = room
        buffer = memoryview(bytearray(min(need, CHUNK))) if wait else _scratch[:need]
        got = segment.read_into(buffer, position, wait)
        try:
            reached, skip = render(buffer, position, got, cursor, out, done, size, skip)
        except StorageError as error:
            error.path = segment.log_path
            raise
        if reached == size:
            return lines, cursor
        if reached == done and cursor.position == position:
            # The page cache may hold less than one record's head.
            if not wait:
                raise BlockingIOError
            raise CorruptRecord(
                "the log ends inside a batch", path=segment.log_path, position=position
            )
        done = reached
