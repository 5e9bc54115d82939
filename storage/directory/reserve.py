"""The reserve: disk space that is kept for operations that free space.

Plain files beside the partitions, `kafkafs.reserve.0` and so on, occupy blocks and inodes. On a
full disk, operations that free space or record deletions may use them up, one file after the other
(`with_reserve`): checkpoints, settings, deletions, recovery, shutdown. Appends never do. They are
refused while a part of the reserve is missing, so that they do not take its space. Each part is
restored as soon as there is room for it.

Anything but a regular file in the place of a part is renamed (`bad_file`), and the part is made.

After the last part, files that can be rebuilt from the log are removed: line indexes (`.lines`) and
words (`.words`), one partition at a time.

The daemon keeps a reserve (`keep`). Other processes that open the directory use an existing one.

Thread-safe. Not here: the operations that may use it (callers of `Files.with_reserve`), and a disk
that is full without a reserve (`make_room`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator

from storage import paths
from storage.bad_file import set_aside
from storage.errors import reason_of
from storage.files import Files, unusable
from storage.room import FULL, Room, T
from storage.state.tiered import TieredTopics

_log = logging.getLogger(__name__)

COUNT = 8
"""The number of files, of one inode and an equal part of the bytes each."""
SHARE = 64
"""The largest part of a file system: small ones have a small reserve."""
NAME = "kafkafs.reserve."
"""The prefix of the files' names."""


class Reserve(Room):
    """The reserve of a data directory. `is_whole`: appends may continue (also without one)."""

    def __init__(self, files: Files, path: str, tiered: TieredTopics | None = None) -> None:
        """`tiered`: the topics whose files stay."""
        self._files = files
        self._path = path
        self._tiered = tiered
        self._part = 0
        self._lock = threading.Lock()
        # Running operations that have found the disk full.
        self._in_need = 0
        self.is_whole = True

    def keep(self, size: int) -> bool:
        """Keep `size` bytes from now on, less on a small file system; 0: release the reserve.

        Return whether all of it is there. Errors: OSError, but not for a full disk.
        """
        with self._lock:
            if not size:
                while self._give_up_one():
                    pass
                self._part = 0
                self.is_whole = True
                return True
            space = self._files.space(self._path)
            size = min(size, space.f_blocks * space.f_frsize // SHARE)
            # A file system without a limit (a tmpfs of size 0) reports no blocks.
            self._part = size // COUNT
            self.is_whole = not self._part
        return self.restore()

    @property
    def parts(self) -> int:
        """The number of existing files, of `COUNT`."""
        return sum(self._allocated(path) >= 0 for path in self._paths())

    def with_reserve(self, operation: Callable[[], T]) -> T:
        """Call an operation that frees space or records what is deleted.

        If it fails on a full disk, it must leave nothing. Then a part of the reserve is given up,
        and the operation is repeated. If no part is left, it is repeated once, after the disk has
        freed all removed files. `restore` takes nothing back before the operation ends.
        """
        with contextlib.ExitStack() as need:
            is_settled = False
            while True:
                try:
                    return operation()
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    need.enter_context(self._needed())
                    if self.give_up():
                        continue
                    if is_settled:
                        raise
                    self._files.settle()
                    is_settled = True

    def check(self) -> None:
        """Raise OSError (ENOSPC) if only the reserve is left."""
        if not self.is_whole and not self.restore():
            reason = (
                f"{os.strerror(errno.ENOSPC)}: the remaining space is reserved for "
                "deleting and shutting down"
            )
            raise OSError(errno.ENOSPC, reason)

    @contextlib.contextmanager
    def _needed(self) -> Iterator[None]:
        """Let `restore` take nothing back during this block."""
        with self._lock:
            self._in_need += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_need -= 1

    def give_up(self) -> bool:
        """Give up one part, or files that can be rebuilt; return whether any was left."""
        with self._lock:
            if not (self._give_up_one() or self._give_up_rebuilt()):
                return False
            if self._part:
                self.is_whole = False
            return True

    def restore(self) -> bool:
        """Take back released parts, if there is room and no operation needs it; return whether the
        reserve is whole.

        Errors: OSError (not ENOSPC).
        """
        with self._lock:
            if self.is_whole or self._in_need:
                return self.is_whole
            missing = [path for path in self._paths() if self._allocated(path) < self._part]
            try:
                for path in missing:
                    space = self._files.space(self._path)
                    if space.f_bavail * space.f_frsize < self._part:
                        return False
                    self._allocate(path)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return False
            self.is_whole = True
            return True

    def _paths(self) -> list[str]:
        return [os.path.join(self._path, f"{NAME}{number}") for number in range(COUNT)]

    def _allocated(self, path: str) -> int:
        """Return the allocated bytes of this file; -1: it is no regular file."""
        try:
            found = self._files.file_stat(path)
        except FileNotFoundError:
            return -1
        return found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else -1

    def _set_aside_unusable(self, path: str) -> None:
        """Rename a link, a pipe or a directory in the place of a part. Errors: OSError."""
        with contextlib.suppress(FileNotFoundError):
            mode = self._files.file_stat(path).st_mode
            if not stat.S_ISREG(mode):
                kept = set_aside(self._files, path)
                _log.warning("%s; kept as %s", reason_of(unusable(path, mode)), kept)

    def _allocate(self, path: str) -> None:
        self._set_aside_unusable(path)
        fd = self._files.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            self._files.allocate(fd, self._part)
        except OSError:
            # A part that is too small would keep appends refused.
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            raise
        finally:
            self._files.close(fd)

    def _give_up_one(self) -> bool:
        for path in reversed(self._paths()):
            if self._allocated(path) >= 0:
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(path)
                    return True
        return False

    def _give_up_rebuilt(self) -> bool:
        """Remove line indexes and words of one partition. Another thread may use one of them."""
        for name, kind in self._files.listing(self._path):
            partition = paths.parse_partition_directory(name)
            if kind != "directory" or partition is None:
                continue
            if self._tiered is not None and self._tiered.why(partition[0]) is not None:
                continue
            directory = os.path.join(self._path, name)
            given = False
            # Another thread may delete the partition.
            with contextlib.suppress(FileNotFoundError):
                for file, inner in self._files.listing(directory):
                    if inner != "directory" and file.endswith((paths.LINES, paths.WORDS)):
                        self._files.unlink(os.path.join(directory, file))
                        given = True
            if given:
                return True
        return False
