"""Change the files of a data directory as a broker does, step by step, without a broker.

Each method renames, writes and removes files as Kafka does (`UnifiedLog`, `LocalLog`,
`LogManager`). It calls `step` after every change that another process could see.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO

from storage import Record, encode, paths
from storage.files import Files, Kind
from storage.index import txn_index
from storage.record._batch import Rebuild
from storage.record.header import parse_header
from storage.state import checkpoint_file
from storage.state.producer_state import ProducerBatch, ProducerState

NOW_MS = 1_700_000_000_000


def no_step() -> None:
    """Nobody looks."""


def start_epochs_at(directory: Path, offset: int) -> None:
    """Cut the epochs of a partition at its first offset, as a broker does that deletes segments."""
    files, path = Files(str(directory)), str(directory / paths.LEADER_EPOCH_CHECKPOINT)
    epochs = checkpoint_file.read_epochs(files, path)
    begun = [epoch for epoch, start in epochs if start <= offset][-1:]
    left = [(epoch, start) for epoch, start in epochs if start > offset]
    checkpoint_file.write_epochs(files, path, [(epoch, offset) for epoch in begun] + left)


class BrokerPartition:
    """One partition's directory. `records` is what a consumer would get: (offset, value)."""

    def __init__(self, data: Path, topic: str, number: int, topic_id: str | None) -> None:
        self.data = data
        self.topic = topic
        self.number = number
        self.directory = data / paths.partition_directory(topic, number)
        self.records: list[tuple[int, bytes]] = []
        self.bases = [0]
        self.next_offset = 0
        self.log_start = 0
        self.epoch = 0
        self.step: Callable[[], object] = no_step
        self.producers = ProducerState()
        self.directory.mkdir()
        self.log(0).touch()
        if topic_id is not None:
            path = str(self.directory / paths.PARTITION_METADATA)
            checkpoint_file.write_partition_metadata(Files(), path, topic_id)

    def log(self, base: int) -> Path:
        return self.directory / paths.file_name(base, paths.LOG)

    @property
    def active(self) -> Path:
        return self.log(self.bases[-1])

    @property
    def values(self) -> list[bytes]:
        return [value for offset, value in self.records if offset >= self.log_start]

    def text(self) -> bytes:
        """Return the text of the partition's file in the values view."""
        return b"".join(value + b"\n" for value in self.values)

    # -- the end -------------------------------------------------------------------------------

    def batch(self, *values: bytes) -> bytes:
        """The next batch, which is not written."""
        records = [
            Record(self.next_offset + n, NOW_MS, 0, b"k", value) for n, value in enumerate(values)
        ]
        return bytes(encode(records, base_offset=self.next_offset, leader_epoch=self.epoch))

    def append(self, *values: bytes) -> None:
        if not values:
            return
        data = self.batch(*values)
        with open(self.active, "ab") as file:
            file.write(data)
        self.records += [(self.next_offset + n, value) for n, value in enumerate(values)]
        self.next_offset += len(values)
        self.step()

    def fill(self, segments: int = 4) -> None:
        """Add sealed segments of two batches each."""
        for number in range(segments):
            self.append(b"a%d" % number)
            self.append(b"b%d" % number, b"c%d" % number)
            self.roll()

    def put(self, batch: bytes, *values: bytes) -> int:
        """Append a batch that a producer or a coordinator has made; its first offset.

        ``values``: what consumers get of it at last.
        """
        first = self.next_offset
        batch = first.to_bytes(8, "big") + batch[8:]
        with open(self.active, "ab") as file:
            file.write(batch)
        rebuild = Rebuild(first, 4096)
        rebuild.feed(batch, len(batch), 0)
        aborted = self.producers.apply(ProducerBatch._make(rebuild.producers[0]))
        if aborted is not None:
            with open(self.active.with_suffix(paths.TXNINDEX), "ab") as file:
                file.write(txn_index.encode([aborted]))
        self.records += [(first + n, value) for n, value in enumerate(values)]
        self.next_offset += parse_header(batch).last_offset_delta + 1
        self.step()
        return first

    def batch_starts(self) -> list[int]:
        """The first offset of each batch of the active segment."""
        starts, at = [], 0
        data = self.active.read_bytes()
        while at < len(data):
            starts.append(int.from_bytes(data[at : at + 8], "big"))
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        return starts

    def write_indexes(self) -> None:
        """The indexes of the active segment, as a broker has them that rolls: none of them has more
        than its last entry.
        """
        self.active.with_suffix(paths.INDEX).write_bytes(b"")
        time_index = self._time_index(self.bases[-1], self.next_offset)
        self.active.with_suffix(paths.TIMEINDEX).write_bytes(time_index)

    def recover(self, *bases: int) -> None:
        """Make the indexes of these segments again (``LogSegment.recover``): those in the directory
        are emptied first, and later snapshots removed.
        """
        for base in bases:
            snapshots: dict[Path, bytes] = {}
            for path in self.directory.glob(f"*{paths.SNAPSHOT}"):
                if int(path.stem) > base:
                    snapshots[path] = path.read_bytes()
                    path.unlink()
                    self.step()
            log = self.log(base)
            aborted = log.with_suffix(paths.TXNINDEX)
            entries = aborted.read_bytes() if aborted.exists() else b""
            for suffix in paths.INDEX_SUFFIXES:
                path = log.with_suffix(suffix)
                if suffix != paths.TXNINDEX or entries:
                    path.write_bytes(b"")
                    self.step()
            data = log.read_bytes()
            rebuild = Rebuild(base, 0)
            rebuild.feed(data, len(data), 0)
            log.with_suffix(paths.INDEX).write_bytes(rebuild.offset_entries)
            self.step()
            log.with_suffix(paths.TIMEINDEX).write_bytes(rebuild.time_entries)
            self.step()
            if entries:
                aborted.write_bytes(entries)
                self.step()
            for path, state in snapshots.items():
                path.write_bytes(state)
                self.step()

    def _time_index(self, base: int, end: int) -> bytes:
        return struct.pack(">qi", NOW_MS, end - 1 - base)

    def roll(self) -> None:
        self.bases.append(self.next_offset)
        if self.producers.by_id:
            snapshot = paths.file_name(self.next_offset, paths.SNAPSHOT)
            (self.directory / snapshot).write_bytes(self.producers.encode())
        self.active.touch()
        self.step()

    def truncate(self, offset: int) -> None:
        """Cut the log back to ``offset``, which begins a batch (``LocalLog.truncateTo``)."""
        for base in [base for base in self.bases if base > offset]:
            self.bases.remove(base)
            self._mark_deleted(base)
        size = 0
        data = self.active.read_bytes()
        while size < len(data) and int.from_bytes(data[size : size + 8], "big") < offset:
            size += 12 + int.from_bytes(data[size + 8 : size + 12], "big")
        os.truncate(self.active, size)
        self.records = [record for record in self.records if record[0] < offset]
        self.next_offset = offset
        self.epoch += 1
        self.step()

    def start_over(self, offset: int) -> None:
        """Delete all segments and start at `offset` (`LocalLog.truncateFullyAndStartAt`)."""
        for base in self.bases:
            self._mark_deleted(base)
        self.records = []
        self.bases = [offset]
        self.next_offset = self.log_start = offset
        self.active.touch()
        self.step()

    # -- the past ------------------------------------------------------------------------------

    def _mark_deleted(self, base: int) -> None:
        for suffix in (paths.LOG, *paths.INDEX_SUFFIXES):
            path = self.log(base).with_suffix(suffix)
            if path.exists():
                path.rename(f"{path}{paths.DELETED}")
                self.step()

    def delete_head(self, count: int) -> None:
        """Retention: rename, and remove later (``remove_deleted``)."""
        for base in self.bases[:count]:
            self._mark_deleted(base)
        self.bases = self.bases[count:]
        self.log_start = max(self.log_start, self.bases[0])
        self.records = [record for record in self.records if record[0] >= self.bases[0]]

    def remove_deleted(self) -> None:
        for path in self.directory.glob(f"*{paths.DELETED}"):
            path.unlink()
            self.step()

    def delete_records(self, offset: int) -> None:
        """The log start moves; the checkpoint is written at once."""
        self.log_start = offset
        write_offsets(self.data, paths.LOG_STARTS, {(self.topic, self.number): offset})
        self.step()

    def at_step(self, number: int, act: Callable[[], object]) -> None:
        """Call ``act`` after the ``number``-th change from now on."""
        changes = itertools.count(1)

        def step() -> None:
            if next(changes) == number:
                act()

        self.step = step

    def clean(
        self,
        count: int,
        keep: Callable[[int, bytes], bool],
        first: int = 0,
        decided: Collection[int] = (),
    ) -> None:
        """One group of a cleaner: some segments become one (``LocalLog.replaceSegments``).

        Batches of producers are kept as they are, except those that begin at ``decided``.
        """
        old, end = self.bases[first : first + count], self.bases[first + count]
        kept = [record for record in self.records if not old[0] <= record[0] < end or keep(*record)]
        kept_until = self.next_offset - 1
        final = self.log(old[0])
        cleaned = Path(f"{final}{paths.CLEANED}")
        cleaned.write_bytes(b"".join(self._cleaned(base, dict(kept), decided) for base in old))
        newest = self.log(old[-1]).stat().st_mtime_ns
        os.utime(cleaned, ns=(newest, newest))
        self.step()
        new = [final]
        for suffix in (paths.INDEX, paths.TIMEINDEX, paths.TXNINDEX):
            found = [path for base in old if (path := self.log(base).with_suffix(suffix)).exists()]
            data = b"".join(map(Path.read_bytes, found))
            if found:
                new.append(final.with_suffix(suffix))
                if suffix == paths.TIMEINDEX:
                    data = self._time_index(old[0], end)
                elif suffix == paths.TXNINDEX:
                    entries = txn_index.decode(data)
                    left = [entry for entry in entries if entry.last_offset not in decided]
                    data = txn_index.encode(left)
                Path(f"{new[-1]}{paths.CLEANED}").write_bytes(data)
        for path in new:
            Path(f"{path}{paths.CLEANED}").rename(f"{path}{paths.SWAP}")
            self.step()
        for base in old:
            self._mark_deleted(base)
        for path in new[:-1]:
            Path(f"{path}{paths.SWAP}").rename(path)
            self.step()
        Path(f"{new[-1]}{paths.SWAP}").rename(new[-1])
        # Records that `step` has appended during the cleaning are kept, too.
        self.records = [
            record for record in self.records if record in kept or record[0] > kept_until
        ]
        del self.bases[first + 1 : first + count]
        self.step()

    def _cleaned(self, base: int, kept: Mapping[int, bytes], decided: Collection[int]) -> bytes:
        """Return the bytes of a segment after the cleaning."""
        data, at, left = self.log(base).read_bytes(), 0, b""
        while at < len(data):
            header = parse_header(data[at:])
            if header.base_offset in decided:
                pass
            elif header.producer_id >= 0:
                left += data[at : at + header.size]
            else:
                for offset in range(header.base_offset, header.last_offset + 1):
                    if offset in kept:
                        record = Record(offset, NOW_MS, 0, b"k", kept[offset])
                        left += encode([record], base_offset=offset)
            at += header.size
        return left


class BrokerDirectory:
    """A data directory as its broker has it."""

    def __init__(self, data: Path) -> None:
        data.mkdir(exist_ok=True)
        self.data = data
        self._lock: IO[bytes] | None = None

    def hold_lock(self) -> None:
        """Be the process that has it open: from another one it looks locked."""
        self._lock = open(self.data / paths.LOCK, "w+b")  # noqa: SIM115 - held to the end
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def partition(
        self, topic: str = "t", number: int = 0, topic_id: str | None = None
    ) -> BrokerPartition:
        return BrokerPartition(self.data, topic, number, topic_id or checkpoint_file.new_topic_id())

    def delete(self, partition: BrokerPartition) -> Path:
        """Rename the directory as for a deletion that comes later."""
        name = paths.deleted_directory_name(partition.topic, partition.number)
        return partition.directory.rename(self.data / name)

    def write_recovery_point(self, partition: BrokerPartition, offset: int) -> None:
        item = (partition.topic, partition.number)
        write_offsets(self.data, paths.RECOVERY_POINTS, {item: offset})

    def write_high_watermark(self, partition: BrokerPartition, offset: int) -> None:
        item = (partition.topic, partition.number)
        write_offsets(self.data, paths.HIGH_WATERMARKS, {item: offset})


def write_offsets(data: Path, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
    checkpoint_file.write_offsets(Files(), str(data / name), dict(offsets))


class BadFile(Files):
    """No read of batches from the file with this inode number succeeds."""

    inode = -1
    number = errno.EIO

    def _check(self, fd: int) -> None:
        if os.fstat(fd).st_ino == self.inode:
            raise OSError(self.number, os.strerror(self.number))

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._check(fd)
        return super().preadv(fd, buffer, position)


class UnreadableFile(BadFile):
    """No read of its headers alone succeeds, either."""

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._check(fd)
        return super().pread(fd, size, position)


class Between(Files):
    """Before the ``number``-th thing that is asked of the disk from ``begin`` on somebody acts."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._act = no_step
        self._left: int | None = None
        self._number = number
        self.has_acted = False

    def begin(self, act: Callable[[], None]) -> None:
        self._act = act
        self._left = self._number

    def end(self) -> None:
        self._left = None

    def _asked(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                self.has_acted = True
                self._act()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._asked()
        return super().open(path, flags, mode)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._asked()
        return super().preadv(fd, buffer, position)

    def file_stat(self, path: str) -> os.stat_result:
        self._asked()
        return super().file_stat(path)

    def born_ns(self, file: str | int) -> int:
        self._asked()
        return super().born_ns(file)

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        self._asked()
        return super().listing(path)


def before_each_operation(at_least: int) -> Iterator[tuple[int, Between]]:
    """Yield numbers and disks on which somebody acts, until one on which nobody has acted."""
    for number in itertools.count():
        files = Between(number)
        yield number, files
        if not files.has_acted:
            break
    assert number > at_least
