"""The files of one segment: their names, descriptors and indexes, their leases and their removal.

A descriptor is opened when it is needed, and closed by age of use, or for another segment's
(``storage.descriptors``).  A thread that reads or flushes holds a *lease*: only when none is left
are descriptors closed by age, and do a deleted segment's files go.

Not here: what is in the files (``segment``).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from storage import descriptors, paths
from storage.errors import SegmentGone
from storage.files import Files, Identity
from storage.index.offset_index import OffsetIndex
from storage.index.time_index import TimeIndex
from storage.index.txn_index import TxnEntry, TxnIndex
from storage.settings.config import LogConfig
from storage.waiting import before_waiting

_log = logging.getLogger(__name__)

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)

_KINDS = (paths.LOG, *paths.INDEX_SUFFIXES, *paths.LINES_SUFFIXES)


class LogVanished(Exception):  # noqa: N818 - the segment says what is wrong
    """The file of the log is gone, and this process has neither renamed nor removed it."""


class SegmentFiles:
    """What a segment has on disk.  Owned by one thread; leases let others read and flush it.

    ``suffix``: what the files' names end in.  ``sealed``: nothing is appended to them.
    ``append_ready``: log and indexes are open and the indexes pre-sized.  ``identity``: of the
    ``.log``, where another process may put another file in its place.  ``mend_indexes``: rebuilds
    the indexes (``SegmentIndex.mend``).  ``written_size``: bytes of the log; ``synced_size``: those
    that are on the disk.
    """

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
        """``log_name``: the log's name, where it is not that of the base offset."""
        self._files = files
        self._directory = directory
        self._log_name = log_name
        self.config = config
        self.writable = writable
        self.suffix = ""
        self.fd = -1
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        # How many entries the indexes of a sealed segment had when they were closed.
        self._entries: dict[str, int] = {}
        self.mend_indexes: Callable[[], bool] = lambda: False
        self.written_size: Callable[[], int] = lambda: 0
        # As much of the log as its files' descriptors have nothing to tell about.
        self.synced_size = 0
        self._leases = 0
        self._gone = False
        self.append_ready = False
        self.base_offset = base_offset
        self.identity: Identity | None = None
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
        """Follow a rename of the partition's directory (topic deletion)."""
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
        """Rename the files: let their names end in ``suffix`` instead of what they end in now.

        OSError from the disk; the files then get their names back, as far as the disk allows.
        """
        renamed: list[tuple[str, str]] = []
        # Nobody else opens files that are not of the log yet, and a rename may take long.
        made_aside = self.suffix.endswith((paths.CLEANED, paths.STAGED))
        with contextlib.nullcontext() if made_aside else descriptors.lock:
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

    def note_renamed_to(self, suffix: str) -> None:
        """Note that another process has renamed the files: their names end in ``suffix`` now."""
        self.suffix = suffix
        self._renamed()

    def set_mtime(self, mtime_ns: int) -> None:
        """Set when the files were written: retention goes by it for records without timestamps."""
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            self._files.utime_ns(self.file_path(kind), mtime_ns)

    def rewrite_cut_indexes(self, offsets: bytes, times: bytes) -> None:
        """Write those of the open indexes anew that another process has cut.  OSError."""
        for suffix, index, entries in (
            (paths.INDEX, self.offset_index, offsets),
            (paths.TIMEINDEX, self.time_index, times),
        ):
            if index.is_cut:
                with descriptors.lock:
                    # The owner may be renaming the files.
                    fd = self._files.open(self.file_path(suffix), os.O_CREAT | os.O_RDWR)
                try:
                    index.rewrite(fd, entries)
                finally:
                    self._files.close(fd)
                _log.warning("%s was truncated by another process and has been rebuilt", index.path)

    def _renamed(self) -> None:
        """Tell the transaction index, which stays in memory, its new path."""
        if self._txn_index is not None:
            self._txn_index.path = self.file_path(paths.TXNINDEX)

    # -- descriptors and leases ----------------------------------------------------------------

    def lease(self) -> None:
        """Keep, of a deleted segment, the files on disk.  SegmentGone."""
        with descriptors.lock:
            if self._gone:
                raise SegmentGone("this segment has been deleted", path=self.log_path)
            self._leases += 1

    def release(self) -> None:
        """End one lease.  The owner's next round closes or removes what waited for the last one."""
        with descriptors.lock:
            assert self._leases > 0
            self._leases -= 1

    @property
    def leased(self) -> bool:
        return self._leases > 0

    def log_fd(self) -> int:
        if self._gone:
            raise SegmentGone("this segment has been deleted", path=self.log_path)
        self.recently_used = True
        fd = self.fd
        if fd >= 0:
            return fd
        self.fd = fd = descriptors.open_for(self, self._files, self._open_log)
        return fd

    def _open_log(self) -> int:
        try:
            if self.writable and not self.sealed:
                return self._files.open(self.log_path, os.O_RDWR)
            return self.open_apart()
        except FileNotFoundError:
            if self._has_vanished:
                raise LogVanished from None
            raise

    @property
    def _has_vanished(self) -> bool:
        """Whether the log is not there, and this process has neither renamed nor removed it.

        Under the lock, as every rename is.
        """
        is_ours = self.writable and self.identity is None
        return is_ours and not self.deleted and self._files.exists(self._directory)

    def open_apart(self) -> int:
        """A descriptor of the log that the caller closes.  SegmentGone, OSError."""
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
                if self._files.identity(fd) == identity:
                    fd, opened = -1, fd
                    return opened
            finally:
                if fd >= 0:
                    self._files.close(fd)
        raise SegmentGone("the writer has deleted or replaced this segment", path=self.log_path)

    def identity_of(self, kind: str) -> Identity | None:
        """What tells its file of one kind from all others; None where it has none.  OSError."""
        if kind == paths.LOG and self.identity is not None:
            return self.identity
        with descriptors.lock, contextlib.suppress(FileNotFoundError):
            # The owner may be renaming the files.
            return self._files.identity(self.file_path(kind))
        return None

    def open_one(self, kind: str) -> int:
        """A descriptor of the file of one kind, which the caller closes.  OSError."""
        with descriptors.lock:
            return self._open_now(kind, os.O_RDONLY)

    def sync_apart(self) -> None:
        """Make log and indexes durable by descriptors opened for that.  LogVanished, OSError."""
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            try:
                fd = self.open_one(kind)
            except FileNotFoundError:
                if kind == paths.LOG:
                    # An open log can be copied (``rescue``); else the flush fails.
                    self.log_fd()
                    raise
                continue  # recovery rebuilds an index
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)

    def close_descriptors(self, own_leases: int = 0) -> bool:
        """Close what is open, unless a lease holds it.  True where nothing stays open.

        ``own_leases``: how many leases are the caller's own, and do not count.
        """
        with descriptors.lock:
            if self._leases > own_leases:
                return False
            self.fd = -1
            descriptors.forget(self)
        try:
            if self.append_ready:
                self.append_ready = False
                self.offset_index.trim()
                self.time_index.trim()
        finally:
            self._close_indexes()
        return True

    def renewed(self) -> None:
        """Read from now on the files that have replaced those of this sealed segment, with the same
        bytes at the same positions.  The owner's thread.
        """
        with descriptors.lock:
            # Another thread may be reading them: they are closed after their last user.
            self.fd = -1
            self._offset_index = self._time_index = None
            self._entries.clear()
            self.synced_size = self.written_size()
        if self._txn_index is not None:
            self._txn_index.close()

    @property
    def is_unsynced(self) -> bool:
        """Whether bytes were written to the log that may not be on the disk."""
        return self.writable and self.written_size() > self.synced_size

    def evict(self) -> bool:
        """Let go of the descriptors until they are needed again; False where what they lead to, or
        have to tell, could not be had again (``storage.descriptors``).  Under the lock.
        """
        indexes = [index for index in (self._offset_index, self._time_index) if index is not None]
        if self.is_unsynced or any(index.is_cut for index in indexes):
            return False
        if self.fd >= 0 and not self._files.descriptor_stat(self.fd).st_nlink:
            return False
        self.fd = -1
        for index in indexes:
            index.let_go()
        if not self.writable:
            # Its writer may replace the files.
            self._offset_index = self._time_index = None
        if self._txn_index is not None:
            with contextlib.suppress(OSError):
                self._txn_index.close()
        return True

    def sync_early(self) -> None:
        """Bring to the disk what was written, so that ``evict`` can let go.  LogVanished, OSError.

        By other descriptors: a failure is reported to those that the next flush uses, too.
        """
        size = self.written_size()
        self.sync_apart()
        self.synced_size = max(size, self.synced_size)

    def _close_indexes(self) -> None:
        for suffix, index in (
            (paths.INDEX, self._offset_index),
            (paths.TIMEINDEX, self._time_index),
        ):
            if index is None:
                continue
            count = index.count
            index.close()
            if self.sealed:
                self._entries[suffix] = paths.MAX_OFFSET if index.is_cut else count
            if self.sealed and index.is_cut:
                # Whoever needs it next makes it anew, a start at the latest.
                with contextlib.suppress(OSError):
                    self._files.unlink(self.file_path(suffix))
        self._offset_index = self._time_index = None
        if self._txn_index is not None:
            self._txn_index.close()

    @property
    def is_open(self) -> bool:
        """Whether any descriptor is held."""
        return (
            self.fd >= 0
            or (self._offset_index is not None and self._offset_index.fd >= 0)
            or (self._time_index is not None and self._time_index.fd >= 0)
            or (self._txn_index is not None and self._txn_index.is_open)
        )

    def close(self) -> None:
        """Close everything.  A lease that is left holds nothing any more."""
        self.close_descriptors(own_leases=self._leases)

    @property
    def is_log_open(self) -> bool:
        """Whether the log is open: then no other file can have its inode number."""
        return self.fd >= 0

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index``, opened when first used."""
        index = self._offset_index
        if index is None:
            made = self._open(OffsetIndex, paths.INDEX)
            with descriptors.lock:
                index = self._offset_index = self._offset_index or made
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex``, opened when first used."""
        index = self._time_index
        if index is None:
            made = self._open(TimeIndex, paths.TIMEINDEX)
            with descriptors.lock:
                index = self._time_index = self._time_index or made
        return index

    def _open(self, kind: type[_Index], suffix: str) -> _Index:
        index = kind(
            self._files,
            self.file_path(suffix),
            self.base_offset,
            self.config.segment_index_bytes,
            writable=self.writable and not self.sealed,
            # The active segment's was pre-sized by a process that died, or lives.
            ignore_zero_tail=not self.sealed,
            mend=self.mend_indexes if self.writable else None,
            opener=partial(self._open_beside, suffix),
        )
        fewer = index.count < self._entries.get(suffix, 0)
        index.is_cut = self.writable and self.sealed and fewer
        return index

    def _open_beside(self, suffix: str, flags: int) -> int:
        """Open an index."""
        open_it = partial(self._open_now, suffix, flags)
        return descriptors.open_for(self, self._files, open_it)

    def _open_now(self, suffix: str, flags: int) -> int:
        """Open a file by its present name.  Under the lock: the owner may be renaming it."""
        return self._files.open(self.file_path(suffix), flags)

    @property
    def txn_index(self) -> TxnIndex:
        """The ``.txnindex``, read when first used, which waits; its entries stay in memory."""
        index = self._txn_index
        if index is None:
            before_waiting()
        while index is None:
            # Reading may take long, so it is not under the lock: a rename may come in between.
            path = self.file_path(paths.TXNINDEX)
            opener = partial(self._open_beside, paths.TXNINDEX)
            made = TxnIndex(self._files, path, writable=self.writable, opener=opener)
            with descriptors.lock:
                if self._txn_index is None and path == self.file_path(paths.TXNINDEX):
                    self._txn_index = made
                index = self._txn_index
        return index

    @property
    def is_offset_index_open(self) -> bool:
        return self._offset_index is not None

    def open_indexes(self) -> None:
        """Open the indexes, so that another thread can sync them."""
        _ = self.offset_index, self.time_index
        if self._txn_index is not None:
            self._txn_index.open()

    def sync_txn_index(self) -> None:
        """Make new entries of the transaction index durable."""
        if self._txn_index is not None:
            self._txn_index.sync()

    def refresh_indexes(self) -> None:
        """Look again at the open indexes, which another process has extended."""
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
        """Whether the segment has left the log, as the names of its files say."""
        return self._gone or self.suffix.endswith((paths.DELETED, paths.CUT))

    def leave(self, kind: str) -> None:
        """Rename the files, which leave the log: to ``.deleted``, or, where recovery found them
        behind damage, to ``.cut``.  Reading goes on until ``let_go``.

        Where another segment of the same base has these names (a cleaned one that is deleted, too,
        or one that an earlier start has cut), they become ``.1.deleted``.
        """
        if self._gone:
            return
        path = self.log_path.removesuffix(self.suffix)
        suffix, number = kind, 0
        while self._files.exists(path + suffix):
            number += 1
            suffix = f".{number}{kind}"
        self.set_suffix(suffix)

    def end_reading(self) -> None:
        """Refuse leases from now on. Thread-safe."""
        with descriptors.lock:
            self._gone = True

    def let_go(self) -> list[str]:
        """End all reading, and return the paths to remove, in this order.

        The log goes last: while it is there, no other segment of that base gets the same names when
        it leaves.
        """
        self.append_ready = False
        self.close()
        self._gone = True
        kinds = (*_KINDS[1:], _KINDS[0])
        return [path for kind in kinds if self._files.exists(path := self.file_path(kind))]

    def create(self) -> int:
        """Create the empty log, and return its descriptor.  OSError."""
        self._gone = False
        open_it = partial(self._open_now, paths.LOG, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.fd = fd = descriptors.open_for(self, self._files, open_it)
        return fd

    def create_indexes(self) -> None:
        """Create empty indexes.  OSError."""
        for kind in (paths.INDEX, paths.TIMEINDEX):
            self._files.close(self._files.open(self.file_path(kind), os.O_WRONLY | os.O_CREAT))

    def discard(self) -> None:
        """Remove a segment that was never part of the log."""
        for path in self.let_go():
            self._files.unlink(path)
