"""A flush in three steps, so that its fsyncs can run in a thread that may wait.

Planned by the thread that owns the log, run anywhere, finished by the owner.  A slow disk then
delays neither readers nor the appends of others.

Invariant: the recovery point moves only over what every fsync has confirmed (``UnifiedLog.flush``).

Not here: when to flush (``log.flush_due``, ``manager.due_flushes``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.files import Files
from storage.segment import Segment

if TYPE_CHECKING:
    from storage.log import Log


class FlushPlan:
    """One flush in three steps: planned by the owner, run by any thread, finished by the owner.

    ``finish`` must follow, also when ``run`` raised: the recovery point moves only if all was
    written.
    """

    __slots__ = ("_files", "_log", "_segments", "_sync_directory", "_target", "done")

    def __init__(self, log: Log, segments: list[Segment], files: Files) -> None:
        self._log = log
        self._files = files
        self._segments = segments
        self._target = log.log_end_offset
        self._sync_directory = log.directory_dirty
        self.done = False
        for segment in segments:
            segment.lease()

    def run(self) -> None:
        """The fsyncs: every segment from the recovery point on, then the directory."""
        for segment in self._segments:
            segment.sync()
        if self._sync_directory:
            self._files.sync_directory(self._log.directory)
        self.done = True

    def finish(self) -> None:
        """Move the recovery point if everything was written, and let go of the segments."""
        for segment in self._segments:
            segment.release()
        self._segments = []
        if self.done:
            self._log.flushed_to(self._target, directory=self._sync_directory)
