"""A sealed segment whose file is gone, in the place that it has in its log.

By the book (``book``) it was there, so many bytes long, and nobody has deleted it.  All of it is
damage: a reader who comes to it is told so, and positions before and behind it are what they were.
It is in memory only, and nothing is written in its place: where the file comes back, the next start
finds it.

Not here: how it is found missing (``recovery``; ``Segment`` where the file of one that is in use
goes), what ends it (``Log.accept_loss``).
"""

from __future__ import annotations

from storage.files import Files
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.state.book_file import Claim


def missing_segment(files: Files, directory: str, claim: Claim, config: LogConfig) -> Segment:
    """See the module."""
    segment = Segment(files, directory, claim.base_offset, config, writable=False)
    segment.restore(
        size=claim.size,
        next_offset=claim.next_offset,
        first_timestamp=-1,
        max_timestamp=claim.timestamp,
        max_timestamp_offset=claim.base_offset,
        last_indexed_position=0,
        mtime_ns=claim.timestamp * 1_000_000,
        sealed=True,
    )
    segment.lose()
    segment.told_damages = segment.damages
    return segment
