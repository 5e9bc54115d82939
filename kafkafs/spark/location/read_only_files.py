"""The writing half of files that nobody may write: it raises OSError (EROFS)."""

from __future__ import annotations

import errno
import mmap
import os
from typing import NoReturn

from storage.files import Files

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class ReadOnlyFiles(Files):
    """Refuses to write. A subclass reads, and names descriptors and paths."""

    def path_of(self, fd: int) -> str:
        """The path of a descriptor."""
        raise NotImplementedError

    def name_of(self, path: str) -> str:
        """The name of a path in errors."""
        raise NotImplementedError

    def check_flags(self, path: str, flags: int) -> None:
        """Raise OSError if the flags open a file for writing."""
        if flags & _WRITING:
            self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        reason = "a data directory in an object store is only read; write to one on a disk"
        raise OSError(errno.EROFS, reason, self.name_of(path))

    # -- bytes ---------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._refuse(self.path_of(fd))

    def ftruncate(self, fd: int, size: int) -> None:
        self._refuse(self.path_of(fd))

    def fsync(self, fd: int) -> None:
        self._refuse(self.path_of(fd))

    def fdatasync(self, fd: int) -> None:
        self._refuse(self.path_of(fd))

    def map(self, fd: int, length: int) -> mmap.mmap:
        """Refused too: the kernel cannot map an object of a store."""
        self._refuse(self.path_of(fd))

    # -- names ---------------------------------------------------------------------------------

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        self._refuse(path)

    def rmdir(self, path: str) -> None:
        self._refuse(path)

    def utime_ns(self, path: str, ns: int) -> None:
        self._refuse(path)

    def sync_directory(self, path: str) -> None:
        self._refuse(path)

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._refuse(path)

    # -- the lock ------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        self._refuse(path)

    def unlock(self, fd: int) -> None:
        self._refuse(self.path_of(fd))
