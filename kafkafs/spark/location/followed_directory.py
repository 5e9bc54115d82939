"""A data directory that is open for planning, and sees the writes of other processes.

On a disk, these are a broker or the daemon of a mount. An object store has a copy of a data
directory with all its files, and the copy may grow. A program that copies a segment copies the
`.log` last: without the `.txnindex`, readers would show aborted records. Segments may come in any
order: records are shown only after the records before them. In a compacted topic offsets may be
missing, so its segments have to come in order.

It writes nothing and takes no lock, so permission to read is enough.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkafs.spark.location.location import Location, check_directory, object_files
from storage.errors import SegmentGone
from storage.files import Files
from storage.follow.follow_directory import DirectoryFollower
from storage.manager import LogManager

if TYPE_CHECKING:
    from kafkafs.spark.location.arrow_files import ArrowFiles

# The shortest time between two listings of a store, in seconds: idle queries refresh often.
LISTED_EVERY_S = 1.0
# The time between two sweeps for unused descriptors and deleted segments, in ms.
_SWEEP_MS = 10_000
# The number of attempts to open a directory whose objects change meanwhile.
_TRIES = 5


class FollowedDirectory:
    """An open data directory: the wanted topics, up to date. For one thread.

    `until_high_watermark`: logs end at the last high watermark that their broker has checkpointed.
    """

    manager: LogManager

    def __init__(
        self,
        location: Location,
        wanted: Callable[[str], bool] | None = None,
        *,
        until_high_watermark: bool = False,
    ) -> None:
        """Open the directory. Errors: StorageError, OSError."""
        self.location = location
        self._wanted = wanted
        self._until_high_watermark = until_high_watermark
        self._swept_ms = 0
        self._open()

    def __enter__(self) -> FollowedDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory and its files."""
        self.manager.close()
        if self._objects is not None:
            self._objects.forget()

    def _open(self) -> None:
        """Open the directory; try again if its objects change meanwhile."""
        for tries in range(_TRIES, 0, -1):
            self._listed_at = time.monotonic()
            self._objects = None
            if not self.location.is_local:
                self._objects = object_files(self.location, listed=True)
            files = self._objects or Files(self.location.path)
            check_directory(self.location, files)
            with contextlib.ExitStack() as on_error:
                try:
                    self.manager = on_error.enter_context(
                        LogManager.open(
                            self.location.path, read_only=True, files=files, wanted=self._wanted
                        )
                    )
                    self._follower = DirectoryFollower(
                        self.manager, until_high_watermark=self._until_high_watermark
                    )
                    if self._objects is not None:
                        self._objects.confirm()
                except SegmentGone:
                    if tries == 1:
                        raise
                else:
                    on_error.pop_all()
                    return

    # -- staying up to date --------------------------------------------------------------------

    def refresh(self, *, at_once: bool = False) -> None:
        """Bring partitions, log starts, log ends and last stable offsets up to date.

        On a disk without changes this costs two stats a partition. It lists all directories of an
        object store, at most once a second unless `at_once`. StorageError, OSError.
        """
        if self._objects is None:
            self._look()
        elif at_once or time.monotonic() - self._listed_at >= LISTED_EVERY_S:
            self._listed_at = time.monotonic()
            self._list(self._objects)

    def _look(self) -> None:
        manager, follower = self.manager, self._follower
        follower.look_for_partitions()
        for log in list(manager.logs()):
            follower.look(log)
        follower.look_at_log_starts()
        now_ms = manager.monotonic_ms()
        if now_ms - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = now_ms
            manager.sweep(now_ms)

    def _list(self, objects: ArrowFiles) -> None:
        for log in self.manager.logs():
            for segment in log.segments:
                # An open object keeps its version; the next read opens the current one.
                segment.evict()
        objects.forget()
        objects.list_directories(
            [self.location.path, *(log.directory for log in self.manager.logs())]
        )
        try:
            self._look()
            objects.confirm()
        except SegmentGone:
            # A writer has replaced an object between two listings. Part of it may be in use.
            self.close()
            self._open()
