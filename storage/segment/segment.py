"""One segment: a `.log` file of record batches with its indexes.

Layout: the files of one segment share a name, the base offset in 20 digits. The log is record
batches back to back; the indexes are those of `storage.index`. The last segment of a partition is
*active*: appends go to it. The others are *sealed*: their indexes are trimmed, and they do not
change until a cleaner replaces the whole segment.

A file is opened at its first use. It is closed if it was not used for some time, or if another
segment needs its descriptor (`storage.descriptors`). A thread reads by a descriptor in a local
variable. A thread that has to open files again holds a *lease*: while there is one, the files of a
deleted segment stay.

Not here: reading batches (`reader`), appending them (`writer`), damaged files after a crash
(`recovery`), the choice of deleted segments (`retention`, `compaction`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator
from functools import partial

from storage import descriptors, paths
from storage.byte_source import FileSource
from storage.descriptors import Descriptor
from storage.errors import CorruptRecord, CutShort, SegmentGone
from storage.files import Files, Identity
from storage.index.index import OFFSET, TIME, Index, Layout
from storage.index.txn_index import TxnEntry, TxnIndex
from storage.record._batch import Rebuild
from storage.record.compression import MAX_DECOMPRESSED_BYTES
from storage.record.header import MAGIC, MAGIC_POSITION, BatchHeader, Buffer, parse_header
from storage.record.plain import decoded_sizes, first_offset, plain
from storage.record.scan import batches as scan_batches
from storage.segment.batch_check import sound_batch
from storage.segment.checked_ranges import CheckedRanges
from storage.segment.cut import cut_tail
from storage.segment.damage import Damage, Damages
from storage.segment.summary import SegmentSummary
from storage.segment.walk import buffered, sealed_indexes
from storage.settings.config import LogConfig
from storage.waiting import before_waiting

_log = logging.getLogger(__name__)

# One lock for all segments. Reentrant: a thread that adds damage under it may find the file
# missing.
damages_lock = threading.RLock()

MAX_SEGMENT_BYTES = 2**31 - 1
MAX_OFFSET_SPAN = 2**31 - 1

NOT_SYNCED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors of a sync that has written nothing, and lost nothing: it can be repeated."""

_KINDS = (paths.LOG, *paths.REBUILT_SUFFIXES)


class Segment:
    """One segment of a partition. Owned by one thread; leases let others read and flush it."""

    # Attributes in slots: with more than 30 in a dict, each access would be slower.
    __slots__ = (
        *("base_offset", "config", "writable", "suffix", "sealed", "identity", "recently_used"),
        *(
            "disk",
            "_directory",
            "_log_name",
            "fd",
            "leases",
            "_gone",
            "_synced_size",
            "_sync_error",
        ),
        *("_indexes", "_txn_index"),
        *("size", "stable_size", "next_offset", "first_timestamp", "max_timestamp"),
        *("max_timestamp_offset", "mtime_ns", "is_dated", "told_ns"),
        *("index_full", "damages", "reported_damages", "lost_bytes", "checked_ranges"),
    )

    # Whether the log is batches. A subclass may read a log of another form: its offsets are
    # positions, and readers get its batches from `expand` only.
    holds_batches = True

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        writable: bool,
        sealed: bool = False,
        suffix: str = "",
        log_name: str | None = None,
    ) -> None:
        """`suffix`: the ending of the files' names, e.g. `.deleted`; "" for those of the log.

        `sealed`: no batches are appended.
        """
        self.base_offset = base_offset
        self.config = config
        self.writable = writable
        self.disk = files
        self._directory = directory
        self._log_name = log_name
        self.suffix = suffix
        self.sealed = sealed
        # Of the `.log`, if another process may put another file in its place.
        self.identity: Identity | None = None
        # While there are any, the files of a deleted segment stay.
        self.leases = 0
        self._gone = False
        # The open log, else -1. No other file has the log's inode number while the log is open.
        self.fd = -1
        # Whether the files were used since the log last aged its descriptors.
        self.recently_used = False
        # The used ones, by the suffixes of their files.
        self._indexes: dict[str, Index] = {}
        self._txn_index: TxnIndex | None = None
        # Bytes of the log that are on the disk: no write error is pending for them.
        self._synced_size = 0
        # An fsync that failed; the next flush reports it.
        self._sync_error: OSError | None = None
        # Known damage; reads stop before it.
        self.damages: Damages = ()
        # Damage that the log has already counted and reported.
        self.reported_damages: Damages = ()
        self.checked_ranges = CheckedRanges()
        self.first_timestamp = -1
        # Whether an index lacks entries, or room for those that one more append may need.
        self.index_full = False
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.mtime_ns = 0
        # Whether the log's file has exactly that time, by the disk's clock.
        self.is_dated = False
        # The mtime that was last returned.
        self.told_ns = 0
        self.next_offset = base_offset
        self.size = 0
        # Bytes at the end of a sealed segment that its file has lost.
        self.lost_bytes = 0
        # Bytes of whole batches below the last stable offset; the log sets it.
        self.stable_size = 0

    @classmethod
    def create(
        cls,
        files: Files,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        suffix: str = "",
        is_unused: bool = False,
    ) -> Segment:
        """Create the files of an empty active segment. Remove old files of its name first.

        `is_unused`: there are no such files. Errors: OSError; no file is left.
        """
        segment = cls(files, directory, base_offset, config, writable=True, suffix=suffix)
        if not is_unused:
            segment._remove_files()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            segment.fd = fd = segment._open_within_budget(paths.LOG, flags)
            if config.preallocate:
                files.ftruncate(fd, config.segment_bytes)
            for kind in (paths.INDEX, paths.TIMEINDEX):
                files.close(files.open(segment.file_path(kind), os.O_WRONLY | os.O_CREAT))
        except OSError:
            segment.discard()
            raise
        segment.mtime_ns = now_ms * 1_000_000
        return segment

    def restore(
        self, summary: SegmentSummary, *, sealed: bool = False, stable_size: int | None = None
    ) -> None:
        """Set the facts that were found on the disk. `stable_size` is by default the size."""
        size = summary.size
        assert self.base_offset <= summary.next_offset
        self.size = size
        self.stable_size = size if stable_size is None else stable_size
        self.next_offset = summary.next_offset
        self.first_timestamp = summary.first_timestamp
        self.max_timestamp = summary.max_timestamp
        self.max_timestamp_offset = summary.max_timestamp_offset
        self.mtime_ns = summary.mtime_ns
        self.is_dated = True
        self.sealed = sealed
        self._synced_size = size
        self.checked_ranges.forget_written(size)

    # -- names ---------------------------------------------------------------------------------

    @property
    def log_path(self) -> str:
        """The present path of the `.log`; after a removal it ends in `.deleted`."""
        return self.file_path(paths.LOG)

    def file_path(self, suffix: str) -> str:
        """Return the path of this segment's file of one kind, e.g. `paths.INDEX`."""
        name = paths.file_name(self.base_offset, suffix)
        if suffix == paths.LOG and self._log_name is not None:
            name = self._log_name
        return os.path.join(self._directory, name) + self.suffix

    def relocate(self, directory: str) -> None:
        """Note that the partition's directory was renamed (topic deletion)."""
        self._directory = directory

    def file_size(self, suffix: str) -> int:
        """Return the bytes of this segment's file of one kind; 0 without one."""
        try:
            return self.disk.file_stat(self.file_path(suffix)).st_size
        except FileNotFoundError:
            return 0

    def set_suffix(self, suffix: str) -> None:
        """Rename the files: replace the present ending of their names by `suffix`. Errors: OSError
        from the disk, also without a log; the files then get their names back, as far as the disk
        allows, and another call renames the others.
        """
        path = self.log_path
        if not (
            self.disk.exists(path) or self.disk.exists(path.removesuffix(self.suffix) + suffix)
        ):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._rename_existing(suffix)

    def _rename_existing(self, suffix: str) -> None:
        renamed: list[tuple[str, str]] = []
        # No other thread opens files that are not in the log yet, and a rename may take long.
        made_aside = self.suffix.endswith((paths.CLEANED, paths.STAGED))
        with contextlib.nullcontext() if made_aside else descriptors.lock:
            try:
                # The log last: if the disk fails again, it keeps the name that readers open.
                for kind in (*_KINDS[1:], _KINDS[0]):
                    path = self.file_path(kind)
                    target = path.removesuffix(self.suffix) + suffix
                    # Line indexes and words may be removed at any moment (`reserve`).
                    with contextlib.suppress(FileNotFoundError):
                        if self.disk.exists(path):
                            self.disk.rename(path, target)
                            renamed.append((path, target))
            except OSError:
                for path, target in reversed(renamed):
                    with contextlib.suppress(OSError):
                        self.disk.rename(target, path)
                raise
            self.suffix = suffix

    def note_renamed_to(self, suffix: str) -> None:
        """Note that another process has renamed the files: their names end in `suffix` now."""
        self.suffix = suffix
        if suffix == paths.DELETED:
            for index in list(self._indexes.values()):
                index.pin()

    def set_mtime(self, mtime_ns: int) -> None:
        """Set the files' mtime: retention uses it for records without timestamps."""
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            self.disk.utime_ns(self.file_path(kind), mtime_ns)

    # -- descriptors and leases ----------------------------------------------------------------

    def lease(self) -> None:
        """Keep the files of a deleted segment on disk. Errors: SegmentGone."""
        with descriptors.lock:
            self._check_present()
            self.leases += 1

    def release(self) -> None:
        """End one lease. After the last one, the log thread closes or removes the files."""
        with descriptors.lock:
            assert self.leases > 0
            self.leases -= 1

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        """Lease the segment. At the end, close the files of a sealed segment if they were closed
        before: a log may have thousands. Errors: SegmentGone.
        """
        was_open = self.is_open
        self.lease()
        try:
            yield
        finally:
            self.release()
            if self.sealed and not was_open:
                self.evict()

    def log_fd(self) -> int:
        """Return the log's descriptor: the file is open as long as the caller has it. Thread-safe.
        Errors: SegmentGone, CorruptRecord if the file is missing, OSError.
        """
        self.recently_used = True
        fd = self.fd
        if fd >= 0:
            return fd
        try:
            return descriptors.open_for(self, self._open_log)
        except FileNotFoundError:
            if self._has_vanished():
                raise self._vanished() from None
            if self.lost is None:
                raise
            raise self.lost.error(self.log_path) from None

    def log_fd_to_write(self) -> int:
        """Return the log's descriptor of an active segment. Errors: see `log_fd`; OSError (EROFS)
        if the file system has become read-only.
        """
        fd = self.log_fd()
        if isinstance(fd, Descriptor) and not fd.may_write:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.log_path)
        return fd

    def _open_log(self) -> Descriptor:
        self._check_present()
        if self.identity is None:
            flags = os.O_RDWR if self.writable and not self.sealed else os.O_RDONLY
            try:
                self.fd = fd = Descriptor(self.disk, self.log_path, flags)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                # The kernel has made a faulty file system read-only. Its files can still be read.
                # The next use tries again: the file system may be writable then.
                fd = Descriptor(self.disk, self.log_path, os.O_RDONLY)
            return fd
        # Another process may just have renamed or replaced it.
        named = self.log_path.removesuffix(self.suffix)
        for path in (self.log_path, named, named + paths.DELETED):
            with contextlib.suppress(FileNotFoundError):
                fd = Descriptor(self.disk, path, os.O_RDONLY)
                if self.disk.identity(fd) == self.identity:
                    self.fd = fd
                    return fd
        raise SegmentGone("the writer has deleted or replaced this segment", path=self.log_path)

    def _has_vanished(self) -> bool:
        """Return whether another process has removed the log of this process's segment."""
        with descriptors.lock:
            is_ours = self.writable and self.identity is None and not self.deleted
            exists = self.disk.exists
            return is_ours and exists(self._directory) and not exists(self.log_path)

    def identity_of(self, kind: str) -> Identity | None:
        """Return the identity of its file of one kind; None without one. Errors: OSError."""
        if kind == paths.LOG and self.identity is not None:
            return self.identity
        with descriptors.lock, contextlib.suppress(FileNotFoundError):
            # The log thread may be renaming the files.
            return self.disk.identity(self.file_path(kind))
        return None

    def open_file(self, kind: str, flags: int = os.O_RDONLY) -> Descriptor:
        """Open the file of one kind by its present name. Errors: OSError."""
        # The log thread may be renaming it.
        with descriptors.lock:
            return Descriptor(self.disk, self.file_path(kind), flags)

    def _open_within_budget(self, kind: str, flags: int) -> Descriptor:
        return descriptors.open_for(self, partial(self._open_present, kind, flags))

    def _open_txn_index(self, kind: str, flags: int) -> Descriptor:
        if self.suffix == paths.SWAP and kind.endswith(paths.SWAP):
            # (Without a file of this name, that of the replaced segment is as good: its aborted
            # transactions stay aborted.)
            path = self.file_path(kind.removesuffix(paths.SWAP)).removesuffix(paths.SWAP)
            return Descriptor(self.disk, path, flags)
        return self._open_within_budget(kind, flags)

    def _open_present(self, kind: str, flags: int) -> Descriptor:
        self._check_present()
        return self.open_file(kind, flags)

    def _check_present(self) -> None:
        """Check that the segment is not deleted. Errors: SegmentGone."""
        if self._gone:
            raise SegmentGone("this segment has been deleted", path=self.log_path)

    def evict(self) -> bool:
        """Close the files; return False if that would lose a deleted file or an unreported write
        error (`storage.descriptors`). Thread-safe.
        """
        with descriptors.lock:
            if self.is_unsynced or self._is_unlinked():
                return False
            # In this order an append in another thread finds the log closed, or is noticed here.
            fd, self.fd = self.fd, -1
            if self.writable and self.size > self._synced_size:
                self.fd = fd
                return False
            self.close_descriptors()
        return True

    def _is_unlinked(self) -> bool:
        """Return whether the open log has lost its name."""
        with contextlib.suppress(OSError):  # by NFS, if the server has deleted it
            return self.fd >= 0 and not self.disk.descriptor_stat(self.fd).st_nlink
        return False

    def close_descriptors(self) -> None:
        """Close all files after their last use; the next use opens them again. Thread-safe."""
        with descriptors.lock:
            self.fd = -1
            for index in self._used_indexes():
                index.release()
            descriptors.forget(self)

    @property
    def is_open(self) -> bool:
        """Whether any file is open."""
        return self.fd >= 0 or any(index.fd >= 0 for index in self._used_indexes())

    def close(self) -> None:
        """Close the files, and drop the entries of the indexes from memory."""
        with contextlib.suppress(OSError):
            for index in list(self._indexes.values()):
                if self.writable and self.sealed and self._has_lost_entries(index):
                    # The next start rebuilds it.
                    self.disk.unlink(self.file_path(index.layout.suffix))
        self.close_descriptors()
        self.forget_indexes()

    def renewed(self) -> None:
        """Read from now on the files that have replaced those of this sealed segment, with the same
        bytes at the same positions.
        """
        self._synced_size = self.size
        self._sync_error = None
        self.close_descriptors()
        self.forget_indexes()

    # -- syncing -------------------------------------------------------------------------------

    @property
    def is_unsynced(self) -> bool:
        """Whether bytes were written to the log that may not be on the disk."""
        return self.writable and (self.size > self._synced_size or self._sync_error is not None)

    def open_to_sync(self) -> None:
        """Open every file of the active segment: an error of an open is no failed sync."""
        self.log_fd_to_write()
        self.offset_index.open_to_write()
        self.time_index.open_to_write()
        if self._txn_index is not None:
            self._txn_index.open_to_sync()

    def sync(self) -> None:
        """Make log and indexes survive a power cut. Any thread that holds a lease.

        A sealed segment has one file open at a time: a flush may sync thousands of them. Errors:
        OSError; CorruptRecord, once, if the file of a sealed segment is missing.
        """
        if self.is_lost:
            return
        if self._sync_error is not None:
            raise self._sync_error
        size = self.size
        if self._txn_index is not None:
            self._txn_index.sync()
        if self.sealed:
            self._sync_by_new_descriptors()
            indexes = list(self._indexes.values())
            # If another process has got the error of a failed write, only older descriptors get it.
            for fd in (self.fd, *(index.fd for index in indexes)):
                if fd >= 0:
                    self.disk.fdatasync(fd)
            for index in indexes:
                index.release()
        else:
            self.disk.fdatasync(self.log_fd())
            self.check_whole()
            self.offset_index.sync()
            self.time_index.sync()
        self._synced_size = max(size, self._synced_size)

    def sync_early(self) -> None:
        """Sync the written bytes, so that `evict` can close the files. A failure is also an error
        of the next `sync`. Errors: CorruptRecord, OSError.
        """
        size = self.size
        self._sync_by_new_descriptors()
        self._synced_size = max(size, self._synced_size)

    def _sync_by_new_descriptors(self) -> None:
        """Sync log and indexes, and remember a failure. Errors: CorruptRecord, OSError."""
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            try:
                fd = self.open_file(kind)
            except FileNotFoundError:
                if kind == paths.LOG:
                    # An open log can be copied (`rescue`); otherwise the flush fails.
                    self.log_fd()
                    raise
                continue  # recovery rebuilds an index
            try:
                self.disk.fdatasync(fd)
            except OSError as error:
                if error.errno not in NOT_SYNCED:
                    # The next fsync would succeed, and prove nothing.
                    self._sync_error = error
                raise

    def check_whole(self) -> None:
        """Check that the file has all written bytes. Thread-safe: an append writes them before
        `size` counts them. Errors: CutShort, OSError.
        """
        written = self.size
        if self.disk.size(self.log_fd()) < written:
            raise self.cut_short()

    def cut_short(self) -> CutShort:
        """Return the error of a file that another process has truncated."""
        size = self.disk.size(self.log_fd())
        reason = f"another process has truncated the file from {self.size} to {size} bytes"
        return CutShort(errno.EIO, reason, self.log_path)

    def open_log(self) -> bool:
        """Open the log, so that reads continue after its removal; return False if the file is
        missing.

        Errors: SegmentGone, OSError.
        """
        with contextlib.suppress(CorruptRecord):
            self.log_fd()
        return not self.is_lost

    # -- indexes -------------------------------------------------------------------------------

    @property
    def offset_index(self) -> Index:
        """The `.index`; its file is looked at at the first use."""
        return self._indexes.get(paths.INDEX) or self._use(OFFSET)

    @property
    def time_index(self) -> Index:
        """The `.timeindex`; its file is looked at at the first use."""
        return self._indexes.get(paths.TIMEINDEX) or self._use(TIME)

    def _use(self, layout: Layout) -> Index:
        index = Index(
            *(self.disk, layout, self.base_offset, self._open_within_budget),
            max_bytes=self.config.segment_index_bytes,
            # It was pre-sized by another process, living or dead.
            is_active=not self.sealed,
            rebuild=self._rebuild_indexes if self.writable else None,
        )
        return self._indexes.setdefault(layout.suffix, index)

    def _used_indexes(self) -> list[Index | TxnIndex]:
        txn_index = self._txn_index
        return [*self._indexes.values(), *(() if txn_index is None else (txn_index,))]

    @property
    def txn_index(self) -> TxnIndex:
        """The `.txnindex`, read at its first use, which waits; its entries stay in memory."""
        index = self._txn_index
        if index is None:
            before_waiting()
            made = TxnIndex(self.disk, self._open_txn_index, writable=self.writable)
            with descriptors.lock:
                index = self._txn_index = self._txn_index or made
        return index

    def forget_indexes(self) -> None:
        """Read the offset and the time index again at the next use: another process has extended
        or replaced them.
        """
        indexes, self._indexes = self._indexes, {}
        for index in indexes.values():
            index.close()

    @property
    def aborted(self) -> tuple[TxnEntry, ...]:
        """The aborted transactions with markers in this segment, in the order of the markers."""
        return self.txn_index.entries

    def _rebuild_indexes(self) -> bool:
        """Load the entries of an index that another process has truncated or removed from the log.

        Thread-safe. Return False if that cannot be done now. For the active segment it is done once
        it is sealed, which `index_full` requests. Errors: BlockingIOError if the caller may not
        wait.
        """
        if not self.sealed:
            self.index_full = True
        if not (self.sealed and self.size):
            return False
        before_waiting()
        self.lease()
        try:
            rebuild = Rebuild(self.base_offset, self.config.index_interval_bytes)
            made = sealed_indexes(self.disk, self.log_fd(), self.size, rebuild, self.damages)
            for index, entries in zip((self.offset_index, self.time_index), made, strict=True):
                if self._has_lost_entries(index):
                    index.load(entries)
                    # Damage that nobody knew of may have ended the entries.
                    if rebuild.position == self.size:
                        self._write_index(index.layout.suffix, entries)
            return True
        except (OSError, CorruptRecord) as error:
            _log.warning("%s: cannot rebuild its indexes: %s", self.log_path, error)
        finally:
            self.release()
        return False

    def _has_lost_entries(self, index: Index) -> bool:
        """Return whether another process has removed entries from the file. Errors: OSError."""
        return self.file_size(index.layout.suffix) < index.count * index.layout.entry.size

    def _write_index(self, suffix: str, entries: bytes) -> None:
        """Write an index again, in place, durably. Several threads write the same bytes."""
        path, outcome = self.file_path(suffix), "has been rebuilt"
        try:
            fd = self.open_file(suffix, os.O_CREAT | os.O_RDWR)
            self.disk.pwrite(fd, entries, 0)
            self.disk.ftruncate(fd, len(entries))
            self.disk.fdatasync(fd)
        except OSError as error:
            outcome = f"cannot be written again: {error}"
        _log.warning("%s was truncated by another process and %s", path, outcome)

    # -- loss ----------------------------------------------------------------------------------

    def mark_missing(self, size: int, stored: int = 0) -> bool:
        """Mark the bytes that the file of this sealed segment lacks as damage.

        The segment had `size` bytes, and the file has the first `stored` of them. Return False if
        that is known already. Thread-safe. Errors: OSError.
        """
        assert self.sealed
        assert stored < size
        with damages_lock:
            if self.lost_bytes == size - stored:
                return False
            if self.size < size:
                self.size = self.stable_size = self._synced_size = size
                self.checked_ranges.forget_written(size)
            if not stored:
                state = "empty" if self.disk.exists(self.log_path) else "missing"
                reason = f"the file is {state}, its size was {size} bytes"
                place = Damage(0, size, self.base_offset, self.next_offset, reason)
                self.damages = (place,)
                # The damage first: a reader that finds all checked must find the damage, too.
                self.checked_ranges.add(0, size, self.next_offset)
            self.lost_bytes = size - stored
        return True

    @property
    def lost(self) -> Damage | None:
        """The damage at the end of a sealed segment whose file is too short or missing, or None."""
        return self.damages[-1] if self.lost_bytes and self.damages else None

    @property
    def is_lost(self) -> bool:
        """Whether the file has no byte of this sealed segment: it is missing or empty."""
        return 0 < self.lost_bytes == self.size

    @property
    def loss(self) -> str:
        """A line about the bytes that are `lost`."""
        error = self.damages[-1].error(self.log_path)
        return (
            f"{error}; reads of it fail until you restore the file from a backup or run "
            "kafkafs repair --accept-loss --apply"
        )

    def _vanished(self) -> CorruptRecord:
        if self.sealed and self.size:
            if self.mark_missing(self.size):
                _log.warning("%s", self.loss)
            return self.damages[0].error(self.log_path)
        reason = f"the file is missing, its size was {self.size} bytes"
        return CorruptRecord(reason, path=self.log_path, position=0, offset=self.base_offset)

    def accept_size(self) -> None:
        """Give up the missing bytes, and an incomplete batch before them. Errors: OSError."""
        size = self.file_size(paths.LOG)
        whole = min(self.damages[-1].start, size)
        damages = tuple(place for place in self.damages if place.end <= whole)
        rebuild = Rebuild(self.base_offset, self.config.index_interval_bytes)
        with self.disk.held_open(self.log_path, os.O_RDWR) as fd:
            made = sealed_indexes(self.disk, fd, whole, rebuild, damages)
            for kind, entries in zip((paths.INDEX, paths.TIMEINDEX), made, strict=True):
                self.disk.replace_atomically(self.file_path(kind), entries)
            self._remove_words()
            if whole < size:
                reason = "the loss of the records after it was accepted"
                cut_tail(self.disk, fd, self.log_path, whole, size, reason)
        summary = SegmentSummary.of(rebuild, whole, self.mtime_ns)
        self.damages, self.lost_bytes = damages, 0
        self.restore(summary._replace(next_offset=self.next_offset), sealed=True)
        self.renewed()

    # -- times and sizes ----------------------------------------------------------------------

    def date(self, least_ns: int) -> int:
        """Return the mtime of the log's file, in ns; an earlier one of an active segment becomes
        `least_ns`. Thread-safe.

        So the shown time stays, and a later append has a later time.
        """
        if not self.is_dated or self.mtime_ns < least_ns:
            # Before the stat: the result of an append meanwhile is read again.
            self.is_dated = True
            with contextlib.suppress(OSError):
                fd = self.fd
                disk = self.disk
                found = disk.descriptor_stat(fd) if fd >= 0 else disk.file_stat(self.log_path)
                found_ns = found.st_mtime_ns
                # Other processes recognise an unchanged sealed segment by it.
                if found_ns < least_ns and self.writable and not self.sealed:
                    self.disk.utime_ns(self.log_path, least_ns)
                    found_ns = least_ns
                self.mtime_ns = self.told_ns = found_ns
        return max(self.mtime_ns, least_ns)

    # -- batches -------------------------------------------------------------------------------

    def expand(
        self, data: Buffer, at: int, end: int, position: int, limit: int = MAX_DECOMPRESSED_BYTES
    ) -> tuple[Buffer, int]:
        """Return the plain form of the batch at `data[at:end]`, and the number of stored bytes
        (`record.plain`). `position`: of `data[at]` in the log.

        Errors: those of `record.plain`; CorruptRecord if a wrapper has records with offsets of the
        batch after it, as no CRC covers the wrapper's offset.
        """
        made, size = plain(data, at, end, limit)
        if made and data[at + MAGIC_POSITION] < MAGIC:
            stored = parse_header(data, at)
            if stored.is_wrapper and parse_header(made).last_offset > stored.last_offset:
                reason = f"a wrapper's offset {stored.last_offset} is less than an offset inside it"
                raise CorruptRecord(reason, position=at, offset=stored.base_offset)
        return made, size

    def decoded_sizes(self, data: Buffer, at: int, end: int) -> tuple[int, int]:
        """Return `record.plain.decoded_sizes` of the batch at `data[at:end]`."""
        return decoded_sizes(data, at, end)

    def log_stat(self) -> os.stat_result:
        """Return the stat of the log's file, under any present name."""
        return self.disk.descriptor_stat(self.log_fd())

    def source(self) -> FileSource:
        """Return the log as a byte source, for `record.scan`."""
        return FileSource(self.disk, self.log_fd(), self.log_path)

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches from `position` to `end`. Nothing is checked."""
        return scan_batches(self.source(), position, end)

    def last_indexed_position(self) -> int:
        """Return the position of the last batch in the index; 0 without any."""
        entry = self.offset_index.last_entry
        return 0 if entry is None else self.position_before(entry[0])

    def position_before(self, offset: int) -> int:
        """Return the start of a batch, at or before the first one whose last offset is ≥ `offset`.

        It comes from the index, whose entries have no checksum: an entry counts only if it can be
        the entry of the batch at its position. Errors: BlockingIOError, SegmentGone, OSError.
        """
        indexed, position = self.offset_index.lookup(offset)
        if position and not self.can_name(indexed, position):
            return 0
        return position

    def can_name(self, offset: int, position: int) -> bool:
        """Return whether a sound batch lies at `position` that can have an entry for `offset`.
        Errors: BlockingIOError if the caller may not wait.
        """
        try:
            read = buffered(self.disk, self.log_fd()).read
            header = sound_batch(read, position, self.size)
            if header is None:
                return False
            first = header.base_offset
            if header.is_wrapper:
                # The entries of brokers before 0.11 may have any offset of a set.
                first = first_offset(read(position, header.size), header)
        except BlockingIOError:
            raise
        except (CorruptRecord, OSError):
            return False
        return first <= offset <= header.last_offset

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp in ms, or the file's mtime if no record has one."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.mtime_ns // 1_000_000

    # -- deletion ------------------------------------------------------------------------------

    @property
    def deleted(self) -> bool:
        """Whether the segment has left the log, by the names of its files."""
        return self._gone or self.suffix.endswith((paths.DELETED, paths.CUT, paths.DIVERGED))

    def leave(self, kind: str) -> None:
        """Rename the existing files, which leave the log: to `.deleted`, `.cut` or `.diverged`.
        Reads continue. Words are removed unless they are deleted with the log.

        If another segment of the same base has these names, they become `.1.deleted`.
        """
        if self._gone:
            return
        path = self.log_path.removesuffix(self.suffix)
        suffix, number = kind, 0
        while self.disk.exists(path + suffix):
            number += 1
            suffix = f".{number}{kind}"
        if kind != paths.DELETED:
            # No search reads the log that is kept.
            self._remove_words()
        self._rename_existing(suffix)
        if kind != paths.DELETED:
            # Another process may have built them meanwhile.
            self._remove_words()

    def _remove_words(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(self.file_path(paths.WORDS))

    def end_reading(self) -> None:
        """Refuse leases and reads from now on. Thread-safe."""
        with descriptors.lock:
            self._gone = True
            self.close_descriptors()

    def let_go(self) -> list[str]:
        """End all reading, and return the paths to remove, in this order.

        The log comes last: while it exists, no other segment of that base gets the same names when
        it leaves.
        """
        self.end_reading()
        self.close()
        return self._existing_files()

    def _existing_files(self) -> list[str]:
        kinds = (*_KINDS[1:], _KINDS[0])
        return [path for kind in kinds if self.disk.exists(path := self.file_path(kind))]

    def discard(self) -> None:
        """Remove a segment that was never part of the log."""
        self.end_reading()
        self.close()
        self._remove_files()

    def _remove_files(self) -> None:
        for path in self._existing_files():
            # Line indexes and words may be removed at any moment.
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(path)
