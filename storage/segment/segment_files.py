"""The files of one segment: their names, descriptors and indexes, who holds them, how they go.

Descriptors are opened when they are needed and closed by age of use.  Whoever reads or flushes
from another thread holds a *lease*; a descriptor is closed and a deleted segment's files go only
when no lease is left.

Not here: what is in them (``segment``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TypeVar

from storage import paths
from storage.errors import SegmentGone
from storage.files import Files
from storage.index.offset_index import OffsetIndex
from storage.index.time_index import TimeIndex
from storage.index.txn_index import TxnEntry, TxnIndex
from storage.settings.config import LogConfig

Identity = tuple[int, int, int]
"""Of a file: (device, inode, when it was made in ns)."""

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)

_KINDS = (paths.LOG, *paths.INDEX_SUFFIXES, *paths.LINES_SUFFIXES)

_opened = 0


def opened() -> int:
    """How often any segment has opened a file: while it does not rise, none is opened."""
    return _opened


# One lock for all segments: it guards counters for a few instructions, never a disk access other
# than an open, and the renaming that an open must not come in between of.
_lease_lock = threading.Lock()


def _count_opened() -> None:
    """Under the lock."""
    global _opened
    _opened += 1


class LogVanished(Exception):  # noqa: N818 - the segment says what is wrong
    """The file of the log is gone, and nobody of ours has renamed or removed it."""


class SegmentFiles:
    """What a segment has on disk.  Owned by one thread; leases let others read and flush it.

    ``suffix``: what the files' names end in.  ``sealed``: nothing is appended to them.
    ``append_ready``: log and indexes are open and the indexes pre-sized.  ``identity``: of the
    ``.log``, where another process may put another file in its place.  ``is_missing``: the log is
    gone, and was to be there.
    """

    __slots__ = (
        "_directory",
        "_files",
        "_gone",
        "_leases",
        "_log_name",
        "_offset_index",
        "_stale_fds",
        "_time_index",
        "_txn_index",
        "append_ready",
        "base_offset",
        "config",
        "fd",
        "identity",
        "is_missing",
        "recently_used",
        "sealed",
        "suffix",
        "writable",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        writable: bool,
        log_name: str | None = None,
    ) -> None:
        """``log_name``: of the log, where it is not the base offset's."""
        self._files = files
        self._directory = directory
        self._log_name = log_name
        self.config = config
        self.writable = writable
        self.suffix = ""
        self.fd = -1
        # Of files that others have taken the place of, for who reads by them still.
        self._stale_fds: list[int] = []
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._leases = 0
        self._gone = False
        self.append_ready = False
        self.base_offset = base_offset
        self.identity: Identity | None = None
        self.is_missing = False
        self.recently_used = False
        self.sealed = False

    # -- names ---------------------------------------------------------------------------------

    @property
    def log_path(self) -> str:
        """Where the ``.log`` is now; a segment waiting for deletion has ``.deleted`` appended."""
        return self.file_path(paths.LOG)

    def file_path(self, suffix: str) -> str:
        """The path of this segment's file of one kind, e.g. ``paths.INDEX``."""
        name = paths.file_name(self.base_offset, suffix)
        if suffix == paths.LOG and self._log_name is not None:
            name = self._log_name
        return os.path.join(self._directory, name) + self.suffix

    def relocate(self, directory: str) -> None:
        """The partition's directory was renamed (topic deletion)."""
        self._directory = directory
        self._close_indexes()
        self._renamed()

    def file_size(self, suffix: str) -> int:
        """Bytes of this segment's file of one kind; 0 where there is none."""
        try:
            return self._files.file_stat(self.file_path(suffix)).st_size
        except FileNotFoundError:
            return 0

    def set_suffix(self, suffix: str) -> None:
        """Rename the files: their names end in ``suffix`` instead of what they end in now.

        OSError from the disk; they have the names that they had then, as far as it lets them.
        """
        renamed: list[tuple[str, str]] = []
        # What is not of the log yet nobody else opens, and the disk may take its time.
        made_aside = self.suffix.endswith((paths.CLEANED, paths.STAGED))
        with contextlib.nullcontext() if made_aside else _lease_lock:
            try:
                for kind in _KINDS:
                    path = self.file_path(kind)
                    target = path.removesuffix(self.suffix) + suffix
                    # Line indexes may go at any moment (``reserve``).
                    with contextlib.suppress(FileNotFoundError):
                        if self._files.exists(path):
                            self._files.rename(path, target)
                            renamed.append((path, target))
            except OSError:
                for path, target in reversed(renamed):
                    with contextlib.suppress(OSError):
                        self._files.rename(target, path)
                raise
            self.suffix = suffix
            self._renamed()

    def is_called(self, suffix: str) -> None:
        """Others have given the files names that end in ``suffix``."""
        self.suffix = suffix
        self._renamed()

    def set_mtime(self, mtime_ns: int) -> None:
        """When its files were written, as retention has it for records without timestamps."""
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            self._files.utime_ns(self.file_path(kind), mtime_ns)

    def _renamed(self) -> None:
        """The files have other names; the transaction index outlives that, as it is in memory."""
        if self._txn_index is not None:
            self._txn_index.path = self.file_path(paths.TXNINDEX)

    # -- descriptors and leases ----------------------------------------------------------------

    def lease(self) -> None:
        """Keep the descriptor open and, of a deleted segment, the files on disk."""
        with _lease_lock:
            if self._gone:
                raise SegmentGone("this segment has been deleted", path=self.log_path)
            self._leases += 1

    def release(self) -> None:
        """End one lease.  What waited for the last one is done by its owner's next round."""
        with _lease_lock:
            assert self._leases > 0
            self._leases -= 1

    @property
    def leased(self) -> bool:
        return self._leases > 0

    def log_fd(self) -> int:
        if self._gone:
            raise SegmentGone("this segment has been deleted", path=self.log_path)
        self.recently_used = True
        if self.is_missing:
            raise LogVanished
        with _lease_lock:
            if self.fd < 0:
                _count_opened()
                flags = os.O_RDWR if self.writable and not self.sealed else os.O_RDONLY
                try:
                    if self.identity is None:
                        self.fd = self._files.open(self.log_path, flags)
                    else:
                        self.fd = self._open_of_another(self.identity)
                except FileNotFoundError:
                    if not self._has_vanished:
                        raise
            fd = self.fd
        if fd < 0:
            raise LogVanished
        return fd

    @property
    def _has_vanished(self) -> bool:
        """Whether nobody of ours has renamed or removed the log, which is not there.

        Under the lock, under which a log of ours gets another name.
        """
        is_ours = self.writable and self.identity is None
        return is_ours and not self.deleted and self._files.exists(self._directory)

    def open_apart(self) -> int:
        """A descriptor of the log for the caller alone, who closes it.  SegmentGone, OSError."""
        if self.identity is None:
            return self._files.open(self.log_path, os.O_RDONLY)
        return self._open_of_another(self.identity)

    def _open_of_another(self, identity: Identity) -> int:
        """Open the log of another process, which may just have renamed or replaced it."""
        named = self.log_path.removesuffix(paths.SWAP)
        for path in dict.fromkeys((self.log_path, named, named + paths.DELETED)):
            try:
                fd = self._files.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                found = self._files.descriptor_stat(fd)
                if (found.st_dev, found.st_ino, self._files.born_ns(fd)) == identity:
                    fd, opened = -1, fd
                    return opened
            finally:
                if fd >= 0:
                    self._files.close(fd)
        raise SegmentGone("its writer has deleted or replaced this segment", path=self.log_path)

    def sync_apart(self) -> None:
        """Make log and indexes durable by descriptors of its own."""
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            try:
                with _lease_lock:
                    # Its owner may rename them meanwhile.
                    fd = self._files.open(self.file_path(kind), os.O_RDONLY)
            except FileNotFoundError:
                if kind == paths.LOG:
                    # Open, it can be copied (``rescue``); else whoever waits is told.
                    self.log_fd()
                    raise
                continue  # what an index says can be had again
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)

    def close_descriptors(self, own_leases: int = 0) -> bool:
        """Close what is open, unless a lease holds it.  True where nothing stays open.

        ``own_leases``: so many are the caller's, who does not read by them now.
        """
        with _lease_lock:
            if self._leases > own_leases:
                return False
            fds, self.fd, self._stale_fds = [self.fd, *self._stale_fds], -1, []
        try:
            if self.append_ready:
                self.append_ready = False
                self.offset_index.trim()
                self.time_index.trim()
        finally:
            for fd in fds:
                if fd >= 0:
                    self._files.close(fd)
            self._close_indexes()
        return True

    def renewed(self) -> None:
        """The files of this sealed segment have been replaced by others with the same bytes at the
        same places, which are read from now on.  The owner's.
        """
        with _lease_lock:
            if self.fd >= 0:
                self._stale_fds.append(self.fd)
            self.fd = -1
            # Another thread may look something up in them: they go with their last user.
            self._offset_index = self._time_index = None
        if self._txn_index is not None:
            self._txn_index.close()

    def _close_indexes(self) -> None:
        for index in (self._offset_index, self._time_index, self._txn_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = None

    @property
    def is_open(self) -> bool:
        """Whether any descriptor or memory map is held."""
        return (
            self.fd >= 0
            or bool(self._stale_fds)
            or self._offset_index is not None
            or self._time_index is not None
            or (self._txn_index is not None and self._txn_index.is_open)
        )

    def close(self) -> None:
        """Close everything; the caller guarantees that nobody holds a lease."""
        assert not self._leases, "a segment is closed only after its last lease"
        self.close_descriptors()

    @property
    def is_log_open(self) -> bool:
        """Whether the log itself is: then no other file has its inode."""
        return self.fd >= 0

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index``, opened when first asked for."""
        index = self._offset_index
        if index is None:
            with _lease_lock:
                index = self._offset_index
                if index is None:
                    index = self._offset_index = self._open(OffsetIndex, paths.INDEX)
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex``, opened when first asked for."""
        index = self._time_index
        if index is None:
            with _lease_lock:
                index = self._time_index
                if index is None:
                    index = self._time_index = self._open(TimeIndex, paths.TIMEINDEX)
        return index

    def _open(self, kind: type[_Index], suffix: str) -> _Index:
        _count_opened()
        return kind(
            self._files,
            self.file_path(suffix),
            self.base_offset,
            self.config.segment_index_bytes,
            writable=self.writable and not self.sealed,
            mapped=self.writable,
            # The active segment's was pre-sized by whoever died, or lives elsewhere.
            ignore_zero_tail=not self.sealed,
        )

    @property
    def txn_index(self) -> TxnIndex:
        """The ``.txnindex``, read when first asked for; its entries stay in memory."""
        index = self._txn_index
        while index is None:
            # It is read here, so not under the lock; its owner may rename it meanwhile.
            path = self.file_path(paths.TXNINDEX)
            made = TxnIndex(self._files, path, writable=self.writable)
            with _lease_lock:
                if self._txn_index is None and path == self.file_path(paths.TXNINDEX):
                    self._txn_index = made
                index = self._txn_index
        return index

    @property
    def is_offset_index_open(self) -> bool:
        return self._offset_index is not None

    def open_indexes(self) -> None:
        """Open all, so that another thread can sync them."""
        _ = self.offset_index, self.time_index
        if self._txn_index is not None:
            self._txn_index.open()

    def sync_txn_index(self) -> None:
        """Make the transaction index durable, if there is anything new in it."""
        if self._txn_index is not None:
            self._txn_index.sync()

    def refresh_indexes(self) -> None:
        """Look anew at those that are open: the process that appends has extended them."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.refresh()

    @property
    def aborted(self) -> tuple[TxnEntry, ...]:
        """The aborted transactions whose markers lie here, in the order of the markers."""
        return self.txn_index.entries

    # -- the end -------------------------------------------------------------------------------

    @property
    def deleted(self) -> bool:
        """Whether it has left the log, as the names of its files say."""
        return self._gone or self.suffix.endswith((paths.DELETED, paths.CUT))

    def leave(self, kind: str) -> None:
        """Rename the files, which leave the log: to ``.deleted``, or, where recovery found them
        behind a damaged place, to ``.cut``.  Reading goes on until ``let_go``.

        Another segment of the same base may have these names already: a cleaned one took its place
        and is deleted itself by now, or an earlier start has cut it.  The files are called
        ``.1.deleted`` then.
        """
        if self._gone:
            return
        path = self.log_path.removesuffix(self.suffix)
        suffix, number = kind, 0
        while self._files.exists(path + suffix):
            number += 1
            suffix = f".{number}{kind}"
        self.set_suffix(suffix)

    def let_go(self) -> list[str]:
        """End all reading, and return the paths that are left to be removed, in this order.

        The log goes last: as long as it is there, no other segment of that base is given the same
        names when it leaves.
        """
        self.append_ready = False
        self.close()
        self._gone = True
        kinds = (*_KINDS[1:], _KINDS[0])
        return [path for kind in kinds if self._files.exists(path := self.file_path(kind))]

    def create(self) -> int:
        """Make the log, empty; returns its descriptor.  OSError."""
        self._gone = False
        self.fd = self._files.open(self.log_path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return self.fd

    def discard(self) -> None:
        """Remove a segment that was never part of the log."""
        for path in self.let_go():
            self._files.unlink(path)
