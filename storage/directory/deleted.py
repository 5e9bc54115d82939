"""Removes what was deleted, after its last readers.

A segment that has left its log, and a topic's directory, are renamed at once and removed when
file.delete.delay.ms is over; segments that are read longer wait for their readers.  A file that
cannot be removed is tried again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from storage.directory.reserve import Reserve
from storage.duties import Duties
from storage.files import Files
from storage.log.log import Log, LogGroup

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


class Deleted:
    """The deleted files of a data directory."""

    def __init__(
        self, files: Files, duties: Duties, reserve: Reserve, logs: LogGroup, *, read_only: bool
    ) -> None:
        self._files = files
        self._duties = duties
        self._reserve = reserve
        self._read_only = read_only
        self._logs = logs
        # Directories, each with when it is due and the partition that was there.
        self._doomed: list[tuple[int, str, Log | None]] = []
        # Paths that could not be removed yet, and whether each is a directory.
        self._unremoved: set[tuple[str, bool]] = set()

    def add(self, due_ms: int, directory: str, log: Log | None) -> None:
        """Remove a partition's directory from ``due_ms`` on, by the monotonic clock."""
        self._doomed.append((due_ms, directory, log))

    def remove(self, now_ms: int, *, again: bool = False) -> Callable[[], None] | None:
        """Release deleted files whose delay is over, some at a time.

        Returns a function that removes them from the disk, in any thread, or None: there are none.
        ``again``: together with those that could not be removed before.
        """
        doomed_paths = list(self._unremoved) if again else []
        left = SWEPT_AT_ONCE
        for log in list(self._logs.retiring):
            if left:
                count = len(log.retired)
                with self._duties.attempt("letting go of what was deleted", log.name):
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

    def abandon(self) -> None:
        """Release everything; the next start removes it."""
        for _, _, doomed in self._doomed:
            if doomed is not None:
                doomed.abandon()
