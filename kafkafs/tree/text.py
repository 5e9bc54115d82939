"""Rendering: from an absolute position of a generation, text into a buffer.

The log's bytes come in one read of about what is needed (the segment's own ratio of log to text),
or from a window into the page cache where much is asked for, and go through the view's renderer. A
reader that goes on where it stopped passes in what the last call returned, and nothing is looked
up.

Not here: which positions a file has (`view_file.py`).
"""

from __future__ import annotations

from kafkafs.generations import Generation
from kafkafs.line_index import SegmentLines
from kafkafs.views._render import Cursor
from storage.errors import CorruptRecord
from storage.window import Window

SLACK = 512
"""Bytes of log that are read beyond what is likely needed."""
CHUNK = 5 << 18
"""Bytes of log that are read at a time at most: 1 MiB of text of records of 40 bytes and more."""

WINDOW = 1 << 16
"""Bytes of log from which on a window is used, if no read may wait."""

# For the owner's thread only; what may wait runs elsewhere and has a buffer of its own.
_scratch = memoryview(bytearray(CHUNK))

Place = tuple[SegmentLines, Cursor, Window | None]
"""Where a rendering has stopped, and the window that it used last."""


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
    window = None
    if place is None:
        lines, start = generation.locate(absolute)
        text = absolute - start
        before, position, batch_end = lines.find(text, wait)
        cursor = Cursor(position, batch_end)
        skip = text - before
    else:
        lines, cursor, window = place
        cursor = cursor.copy()
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
            window = None
            continue
        need = (size - done + skip) * segment.size // lines.text_length + SLACK
        if need > room:
            need = room
        data = None
        if need >= WINDOW and not wait:
            need = min(need, CHUNK)
            if window is None or not window.covers(position, need):
                window = segment.window(position)
            data = None if window is None else window.data(position, need)
        if data is not None:
            buffer, got = data, need
        else:
            buffer = memoryview(bytearray(min(need, CHUNK))) if wait else _scratch[:need]
            got = segment.read_into(buffer, position, wait)
        reached, skip = render(buffer, position, got, cursor, out, done, size, skip)
        if reached == size:
            return lines, cursor, window
        if reached == done and cursor.position == position:
            # The page cache may hold less than one record's head.
            if not wait:
                raise BlockingIOError
            raise CorruptRecord(
                "the log ends inside a batch", path=segment.log_path, position=position
            )
        done = reached
