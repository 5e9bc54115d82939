"""Removes deleted files after their last readers.

The files of removed segments, and the directories of a deleted topic, are renamed at once and
removed after file.delete.delay.ms. Segments that are still read wait for their readers. The removal
of a file is repeated until it succeeds. Until then a topic can be undeleted, also after a restart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from storage.background import Duties
from storage.directory.reserve import Reserve
from storage.files import Files
from storage.log.group import LogGroup
from storage.log.log import Log
from storage.state import deletion_file
from storage.state.deletion_file import Deletion

# Deleted segments that are released per call on the log thread, some 50 µs each.
SWEPT_AT_ONCE = 100


def remove_directory(files: Files, directory: str) -> None:
    """Remove the directory of a partition with its files. Errors: OSError."""
    if stat.S_ISLNK(files.file_stat(directory).st_mode):
        files.unlink(directory)  # deleted as a partition that never was one
        return
    for name in files.names(directory):
        # Another process may remove a file, too.
        with contextlib.suppress(FileNotFoundError):
            files.unlink(os.path.join(directory, name))
    files.rmdir(directory)


@dataclass
class Deleted:
    """The deleted files of a data directory.

    `topics`: the topics that can be undeleted, each with its deadline by the monotonic clock.
    """

    path: str
    files: Files
    duties: Duties
    reserve: Reserve
    log_group: LogGroup[Log]
    read_only: bool
    topics: dict[Deletion, int] = field(default_factory=dict)
    # Directories, each with the time of its removal and its former partition.
    _doomed: list[tuple[int, str, Log | None]] = field(default_factory=list)
    # Paths whose removal failed, and whether each is a directory.
    _unremoved: set[tuple[str, bool]] = field(default_factory=set)

    def resume(
        self, deletions: Iterable[Deletion], doomed: Iterable[str], wall_ms: int, now_ms: int
    ) -> None:
        """Continue the removals of an earlier process: a topic after its delay, the other `doomed`
        directories at once.

        `wall_ms` and `now_ms`: the present time of the wall clock and the monotonic clock.
        """
        others = {os.path.join(self.path, name) for name in doomed}
        for each in deletions:
            # A wall clock that was set back must not prolong the delay.
            left_ms = min(each.due_ms - wall_ms, each.due_ms - each.deleted_ms)
            self.add_topic(each, now_ms + left_ms, {}, can_return=True)
            others.difference_update(self._directories(each))
        for directory in others:
            self.add(now_ms, directory, None)

    def add_topic(
        self, deletion: Deletion, due_ms: int, logs: Mapping[int, Log], *, can_return: bool
    ) -> None:
        """Queue a topic's directories for removal at `due_ms` by the monotonic clock."""
        if can_return:
            self.topics[deletion] = due_ms
        for each, directory in zip(deletion.partitions, self._directories(deletion), strict=True):
            self.add(due_ms, directory, logs.get(each.number))

    def _directories(self, deletion: Deletion) -> list[str]:
        return [os.path.join(self.path, each.directory) for each in deletion.partitions]

    def add(self, due_ms: int, directory: str, log: Log | None) -> None:
        """Queue a partition's directory for removal at `due_ms` by the monotonic clock."""
        self._doomed.append((due_ms, directory, log))

    def end_reading(self, deletion: Deletion) -> None:
        """End all reads of a topic that is about to be undeleted: its files get new logs. Errors:
        BlockingIOError while a thread uses the files.
        """
        directories = set(self._directories(deletion))
        logs = [log for _, directory, log in self._doomed if log and directory in directories]
        are_free = [log.end_reading() for log in logs]
        if not all(are_free):
            reason = f"the files of {deletion.topic} are still being read: try again"
            raise BlockingIOError(errno.EAGAIN, reason)

    def take_back(self, deletion: Deletion) -> None:
        """Note that a topic was undeleted. The next `remove` releases its old logs."""
        del self.topics[deletion]
        directories = set(self._directories(deletion))
        self._doomed = [
            (0 if directory in directories else due_ms, directory, log)
            for due_ms, directory, log in self._doomed
        ]

    def remove(self, now_ms: int, *, again: bool = False) -> Callable[[], None] | None:
        """Release a limited number of deleted files whose delay is over.

        Return a thread-safe function that removes them from the disk, or None. `again`: also those
        whose removal failed before.
        """
        doomed_paths = list(self._unremoved) if again else []
        for topic in [each for each, due_ms in self.topics.items() if due_ms <= now_ms]:
            # The record of the deletion is removed first: from then on the topic cannot be
            # undeleted.
            del self.topics[topic]
            doomed_paths.append((deletion_file.path_in(self._directories(topic)[0]), False))
        left = SWEPT_AT_ONCE
        for log in list(self.log_group.retiring):
            if left:
                count = len(log.retired)
                with self.duties.attempt("releasing deleted logs", log.name):
                    doomed_paths += [(path, False) for path in log.release_retired(now_ms, left)]
                left -= count - len(log.retired)
        waiting: list[tuple[int, str, Log | None]] = []
        for due_ms, directory, doomed in self._doomed:
            released = due_ms <= now_ms
            if released and doomed is not None:
                count = len(doomed.retired)
                released = left > 0 and doomed.release_all(left)
                left -= count - len(doomed.retired)
            if released:
                doomed_paths.append((directory, True))
            else:
                waiting.append((due_ms, directory, doomed))
        self._doomed = waiting
        if self.read_only or (left == SWEPT_AT_ONCE and not doomed_paths):
            return None
        self._unremoved.update(doomed_paths)  # also where the function is never called

        def remove() -> None:
            failure: OSError | None = None
            for path, is_directory in doomed_paths:
                try:
                    # If the topic was deleted meanwhile, the file has moved with it.
                    with contextlib.suppress(FileNotFoundError):
                        if is_directory:
                            remove_directory(self.files, path)
                        else:
                            self.files.unlink(path)
                except OSError as error:
                    failure = failure or error
                else:
                    self._unremoved.discard((path, is_directory))
            self.reserve.restore()
            if failure is not None:
                raise failure

        return remove

    def abandon(self) -> None:
        """Release all files; a later start removes them."""
        for _, _, doomed in self._doomed:
            if doomed is not None:
                doomed.abandon()
