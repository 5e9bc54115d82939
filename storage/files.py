"""The one seam to the operating system.

Everything that ``storage`` does to a disk passes through an instance of ``Files``, which is handed
in wherever it is needed.  Tests replace it to crash, fill, delay or corrupt the disk.  The methods
are as thin as the system calls allow, because the append path runs through them.

Rules:

- Paths are ``str``.  Positions and sizes are bytes.  Failures are ``OSError``, as the system gave
  them; where descriptors run out (EMFILE, ENFILE) the message names the limit.
- ``pwrite`` writes all or raises; what an interrupted ``pwrite`` leaves in the file is unknown.
- Nothing survives a power cut before ``fsync`` or ``fdatasync`` (bytes and length) or
  ``sync_directory`` (names) has returned.
- A map must be closed before its file is cut, or reading it is SIGBUS.

Not here: what the files mean, retries, caching of descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
import sys
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from storage.errors import LogLocked

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a disk, or of a user's share of it, that has no room left."""

T = TypeVar("T")

# C's struct flock: type, whence, start, len, pid, with the padding of 64-bit Linux.
_FLOCK = struct.Struct("@hhqqi0q")
# statx(2), which Python does not have: its mask and the time of birth, in struct statx.
_statx = ctypes.CDLL(None, use_errno=True).statx
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_SIZE = 256
_BORN = struct.Struct("@I76xqI")
# fcntl locks never conflict inside one process, and closing *any* descriptor of a file drops the
# process's lock on it.  So what this process has locked is kept here: (device, inode) -> fd.
_locked_here: dict[tuple[int, int], int] = {}
# Between looking there and opening the file no other thread may lock it.
_looking = threading.Lock()


def _with_reason(error: OSError, path: str) -> OSError:
    """The same error; where descriptors ran out, with the limit in its message."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason = f"{os.strerror(errno.EMFILE)}: this process may have {limit} (RLIMIT_NOFILE)"
    elif error.errno == errno.ENFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason = (
            f"{os.strerror(errno.ENFILE)}: the system's limit (fs.file-max) is reached,"
            f" not this process's of {limit} (RLIMIT_NOFILE)"
        )
    else:
        return error
    return OSError(error.errno, reason, path)


class Room(Protocol):
    """What can be given up for room on a full disk."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is given up."""
        ...

    def give_up(self) -> bool:
        """Give a part of it to the disk; False where nothing is left."""
        ...

    def restore(self) -> bool:
        """Take again what was given up, if there is room; whether it is whole."""
        ...


class Files:
    """The real disk.  Any thread may call anything.

    ``parallel``: how many calls at a time are worth it, where each has to wait for long.
    ``in_order``: whether names appear in the order in which their writer makes them.
    ``reserve``: what ``spend`` gives up on a full disk; None: nothing.
    """

    parallel = 1
    in_order = True
    reserve: Room | None = None

    # -- bytes ---------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """A descriptor, closed on exec.  EMFILE and ENFILE name the limit and the path."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            raise _with_reason(error, path) from None

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of ``data`` at ``position``."""
        written = os.pwrite(fd, data, position)
        if written == len(data):
            return
        with memoryview(data).cast("B") as view:
            while written < len(view):
                with view[written:] as rest:
                    written += os.pwrite(fd, rest, position + written)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """``size`` bytes from ``position``; fewer only at the file's end."""
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size:
            data = os.pread(fd, size - done, position + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Fill ``buffer`` from ``position``; the count, less than its size only at the end."""
        size = len(buffer)
        done = os.preadv(fd, [buffer], position)
        if done == size or not done:
            return done
        with memoryview(buffer) as view:
            while done < size:
                with view[done:] as rest:
                    count = os.preadv(fd, [rest], position + done)
                if not count:
                    break
                done += count
        return done

    def preadv_once(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """The same in one read, as with O_DIRECT, which goes on from no place within a block."""
        return os.preadv(fd, [buffer], position)

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        """As much as the page cache holds; None where not even the first byte is there.

        A count short of the buffer may mean the file's end or the cache's: ask again from there.
        A file system that cannot tell (EOPNOTSUPP: tmpfs, overlayfs) is read at once: what would
        never be in the cache by its word could never be read without waiting, nor saved by who may
        not wait.
        """
        try:
            return os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return os.preadv(fd, [buffer], position)
            raise

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def descriptor_stat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """As ``fsync``, without times: bytes and length survive a power cut."""
        os.fdatasync(fd)

    def map(self, fd: int, length: int) -> mmap.mmap:
        """A read-only map of the first ``length`` bytes, ``length`` > 0, within the file.

        The map outlives ``close(fd)``.  Before Python 3.13 it holds a descriptor of its own.
        """
        try:
            if sys.version_info >= (3, 13):
                return mmap.mmap(fd, length, access=mmap.ACCESS_READ, trackfd=False)
            return mmap.mmap(fd, length, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _with_reason(error, f"/proc/self/fd/{fd}") from None

    # -- room ----------------------------------------------------------------------------------

    def spend(self, operation: Callable[[], T]) -> T:
        """Do what makes room, or says what is gone, and so must not fail on a full disk.

        For what it lacks the reserve is given up, a part after the other.  ``operation`` can be
        repeated: what has failed has left nothing.
        """
        while True:
            try:
                return operation()
            except OSError as error:
                if error.errno not in FULL or self.reserve is None or not self.reserve.give_up():
                    raise

    def check_room(self) -> None:
        """Before what takes room for good: OSError (ENOSPC) where only the reserve is left."""
        reserve = self.reserve
        if reserve is not None and not reserve.is_whole and not reserve.restore():
            reason = f"{os.strerror(errno.ENOSPC)}: what is left is for deleting and for the end"
            raise OSError(errno.ENOSPC, reason)

    def space(self, path: str) -> os.statvfs_result:
        """How much room the file system of ``path`` has."""
        return os.statvfs(path)

    def allocate(self, fd: int, size: int) -> None:
        """Take ``size`` bytes of the disk for a file, which is as long at least."""
        os.posix_fallocate(fd, 0, size)

    # -- names ---------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def file_stat(self, path: str) -> os.stat_result:
        return os.stat(path)

    def born_ns(self, file: str | int) -> int:
        """When the file of this path, or descriptor, was made; 0 where the disk does not say.

        That and the inode's number tell a file from any other: numbers are given again.
        """
        path, fd = (os.fsencode(file), _AT_FDCWD) if isinstance(file, str) else (b"", file)
        answer = ctypes.create_string_buffer(_STATX_SIZE)
        if _statx(fd, path, _AT_EMPTY_PATH, _STATX_BTIME, answer):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), file)
        known, seconds, ns = _BORN.unpack_from(answer)
        return seconds * 1_000_000_000 + ns if known & _STATX_BTIME else 0

    def scan(self, path: str) -> list[tuple[str, bool]]:
        """(name, whether it is a directory) of everything in a directory, in no order."""
        try:
            with os.scandir(path) as entries:
                return [(entry.name, entry.is_dir()) for entry in entries]
        except OSError as error:
            raise _with_reason(error, path) from None

    def rename(self, source: str, target: str) -> None:
        """Atomic; an existing target is replaced.  May ``spend``: names say what is gone."""
        self.spend(lambda: os.rename(source, target))

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        os.mkdir(path, mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def utime_ns(self, path: str, ns: int) -> None:
        """Set access and modification time, in nanoseconds."""
        os.utime(path, ns=(ns, ns))

    def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals of names in ``path`` survive a power cut."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    # -- whole small files ---------------------------------------------------------------------

    def read_whole(self, path: str) -> bytes:
        """All bytes of a small file; FileNotFoundError where there is none."""
        fd = self.open(path, os.O_RDONLY)
        try:
            return self.pread(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """``path`` is either as it was or holds ``data``, also after a power cut.

        Written to ``<path>.tmp``, fsynced, renamed over ``path``, and the directory fsynced
        (Kafka's ``CheckpointFile.java``).  ``sync=False`` leaves both fsyncs out: for what can be
        made again; a power cut may then leave an empty file.  May ``spend``: such files say how
        far a log is, and what is gone from it.
        """
        self.spend(lambda: self._replace_atomically(path, data, sync=sync))

    def _replace_atomically(self, path: str, data: bytes, *, sync: bool) -> None:
        temporary = f"{path}.tmp"
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                self.pwrite(fd, data, 0)
                if sync:
                    self.fsync(fd)
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    # -- the lock ------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        """Take Kafka's ``.lock``: a POSIX record lock over the whole file, created if missing.

        Returns a descriptor for ``unlock``.  LogLocked, with the holder's pid, where another
        process has it (a broker's ``FileChannel.tryLock`` is the same kind of lock) or this
        process already.  The lock is the process's: a child does not inherit it, and closing any
        other descriptor of the file drops it.
        """
        with _looking:
            return self._lock(path)

    def _lock(self, path: str) -> int:
        while True:
            with contextlib.suppress(FileNotFoundError):
                self._refuse_own_lock(path)
            fd = self.open(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = self._lock_holder(fd)
                self.close(fd)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise LogLocked(holder, path=path) from None
                raise
            status = os.fstat(fd)
            try:
                now = self.file_stat(path)
            except FileNotFoundError:
                now = None
            if now is not None and (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
                _locked_here[(status.st_dev, status.st_ino)] = fd
                return fd
            # Its holder removed the file between our open and our lock: lock the one there now.
            self.close(fd)

    def unlock(self, fd: int) -> None:
        """Give up a lock of ``lock``; the file stays."""
        with _looking:
            status = os.fstat(fd)
            _locked_here.pop((status.st_dev, status.st_ino), None)
            self.close(fd)

    def locked_by(self, path: str) -> int | None:
        """The pid of the process, maybe this one, that holds the lock of ``path``; None: nobody."""
        with _looking:
            try:
                status = self.file_stat(path)
                if (status.st_dev, status.st_ino) in _locked_here:
                    return os.getpid()  # closing a descriptor of the file would drop the lock
                fd = self.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                return self._lock_holder(fd)
            finally:
                self.close(fd)

    def _refuse_own_lock(self, path: str) -> None:
        status = self.file_stat(path)
        if (status.st_dev, status.st_ino) in _locked_here:
            raise LogLocked(os.getpid(), path=path)

    def is_locked(self, path: str) -> bool:
        """Whether another process has a lock of ``lock`` on this file.  Takes none itself."""
        return self.locked_by(path) not in (None, os.getpid())

    @staticmethod
    def _lock_holder(fd: int) -> int | None:
        """The pid of the process that holds the lock; None where it has just let go."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
        return None if kind == fcntl.F_UNLCK else int(pid)


class ByteSource(Protocol):
    """Where bytes can be read from: a file here, an object store elsewhere."""

    @property
    def path(self) -> str:
        """What to call it in an error."""
        ...

    def size(self) -> int:
        """Bytes there are now."""
        ...

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        """``size`` bytes from ``position``; fewer only at the end."""
        ...


class FileSource:
    """An open file as a byte source; who opened it closes it."""

    __slots__ = ("_fd", "_files", "path")

    def __init__(self, files: Files, fd: int, path: str) -> None:
        self._files = files
        self._fd = fd
        self.path = path

    def size(self) -> int:
        return self._files.size(self._fd)

    def read_at(self, position: int, size: int) -> bytes:
        return self._files.pread(self._fd, size, position)
