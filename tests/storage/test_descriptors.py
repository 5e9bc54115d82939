"""Segments hold no more descriptors than they may, and lose nothing by that."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage import Log, LogManager, descriptors
from storage.files import Files
from storage.log.rescue import rescue
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.task import Task
from tests.storage.logs import NOW_MS, append, opened, remove_head, values
from tests.waits import HANG_S

ROOT = Path(__file__).parents[2]
LIMIT = 100


def with_few(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """A test in a process of its own that may have few descriptors: the one that runs all tests
    has some of others already.
    """

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        script = f"from {__name__} import alone; alone({test.__name__!r}, {str(tmp_path)!r})"
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        assert done.returncode == 0, done.stderr

    return run


def alone(name: str, path: str) -> None:
    """Run a test here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    globals()[name].__wrapped__(Path(path))


@pytest.mark.parametrize(
    ("limit", "budget"), [(192, 144), (1024, 768), (4096, 3072), (100_000, 98_976)]
)
def test_the_budget_of_a_limit(limit: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: limit)
    assert descriptors.budget() == budget


class Disk(Files):
    """Notes what was synced; ``broken``: no sync succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.synced: set[tuple[int, int]] = set()

    def fdatasync(self, fd: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)
        found = os.fstat(fd)
        self.synced.add((found.st_dev, found.st_ino))

    def has_synced(self, path: str) -> bool:
        found = Path(path).stat()
        return (found.st_dev, found.st_ino) in self.synced


@contextlib.contextmanager
def many(path: Path, count: int, files: Files | None = None) -> Iterator[list[Log]]:
    """So many partitions; everything is checked when they are closed."""
    with opened(path, files) as manager:
        yield list(manager.create_topic("t", count).partitions.values())


@with_few
def test_a_segment_lets_go_for_another_and_goes_on(tmp_path: Path) -> None:
    with many(tmp_path, 60) as logs:
        before = descriptors.evictions()
        for turn in range(3):
            for log in logs:
                for _ in range(20):
                    append(log, b"%d" % turn * 300)
                log.flush()
                assert descriptors.count() <= descriptors.budget()
        for log in logs:
            assert values(log) == [b"%d" % turn * 300 for turn in range(3) for _ in range(20)]
            assert log.reader.offset_for_timestamp(NOW_MS) == (NOW_MS, 0)
            log.roll(NOW_MS)
        assert descriptors.count() <= descriptors.budget()
        assert descriptors.evictions() > before + 3 * len(logs)


@with_few
def test_segments_that_have_closed_their_files_are_in_nobodys_way(tmp_path: Path) -> None:
    with many(tmp_path, 60) as logs:
        for log in logs:
            append(log, b"line")
            log.flush()
        crowd = [
            Segment(Files(), log.directory, 0, log.config, writable=False)
            for log in logs
            for _ in range(20)
        ]
        for segment in crowd:
            assert segment.offset_index.count == 0
        for log in logs:
            append(log, b"line")
            log.flush()
            assert descriptors.count() <= descriptors.budget()


@with_few
def test_the_one_used_last_stays(tmp_path: Path) -> None:
    with many(tmp_path, 60) as logs:
        for log in logs:
            append(log, b"line")
            log.flush()
            SegmentReader(logs[0].active).raw(bytearray(10), 0)
            assert logs[0].active.is_open
        assert not logs[1].active.is_open


@with_few
def test_what_is_not_on_the_disk_is_synced_before_it_is_closed(tmp_path: Path) -> None:
    disk = Disk()
    with many(tmp_path, 60, disk) as logs:
        disk.synced.clear()
        for log in logs:
            append(log, b"line")
        closed = [log for log in logs if not log.active.is_open]
        assert closed
        assert all(disk.has_synced(log.active.log_path) for log in closed)
        assert [log for log in logs if not disk.has_synced(log.active.log_path)]


@with_few
def test_threads_that_open_at_once(tmp_path: Path) -> None:
    """… have no more descriptors between them than one would."""
    threads = 8
    most: list[int] = []
    barrier = threading.Barrier(threads)

    class Watched(Disk):
        def open(self, path: str, flags: int, mode: int = 0o666) -> int:
            most.append(descriptors.count())
            return super().open(path, flags, mode)

    with many(tmp_path, 80, Watched()) as logs:
        most.clear()

        def write(number: int) -> None:
            barrier.wait(HANG_S)
            for log in logs[number::threads]:
                append(log, b"line")

        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(write, range(threads)):
                pass
        allowed = descriptors.budget() + (descriptors.limit() - descriptors.budget()) // 4
        assert descriptors.budget() < max(most) <= allowed


def flushes(log: Log) -> bool:
    with contextlib.suppress(OSError):
        log.flush()
    return log.flush_error is None


@with_few
def test_what_cannot_be_synced_stays_open(tmp_path: Path) -> None:
    """The kernel reports a failed write once to each open file, so its next flush must find it."""
    disk = Disk()
    with many(tmp_path, 60, disk) as logs:
        disk.broken = True
        written: list[Log] = []

        def write_to_all() -> None:
            for log in logs:
                append(log, b"line")
                written.append(log)

        with pytest.raises(OSError, match="cannot be synced"):
            write_to_all()
        assert len(written) > 5
        assert all(log.active.fd >= 0 for log in written)
        assert all(log.flush_error is None for log in written)
        disk.broken = False
        assert descriptors.over_budget()
        failed = [log for log in written if not flushes(log)]
        assert failed
        for log in failed:
            rescue(log, Task(), NOW_MS)
        append(logs[-1], b"line")
        assert values(logs[-1]) == [b"line"]


@with_few
def test_what_was_deleted_is_read_under_its_new_name(tmp_path: Path) -> None:
    with many(tmp_path, 60) as logs:
        log, *others = logs
        append(log, b"gone")
        log.roll(NOW_MS)
        log.flush()
        segment = log.segments[0]
        before = bytearray(segment.size)
        SegmentReader(segment).raw(before, 0)
        segment.lease()
        remove_head(log, 1, NOW_MS)
        for other in others:
            append(other, b"line")
            other.flush()
        assert not segment.is_open
        assert not log.release_retired(2**62)
        after = bytearray(segment.size)
        SegmentReader(segment).raw(after, 0)
        assert after == before
        segment.release()
        for path in log.release_retired(2**62):
            os.unlink(path)


@with_few
def test_a_file_whose_name_is_gone_stays_open(tmp_path: Path) -> None:
    with many(tmp_path, 60) as logs:
        log, *others = logs
        append(log, b"kept")
        log.roll(NOW_MS)
        log.flush()
        segment = log.segments[0]
        assert values(log) == [b"kept"]
        content = Path(segment.log_path).read_bytes()
        os.unlink(segment.log_path)
        for other in others:
            append(other, b"line")
            other.flush()
        assert values(log) == [b"kept"]
        Path(segment.log_path).write_bytes(content)


@with_few
def test_an_exhausted_process_gets_on_with_what_its_segments_hold(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        logs = list(manager.create_topic("t", 20).partitions.values())
        for log in logs:
            append(log, b"line")
            log.flush()
        held: list[int] = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(logs[0].directory, os.O_PATH))
        try:
            assert logs[0].active.is_open or descriptors.count()
            for log in logs:
                assert values(log) == [b"line"]
        finally:
            for fd in held:
                os.close(fd)
