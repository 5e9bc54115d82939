"""Rewrites message formats v0 and v1, and logs of Kafka 0.7, as v2, in place.

A segment with old messages is written to `.cleaned` files, made durable, and replaced by the swap
of a cleaner (`swap.replace_closed`). So after any interruption the next start finds either the old
files or the new ones, whole. Base offsets, offsets, codecs, keys, values and the files' mtimes
stay; indexes are rebuilt; v2 batches are copied unchanged. `record.plain` documents timestamps of
v0, and a codec's own framing.

A log of 0.7 (`.kafka` files) becomes one of `.log` segments, all of its files in one swap. Its ids,
which are byte positions, stay as offsets, with gaps between them, and remain valid in consumers'
storage: each batch spans all the ids of its bytes, and the log end is unchanged. The messages of a
compressed set, which share one id, take the ids that follow it.

Bytes after the last whole message of an old log's last file are kept as `.cut`.

Invariant: only whole and correct messages are converted; a damaged segment stays, and is a fault.

Not here: other partitions' recovery (a directory that was not closed cleanly is opened first).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from storage import paths
from storage.byte_source import FileSource
from storage.directory.lock import DirectoryLock
from storage.directory.top_level import Ignored
from storage.errors import CorruptRecord, StorageError, UnknownTopicOrPartition
from storage.files import Files
from storage.kafka07.entries import entries_to_v2
from storage.kafka07.segment import Segment07, entry_files, load_entries
from storage.manager import LogManager
from storage.plural import counted
from storage.record._batch import Rebuild
from storage.record.header import (
    FRAME_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    Buffer,
)
from storage.record.plain import RUN_BYTES, to_v2
from storage.record.scan import batches
from storage.recovery.swap import finish_swaps, replace_closed
from storage.segment.cut import Cut, cut_tail
from storage.segment.segment import MAX_SEGMENT_BYTES
from storage.segment.walk import Walk, buffered, sealed_times
from storage.settings.settings import Settings
from storage.state import checkpoint_file
from storage.state.tiered import TieredTopics

_WRITE_BYTES = 1024 * 1024
# Returns the batch at a position of a window, as v2, and the number of the source's bytes that it
# stands for. The window begins at a position of the source. Errors: CorruptRecord with its position
# in the source.
_Take = Callable[[memoryview, int, int], tuple[Buffer, int]]


@dataclass(frozen=True, slots=True)
class Converted:
    """A file that was converted, or would be: its new records and batches, sizes in bytes."""

    path: str
    records: int
    batches: int
    size_before: int
    size_after: int

    def __str__(self) -> str:
        return (
            f"{self.path}: {counted(self.records, 'record')}, {counted(self.batches, 'batch')}, "
            f"{self.size_before} bytes to {self.size_after}"
        )


@dataclass(slots=True)
class Outcome:
    """The converted files, the bytes that were set aside, and why partitions were not converted.
    `tiered`: a line for each tiered topic; these stay unchanged.
    """

    converted: list[Converted] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    tiered: list[str] = field(default_factory=list)


def convert(
    path: str,
    *,
    topics: Collection[str] = (),
    dry_run: bool = False,
    files: Files | None = None,
    report: Callable[[Converted | Cut], None] = lambda item: None,
    progress: Callable[[int], None] = lambda size: None,
) -> Outcome:
    """Convert the partitions of these topics, or of all; call `report` for each file.

    `dry_run` takes no lock and changes nothing. `progress` gets the counts of bytes that were read.
    A damaged partition is a fault. Errors: LogLocked, UnknownTopicOrPartition, NotADirectoryError
    for a partition's directory, ReadOnlyLog if one of `topics` is tiered, OSError.
    """
    return _Conversion(path, topics, dry_run, files or Files(path), report, progress).run()


@dataclass(slots=True)
class _Conversion:
    """One run of `convert`, with its parameters."""

    path: str
    topics: Collection[str]
    dry_run: bool
    files: Files
    report: Callable[[Converted | Cut], None]
    progress: Callable[[int], None]
    outcome: Outcome = field(default_factory=Outcome)
    settings: Settings = field(init=False)
    # (topic, its directory) of each partition.
    partitions: list[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        Ignored(self.files, self.path)
        if any(paths.is_log(name) for name in self.files.names(self.path)):
            reason = "this is a partition's directory, not a data directory"
            raise NotADirectoryError(errno.ENOTDIR, reason, self.path)
        self.settings = Settings(self.files, self.path)
        found = paths.partitions_in(self.files.listing(self.path))
        for topic in self.topics:
            if topic not in found:
                raise UnknownTopicOrPartition(f"there is no topic {topic!r}", path=self.path)
        tiered = TieredTopics(self.files, self.path, self.settings)
        for topic in self.topics:
            tiered.check_may_write(topic)
        lines = {topic: tiered.line(topic) for topic in sorted(set(self.topics) or found)}
        self.outcome.tiered = [line for line in lines.values() if line is not None]
        self.partitions = [
            (topic, os.path.join(self.path, paths.partition_directory(topic, number)))
            for topic, line in lines.items()
            for number in (found[topic] if line is None else ())
        ]

    def run(self) -> Outcome:
        self._locked(self._convert_old_logs)
        if self.dry_run or checkpoint_file.has_marker(self.files, self.path) or self._is_all_v2():
            self._locked(self._convert_legacy)
            return self.outcome
        # Recovery truncates incomplete batches after a crash, in all partitions.
        with LogManager.open(self.path, files=self.files) as manager:
            for cut in manager.cuts:
                self._tell(cut)
            self.outcome.faults += manager.faults
        self._locked(self._convert_legacy)
        return self.outcome

    def _locked(self, work: Callable[[], None]) -> None:
        if self.dry_run:
            work()
            return
        lock = DirectoryLock(self.files, self.path)
        try:
            work()
        finally:
            lock.release()

    def _tell(self, item: Converted | Cut) -> None:
        if isinstance(item, Cut):
            self.outcome.cuts.append(item)
        else:
            self.outcome.converted.append(item)
        self.report(item)

    def _names(self, directory: str) -> list[str]:
        """Return the names of a partition's files, after finishing an interrupted swap."""
        names = [name for name, kind in self.files.listing(directory) if kind != "directory"]
        return sorted(names if self.dry_run else finish_swaps(self.files, directory, names))

    def _interval(self, topic: str) -> int:
        return self.settings.log_config(topic).index_interval_bytes

    # -- v0 and v1 -----------------------------------------------------------------------------

    def _logs(self) -> Iterator[tuple[str, str, int]]:
        """Yield (topic, directory, base offset) of every `.log`."""
        for topic, directory in self.partitions:
            for name in self._names(directory):
                base = paths.base_offset_of(name)
                if name.endswith(paths.LOG) and base is not None:
                    yield topic, directory, base

    def _is_all_v2(self) -> bool:
        """Return whether no log has older batches; False if one is damaged: recovery judges it."""
        try:
            return not any(
                self._has_messages(os.path.join(directory, paths.file_name(base, paths.LOG)))
                for _, directory, base in self._logs()
            )
        except CorruptRecord:
            return False

    def _has_messages(self, path: str) -> bool:
        """Return whether any batch of a log is older than v2. Errors: CorruptRecord."""
        with self.files.held_open(path) as fd:
            return any(
                header.magic < MAGIC for _, header in batches(FileSource(self.files, fd, path), 0)
            )

    def _convert_legacy(self) -> None:
        for topic, directory, base in self._logs():
            path = os.path.join(directory, paths.file_name(base, paths.LOG))
            try:
                size = self.files.file_stat(path).st_size
                if self._has_messages(path):
                    target = _Target(self, directory, base, self._interval(topic))
                    self._convert_file(path, size, target, _take_legacy)
                    if not self.dry_run:
                        replace_closed(self.files, directory, [base])
                    self._tell(target.converted(path, size))
                else:
                    self.progress(size)
            except StorageError as error:
                self.outcome.faults.append(str(error))

    def _convert_file(self, path: str, size: int, target: _Target, take: _Take) -> None:
        """Write all batches of a file to the target, and end it; discard it on an error."""
        fd = self.files.open(path, os.O_RDONLY)
        try:
            mtime_ns = self.files.file_stat(path).st_mtime_ns
            walk = Walk(buffered(self.files, fd).read, 0, size)
            for data in walk:
                at, start = 0, walk.position
                # A run of messages may continue after the window.
                end = len(data) if start + len(data) == size else max(len(data) - RUN_BYTES, 1)
                while at < end:
                    batch, taken = take(data, at, start)
                    if not batch:
                        walk.needed = taken
                        break
                    target.add(batch)
                    self.progress(taken)
                    at += taken
                walk.position += at
            if walk.position < size:
                raise CorruptRecord("the last batch is incomplete", position=walk.position)
            target.end(mtime_ns)
        except BaseException as error:
            target.discard()
            if isinstance(error, CorruptRecord):
                error.path = path
            raise
        finally:
            self.files.close(fd)

    # -- 0.7 -----------------------------------------------------------------------------------

    def _convert_old_logs(self) -> None:
        for topic, directory in self.partitions:
            names = self._names(directory)
            if entry_files(names):
                try:
                    self._convert_old_log(topic, directory, names)
                except StorageError as error:
                    self.outcome.faults.append(str(error))

    def _convert_old_log(self, topic: str, directory: str, names: list[str]) -> None:
        if any(name.endswith(paths.LOG) for name in names):
            raise CorruptRecord("it has both .kafka and .log files", path=directory)
        if not self.dry_run:
            names = [self._with_20_digits(directory, name) for name in names]
        config = self.settings.log_config(topic)
        segments, _ = load_entries(self.files, directory, names, config, progress=None)
        targets: list[tuple[_Target, Segment07]] = []
        try:
            for segment in segments:
                if segment is segments[-1]:
                    self._cut_tail(segment)
                target = _Target(self, directory, segment.base_offset, self._interval(topic))
                targets.append((target, segment))
                self._convert_file(segment.log_path, segment.size, target, _take_old(segment))
        except BaseException:
            for target, _ in targets:
                target.discard()
            raise
        if not self.dry_run:
            replace_closed(self.files, directory, [segment.base_offset for segment in segments])
        for target, segment in targets:
            self._tell(target.converted(segment.log_path, segment.size))

    def _with_20_digits(self, directory: str, name: str) -> str:
        base = paths.old_base_offset_of(name)
        if base is None:
            return name
        right = paths.file_name(base, paths.OLD_LOG)
        if name != right:
            self.files.rename(os.path.join(directory, name), os.path.join(directory, right))
        return right

    def _cut_tail(self, segment: Segment07) -> None:
        """Cut off the bytes that 0.7 would cut at its next start, and keep them."""
        good, reason = segment.check(lambda size: None)
        if reason is None:
            return
        path, size = segment.log_path, segment.size
        if self.dry_run:
            self._tell(Cut(path, good, size - good, reason, None))
        else:
            with self.files.held_open(path, os.O_RDWR) as fd:
                self._tell(cut_tail(self.files, fd, path, good, size, reason))
        segment.set_size(good)


def _take_legacy(data: memoryview, at: int, start: int) -> tuple[Buffer, int]:
    """Return the next batch of a `.log`; a v2 batch unchanged."""
    if len(data) - at <= MAGIC_POSITION:
        return b"", FRAME_SIZE
    if data[at + MAGIC_POSITION] < MAGIC:
        with _positions_from(start):
            return to_v2(data, at, len(data))
    size = int.from_bytes(data[at + LENGTH_POSITION : at + LOG_OVERHEAD], "big") + LOG_OVERHEAD
    return (data[at : at + size] if size <= len(data) - at else b""), size


def _take_old(segment: Segment07) -> _Take:
    """Return the next batch of a `.kafka` file."""

    def take(data: memoryview, at: int, start: int) -> tuple[Buffer, int]:
        with _positions_from(start):
            return entries_to_v2(data, at, len(data), segment.base_offset + start + at)

    return take


@contextlib.contextmanager
def _positions_from(start: int) -> Iterator[None]:
    """Let the position of a CorruptRecord count from `start`."""
    try:
        yield
    except CorruptRecord as error:
        error.position = start + (error.position or 0)
        raise


class _Target:
    """The new files of one segment, `.cleaned` until they are published."""

    def __init__(self, owner: _Conversion, directory: str, base: int, interval: int) -> None:
        self._files = owner.files
        self._writes = not owner.dry_run
        self._path = os.path.join(directory, paths.file_name(base, ""))
        self._rebuild = Rebuild(base, interval)
        self._pending = bytearray()
        self._count = 0
        self._fd = -1
        if self._writes:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            self._fd = self._files.open(self._path + paths.LOG + paths.CLEANED, flags)

    def add(self, batch: Buffer) -> None:
        """Add a batch. Errors: CorruptRecord if its offsets do not rise, or its CRC is wrong."""
        self._pending += batch
        self._count += 1
        if len(self._pending) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        at = self._rebuild.position
        size = len(self._pending)
        if at + size > MAX_SEGMENT_BYTES:
            raise CorruptRecord("its batches no longer fit into one segment")
        taken = self._rebuild.feed(self._pending, size, at)
        if taken != size:
            reason = self._rebuild.fault or "a batch is truncated"
            raise CorruptRecord(reason, offset=self._rebuild.next_offset)
        if self._writes:
            self._files.pwrite(self._fd, self._pending, at)
        self._pending.clear()

    def end(self, mtime_ns: int) -> None:
        """Write the rest and the indexes, durably."""
        self._write()
        if not self._writes:
            return
        self._files.fsync(self._fd)
        self._files.close(self._fd)
        self._fd = -1
        rebuild = self._rebuild
        times = sealed_times(rebuild)
        self._put(paths.INDEX, rebuild.offset_entries)
        self._put(paths.TIMEINDEX, times)
        if self._files.exists(self._path + paths.TXNINDEX):
            # The index has only offsets, which stay.
            self._put(paths.TXNINDEX, self._files.read_whole(self._path + paths.TXNINDEX))
        # Retention uses it for records without timestamps.
        self._files.utime_ns(self._path + paths.LOG + paths.CLEANED, mtime_ns)

    def _put(self, suffix: str, data: bytes | bytearray) -> None:
        path, flags = self._path + suffix + paths.CLEANED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with self._files.held_open(path, flags) as fd:
            self._files.pwrite(fd, data, 0)
            self._files.fsync(fd)

    def discard(self) -> None:
        """Remove the written files."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
        for suffix in (paths.LOG, *paths.INDEX_SUFFIXES):
            path = self._path + suffix + paths.CLEANED
            if self._writes and self._files.exists(path):
                self._files.unlink(path)

    def converted(self, path: str, size_before: int) -> Converted:
        rebuild = self._rebuild
        return Converted(path, rebuild.records, self._count, size_before, rebuild.position)
