"""`storage.files.Files` over a `pyarrow.fs.FileSystem`: reads data directories in object stores.

Descriptors are numbers of our own for open objects. Paths are absolute within the file system
(`/bucket/prefix/topic-0/…`). A directory has what its listing says.

With `listed`, for planning, it lists each directory once, and takes names, sizes and times from
that until `forget`; so opening a data directory requests only the bytes that it reads. `confirm`
checks that they are of the listed objects. Without, for reading a few objects, it requests an
object's version when it opens the object and after each fetch.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pyarrow.fs

from kafkafs.spark.location.open_object import ObjectStore, OpenObject, Version
from kafkafs.spark.location.read_only_files import ReadOnlyFiles
from storage import paths
from storage.errors import SegmentGone
from storage.files import Kind

# None stands for a directory.
_Listing = dict[str, Version | None]

# How many small files stay in memory, by path and version: a log's opening reads checkpoints often.
_MOST_KEPT = 256
_LARGEST_KEPT = 64 * 1024
# The device number of all objects.
_DEVICE = 1


class ArrowFiles(ReadOnlyFiles):
    """See the module. For any thread; `forget` only while no thread reads."""

    parallel = 16
    in_order = False

    def __init__(
        self, filesystem: Any, root: str, *, prefix: str, rooted: bool, listed: bool = False
    ) -> None:
        """`root`: the data directory, above which it lists nothing. `rooted`: whether the file
        system's own paths begin with a slash. `prefix` makes URIs of its paths, for errors.
        """
        self._root = root
        self._rooted = rooted
        self._listed = listed
        self._store = ObjectStore(filesystem, prefix)
        self._objects: dict[int, OpenObject] = {}
        self._numbers = itertools.count(1)
        self._listings: dict[str, _Listing | None] = {}
        self._kept: dict[tuple[str, Version], bytes] = {}
        # The names read since `forget`, by directory.
        self._read: dict[str, set[str]] = {}
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    # -- bytes ---------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.check_flags(path, flags)
        listed = self._version(path) if self._listed else None
        made = OpenObject(
            self._store,
            self._inner(path),
            listed,
            is_log=path.endswith((paths.LOG, paths.OLD_LOG, paths.LOG + paths.DELETED)),
            is_checked=not self._listed,
            ahead=self._executor,
            gone=lambda _: self._drop(path),
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

    def size(self, fd: int) -> int:
        return self._objects[fd].size

    def descriptor_stat(self, fd: int) -> os.stat_result:
        made = self._objects[fd]
        return self._stat(self._outer(made.path), made.version)

    # -- names ---------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self._find(path) is not _NOTHING

    def is_directory(self, path: str) -> bool:
        return self._find(path) is None

    def file_stat(self, path: str) -> os.stat_result:
        if (found := self._find(path)) is _NOTHING:
            raise self._missing(path)
        return self._stat(path, found)

    def born_ns(self, file: str | int) -> int:
        """0: stores have no birth time, and an object's inode depends on its version."""
        return 0

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        if (listing := self._list(path)) is None:
            raise self._missing(path)
        return [
            (name, "directory" if version is None else "file") for name, version in listing.items()
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
        """True: as under a live writer no file is torn, since an object exists whole or not."""
        return True

    # -- listings ------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all listings, so that names, sizes and times are up to date."""
        self._store.forget()
        with self._guard:
            self._listings.clear()
            self._read.clear()

    def list_directories(self, directories: Iterable[str]) -> None:
        """List the directories, many at once."""
        missing = [path for path in directories if path not in self._listings]
        if self._listed and len(missing) > 1:
            list(self._executor().map(self._list, missing))

    def confirm(self) -> None:
        """Raise SegmentGone if an object that was read is not the listed one any more."""
        with self._guard:
            seen = {path: self._listings.get(path) for path in self._read}
            read = {path: set(names) for path, names in self._read.items()}

        def look(path: str) -> str | None:
            before, now = seen[path], self._ask(path)
            for name in read[path]:
                if before is None or now is None or before.get(name) != now.get(name):
                    return os.path.join(path, name)
            return None

        for changed in self._executor().map(look, seen):
            if changed is not None:
                self._drop(changed)
                raise SegmentGone(
                    "this object was replaced or removed while the directory was opened",
                    path=self._store.name(self._inner(changed)),
                )

    def _drop(self, path: str) -> None:
        """Drop the listing of the directory that has `path`, and the open object."""
        with self._guard:
            self._listings.pop(os.path.dirname(path), None)
        self._store.forget(self._inner(path))

    def _list(self, path: str) -> _Listing | None:
        """What a directory has; None: no such directory."""
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
        inner = self._inner(path)
        try:
            found = self._store.filesystem.get_file_info(pyarrow.fs.FileSelector(inner))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise self._store.error(inner, error) from None
        return {
            info.base_name: (
                None
                if info.type == pyarrow.fs.FileType.Directory
                else Version(info.size, info.mtime_ns or 0)
            )
            for info in found
        }

    def _find(self, path: str) -> Any:
        """A file's version; None: a directory; `_NOTHING`: neither."""
        directory, name = os.path.split(path)
        if self._listed:
            if path == self._root:
                return _NOTHING if self._list(path) is None else None
            if path.startswith(f"{self._root}/"):
                listing = self._list(directory)
                return _NOTHING if listing is None else listing.get(name, _NOTHING)
        inner = self._inner(path)
        try:
            info = self._store.filesystem.get_file_info(inner)
        except (OSError, ValueError) as error:
            raise self._store.error(inner, error) from None
        if info.type == pyarrow.fs.FileType.NotFound:
            return _NOTHING
        if info.type == pyarrow.fs.FileType.Directory:
            return None
        return Version(info.size, info.mtime_ns or 0)

    def _version(self, path: str) -> Version:
        found = self._find(path)
        if found is _NOTHING:
            raise self._missing(path)
        if found is None:
            raise IsADirectoryError(
                errno.EISDIR, os.strerror(errno.EISDIR), self._store.name(self._inner(path))
            )
        assert isinstance(found, Version)
        return found

    def _stat(self, path: str, version: Version | None) -> os.stat_result:
        """As for a file, the inode is the name's. A directory's time tells its listings apart."""
        number = _number(path)
        if version is not None:
            mode, size, mtime_ns = stat.S_IFREG | 0o444, version.size, version.mtime_ns
        else:
            mode, size, mtime_ns = stat.S_IFDIR | 0o555, 0, 0
            listing = self._list(path) or {}
            # A time long ago: after a recent one a reader would wait for a second change.
            mtime_ns = _number(repr(sorted(listing.items(), key=lambda item: item[0]))) >> 3
            made = listing.get(paths.PARTITION_METADATA)
            if made is not None:
                number = _number(f"{path} {made}")  # a recreated topic has another
        seconds = mtime_ns // 1_000_000_000
        return os.stat_result(
            (mode, number, _DEVICE, 1, 0, 0, size, seconds, seconds, seconds),
            {"st_mtime_ns": mtime_ns},
        )

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name_of(path))

    def _inner(self, path: str) -> str:
        return path if self._rooted else path.lstrip("/")

    def _outer(self, path: str) -> str:
        return path if self._rooted else f"/{path}"

    def _executor(self) -> Executor:
        with self._guard:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.parallel, "objects")
            return self._pool

    def path_of(self, fd: int) -> str:
        return self._outer(self._objects[fd].path)

    def name_of(self, path: str) -> str:
        return self._store.name(self._inner(path))


_NOTHING = object()


def _number(text: str) -> int:
    """A 63-bit hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
