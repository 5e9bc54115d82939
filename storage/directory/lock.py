"""The lock of a data directory: its file `.lock`, which a broker locks, too.

A process that writes the directory has the lock; readers take none. The file's mtime is the time of
the last creation or deletion of a topic: a deletion leaves no other lasting file.

`alone` and `change_settings` change files of a directory without opening its logs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from storage import paths
from storage.directory.mirror import check_writer
from storage.directory.reserve import Reserve
from storage.directory.top_level import Ignored
from storage.errors import UnknownTopicOrPartition
from storage.files import Files
from storage.retention.retention import check_policy
from storage.settings.config import REMOTE_STORAGE
from storage.settings.settings import Settings
from storage.state.tiered import TieredTopics


class DirectoryLock:
    """The lock of one data directory.

    `changed_ns`: the time of the last creation or deletion of a topic, in ns since 1970; 0: not
    known. `ignored`: the entries of the directory that do not count for a writer; None: all count.
    """

    def __init__(
        self, files: Files, path: str, *, read_only: bool = False, mirrors: bool = False
    ) -> None:
        """Take the lock of the data directory `path`; `read_only`: only read its time.

        A writer's `files` are limited to the entries that count for it (`top_level`). `mirrors`:
        take the lock of a mirror. Errors: LogLocked if another process has it; see
        `mirror.check_writer`.
        """
        self._files = files
        self._path = os.path.join(path, paths.LOCK)
        self.ignored = None if read_only else Ignored(files, path)
        self._fd = -1
        if not read_only:
            # A running mirror has the lock, too.
            check_writer(files, path, mirrors=mirrors)
            self._fd = files.lock(self._path)
            try:
                check_writer(files, path, mirrors=mirrors)
            except BaseException:
                self.release()
                raise
        self.changed_ns = 0
        with contextlib.suppress(OSError):
            self.changed_ns = files.file_stat(self._path).st_mtime_ns

    def is_locked(self) -> bool:
        """Return whether another process has the lock."""
        return self._files.is_locked(self._path)

    def note_change(self, now_ms: int) -> None:
        """Record the time of a creation or deletion of a topic, also for the next start."""
        self.changed_ns = max(now_ms * 1_000_000, self.changed_ns + 1)
        with contextlib.suppress(OSError):
            self._files.utime_ns(self._path, self.changed_ns)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            self._files.unlock(self._fd)
            self._fd = -1


@contextlib.contextmanager
def alone(path: str, *, mirrors: bool = False) -> Iterator[Files]:
    """Yield a data directory's files while this process has the lock. Errors: see
    `DirectoryLock`.
    """
    files = Files(path)
    lock = DirectoryLock(files, path, mirrors=mirrors)
    try:
        settings = Settings(files, path, keeps_faulty=True)
        files.room = Reserve(files, path, TieredTopics(files, path, settings))
        yield files
    finally:
        lock.release()


def change_settings(path: str, topic: str, values: Mapping[str, str | None]) -> None:
    """Change a topic's settings (`Settings.change_topic`) while no process has the lock.

    Errors: LogLocked, UnknownTopicOrPartition, InvalidConfig, OSError; ReadOnlyLog for a tiered
    topic, unless the change makes it an ordinary one. Nothing has changed.
    """
    with alone(path) as files:
        if topic not in paths.partitions_in(files.listing(path)):
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}", path=path)
        settings = Settings(files, path, check_policy)
        if settings.checked(topic, values).get(REMOTE_STORAGE) is not False:
            TieredTopics(files, path, settings).check_may_write(topic)
        settings.change_topic(topic, values)
