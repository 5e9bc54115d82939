"""One open object of an object store: fetches its bytes, all of one version.

A store has no descriptors. Each fetch requests a name, and a writer may replace the object that has
the name. So opening requests the object's *version* (its ETag, or size and time in a store without
ETags). Each fetch of an object that is in no listing requests it, too. So one open object never
returns bytes of two versions. If the object was changed or deleted, reading raises SegmentGone, as
for a replaced segment.

Logs have read-ahead: the first read fetches little more than its bytes. Later reads fetch larger
and larger blocks, and the next block in the background. All other files are small, and are fetched
whole. Of a large index the end is fetched first, because opening a log reads only that.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import pyarrow.fs

from storage.errors import NoThread, SegmentGone
from storage.threads import submit

# The smallest first fetch of a log, and the largest block.
_FIRST_BLOCK = 4 * 1024
_LARGEST_BLOCK = 8 * 1024 * 1024
# Read-ahead starts with the second contiguous block of this size: the caller may read only one.
_AHEAD_FROM = 1024 * 1024
_SECOND_NS = 1_000_000_000
# An index up to this size is fetched whole; of a larger one, this much of its end first.
_END = 64 * 1024


class Version(NamedTuple):
    """Identifies an object's content; `tag` is empty in listings, and in stores without ETags."""

    size: int
    mtime_ns: int
    tag: bytes = b""

    def can_be(self, listed: Version) -> bool:
        """Return whether this can be the version of a listing, whose times may be more exact."""
        same_time = self.mtime_ns // _SECOND_NS == listed.mtime_ns // _SECOND_NS
        return self.size == listed.size and same_time


class ObjectStore:
    """A `pyarrow.fs.FileSystem`, the names of its paths in errors, and its open objects.

    Opening an object is a request, so objects of a listing stay open until `forget`.
    """

    def __init__(self, filesystem: Any, prefix: str, *, rooted: bool) -> None:
        """Use a file system. `prefix` makes URIs of its paths, for errors.

        `rooted`: its paths begin with a slash, as those of the methods here do.
        """
        self._filesystem = filesystem
        self._prefix = prefix
        self._rooted = rooted
        self._kept: dict[str, tuple[Any, Version]] = {}

    def forget(self, path: str | None = None) -> None:
        """Close an object that `keep` has opened, or all of them."""
        for each in [*self._kept] if path is None else [path]:
            found = self._kept.pop(each, None)
            if found is not None:
                found[0].close()

    def keep(self, path: str) -> tuple[Any, Version]:
        """Open an object until `forget`; return its input file and its version."""
        found = self._kept.get(path)
        if found is None:
            found = self._kept[path] = self.open(path)
        return found

    def name(self, path: str) -> str:
        """Return the path as users write it: `s3://bucket/…`."""
        return f"{self._prefix}{self._inner(path)}"

    def open(self, path: str) -> tuple[Any, Version]:
        """Return an input file and its version. FileNotFoundError, OSError."""
        with self.errors_of(path):
            file = self._filesystem.open_input_file(self._inner(path))
            metadata = file.metadata() or {}
            tag, changed = bytes(metadata.get("ETag", b"")), metadata.get("Last-Modified")
            if tag and changed:
                mtime = datetime.datetime.fromisoformat(changed.decode()).timestamp()
                return file, Version(file.size(), int(mtime) * _SECOND_NS, tag)
            return file, Version(file.size(), self.info(path).mtime_ns or 0)

    def info(self, path: str, *, is_directory: bool = False) -> Any:
        """Return the FileInfo of a path, or those of a directory's entries. OSError."""
        inner = self._inner(path)
        with self.errors_of(path):
            return self._filesystem.get_file_info(
                pyarrow.fs.FileSelector(inner) if is_directory else inner
            )

    @contextlib.contextmanager
    def errors_of(self, path: str) -> Iterator[None]:
        """Turn the store's errors into OSErrors with the object's name."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.name(path)) from None
        except (OSError, ValueError) as error:
            reason = str(error.args[-1] if error.args else error)
            number = getattr(error, "errno", None) or errno.EIO
            raise OSError(number, reason, self.name(path)) from None

    def _inner(self, path: str) -> str:
        return path if self._rooted else path.lstrip("/")


class OpenObject:
    """See the module. Any thread may read; call `close` when no thread reads."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        listed: Version | None,
        *,
        is_log: bool,
        ahead: Executor,
        gone: Callable[[str], None],
    ) -> None:
        """Open an object. `gone` is called with the path if the object has changed.

        `listed`: the version in a listing; the first read then opens the object. None: open it now,
        and check the version at each fetch. OSError.
        """
        self._store = store
        self.path = path
        self._is_log = is_log
        self._ahead = ahead
        self._gone = gone
        self._is_listed = listed is not None
        self._file: Any = None
        self._lock = threading.Lock()
        # The block in memory, and its position in the object.
        self._start = 0
        self._data = b""
        self._block = _FIRST_BLOCK
        self._large_reads = 0
        # The block that is fetched ahead, and its position.
        self._next: Future[bytes] | None = None
        self._next_at = 0
        if listed is None:
            self._file, listed = store.open(path)
        self.version: Version = listed

    def read(self, position: int, size: int) -> bytes | memoryview:
        """Return `size` bytes from `position`; fewer only at the end. SegmentGone, OSError."""
        size = min(size, self.version.size - position)
        if size <= 0:
            return b""
        with self._lock:
            end = self._start + len(self._data)
            if not self._start <= position <= position + size <= end:
                if self._is_log:
                    self._advance(position, size)
                else:
                    self._take_small(position)
            at = position - self._start
            if at == 0 and size == len(self._data):
                return self._data
            return memoryview(self._data)[at : at + size]

    def close(self) -> None:
        """Close the object; a fetch in the background closes it at its end."""
        ahead, self._next = self._next, None
        file, self._file, self._data = self._file, None, b""
        if file is None or self._is_listed:
            return
        if ahead is None or ahead.cancel():
            file.close()
        else:
            ahead.add_done_callback(lambda _: file.close())

    # -- fetching ------------------------------------------------------------------------------

    def _take_small(self, position: int) -> None:
        """Fetch the whole object, or the end of a large one that is read there first."""
        end = self.version.size - _END
        if not (end > _END and position >= end and not self._data):
            end = 0
        self._start, self._data = end, self._fetch(end, self.version.size - end)

    def _advance(self, position: int, size: int) -> None:
        """Fetch a block that begins at `position`, or continues the one in memory."""
        data = b""
        if self._data and self._start <= position <= self._start + len(self._data):
            data = self._data[position - self._start :]
            self._block = min(max(self._block * 4, 2 * size), _LARGEST_BLOCK)
            self._large_reads += size >= _AHEAD_FROM
        else:
            self._block, self._large_reads = _FIRST_BLOCK, 0
        ahead, self._next = self._next, None
        if ahead is not None:
            if self._next_at == position + len(data):
                data += ahead.result()
            else:
                ahead.cancel()
        missing = size - len(data)
        at = position + len(data)
        if missing > 0:
            more = min(max(missing, position + self._block - at), self.version.size - at)
            data += self._fetch(at, more)
            at += more
        self._start, self._data = position, data
        if self._large_reads > 1 and at < self.version.size:
            length = min(self._block, self.version.size - at)
            self._next_at = at
            with contextlib.suppress(NoThread):
                self._next = submit(self._ahead, functools.partial(self._fetch, at, length))

    def _fetch(self, position: int, size: int) -> bytes:
        """Fetch all of these bytes from the version that was opened."""
        file = self._opened()
        try:
            with self._store.errors_of(self.path):
                data = bytes(file.read_at(size, position))
        except OSError:
            self._check()
            raise
        if len(data) != size:
            raise self._changed()
        if not self._is_listed:
            self._check()
        return data

    def _opened(self) -> Any:
        """Return the input file; the first call opens it, and checks it against the listing."""
        if self._file is None:
            try:
                file, version = self._store.keep(self.path)
            except FileNotFoundError:
                raise self._changed() from None
            if not version.can_be(self.version):
                raise self._changed()
            self._file, self.version = file, version
        return self._file

    def _check(self) -> None:
        """Raise SegmentGone if the object was changed or deleted."""
        try:
            file, version = self._store.open(self.path)
        except FileNotFoundError:
            raise self._changed() from None
        file.close()
        if version != self.version:
            raise self._changed()

    def _changed(self) -> SegmentGone:
        self._gone(self.path)
        return SegmentGone(
            "this object was replaced or removed while it was read",
            path=self._store.name(self.path),
        )
