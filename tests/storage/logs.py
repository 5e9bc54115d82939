"""Helpers for tests of logs: batches of lines, and a directory that is opened and checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from storage import Log, LogManager, Record, encode, paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.index.index import Index
from storage.segment.segment import Segment
from storage.settings.setting_files import TOPIC_FILE
from tests.log_check import check

NOW_MS = 1_700_000_000_000
NOW_NS = NOW_MS * 1_000_000


def clock_ms() -> int:
    return NOW_MS


class Unsynced(Files):
    """Makes thousands of directories in a moment."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class CountedReads(Files):
    """Counts looks at files, and the bytes that are read: all of them, and those of logs, which go
    into buffers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.bytes_read = 0
        self.log_bytes_read = 0

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.operations += 1
        return super().open(path, flags, mode)

    def file_stat(self, path: str) -> os.stat_result:
        self.operations += 1
        return super().file_stat(path)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        data = super().pread(fd, size, position)
        self.operations += 1
        self.bytes_read += len(data)
        return data

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        self.operations += 1
        self.bytes_read += count
        self.log_bytes_read += count
        return count


def batch(values: Sequence[bytes | None], timestamp_ms: int = NOW_MS) -> bytearray:
    """One batch of records without keys."""
    return bytearray(
        encode([Record(n, timestamp_ms, 0, None, value) for n, value in enumerate(values)])
    )


def append(log: Log, *values: bytes | None, timestamp_ms: int = NOW_MS) -> int:
    """Append one batch; returns its first offset."""
    return log.append(batch(values, timestamp_ms), now_ns=timestamp_ms * 1_000_000)


def remove_head(log: Log, count: int, now_ms: int) -> None:
    """Delete the first ``count`` segments, as retention does once that is decided."""
    log.rename_to_deleted(log.remove_head(count, now_ms))


def sweep(manager: LogManager, now_ms: int) -> bool:
    """Remove the deleted files whose delay is over; return whether there were any."""
    remove = manager.sweep(now_ms)
    if remove is not None:
        remove()
    return remove is not None


def values(log: Log, offset: int | None = None) -> list[bytes | None]:
    """Return the values of the log's records."""
    return [record.value for record in log.records(offset)]


def readable(log: Log) -> list[bytes | None]:
    """Every record, by its offset; None where reading fails."""
    found: list[bytes | None] = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            record = next(log.records(offset))
        except CorruptRecord:
            found.append(None)
        else:
            assert record.offset == offset
            found.append(record.value)
    return found


def log_file(data: Path, base: int) -> Path:
    """A segment of the partition t-0."""
    return data / "t-0" / paths.file_name(base, paths.LOG)


def flip(path: str | Path, position: int) -> None:
    """Change a bit of a file, as a disk might."""
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def overwrite(path: str | Path, position: int, data: bytes | bytearray) -> None:
    """Write bytes over those of a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def write_settings(data: Path, **settings: object) -> None:
    """``kafkafs.properties`` with names written with ``_`` for ``.``."""
    text = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items())
    (data / "kafkafs.properties").write_text(text)


def write_topic_settings(data: Path, topic: str, settings: Mapping[str, object]) -> None:
    """Write a topic's settings, by Kafka's names. The topic must have a partition 0."""
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    (data / f"{topic}-0" / TOPIC_FILE).write_text(text)


@contextlib.contextmanager
def opened(data: Path, files: Files | None = None, **options: object) -> Iterator[LogManager]:
    """Open a directory, and check all of it before and after closing it.

    Both of its clocks stand still at ``NOW_MS``, unless ``options`` have others.
    """
    options.setdefault("clock_ms", clock_ms)
    manager = LogManager.open(str(data), files=files, **options)  # type: ignore[arg-type]
    try:
        yield manager
        faults = check(manager)
        assert faults == [], faults
    except BaseException:
        manager.abandon()
        raise
    manager.close()
    with LogManager.open(str(data), read_only=True, files=files) as again:
        assert check(again) == []


@contextlib.contextmanager
def opened_log(data: Path, files: Files | None = None, **settings: object) -> Iterator[Log]:
    """Open a directory as `opened` does. Its log t-0 is made with these settings, if it is new."""
    with opened(data, files) as manager:
        if "t" not in manager.topics:
            manager.create_topic("t", 1)
            texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
            manager.change_topic_settings("t", texts)
        yield manager.log("t", 0)


def sizes_of(segment: Segment) -> list[int]:
    """The bytes of its log and indexes, as they are on the disk."""
    kinds = (paths.LOG, paths.INDEX, paths.TIMEINDEX)
    return [os.path.getsize(segment.file_path(kind)) for kind in kinds]


def entries_of(index: Index) -> list[tuple[int, int]]:
    """Return the entries of an offset index or a time index."""
    return [index.entry(number) for number in range(index.count)]
