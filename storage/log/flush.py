"""A flush in three steps, so that its fsyncs can run in a thread that may wait.

Planned by the thread that owns the log, run anywhere, finished by the owner.  A slow disk then
delays neither readers nor the appends of others.

Invariant: the recovery point moves only over what every fsync has confirmed (``UnifiedLog.flush``).

Not here: when to flush (``log.flush_due``, ``manager.due_flushes``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.segment.segment import Segment
from storage.state import checkpoint

if TYPE_CHECKING:
    from storage.log.log import Log


class FlushPlan:
    """One flush.  ``finish`` must follow ``run``, also when that raised."""

    __slots__ = (
        "_directory",
        "_directory_changes",
        "_epochs",
        "_files",
        "_log",
        "_ns",
        "_segments",
        "_snapshots",
        "_target",
        "done",
    )

    def __init__(self, log: Log, segments: list[Segment], files: Files) -> None:
        self._log = log
        self._files = files
        self._segments = segments
        self._target = log.log_end_offset
        self._directory = log.directory if log.directory_dirty else None
        self._directory_changes = log.directory_changes
        self._epochs = list(log.epochs) if log.epochs_dirty else None
        self._snapshots = list(log.unsynced_snapshots)
        self.done = False
        self._ns = 0
        for segment in segments:
            segment.lease()

    def run(self) -> None:
        """The fsyncs: every segment from the recovery point on, snapshots, epochs, the directory.

        After an fsync that failed the log takes nothing more until ``rescue`` is done: the kernel
        has dropped what it could not write, so that a later fsync which succeeds would prove
        nothing.  A checkpoint that could not be replaced is written anew, and the fsync of a
        directory repeated: its names are in the file system's journal, which ends at such an error.

        OSError.  CorruptRecord where the file of a sealed segment is gone: all else is flushed, and
        the next flush goes on without it.
        """
        started = time.perf_counter_ns()
        try:
            self._sync_all()
        finally:
            self._ns = time.perf_counter_ns() - started

    def _sync_all(self) -> None:
        gone: CorruptRecord | None = None
        with self._fsyncs():
            for segment in self._segments:
                try:
                    segment.sync()
                except CorruptRecord as error:
                    if not segment.is_missing:
                        raise
                    gone = error
        for offset in self._snapshots:
            self._sync_snapshot(offset)
        if self._epochs is not None:
            path = os.path.join(self._log.directory, paths.LEADER_EPOCH_CHECKPOINT)
            # Two flushes of one log may run at once.
            with self._log.epochs_lock:
                checkpoint.write_epochs(self._files, path, self._epochs)
        if self._directory is not None:
            self._files.sync_directory(self._directory)
        self.done = True
        if gone is not None:
            raise gone

    def _sync_snapshot(self, offset: int) -> None:
        """Make durable what may be known of producers by this snapshot only."""
        try:
            fd = self._files.open(self._log.snapshot_path(offset), os.O_RDONLY)
        except FileNotFoundError:
            return  # its segment has been deleted meanwhile
        try:
            with self._fsyncs():
                self._files.fdatasync(fd)
        finally:
            self._files.close(fd)

    @contextlib.contextmanager
    def _fsyncs(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                self._log.mark_distrusted(error)
            raise

    def finish(self) -> None:
        """Move the recovery point if everything was written, and let go of the segments."""
        for segment in self._segments:
            segment.release()
        self._segments = []
        counters = self._log.counters
        counters.flush_failures += not self.done
        if not self.done:
            self._log.flush_failed()
        if self.done:
            counters.flushes += 1
            counters.flush_ns += self._ns
            self._log.flushed_to(
                self._target,
                directory=self._directory is not None
                and self._directory_changes == self._log.directory_changes,
                epochs=self._epochs is not None and self._epochs == self._log.epochs,
            )
            self._log.unsynced_snapshots.difference_update(self._snapshots)
