"""`storage.files.Files` over a `pyarrow.fs.FileSystem`: reads data directories in object stores.

Descriptors are numbers of our own for open objects. Paths are absolute within the file system
(`/bucket/prefix/topic-0/…`). A directory has the names of its listing, without `.words`: to look
them up takes some requests for each segment, one after the other. Each method that writes raises
OSError (EROFS).

With `listed`, for planning, it lists each directory once, and uses the names, sizes and times of
the listing until `forget`. So opening a data directory requests only the bytes that it reads.
`confirm` checks that these bytes are of the listed objects. Without `listed`, for reading a few
objects, it requests an object's version when it opens the object and after each fetch.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeAlias

import pyarrow.fs

from kafkafs.spark.location.open_object import ObjectStore, OpenObject, Version
from storage import paths
from storage.errors import SegmentGone
from storage.files import Files, Kind

# By name; a directory has the version `_DIRECTORY`.
_Listing: TypeAlias = dict[str, Version]
_DIRECTORY = Version(-1, 0)

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# The number of small files in memory, by path and version: opening logs reads checkpoints often.
_MOST_KEPT = 256
_LARGEST_KEPT = 64 * 1024
# The device number of all objects.
_DEVICE = 1


class ArrowFiles(Files):
    """See the module. For any thread; `forget` only while no thread reads."""

    parallel = 16
    in_order = False

    def __init__(self, store: ObjectStore, root: str, *, listed: bool = False) -> None:
        """`root`: the data directory, above which it lists nothing."""
        self._store = store
        self._root = root
        self._listed = listed
        self._objects: dict[int, OpenObject] = {}
        self._numbers = itertools.count(1)
        self._listings: dict[str, _Listing | None] = {}
        self._kept: dict[tuple[str, Version], bytes] = {}
        # Of a partition's directory, the version of `partition.metadata` and the inode.
        self._inodes: dict[str, tuple[Version, int]] = {}
        # The names read since `forget`, by directory.
        self._read: dict[str, set[str]] = {}
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(self.parallel, "objects")

    # -- bytes ---------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if flags & _WRITING:
            self._refuse(path)
        made = OpenObject(
            self._store,
            path,
            self._version(path) if self._listed else None,
            is_log=path.endswith((paths.LOG, paths.OLD_LOG, paths.LOG + paths.DELETED)),
            ahead=self._pool,
            gone=self._drop,
        )
        number = next(self._numbers)
        self._objects[number] = made
        if self._listed:
            with self._guard:
                directory, name = os.path.split(path)
                self._read.setdefault(directory, set()).add(name)
        return number

    def close(self, fd: int) -> None:
        self._objects.pop(fd).close()

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._objects[fd].read(position, size))

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        data = self._objects[fd].read(position, len(buffer))
        with memoryview(buffer).cast("B") as view:
            view[: len(data)] = data
        return len(data)

    preadv_once = preadv

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        return None  # each read of a store waits

    def data_ranges(self, fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        if start < end:
            yield start, end  # objects have no holes

    def size(self, fd: int) -> int:
        return self._objects[fd].version.size

    def descriptor_stat(self, fd: int) -> os.stat_result:
        made = self._objects[fd]
        return self._stat(made.path, made.version)

    # -- names ---------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        return self._find(path) == _DIRECTORY

    def file_stat(self, path: str) -> os.stat_result:
        if (found := self._find(path)) is None:
            raise self._missing(path)
        return self._stat(path, found)

    def born_ns(self, file: str | int) -> int:
        """Return 0: stores have no birth time, and an object's inode depends on its version."""
        return 0

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        if (listing := self._list(path)) is None:
            raise self._missing(path)
        return [
            (name, "directory" if version == _DIRECTORY else "file")
            for name, version in listing.items()
        ]

    def read_whole(self, path: str) -> bytes:
        if not self._listed:
            return super().read_whole(path)
        version = self._version(path)
        data = self._kept.get((path, version))
        if data is None:
            data = super().read_whole(path)
            if len(data) <= _LARGEST_KEPT:
                while len(self._kept) >= _MOST_KEPT:
                    self._kept.pop(next(iter(self._kept)), None)
                self._kept[path, version] = data
        return data

    # -- locks: a store has none -----------------------------------------------------------------

    def locked_by(self, path: str) -> int | None:
        return None

    def is_locked(self, path: str) -> bool:
        """Return True, as for a directory with a writer: no object is ever torn."""
        return True

    # -- writing -------------------------------------------------------------------------------

    def _refuse(self, *given: Any, **_: Any) -> NoReturn:
        file = given[0]
        path = self._objects[file].path if isinstance(file, int) else file
        reason = "a data directory in an object store is read-only; write to a local directory"
        raise OSError(errno.EROFS, reason, self._store.name(path))

    pwrite = ftruncate = allocate = fsync = fdatasync = unlock = _refuse
    # The kernel cannot map an object of a store.
    map = _refuse
    rename = link = unlink = mkdir = rmdir = chown = chmod = utime_ns = sync_directory = _refuse
    lock = replace_atomically = replace_if_room = replace_private = _refuse

    # -- listings ------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all listings, so that names, sizes and times are up to date."""
        self._store.forget()
        with self._guard:
            self._listings.clear()
            self._read.clear()

    def list_directories(self, directories: Iterable[str]) -> None:
        """List the directories that are not listed yet, many at once."""
        missing = [path for path in directories if path not in self._listings]
        if len(missing) > 1:
            list(self._pool.map(self._list, missing))

    def confirm(self) -> None:
        """Raise SegmentGone if an object that was read is not the listed one any more."""
        with self._guard:
            read = [
                (path, self._listings.get(path), [*names]) for path, names in self._read.items()
            ]
        listings = self._pool.map(self._ask, (path for path, _, _ in read))
        for (path, before, names), now in zip(read, listings, strict=True):
            for name in names:
                if before is None or now is None or before.get(name) != now.get(name):
                    changed = os.path.join(path, name)
                    self._drop(changed)
                    raise SegmentGone(
                        "this object was replaced or removed while the directory was opened",
                        path=self._store.name(changed),
                    )

    def _drop(self, path: str) -> None:
        """Drop the listing of the directory that has `path`, and the open object."""
        with self._guard:
            self._listings.pop(os.path.dirname(path), None)
        self._store.forget(path)

    def _list(self, path: str) -> _Listing | None:
        """Return the entries of a directory; None: no such directory."""
        if not self._listed:
            return self._ask(path)
        try:
            return self._listings[path]
        except KeyError:
            listing = self._ask(path)
            with self._guard:
                self._listings[path] = listing
            return listing

    def _ask(self, path: str) -> _Listing | None:
        try:
            found = self._store.info(path, is_directory=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return {
            info.base_name: _version_of(info)
            for info in found
            if not info.base_name.endswith(paths.WORDS)
        }

    def _find(self, path: str) -> Version | None:
        """Return an object's version, or `_DIRECTORY`; None: nothing has this name."""
        if self._listed and path == self._root:
            return None if self._list(path) is None else _DIRECTORY
        if self._listed and path.startswith(f"{self._root}/"):
            directory, name = os.path.split(path)
            listing = self._list(directory)
            return None if listing is None else listing.get(name)
        info = self._store.info(path)
        return None if info.type == pyarrow.fs.FileType.NotFound else _version_of(info)

    def _version(self, path: str) -> Version:
        found = self._find(path)
        if found is None:
            raise self._missing(path)
        if found == _DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._store.name(path))
        return found

    def _stat(self, path: str, version: Version) -> os.stat_result:
        """Return the state of a name. Its inode belongs to the name, as with a file.

        A directory has the time of its listing.
        """
        number = _number(path)
        if version != _DIRECTORY:
            mode, size, mtime_ns = stat.S_IFREG | 0o444, version.size, version.mtime_ns
        else:
            mode, size = stat.S_IFDIR | 0o555, 0
            listing = self._list(path) or {}
            # The time is long ago: after a recent time a reader would wait for a second change.
            mtime_ns = _number(repr(sorted(listing.items()))) >> 3
            made = listing.get(paths.PARTITION_METADATA)
            if made is not None:
                number = self._inode(path, made)
        seconds = mtime_ns // 1_000_000_000
        return os.stat_result(
            (mode, number, _DEVICE, 1, 0, 0, size, seconds, seconds, seconds),
            {"st_mtime_ns": mtime_ns},
        )

    def _inode(self, path: str, made: Version) -> int:
        """Return the inode of a partition's directory: a recreated topic has another one.

        `made`: the version of `partition.metadata`. The same file may be copied again.
        """
        known = self._inodes.get(path)
        if known is None or known[0] != made:
            data = self.read_whole(os.path.join(path, paths.PARTITION_METADATA))
            known = self._inodes[path] = made, _number(f"{path} {data!r}")
        return known[1]

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._store.name(path))


def _version_of(info: Any) -> Version:
    if info.type == pyarrow.fs.FileType.Directory:
        return _DIRECTORY
    return Version(info.size, info.mtime_ns or 0)


def _number(text: str) -> int:
    """Return a 63-bit hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
