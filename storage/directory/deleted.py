"""Removes what was deleted, after its last readers.

A segment that has left its log, and a topic's directories, are renamed at once and removed when
file.delete.delay.ms is over; segments that are read longer wait for their readers.  A file that
cannot be removed is tried again.  Until then a topic can be undeleted (``DeletedTopic``), also
after a restart.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from storage.directory.reserve import Reserve
from storage.directory.topics import Topic
from storage.duties import Duties
from storage.files import Files
from storage.log.log import Log, LogGroup
from storage.state import deletion_file
from storage.state.deletion_file import Deletion

# Deleted segments that are released in one turn of the owner's, some 50 µs each.
SWEPT_AT_ONCE = 100


def remove_directory(files: Files, directory: str) -> None:
    """Remove the directory of a partition with the files in it.  OSError."""
    if stat.S_ISLNK(files.file_stat(directory).st_mode):
        files.unlink(directory)  # deleted as a partition that never was one
        return
    for name, _ in files.scan(directory):
        files.unlink(os.path.join(directory, name))
    files.rmdir(directory)


@dataclass(slots=True, eq=False)
class DeletedTopic:
    """A topic that can be undeleted until ``due_ms``, by the monotonic clock.

    ``topic``, and its ``logs`` and ``faults`` by partition: where this process has deleted it.
    """

    deletion: Deletion
    due_ms: int
    topic: Topic | None = None
    logs: dict[int, Log] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)


class Deleted:
    """The deleted files of a data directory.  ``topics``: those that can be undeleted."""

    def __init__(
        self,
        path: str,
        files: Files,
        duties: Duties,
        reserve: Reserve,
        log_group: LogGroup,
        *,
        read_only: bool,
    ) -> None:
        self._path = path
        self.topics: list[DeletedTopic] = []
        self._files = files
        self._duties = duties
        self._reserve = reserve
        self._read_only = read_only
        self._log_group = log_group
        # Directories, each with when it is due and the partition that was there.
        self._doomed: list[tuple[int, str, Log | None]] = []
        # Paths that could not be removed yet, and whether each is a directory.
        self._unremoved: set[tuple[str, bool]] = set()

    def take_up(
        self, deletions: Iterable[Deletion], doomed: Iterable[str], wall_ms: int, now_ms: int
    ) -> None:
        """Remove what an earlier process has deleted: a topic when its time is over, the other
        ``doomed`` directories at once.

        The time is ``wall_ms`` by the wall clock and ``now_ms`` by the monotonic one.
        """
        waiting: set[str] = set()
        for each in deletions:
            # A clock that was put back must not keep them longer.
            left_ms = min(each.due_ms - wall_ms, each.due_ms - each.deleted_ms)
            self.topics.append(DeletedTopic(each, now_ms + left_ms))
            waiting.update(partition.directory for partition in each.partitions)
        for name in doomed:
            if not self._read_only and name not in waiting:
                self.add(now_ms, os.path.join(self._path, name), None)

    def add(self, due_ms: int, directory: str, log: Log | None) -> None:
        """Remove a partition's directory from ``due_ms`` on, by the monotonic clock."""
        self._doomed.append((due_ms, directory, log))

    def take_back(self, log: Log) -> bool:
        """Forget a partition's directory; False where some of its files were let go of."""
        if not set(log.segments) <= {segment for _, segment in log.retired}:
            return False
        self._doomed = [each for each in self._doomed if each[2] is not log]
        return True

    def remove(self, now_ms: int, *, again: bool = False) -> Callable[[], None] | None:
        """Release deleted files whose delay is over, some at a time.

        Returns a function that removes them from the disk, in any thread, or None: there are none.
        ``again``: together with those that could not be removed before.
        """
        doomed_paths = list(self._unremoved) if again else []
        for topic in [each for each in self.topics if each.due_ms <= now_ms]:
            doomed_paths.append((self._let_go(topic), False))
        left = SWEPT_AT_ONCE
        for log in list(self._log_group.retiring):
            if left:
                count = len(log.retired)
                with self._duties.attempt("releasing deleted logs", log.name):
                    gone = log.release_retired(now_ms, left)
                    doomed_paths += [(path, False) for path in gone]
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
        if self._read_only or (left == SWEPT_AT_ONCE and not doomed_paths):
            return None

        # Also where the function is never called.
        self._unremoved.update(doomed_paths)

        def remove() -> None:
            failure: OSError | None = None
            for path, is_directory in doomed_paths:
                try:
                    # A file of a topic that was deleted meanwhile has moved with it.
                    with contextlib.suppress(FileNotFoundError):
                        if is_directory:
                            remove_directory(self._files, path)
                        else:
                            self._files.unlink(path)
                except OSError as error:
                    failure = failure or error
                else:
                    self._unremoved.discard((path, is_directory))
            self._reserve.restore()
            if failure is not None:
                raise failure

        return remove

    def _let_go(self, topic: DeletedTopic) -> str:
        """Doom the directories of a topic, which cannot be undeleted any more.

        Returns the path of the file that says it could, which goes first.
        """
        self.topics.remove(topic)
        directories = [
            os.path.join(self._path, each.directory) for each in topic.deletion.partitions
        ]
        for each, directory in zip(topic.deletion.partitions, directories, strict=True):
            self.add(topic.due_ms, directory, topic.logs.get(each.number))
        return deletion_file.path_in(directories[0])

    def abandon(self) -> None:
        """Release everything; a later start removes it."""
        for topic in self.topics:
            for log in topic.logs.values():
                log.abandon()
        for _, _, doomed in self._doomed:
            if doomed is not None:
                doomed.abandon()
