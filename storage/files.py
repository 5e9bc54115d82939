"""The one seam to the operating system.

All disk accesses of `storage` pass through an instance of `Files`. Tests replace it to crash, fill,
delay or corrupt the disk. The methods are as thin as the system calls allow, because the append
path runs through them.

Rules:

- Paths are `str`. Positions and sizes are bytes. Failures are the system's `OSError`. If
  descriptors run out (EMFILE, ENFILE), the message names the limit.
- `pwrite` writes all or raises; the bytes after an interrupted `pwrite` are unknown.
- `Files` follows no symbolic link in any part of a path, except in the path of its root (a data
  directory): files below the root are opened relative to its descriptor (`openat`). A caller with a
  path outside of the root that may contain links resolves it first.
- A new file or directory grants other users no more than its parent directory does: the mode of
  that directory alone decides about reading. Files that root makes belong to the owner of the
  directory, who could not read them otherwise.
- Only regular files are opened, without waiting: a link, a pipe, a socket, a device or a directory
  is UnusableFile.
- With `top_owners`, entries of other users at the top of the root are hidden: reading one is
  FileNotFoundError, and making one of that name is IgnoredEntry.
- Nothing survives a power cut before `fsync` or `fdatasync` (bytes and length) or `sync_directory`
  (names) has returned.
- No file is mapped into memory: if another process truncates it, reading it is SIGBUS.

Not here: the meaning of the files, retries, caching of descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Literal

from storage import statx
from storage.errors import IgnoredEntry, LogLocked, UnusableFile
from storage.openat import DirectoryFd
from storage.room import Room, T

Kind = Literal["file", "directory", "other"]
"""The kind of a directory entry; a link is `other`, whatever its target is."""

LARGEST_WHOLE = 1 << 30
"""The largest file, in bytes, that `read_whole` reads."""

# Opening a pipe does not wait for its other end. No effect on regular files.
_AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
_TEMPORARY = re.compile(r"[0-9a-f]{16}-.+\.tmp", re.DOTALL)
_EVERYTHING = DirectoryFd("/")

# Bound to a local name: the warm read takes a microsecond.
_preadv = os.preadv
_NOWAIT = os.RWF_NOWAIT

Identity = tuple[int, int, int]
"""The identity of a file, never used again: (device, inode, birth time in ns)."""

# C's struct flock: type, whence, start, len, pid, with the padding of 64-bit Linux.
_FLOCK = struct.Struct("@hhqqi0q")
_libc = ctypes.CDLL(None, use_errno=True)
# fcntl locks never conflict inside one process, and closing *any* descriptor of a file drops the
# process's lock on it. So this is a list of the locked files: (device, inode) -> fd.
_locked_here: dict[tuple[int, int], int] = {}
# Taken from the check whether this process has a lock to the opening of the file.
_looking = threading.Lock()


def _with_reason(error: OSError, path: str) -> OSError:
    """Return `error`; if descriptors ran out, with the limit in its message."""
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason = f"{os.strerror(errno.EMFILE)}: this process may open {limit} files (RLIMIT_NOFILE)"
    elif error.errno == errno.ENFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason = (
            f"{os.strerror(errno.ENFILE)}: the limit of the system (fs.file-max) is reached, "
            f"not the limit of this process, {limit} (RLIMIT_NOFILE)"
        )
    else:
        return error
    return OSError(error.errno, reason, path)


def unusable(path: str, mode: int) -> UnusableFile:
    """Return the error for a path that is no regular file, by its `st_mode`."""
    kind = _KINDS.get(stat.S_IFMT(mode), "an unknown kind of file")
    return UnusableFile(errno.EIO, f"found {kind} instead of a regular file; not opened", path)


def _inherited(parent: os.stat_result | None) -> int:
    """Return the permission bits of a new entry: for others at most those of its directory."""
    return 0o7700 | (0 if parent is None else parent.st_mode & 0o077)


def _is_roots_new(found: os.stat_result) -> bool:
    """Return whether root, this process, has just made the file, which may be given away."""
    is_empty = found.st_size == 0 and found.st_nlink == 1
    return is_empty and found.st_uid == 0 == os.geteuid()


ABANDONED_S = 86_400
"""No process writes a temporary file that was not written for this time."""


def is_temporary(name: str) -> bool:
    """Return whether the name is a temporary one of `replace_atomically`."""
    return _TEMPORARY.fullmatch(name) is not None


class _Parent:
    """A path's parent directory, open during a `with` block. Its OSErrors get the whole path."""

    __slots__ = ("_own", "_path", "fd", "name")

    def __init__(self, files: Files, path: str, *, makes: bool = False) -> None:
        root, relative = files._place(path, makes=makes)
        parent, slash, self.name = relative.rpartition("/")
        self._path = path
        self._own = bool(slash)
        try:
            self.fd = root.open(parent, os.O_PATH | os.O_DIRECTORY) if slash else root.fd
        except OSError as error:
            raise _named(error, path) from None

    def __enter__(self) -> _Parent:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._own:
            os.close(self.fd)
        if isinstance(error, OSError):
            raise _named(error, self._path) from None


def _named(error: OSError, path: str) -> OSError:
    """Return the error with the path that the caller gave."""
    if isinstance(error, IgnoredEntry):
        return error  # it names the path
    if error.errno == errno.ELOOP:
        reason = "the path contains a symbolic link; links are not followed"
        return UnusableFile(errno.EIO, reason, path)
    return _with_reason(OSError(error.errno, error.strerror, path), path)


class Files:
    """The disk below a data directory, `root`. Thread-safe.

    `parallel`: the number of simultaneous calls that pays on a slow disk. `in_order`: whether names
    appear in the order in which their writer makes them. `room`: the reserve that `with_reserve`
    gives up on a full disk. `top_owners`: the users whose entries at the top of the root count;
    None: all users.
    """

    parallel = 1
    in_order = True
    room = Room()
    top_owners: frozenset[int] | None = None
    _top = _EVERYTHING

    def __init__(self, root: str = "/") -> None:
        if root != "/":
            self._top = DirectoryFd(os.path.abspath(root))

    def _place(self, path: str, *, makes: bool = False) -> tuple[DirectoryFd, str]:
        """Return the root directory of a path, and the rest of the path.

        `makes`: the caller makes the path. Errors: FileNotFoundError, IgnoredEntry, by
        `top_owners`.
        """
        root, relative = self._split(path)
        if self.top_owners is not None and root is self._top and relative != ".":
            name, slash, _ = relative.partition("/")
            try:
                owner = os.stat(name, dir_fd=root.fd, follow_symlinks=False).st_uid
            except OSError:
                return root, relative
            self._check_top_owner(path, owner, makes=makes and not slash)
        return root, relative

    def _check_top_owner(self, path: str, owner: int, *, makes: bool) -> None:
        if self.top_owners is None or owner in self.top_owners:
            return
        if makes:
            reason = f"{path} exists, belongs to user {owner} and is ignored"
            raise IgnoredEntry(errno.EEXIST, reason)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _split(self, path: str) -> tuple[DirectoryFd, str]:
        root = self._top
        if path.startswith(root.path):
            if len(path) == len(root.path):
                return root, "."
            if path[len(root.path)] == "/" and root is not _EVERYTHING:
                return root, path[len(root.path) + 1 :]
        return _EVERYTHING, os.path.abspath(path)[1:] or "."

    def close_root(self) -> None:
        """Close the descriptor of `root` until its next use. No other call may be running."""
        if self._top is not _EVERYTHING:
            self._top.close()

    # -- bytes ---------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Return a descriptor of a regular file, closed on exec. Errors: UnusableFile for anything
        else; EMFILE and ENFILE name the limit and the path.
        """
        makes = bool(flags & os.O_CREAT)
        root, relative = self._place(path, makes=makes)
        parent = None
        if makes:
            parent = self._parent_stat(root, relative)
            mode &= _inherited(parent)
        try:
            fd = root.open(relative, flags | _AT_ONCE, mode)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENXIO, errno.ENODEV):
                raise unusable(path, self._look(path).st_mode) from None
            raise _named(error, path) from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise unusable(path, found.st_mode)
        if root is self._top and "/" not in relative:
            try:
                # Another user may have made the file since the path was checked.
                self._check_top_owner(path, found.st_uid, makes=makes)
            except OSError:
                os.close(fd)
                raise
        if parent is not None and parent.st_uid != found.st_uid and _is_roots_new(found):
            with contextlib.suppress(OSError):  # a container's root may give nothing away
                os.fchown(fd, parent.st_uid, parent.st_gid)
        return fd

    @staticmethod
    def _parent_stat(root: DirectoryFd, relative: str) -> os.stat_result | None:
        """Return the stat of a new file's directory; None if it is missing: the creation fails."""
        parent = relative.rpartition("/")[0] or "."
        try:
            return os.stat(parent, dir_fd=root.fd, follow_symlinks=False)
        except OSError:
            return None

    @contextlib.contextmanager
    def held_open(self, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a file; the descriptor is closed when the block ends."""
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            self.close(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`."""
        written = os.pwrite(fd, data, position)
        if written == len(data):
            return
        with memoryview(data).cast("B") as view:
            while written < len(view):
                with view[written:] as rest:
                    written += os.pwrite(fd, rest, position + written)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Return `size` bytes from `position`; fewer only at the file's end."""
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

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of a file from `start` to `end` that are not holes, in order.

        If the file system reports no holes, that is one range.
        """
        while start < end:
            try:
                first = os.lseek(fd, start, os.SEEK_DATA)
                hole = os.lseek(fd, first, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole follows
                    return
                if error.errno != errno.EINVAL:
                    raise
                first, hole = start, end
            if first < end:
                yield first, min(hole, end)
            start = hole

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        """Fill `buffer` from `position`; return the count, which is smaller only at the end."""
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
        """Read by one call: O_DIRECT cannot continue within a block."""
        return os.preadv(fd, [buffer], position)

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        """Read the bytes that are in the page cache; return None if the first byte is not there.

        A short count may mean the end of the file or of the cache: read again from there. On a file
        system without RWF_NOWAIT (EOPNOTSUPP: tmpfs, overlayfs) this reads, and may wait: otherwise
        a caller that may not wait could never read there.
        """
        try:
            return _preadv(fd, [buffer], position, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return os.preadv(fd, [buffer], position)
            raise

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        # lseek takes a quarter of fstat's time, and each append calls it.
        return os.lseek(fd, 0, os.SEEK_END)

    def descriptor_stat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Sync a file's bytes and length, but not its times."""
        os.fdatasync(fd)

    # -- room ----------------------------------------------------------------------------------

    def with_reserve(self, operation: Callable[[], T]) -> T:
        """Call an operation that must not fail on a full disk (`Room.with_reserve`)."""
        return self.room.with_reserve(operation)

    def check_room(self) -> None:
        """Check for room beyond the reserve before taking space. Errors: OSError (ENOSPC)."""
        self.room.check()

    def check_free(self, path: str, size: int) -> None:
        """Check that the file system of `path` has `size` free bytes. Errors: OSError (ENOSPC)."""
        space = self.space(path)
        # (A file system without a limit reports no blocks.)
        if space.f_blocks and space.f_bavail * space.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def settle(self) -> None:
        """Wait until the space of removed files is free: btrfs and XFS write to the disk first."""
        fd = self._open_directory(self._top.path)
        try:
            _libc.syncfs(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> os.statvfs_result:
        """Return the space of the file system of `path`."""
        with self._found(path) as fd:
            return os.fstatvfs(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve disk space for the first `size` bytes of a file, and extend it to that size."""
        os.posix_fallocate(fd, 0, size)

    # -- names ---------------------------------------------------------------------------------

    # `exists`, `is_directory` and `file_stat` open nothing.

    def exists(self, path: str) -> bool:
        """Return whether a directory entry exists, including a dangling link."""
        try:
            self._look(path)
        except OSError:
            return False
        return True

    def check_absent(self, path: str) -> None:
        """Check that no directory entry has this path. Errors: FileExistsError, IgnoredEntry."""
        self._place(path, makes=True)
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    def is_directory(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self._look(path).st_mode)
        except OSError:
            return False

    def file_stat(self, path: str) -> os.stat_result:
        """Return the stat of a path; of a link, its own."""
        return self._look(path)

    def version(self, path: str) -> tuple[int, int] | None:
        """Return what changes when the file of this path is replaced; None: there is no file."""
        try:
            found = self.file_stat(path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _look(self, path: str) -> os.stat_result:
        root, relative = self._place(path)
        try:
            return os.stat(relative, dir_fd=root.fd, follow_symlinks=False)
        except OSError as error:
            if relative == "." and error.errno == errno.ENOTDIR:
                return os.stat(root.path)  # the root is no directory
            raise _named(error, path) from None

    def identity(self, file: str | int) -> Identity:
        """Return the identity of the file of this path or descriptor.

        If the path is renamed meanwhile, the result may be the identity of no file.
        """
        found = self.file_stat(file) if isinstance(file, str) else self.descriptor_stat(file)
        return found.st_dev, found.st_ino, self.born_ns(file)

    def born_ns(self, file: str | int) -> int:
        """Return the birth time of a file; 0 if the file system does not report it.

        An inode number is used again, but not with the same birth time.
        """
        if isinstance(file, int):
            return statx.born_ns(file)
        with self._found(file) as fd:
            return statx.born_ns(fd)

    def mount_id(self, directory: str) -> str:
        """Return a name of the mount that a directory lies on.

        The next mount of the same file system has another name. Before Linux 6.8 the name may be
        the same, because the numbers of mountinfo are used again.
        """
        with self._found(directory) as fd:
            return statx.mount_id(fd)

    @contextlib.contextmanager
    def _found(self, path: str) -> Iterator[int]:
        """Open a path for a `with` block, only to look at it."""
        root, relative = self._place(path)
        try:
            fd = root.open(relative, os.O_PATH)
        except OSError as error:
            raise _named(error, path) from None
        try:
            yield fd
        finally:
            os.close(fd)

    def names(self, path: str) -> list[str]:
        """Return the names of all entries of a directory, in no order."""
        return [name for name, _ in self.listing(path)]

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        """Return (name, kind) of all entries of a directory, in no order."""
        fd = self._open_directory(path)
        try:
            with os.scandir(fd) as entries:
                is_top = self.top_owners is not None and self._place(path) == (self._top, ".")
                return [
                    (entry.name, _kind(entry))
                    for entry in entries
                    if not is_top or self._is_counted(entry)
                ]
        except OSError as error:
            raise _named(error, path) from None
        finally:
            os.close(fd)

    def _is_counted(self, entry: os.DirEntry[str]) -> bool:
        """Return whether an entry at the top belongs to one of `top_owners`."""
        owners = self.top_owners
        try:
            return owners is None or entry.stat(follow_symlinks=False).st_uid in owners
        except FileNotFoundError:
            return False

    def _open_directory(self, path: str) -> int:
        root, relative = self._place(path)
        try:
            return root.open(relative, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _named(error, path) from None

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing an existing target; a link itself is renamed.

        Uses the reserve, because names record deletions.
        """
        self.with_reserve(lambda: self._rename(source, target))

    def _rename(self, source: str, target: str) -> None:
        with _Parent(self, source) as old, _Parent(self, target, makes=True) as new:
            os.rename(old.name, new.name, src_dir_fd=old.fd, dst_dir_fd=new.fd)

    def link(self, source: str, target: str) -> None:
        """Give a file another name. Errors: FileExistsError if the target exists."""
        with _Parent(self, source) as old, _Parent(self, target, makes=True) as new:
            os.link(
                old.name,
                new.name,
                src_dir_fd=old.fd,
                dst_dir_fd=new.fd,
                follow_symlinks=False,
            )

    def unlink(self, path: str) -> None:
        """Remove a name; a link itself is removed."""
        with _Parent(self, path) as parent:
            os.unlink(parent.name, dir_fd=parent.fd)

    def mkdir(self, path: str, mode: int = 0o755) -> None:
        mode &= _inherited(self._parent_stat(*self._place(path, makes=True)))
        with _Parent(self, path, makes=True) as parent:
            os.mkdir(parent.name, mode, dir_fd=parent.fd)

    def rmdir(self, path: str) -> None:
        with _Parent(self, path) as parent:
            os.rmdir(parent.name, dir_fd=parent.fd)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Change the owner of a path; of a link, its own."""
        with _Parent(self, path) as parent:
            os.chown(parent.name, uid, gid, dir_fd=parent.fd, follow_symlinks=False)

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits of a file or a directory."""
        with self._found(path) as fd:
            try:
                # fchmod refuses O_PATH, and a file without read permission can be opened only by
                # that.
                os.chmod(f"/proc/self/fd/{fd}", mode)
            except OSError as error:
                raise _named(error, path) from None

    def utime_ns(self, path: str, ns: int) -> None:
        """Set access and modification time, in ns."""
        with _Parent(self, path) as parent:
            os.utime(parent.name, ns=(ns, ns), dir_fd=parent.fd, follow_symlinks=False)

    def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals of names in `path` survive a power cut."""
        fd = self._open_directory(path)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    # -- whole small files ---------------------------------------------------------------------

    def read_whole(self, path: str) -> bytes:
        """Return all bytes of a file. Errors: FileNotFoundError, UnusableFile for a larger one."""
        with self.held_open(path) as fd:
            size = self.size(fd)
            if size > LARGEST_WHOLE:
                reason = f"{size} bytes is too large for this file"
                raise UnusableFile(errno.EIO, reason, path)
            return self.pread(fd, size, 0)

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Replace the content of a file: after a power cut it has its old content or `data`.

        Writes a new file with an unpredictable name (`is_temporary`) in the same directory, fsyncs
        it, renames it to `path`, and fsyncs the directory (Kafka's `CheckpointFile.java`).
        `sync=False` leaves both fsyncs out, for files that can be rebuilt; a power cut may then
        leave an empty file. Uses the reserve: such files record log ends and deletions.
        """
        self.with_reserve(lambda: self._replace_atomically(path, data, sync=sync))

    def replace_private(self, path: str, data: bytes) -> None:
        """Replace a file atomically by one that its owner alone can read."""
        self.with_reserve(lambda: self._replace_atomically(path, data, mode=0o600))

    def replace_if_room(self, path: str, data: bytes) -> None:
        """Replace a file atomically, without using the reserve. Errors: OSError (ENOSPC)."""
        self.check_room()
        self._replace_atomically(path, data)

    def _replace_atomically(
        self, path: str, data: bytes, *, sync: bool = True, mode: int = 0o644
    ) -> None:
        with self.replacing(path, mode) as fd:
            self.pwrite(fd, data, 0)
            if sync:
                self.fsync(fd)
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    @contextlib.contextmanager
    def replacing(self, path: str, mode: int = 0o644) -> Iterator[int]:
        """Open a new file for a `with` block; it then gets the name `path`. If the block raises, it
        is removed.

        Its name is a temporary one until then (`is_temporary`). Nothing is synced.
        """
        directory, name = os.path.split(path)
        temporary = os.path.join(directory, f"{os.urandom(8).hex()}-{name}.tmp")
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            try:
                yield fd
            finally:
                self.close(fd)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise

    # -- the lock ------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        """Take Kafka's `.lock`: a POSIX record lock over the whole file, created if missing.

        Returns a descriptor for `unlock`. The lock belongs to the process: a child does not inherit
        it, and closing any other descriptor of the file drops it. Errors: LogLocked, with the
        owner's pid, if another process has it (a broker's `FileChannel.tryLock` is the same kind of
        lock) or this process already.
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
            # Its owner removed the file between open and lock: lock the new one.
            self.close(fd)

    def unlock(self, fd: int) -> None:
        """Release a lock; the file stays."""
        with _looking:
            status = os.fstat(fd)
            _locked_here.pop((status.st_dev, status.st_ino), None)
            self.close(fd)

    def locked_by(self, path: str) -> int | None:
        """Return the pid of the process, maybe this one, that has the lock of `path`, or None."""
        with _looking:
            try:
                status = self.file_stat(path)
                if (status.st_dev, status.st_ino) in _locked_here:
                    return os.getpid()  # closing a descriptor of the file would drop the lock
                fd = self.open(path, os.O_RDONLY)
            except (FileNotFoundError, UnusableFile):
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
        """Return whether another process has locked this file with `lock`."""
        return self.locked_by(path) not in (None, os.getpid())

    @staticmethod
    def _lock_holder(fd: int) -> int | None:
        """Return the pid of the process that has the lock, or None."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
        return None if kind == fcntl.F_UNLCK else int(pid)


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
