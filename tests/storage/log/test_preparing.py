"""Who watches a log is told before its past changes, and asked what there is to be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage import Log
from storage.log.listener import LogListener
from storage.segment.segment import Segment
from tests.storage.logs import NOW_MS, append, opened


class Watcher(LogListener[Log]):
    """Says what it was told, and what it has written."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int], int]] = []
        self.written = 0
        self.error: OSError | None = None

    def preparing(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None] | None:
        bases = [[segment.base_offset for segment in segments] for segments in (old, new)]
        self.asked.append((bases[0], bases[1], log_start))
        return self._write

    def _write(self) -> None:
        if self.error is not None:
            raise self.error
        self.written += 1


def test_listeners_are_asked_and_write_when_they_are_called(tmp_path: Path) -> None:
    watchers = [Watcher(), Watcher()]
    with opened(tmp_path) as manager:
        manager.create_topic("t", 1)
        log = manager.log("t", 0)
        for _ in range(4):
            append(log, b"a", b"b")
            log.roll(NOW_MS)
        # One that prepares nothing.
        log.listeners.extend([*watchers, LogListener[Log]()])
        writes = [
            log.prepare_replacement(log.segments[:2], ()),
            log.prepare_replacement((), (), log_start=3),
            log.prepare_replacement(log.segments[:1], (), log_start=3),
            log.prepare_replacement(log.segments[:3], log.segments[2:3]),
        ]
        assert watchers[0].asked == [
            ([0, 2], [], 4),
            ([], [], 3),
            ([0], [], 3),
            ([0, 2, 4], [4], 4),
        ]
        assert watchers[1].asked == watchers[0].asked
        assert watchers[0].written == 0
        for write in writes:
            write()
        assert [watcher.written for watcher in watchers] == [4, 4]
        watchers[1].error = OSError(28, "No space left on device")
        with pytest.raises(OSError, match="No space left"):
            log.prepare_replacement(log.segments[:1], ())()
        assert len(log.segments) == 5
