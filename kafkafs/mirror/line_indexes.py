"""Writes the line indexes of `values` beside sealed segments, on a worker thread.

Each read-only mount of the mirror uses them: otherwise it has to read the whole text before it
knows the size of a file. The files are those that a writable mount writes (`line_index`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from threading import Event, Thread
from typing import Final

from kafkafs.line_index import LineStore, SegmentLines
from kafkafs.line_index.segment_lines import SAVING
from kafkafs.views import values_view
from storage import paths
from storage.errors import SegmentGone
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.manager import LogManager
from storage.segment.segment import Segment

# The longest time for which a stop waits for the worker.
_SLICE_S: Final = 0.1
# The pause after an index that could not be written.
_PAUSE_S: Final = 60


class LineIndexes(LogListener[Log]):
    """Indexes segments that have no valid index yet: those at the start, and each that is rolled.

    It takes one segment after the other, the last one that was rolled first, as its bytes are in
    the page cache. A segment with records of an open transaction waits until the transaction has
    ended. If the indexing of a segment fails, the worker pauses. It takes the segment again after
    all others.
    """

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._store = LineStore(manager.files, manager.duties)
        self._view = values_view()
        self._waiting: list[tuple[Log, Segment]] = []
        self._worker = Thread()
        self._stopping = Event()
        for log in manager.logs():
            self._add(log, log.segments[:-1])
        manager.log_group.listeners.append(self)

    def run(self) -> bool:
        """Begin to index a segment, unless one is being indexed. Return False if none can be."""
        if self._worker.is_alive():
            return True
        for each in reversed(self._waiting):
            log, segment = each
            if segment.stable_size == segment.size:
                self._waiting.remove(each)
                if segment in log.segments:
                    self._worker = Thread(
                        target=self._index, args=each, name=f"index of {log.name}"
                    )
                    self._worker.start()
                    return True
        return False

    def close(self) -> None:
        """Stop the worker. The next start continues where it was."""
        self._manager.log_group.listeners.remove(self)
        self._stop()

    def rolled(self, log: Log, sealed: Segment, active: Segment) -> None:
        self._add(log, [sealed])

    def truncating(self, log: Log) -> None:
        self._stop()

    def truncated(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        unstable = [each for each in log.segments[:-1] if each.stable_size < each.size]
        self._add(log, [each for each in unstable if (log, each) not in self._waiting])

    def _add(self, log: Log, segments: Sequence[Segment]) -> None:
        if log.topic not in paths.INTERNAL_TOPICS:
            self._waiting += [(log, segment) for segment in segments]

    def _stop(self) -> None:
        self._stopping.set()
        if self._worker.is_alive():
            self._worker.join()
        self._stopping.clear()

    def _index(self, log: Log, segment: Segment) -> None:
        """Index a segment, and save the index. If that fails, put the segment back, and pause. Runs
        on the worker.
        """
        lines = SegmentLines(
            self._store,
            segment,
            self._view,
            partial(log.transactions.is_aborted, segment=segment),
            aborted_across=partial(log.transactions.aborted_across, segment=segment),
        )
        with (
            self._manager.duties.attempt(SAVING, log.name),
            contextlib.suppress(SegmentGone),
            segment.leased(),
        ):
            while not self._stopping.is_set():
                with contextlib.suppress(BlockingIOError):
                    lines.measure(time.monotonic() + _SLICE_S)
                    break
            else:
                lines.save()
        # (The index of a damaged segment is not saved.)
        if segment in log.segments and not (lines.is_saved or segment.damages):
            self._waiting.insert(0, (log, segment))
            self._stopping.wait(_PAUSE_S)
