"""One open object of an object store: fetches its bytes, and sees that they are of one version.

A store has no descriptors: each fetch requests a name, and a writer may replace the object that has
the name. So opening requests the object's *version* (its ETag, or size and time in a store without
ETags), and so does each fetch with `is_checked`: one open object never gives bytes of two versions.
If the object has changed or gone, reading raises SegmentGone, as for a replaced segment.

Logs have read-ahead: the first read fetches little more than its bytes, later ones fetch larger and
larger blocks, the next of them in the background. All other files are small and fetched whole; of a
large index first the end, which is all that opening a log reads.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

from storage.errors import NoThread, SegmentGone
from storage.threads import submit

# The smallest first fetch of a log, and the largest block.
_FIRST_BLOCK = 4 * 1024
_LARGEST_BLOCK = 8 * 1024 * 1024
# Read-ahead starts with the second contiguous block of this size: one may be all the caller reads.
_AHEAD_FROM = 1024 * 1024
_SECOND_NS = 1_000_000_000
# An index up to this size is fetched whole; of a larger one first so much of its end.
_END = 64 * 1024


class Version(NamedTuple):
    """Identifies an object's content; `tag` is empty in listings, and in stores without ETags."""

    size: int
    mtime_ns: int
    tag: bytes = b""

    def can_be(self, listed: Version) -> bool:
        """Whether this can be the version of a listing, whose times may be more exact."""
        same_time = self.mtime_ns // _SECOND_NS == listed.mtime_ns // _SECOND_NS
        return self.size == listed.size and same_time


class ObjectStore:
    """A `pyarrow.fs.FileSystem`, the names of its paths in errors, and its open objects.

    Opening an object is a request, so objects of a listing stay open until `forget`.
    """

    def __init__(self, filesystem: Any, prefix: str) -> None:
        self.filesystem = filesystem
        self._prefix = prefix
        self._kept: dict[str, tuple[Any, Version]] = {}

    def forget(self, path: str | None = None) -> None:
        """Close an object that `keep` has opened, or all of them."""
        kept = dict(self._kept) if path is None else {path: self._kept.get(path)}
        for each, found in kept.items():
            if found is not None:
                self._kept.pop(each, None)
                found[0].close()

    def keep(self, path: str) -> tuple[Any, Version]:
        """As `open`; `forget` closes it."""
        found = self._kept.get(path)
        if found is None:
            found = self._kept[path] = self.open(path)
        return found

    def name(self, path: str) -> str:
        """The path as users write it: `s3://bucket/…`."""
        return f"{self._prefix}{path}"

    def error(self, path: str, error: Exception) -> OSError:
        """The store's error as an OSError with the object's name."""
        reason = str(error.args[-1] if error.args else error)
        number = getattr(error, "errno", None) or errno.EIO
        return OSError(number, reason, self.name(path))

    def open(self, path: str) -> tuple[Any, Version]:
        """An input file and its version. FileNotFoundError, OSError."""
        try:
            file = self.filesystem.open_input_file(path)
            facts = file.metadata() or {}
            tag, changed = bytes(facts.get("ETag", b"")), facts.get("Last-Modified")
            if tag and changed:
                mtime = datetime.datetime.fromisoformat(changed.decode()).timestamp()
                return file, Version(file.size(), int(mtime) * _SECOND_NS, tag)
            found = self.filesystem.get_file_info(path)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", self.name(path)) from None
        except (OSError, ValueError) as error:
            raise self.error(path, error) from None
        return file, Version(file.size(), found.mtime_ns or 0)


class OpenObject:
    """See the module. Any thread may read; call `close` when no thread reads."""

    def __init__(
        self,
        store: ObjectStore,
        path: str,
        listed: Version | None,
        *,
        is_log: bool,
        is_checked: bool,
        ahead: Callable[[], Executor],
        gone: Callable[[str], None],
    ) -> None:
        """`listed`: the version in a listing; the first read then opens the object. None: open it
        now. Calls `gone` with the path if the object has changed. FileNotFoundError, OSError.
        """
        self._store = store
        self.path = path
        self._is_log = is_log
        self._is_checked = is_checked
        self._ahead = ahead
        self._gone = gone
        self._is_kept = listed is not None
        self._file: Any = None
        self._lock = threading.Lock()
        # The block in memory, and its position in the object.
        self._start = 0
        self._data = b""
        self._block = _FIRST_BLOCK
        self._large_reads = 0
        self._next: Future[bytes] | None = None
        self._next_at = 0
        if listed is None:
            self._file, listed = store.open(path)
        self.version: Version = listed

    @property
    def size(self) -> int:
        return self.version.size

    def read(self, position: int, size: int) -> bytes | memoryview:
        """`size` bytes from `position`; fewer only at the end. SegmentGone, OSError."""
        size = min(size, self.size - position)
        if size <= 0:
            return b""
        with self._lock:
            if not self._has(position, size):
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
        if file is None or self._is_kept:
            return
        if ahead is None or ahead.cancel():
            file.close()
        else:
            ahead.add_done_callback(lambda _: file.close())

    # -- fetching ------------------------------------------------------------------------------

    def _has(self, position: int, size: int) -> bool:
        return self._start <= position and position + size <= self._start + len(self._data)

    def _take_small(self, position: int) -> None:
        """Fetch the object whole; if it is large and the first read is near its end, that end."""
        end = self.size - _END
        if end > _END and position >= end and not self._data:
            self._start, self._data = end, self._fetch(end, _END)
        else:
            self._start, self._data = 0, self._fetch(0, self.size)

    def _advance(self, position: int, size: int) -> None:
        """Fetch a block that begins at `position`, or continues the one in memory."""
        end = self._start + len(self._data)
        goes_on = bool(self._data) and self._start <= position <= end
        if goes_on:
            self._block = min(max(self._block * 4, 2 * size), _LARGEST_BLOCK)
            self._large_reads += size >= _AHEAD_FROM
        else:
            self._block, self._large_reads = _FIRST_BLOCK, 0
        rest = b""
        if goes_on:
            rest = self._data[position - self._start :]
        at = position + len(rest)
        parts = [rest]
        if self._next is not None:
            ahead, self._next = self._next, None
            if self._next_at == at:
                parts.append(ahead.result())
                at += len(parts[-1])
            else:
                ahead.cancel()
        wanted = min(max(position + size, position + self._block), self.size)
        if at < position + size:
            parts.append(self._fetch(at, wanted - at))
            at = wanted
        self._start, self._data = position, b"".join(parts) if rest else b"".join(parts[1:])
        if self._large_reads > 1 and at < self.size:
            fetch = functools.partial(self._fetch, at, min(self._block, self.size - at))
            self._next_at = at
            with contextlib.suppress(NoThread):
                self._next = submit(self._ahead(), fetch)

    def _fetch(self, position: int, size: int) -> bytes:
        """Fetch all of these bytes from the version that was opened."""
        file = self._opened()
        try:
            data = bytes(file.read_at(size, position))
        except (OSError, ValueError) as error:
            self._check()
            raise self._store.error(self.path, error) from None
        if len(data) != size:
            raise self._changed()
        if self._is_checked:
            self._check()
        return data

    def _opened(self) -> Any:
        """The input file; the first call opens it, and checks it against the listing."""
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
        """Raise SegmentGone if the object has changed or gone."""
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
