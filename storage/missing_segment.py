"""A sealed segment whose file is gone, in the place that it has in its log.

By the book (``book``) it was there, so many bytes long, and nobody has deleted it.  All of it is
damage: a reader who comes to it is told so, and positions before and behind it are what they were.
It is in memory only, and nothing is written in its place: where the file comes back, the next start
finds it.

Not here: how it is found missing (``recovery``), what ends it (``Log.accept_loss``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from storage.book import Claim
from storage.config import LogConfig
from storage.damage import Damage
from storage.errors import CorruptRecord
from storage.files import Files
from storage.first_read import Known
from storage.record.batch import BatchHeader
from storage.segment import Segment


def loss_of(segment: Segment) -> str:
    """A line for a sealed segment that lacks its end, or all, of what it had by the book."""
    error = segment.damages[-1].error(segment.log_path)
    return (
        f"{error}; reading them fails until the file is back (a backup) or kafkafs repair "
        "--accept-loss"
    )


class MissingSegment(Segment):
    """See the module."""

    __slots__ = ()

    is_missing = True

    def __init__(self, files: Files, directory: str, claim: Claim, config: LogConfig) -> None:
        super().__init__(files, directory, claim.base_offset, config, writable=False)
        self.restore(
            size=claim.size,
            next_offset=claim.next_offset,
            first_timestamp=-1,
            max_timestamp=claim.timestamp,
            max_timestamp_offset=claim.base_offset,
            last_indexed_position=0,
            mtime_ns=claim.timestamp * 1_000_000,
            sealed=True,
        )
        reason = f"the file is gone, which had {claim.size} bytes"
        place = Damage(0, claim.size, claim.base_offset, claim.next_offset, reason)
        self.damages = self.told_damages = (place,)
        self.first_read.add(Known(0, claim.size, claim.next_offset))

    @property
    def _error(self) -> CorruptRecord:
        return self.damages[0].error(self.log_path)

    def _log_fd(self) -> int:
        raise self._error

    def log_stat(self) -> os.stat_result:
        raise self._error

    def open_log(self) -> None:
        """There is none."""

    def sync(self) -> None:
        """There is nothing to be made durable."""

    def read_stored(self, buffer: memoryview | bytearray, position: int, wait: bool) -> int:
        return 0

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        return iter(())

    def index_behind(self, position: int) -> int | None:
        return None

    def last_batch(self) -> tuple[int, BatchHeader] | None:
        return None

    def position_before(self, offset: int) -> int:
        return 0

    def position_before_time(self, timestamp_ms: int) -> int:
        raise self._error
