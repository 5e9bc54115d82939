"""One segment: a ``.log`` file of record batches with its indexes.

Layout: the files of one segment share a name, the base offset in 20 digits.  The log is record
batches back to back; the indexes are those of ``storage.index``.  The last segment of a partition
is *active* and grows; the others are *sealed*: their indexes are trimmed and nothing changes them
until a cleaner replaces the whole segment.

Which batch gets an index entry follows Kafka's ``LogSegment.append``: a batch is indexed when more
than ``index.interval.bytes`` lie between it and the batch indexed before it, so the first batch
never is.  An index therefore always equals the one that recovery would rebuild.

Descriptors are opened when they are needed and closed by age of use.  Whoever reads or flushes
from another thread holds a *lease*; a descriptor is closed and a deleted segment's files go only
when no lease is left.

Not here: which offsets batches get and when to roll (``log``), what a damaged file means
(``recovery``), who deletes (``retention``, ``compaction``).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from storage import paths
from storage.config import LogConfig
from storage.errors import CorruptRecord, SegmentGone
from storage.files import Files, FileSource
from storage.index.offset_index import OffsetIndex
from storage.index.time_index import TimeIndex
from storage.index.txn_index import TxnEntry, TxnIndex
from storage.record._batch import find_next_batch
from storage.record.batch import HEADER_SIZE, BatchHeader, Buffer, parse_header
from storage.record.scan import batches as scan_batches

# (position in the appended block, size in bytes, last offset, largest timestamp in ms)
BatchEntry = tuple[int, int, int, int]

_KINDS = (paths.LOG, *paths.INDEX_SUFFIXES, *paths.LINES_SUFFIXES)

# Of a batch that is larger than this the header has to do, to see whether an index fits.
_CHECKED_BYTES = 16 * 1024 * 1024

MAX_SEGMENT_BYTES = 2**31 - 1
MAX_OFFSET_SPAN = 2**31 - 1

# One lock for all segments: it guards counters for a few instructions, never a disk access other
# than an open.
_lease_lock = threading.Lock()


class Segment:
    """One segment of a partition.  Owned by one thread; leases let others read and flush it."""

    __slots__ = (
        "_append_ready",
        "_bytes_since_index_entry",
        "_config",
        "_cut_pending",
        "_directory",
        "_fd",
        "_files",
        "_gone",
        "_leases",
        "_offset_index",
        "_suffix",
        "_time_index",
        "_txn_index",
        "_writable",
        "base_offset",
        "created_ms",
        "deleted",
        "first_timestamp",
        "identity",
        "index_full",
        "max_timestamp",
        "max_timestamp_offset",
        "mtime_ns",
        "next_offset",
        "recently_used",
        "sealed",
        "size",
        "stable_size",
    )

    # Whether the log's bytes never are record batches as they lie there, so that who reads them
    # always goes through ``expand``: a subclass for an older format.
    always_expand = False

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        writable: bool,
        created_ms: int,
    ) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._writable = writable
        self._suffix = ""
        self._fd = -1
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._leases = 0
        self._gone = False
        self._append_ready = False
        self._cut_pending = False
        self._bytes_since_index_entry = 0
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.deleted = False
        self.first_timestamp = -1
        # (device, inode) of the .log, where another process may put another file in its place.
        self.identity: tuple[int, int] | None = None
        # Whether an index has no room for the entries that one more append may need.
        self.index_full = False
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.mtime_ns = 0
        self.next_offset = base_offset
        self.recently_used = False
        self.sealed = False
        self.size = 0
        # Bytes of whole batches below the last stable offset; the log that has the segment
        # keeps it right.
        self.stable_size = 0

    @classmethod
    def create(
        cls, files: Files, directory: str, base_offset: int, config: LogConfig, *, now_ms: int
    ) -> Segment:
        """A new, empty, active segment on disk.  Left-over files of its name are removed first.

        OSError where the disk refuses; nothing is left behind then.
        """
        segment = cls(files, directory, base_offset, config, writable=True, created_ms=now_ms)
        segment.discard()
        segment._gone = False
        try:
            segment._fd = files.open(segment.log_path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            if config.preallocate:
                files.ftruncate(segment._fd, config.segment_bytes)
            segment._prepare_append()
        except OSError:
            segment.discard()
            raise
        segment.mtime_ns = now_ms * 1_000_000
        return segment

    def restore(
        self,
        *,
        size: int,
        next_offset: int,
        first_timestamp: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        last_indexed_position: int,
        mtime_ns: int,
        sealed: bool,
        stable_size: int | None = None,
    ) -> None:
        """What recovery found on disk.  Positions and sizes in bytes, timestamps in ms.

        ``stable_size`` is by default all of it.
        """
        assert 0 <= last_indexed_position <= size
        assert self.base_offset <= next_offset
        self.size = size
        self.stable_size = size if stable_size is None else stable_size
        self.next_offset = next_offset
        self.first_timestamp = first_timestamp
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self._bytes_since_index_entry = size - last_indexed_position
        self.mtime_ns = mtime_ns
        self.sealed = sealed

    # -- names ---------------------------------------------------------------------------------

    @property
    def log_path(self) -> str:
        """Where the ``.log`` is now; a segment waiting for deletion has ``.deleted`` appended."""
        return self.file_path(paths.LOG)

    def file_path(self, suffix: str) -> str:
        """The path of this segment's file of one kind, e.g. ``paths.INDEX``."""
        name = paths.file_name(self.base_offset, suffix)
        return os.path.join(self._directory, name) + self._suffix

    def relocate(self, directory: str) -> None:
        """The partition's directory was renamed (topic deletion)."""
        self._directory = directory
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = None
        if self._txn_index is not None:
            self._txn_index.close()
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

    def _log_fd(self) -> int:
        if self._gone:
            raise SegmentGone("this segment has been deleted", path=self.log_path)
        self.recently_used = True
        with _lease_lock:
            if self._fd < 0:
                flags = os.O_RDWR if self._writable and not self.sealed else os.O_RDONLY
                if self.identity is None:
                    self._fd = self._files.open(self.log_path, flags)
                else:
                    self._fd = self._open_of_another(self.identity)
            return self._fd

    def _open_of_another(self, identity: tuple[int, int]) -> int:
        """Open the log of another process, which may just have renamed or replaced it."""
        for path in (self.log_path, self.log_path + paths.DELETED):
            try:
                fd = self._files.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            found = self._files.descriptor_stat(fd)
            if (found.st_dev, found.st_ino) == identity:
                return fd
            self._files.close(fd)
        raise SegmentGone("its writer has deleted or replaced this segment", path=self.log_path)

    def close_descriptors(self) -> bool:
        """Close what is open, unless a lease holds it.  True where nothing stays open."""
        with _lease_lock:
            if self._leases:
                return False
            fd, self._fd = self._fd, -1
        if self._append_ready:
            self._append_ready = False
            self.offset_index.trim()
            self.time_index.trim()
        if fd >= 0:
            self._files.close(fd)
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self._offset_index = self._time_index = None
        if self._txn_index is not None:
            self._txn_index.close()
        return True

    @property
    def is_open(self) -> bool:
        """Whether any descriptor or memory map is held."""
        return (
            self._fd >= 0
            or self._offset_index is not None
            or self._time_index is not None
            or (self._txn_index is not None and self._txn_index.is_open)
        )

    def close(self) -> None:
        """Close everything; the caller guarantees that nobody holds a lease."""
        assert not self._leases, "a segment is closed only after its last lease"
        self.close_descriptors()

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index``, opened when first asked for."""
        index = self._offset_index
        if index is None:
            with _lease_lock:
                index = self._offset_index
                if index is None:
                    index = self._offset_index = OffsetIndex(
                        self._files,
                        self.file_path(paths.INDEX),
                        self.base_offset,
                        self._config.segment_index_bytes,
                        writable=self._writable and not self.sealed,
                        mapped=self._writable,
                        # The active segment's was pre-sized by whoever died, or lives elsewhere.
                        ignore_zero_tail=not self.sealed,
                    )
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex``, opened when first asked for."""
        index = self._time_index
        if index is None:
            with _lease_lock:
                index = self._time_index
                if index is None:
                    index = self._time_index = TimeIndex(
                        self._files,
                        self.file_path(paths.TIMEINDEX),
                        self.base_offset,
                        self._config.segment_index_bytes,
                        writable=self._writable and not self.sealed,
                        mapped=self._writable,
                        # The active segment's was pre-sized by whoever died, or lives elsewhere.
                        ignore_zero_tail=not self.sealed,
                    )
        return index

    @property
    def txn_index(self) -> TxnIndex:
        """The ``.txnindex``, read when first asked for; its entries stay in memory."""
        index = self._txn_index
        if index is None:
            with _lease_lock:
                index = self._txn_index
                if index is None:
                    index = self._txn_index = TxnIndex(
                        self._files, self.file_path(paths.TXNINDEX), writable=self._writable
                    )
        return index

    @property
    def aborted(self) -> tuple[TxnEntry, ...]:
        """The aborted transactions whose markers lie here, in the order of the markers."""
        return self.txn_index.entries

    # -- appending -----------------------------------------------------------------------------

    def _prepare_append(self) -> None:
        """Open the three files and pre-size the indexes (``OffsetIndex.java``)."""
        self._log_fd()
        self.offset_index.presize()
        self.time_index.presize()
        self.index_full = self.offset_index.is_full or self.time_index.is_full
        self._append_ready = True

    def append(self, data: bytes | bytearray, batches: Sequence[BatchEntry], now_ns: int) -> int:
        """Write ready batches at the end and index them (``LogSegment.append``).

        Returns the file position where they begin.  OSError where the disk refuses: the segment
        is then cut back to what it was.
        """
        assert not self.sealed
        if not self._append_ready:
            self._prepare_append()
        start = self.size
        fd = self._fd
        if self._cut_pending:
            self._files.ftruncate(fd, start)
            self._cut_pending = False
        try:
            self._files.pwrite(fd, data, start)
        except OSError:
            self._cut_back(start)
            raise
        first = batches[0]
        if self.size == 0:
            self.first_timestamp = first[3]
        interval = self._config.index_interval_bytes
        if (
            len(batches) == 1
            and self._bytes_since_index_entry <= interval
            and first[3] <= self.max_timestamp
        ):
            # The common append: one small batch, nothing to index.
            self._bytes_since_index_entry += first[1]
        else:
            self._index(batches, start, interval)
        self.size = start + len(data)
        self.next_offset = batches[-1][2] + 1
        self.mtime_ns = now_ns
        return start

    def _index(self, batches: Sequence[BatchEntry], start: int, interval: int) -> None:
        before = (self._bytes_since_index_entry, self.max_timestamp, self.max_timestamp_offset)
        try:
            for position, size, last_offset, max_timestamp in batches:
                if max_timestamp > self.max_timestamp:
                    self.max_timestamp = max_timestamp
                    self.max_timestamp_offset = last_offset
                if self._bytes_since_index_entry > interval:
                    self.offset_index.append(last_offset, start + position)
                    self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
                    self._bytes_since_index_entry = 0
                self._bytes_since_index_entry += size
        except OSError:
            self._bytes_since_index_entry, self.max_timestamp, self.max_timestamp_offset = before
            self.offset_index.truncate_to_offset(self.next_offset)
            self.time_index.truncate_to_offset(self.next_offset)
            self._cut_back(start)
            raise
        self.index_full = self.offset_index.is_full or self.time_index.is_full

    def _cut_back(self, size: int) -> None:
        """Take a refused append off the file again; if even that fails, before the next one."""
        try:
            self._files.ftruncate(self._fd, size)
        except OSError:
            self._cut_pending = True

    def trim(self) -> None:
        """The final time entry, and files of their real length (``onBecomeInactiveSegment``).

        OSError where the disk refuses: the segment can be appended to as before.
        """
        fd = self._log_fd()
        last = self.offset_index.last_entry
        try:
            self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self.offset_index.trim()
            self.time_index.trim()
            if self._files.size(fd) != self.size:
                self._files.ftruncate(fd, self.size)
        except OSError:
            self.time_index.truncate_to_offset(last[0] + 1 if last else self.base_offset)
            raise
        self._append_ready = False

    def seal(self) -> None:
        """Trim the files; nothing is appended any more."""
        assert self._writable
        assert not self.sealed
        self.trim()
        self.sealed = True

    def open_log(self) -> None:
        """Open the log, so that it can be read when its name is gone.  SegmentGone, OSError."""
        self._log_fd()

    def open_all(self) -> None:
        """Open every file, so that another thread can ``sync`` without opening any."""
        self._log_fd()
        _ = self.offset_index, self.time_index
        if self._txn_index is not None:
            self._txn_index.open()

    def sync(self) -> None:
        """Make log and indexes survive the machine.  Any thread that holds a lease may call it."""
        self._files.fdatasync(self._log_fd())
        self.offset_index.sync()
        self.time_index.sync()
        if self._txn_index is not None:
            self._txn_index.sync()

    def refresh_indexes(self) -> None:
        """Look anew at those that are open: the process that appends has extended them."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.refresh()

    def set_config(self, config: LogConfig) -> None:
        """New settings of the topic; a size of the index files counts from the next segment."""
        self._config = config

    # -- reading -------------------------------------------------------------------------------

    def expand(self, data: Buffer, at: int, end: int, position: int) -> tuple[Buffer, int]:
        """The plain form of the batch at ``data[at:end]``, and the bytes that it stands for.

        ``position`` is where ``data[at]`` lies in the log.  ``record.plain`` says more.
        """
        from storage.record.plain import plain

        return plain(data, at, end)

    def read_into(self, buffer: memoryview | bytearray, position: int, wait: bool) -> int:
        """Fill ``buffer`` from byte ``position`` of the log; returns the count of bytes.

        With ``wait`` false, BlockingIOError where the bytes are not in the page cache: call again
        from a thread that may wait, with ``wait`` true.  SegmentGone after deletion.
        """
        if wait:
            self.lease()
            try:
                return self._files.preadv(self._log_fd(), buffer, position)
            finally:
                self.release()
        self.recently_used = True
        fd = self._fd
        if fd < 0:
            fd = self._log_fd()
        count = self._files.preadv_nowait(fd, buffer, position)
        if count is None:
            raise BlockingIOError
        return count

    def read_at(self, position: int, size: int) -> bytes:
        """``size`` bytes from ``position``; CorruptRecord where the file ends before."""
        data = self._files.pread(self._log_fd(), size, position)
        if len(data) != size:
            raise CorruptRecord(
                f"{len(data)} bytes where {size} were expected",
                path=self.log_path,
                position=position,
            )
        return data

    def source(self) -> FileSource:
        """The log as a byte source, for ``record.scan``."""
        return FileSource(self._files, self._log_fd(), self.log_path)

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Every batch from ``position`` (a batch's start) on, with where it lies."""
        if position >= self.size:
            # An empty log of a directory that is not ours may have no file.
            return iter(())
        return scan_batches(self.source(), position, self.size)

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch whose last offset is ≥ ``offset`` (``LogSegment.translateOffset``)."""
        for at, header in self.batches(self.position_before(offset)):
            if header.last_offset >= offset:
                return at, header
        return None

    def last_batch(self) -> tuple[int, BatchHeader] | None:
        """The last batch and where it lies; CorruptRecord on the way there."""
        entry = self.offset_index.last_entry
        start = 0 if entry is None else self.position_before(entry[0])
        last = deque(self.batches(start), maxlen=1)
        return last[0] if last else None

    def position_before(self, offset: int) -> int:
        """Where a batch begins, not behind the first one whose last offset is ≥ ``offset``.

        By the index.  That of a directory which is not ours to repair is held against the log: its
        entry counts where a batch lies that it can mean.
        """
        indexed, position = self.offset_index.lookup(offset)
        if position and not self._writable and not self._can_mean(indexed, position):
            return 0
        return position

    def _can_mean(self, offset: int, position: int) -> bool:
        """Whether a sound batch lies at ``position`` that an entry for ``offset`` can name."""
        try:
            header = parse_header(self.read_at(position, min(HEADER_SIZE, self.size - position)))
        except (CorruptRecord, OSError, ValueError):
            return False
        # The entries of brokers before 0.11 name any offset of a set.
        first = offset if header.is_legacy else header.base_offset
        if not first <= offset <= header.last_offset or header.size > self.size - position:
            return False
        if header.size > _CHECKED_BYTES:
            return True
        return find_next_batch(self.read_at(position, header.size), 0, 0) == 0

    def position_before_time(self, timestamp_ms: int) -> int:
        """The same for the first record whose timestamp is ≥ ``timestamp_ms``."""
        largest, offset = self.time_index.lookup(timestamp_ms)
        if largest >= 0 and not self._writable:
            found = self.locate(offset)
            if found is None or found[1].max_timestamp != largest:
                return 0
        return self.position_before(offset)

    @property
    def largest_timestamp(self) -> int:
        """Largest record timestamp in ms, or the file's mtime where no record has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.mtime_ns // 1_000_000

    # -- deletion ------------------------------------------------------------------------------

    def mark_lost(self) -> None:
        """Its writer has renamed the files to ``.deleted``, and will remove them."""
        self._suffix = paths.DELETED
        self.deleted = True
        if self._txn_index is not None:
            self._txn_index.path = self.file_path(paths.TXNINDEX)

    def mark_deleted(self) -> None:
        """Rename the files to ``.deleted``; reading goes on until ``vanish``.

        A segment of the same base may still wait under that name: a cleaned one took its place,
        and is deleted itself by now. Its files are ``.1.deleted`` then.
        """
        self._rename_all(paths.DELETED)
        self.deleted = True

    def set_aside(self) -> None:
        """Rename the files to ``.cut``: recovery found them behind a damaged place.

        What was set aside earlier under that name stays: these are ``.1.cut`` then.
        """
        self._rename_all(paths.CUT)
        self.deleted = True

    def _rename_all(self, kind: str) -> None:
        suffix, number = kind, 0
        while self._files.exists(self.log_path + suffix):
            number += 1
            suffix = f".{number}{kind}"
        for path in [self.file_path(part) for part in _KINDS]:
            if self._files.exists(path):
                self._files.rename(path, path + suffix)
        self._suffix = suffix
        if self._txn_index is not None:
            self._txn_index.path = self.file_path(paths.TXNINDEX)

    def vanish(self) -> list[str]:
        """The end of a deleted segment: reads fail from now on; the paths left to be removed."""
        self._append_ready = False
        self.close()
        self._gone = True
        return [path for kind in _KINDS if self._files.exists(path := self.file_path(kind))]

    def discard(self) -> None:
        """Remove a segment that was never part of the log."""
        for path in self.vanish():
            self._files.unlink(path)
