"""After a failed fsync, all that can be read is written again. Nothing else is lost."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.directory.retain import retain
from storage.errors import CorruptRecord, CutShort
from storage.files import Files
from storage.log.append import append_batches
from storage.log.flush import FlushPlan
from storage.log.rescue import rescue
from storage.room import Room
from storage.segment.reader import SegmentReader
from storage.task import Task
from storage.verify.verify import verify
from tests.crash.disk import SimulatedDisk
from tests.crash.failing_disk import FailingDisk
from tests.crash.moments import Found, Stops, Unsynced
from tests.log_check import check_log
from tests.storage.logs import (
    NOW_MS,
    NOW_NS,
    append,
    clock_ms,
    opened,
    readable,
    values,
    write_settings,
)
from tests.storage.transactions import produced
from tests.waits import HANG_S


def a_log(data: Path, disk: SimulatedDisk) -> tuple[LogManager, Log]:
    """A log of a flushed record and two that are not, in two segments."""
    manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
    log = manager.create_topic("t", 1).partitions[0]
    append(log, b"a")
    log.flush()
    append(log, b"b")
    log.roll(NOW_MS)
    append(log, b"c")
    append(log, b"d")
    return manager, log


def fail(log: Log, disk: SimulatedDisk, error: int = errno.EIO) -> None:
    disk.fail_next("fdatasync", error, suffix=".log")
    with pytest.raises(OSError, match=os.strerror(error)):
        log.flush()
    with pytest.raises(OSError, match="fsync failed"):
        append(log, b"refused")
    assert log.durability.recovery_point == 1


def test_the_producers_of_what_is_deleted_later_are_known(tmp_path: Path) -> None:
    """The fsync that failed was that of a snapshot, which is all that knows them then."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=clock_ms)
    log = manager.create_topic("t", 1).partitions[0]
    append_batches(log, produced([b"a", b"b"], 7, 0), now_ns=NOW_NS)
    log.roll(NOW_MS)
    disk.fail_next("fdatasync", errno.EIO, suffix=".snapshot")
    with pytest.raises(OSError, match="Input/output error"):
        log.flush()
    manager.rescue(log, Task())
    manager.change_topic_settings("t", {"retention.ms": "0"})
    assert retain(manager, [log], Task(), NOW_MS + 10).offsets == 2
    disk.materialise(0)
    with opened(tmp_path) as again:
        log = again.log("t", 0)
        assert log.log_start_offset == 2
        (appended,) = append_batches(log, produced([b"a", b"b"], 7, 0), now_ns=NOW_NS)
        assert appended == (0, 1, True)


def test_verify_names_what_has_not_been_saved_yet(tmp_path: Path) -> None:
    """While it goes on, and where it was killed."""
    disk = SimulatedDisk(str(tmp_path))
    manager, log = a_log(tmp_path, disk)
    fail(log, disk)
    mark = str(tmp_path / "t-0" / paths.UNSYNCED)
    found = verify(str(tmp_path))
    assert found.faults == []
    (reason,) = [fault.reason for fault in found.left_over if fault.path == mark]
    assert reason.startswith("an fsync failed")
    manager.abandon()
    assert any(fault.path == mark for fault in verify(str(tmp_path)).left_over)
    with opened(tmp_path) as again:
        rescue(again.log("t", 0), Task(), NOW_MS)
    assert verify(str(tmp_path)).left_over == []


def test_a_flush_of_nothing_new_that_fails_is_tried_again(tmp_path: Path) -> None:
    """Nothing is appended any more that would ask for it."""
    disk = SimulatedDisk(str(tmp_path))
    manager, log = a_log(tmp_path, disk)
    log.flush()
    assert manager.due_flushes(2**64) == []
    disk.fail_next("fdatasync", errno.EIO, suffix=".log")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.flush()
    assert manager.due_flushes(NOW_MS) == [log]
    rescue(log, Task(), NOW_MS)
    append(log, b"e")
    manager.close()


def test_it_waits_for_a_cleaner(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager, log = a_log(tmp_path, disk)
    fail(log, disk)
    log.cleaning = True
    segments = log.segments
    with pytest.raises(OSError, match="is being compacted"):
        rescue(log, Task(), NOW_MS)
    assert log.segments is segments
    log.cleaning = False
    rescue(log, Task(), NOW_MS)
    append(log, b"e")
    manager.close()


def test_only_what_cannot_be_read_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager, log = a_log(tmp_path, disk)
    fail(log, disk)
    # The page was dropped, and the disk has something else.
    path = log.segments[1].log_path
    size = os.stat(path).st_size
    with open(path, "r+b") as file:
        file.seek(size // 2 - 5)
        file.write(b"?????")
    rescue(log, Task(), NOW_MS)
    (line,) = [line for line in caplog.messages if "lost" in line]
    assert line.startswith("t/0: offsets 2 to 2 are lost: fsync failed (")
    assert append(log, b"e") == 4
    log.flush()
    assert values(log, 3) == [b"d", b"e"]
    found: list[bytes | None] = []
    with pytest.raises(CorruptRecord, match="offsets 2 to 2"):
        found.extend(record.value for record in log.records())
    assert found == [b"a", b"b"]
    manager.close()


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_a_kill_anywhere_in_a_rescue_with_losses_hides_nothing(tmp_path: Path, lost: int) -> None:
    """The checkpoint is older than the loss."""
    data = tmp_path / "data"
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240)
    more: list[bytes] = []
    stops = Stops(data, expected=lambda: tuple(more))
    stops.disk.armed = False
    manager, log = a_log(data, stops.disk)
    fail(log, stops.disk)
    # The page was dropped, and the disk has something else.
    segment = log.segments[lost // 2]
    fd = stops.disk.open(segment.log_path, os.O_RDWR)
    stops.disk.pwrite(fd, b"?????", segment.size // (2 - lost % 2) - 5)
    stops.disk.close(fd)
    expected: list[bytes | None] = [b"a", b"b", b"c", b"d"]
    expected[lost] = None
    stops.disk.armed = True
    manager.rescue(log, Task())
    append(log, b"e")
    more.append(b"e")
    log.flush()
    stops.end()
    assert any(found.expected for found in stops.found)

    def check(path: Path, found: Found) -> None:
        for _ in range(2):
            with LogManager.open(str(path), files=Unsynced(str(path)), clock_ms=clock_ms) as again:
                log = again.log("t", 0)
                if lost == 3 and log.log_end_offset == 3:
                    # The end of a log that was not closed may be torn.
                    assert not found.expected
                    assert values(log) == [b"a", b"b", b"c"]
                    continue
                assert [cut for cut in again.cuts if not cut.path.endswith("4.log")] == []
                assert readable(log)[:4] == expected
                assert log.flush_error is None
                assert values(log, 4) in ([b"e"], list(found.expected))

    stops.judge(check, tmp_path / "found")


def test_who_reads_goes_on(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager, log = a_log(tmp_path, disk)
    segments = log.segments
    reader = segments[0]
    reader.lease()
    before = [SegmentReader(segment).read(0, segment.size) for segment in segments]
    inode = reader.log_stat().st_ino
    fail(log, disk)
    rescue(log, Task(), NOW_MS)
    assert log.segments[:2] == segments
    assert [SegmentReader(segment).read(0, segment.size) for segment in segments] == before
    assert reader.log_stat().st_ino != inode
    reader.release()
    for segment in segments:
        segment.close_descriptors()
        assert not segment.is_open
    assert check_log(log) == []
    manager.close()


def test_a_start_behind_a_failed_fsync_does_not_trust_the_files_either(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    _, log = a_log(tmp_path, disk)
    fail(log, disk)
    paths_of = [segment.log_path for segment in log.segments]
    before = [os.stat(path).st_ino for path in paths_of]
    disk.kill()
    with opened(tmp_path) as again:
        assert values(again.log("t", 0)) == [b"a", b"b", b"c", b"d"]
        assert again.log("t", 0).flush_error is None
        after = [os.stat(path).st_ino for path in paths_of]
        assert not set(before).intersection(after)
        assert not (tmp_path / "t-0" / paths.UNSYNCED).exists()
        append(again.log("t", 0), b"e")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_it_can_be_tried_again_wherever_it_fails(tmp_path: Path, error: int) -> None:
    """Before that, the log's fsync fails with the same error."""
    at = 1
    while True:
        data = tmp_path / "data"
        data.mkdir()
        disk = FailingDisk(str(data))
        manager, log = a_log(data, disk)
        manager.files.room = Room()
        fail(log, disk, error)
        disk.fail_from_now(error, at)
        try:
            rescue(log, Task(), NOW_MS)
        except OSError:
            disk.fail_from_now(0, 0)
            assert values(log) == [b"a", b"b", b"c", b"d"], disk.failed
            if log.flush_error is not None:
                rescue(log, Task(), NOW_MS)
            else:
                log.flush()
        disk.fail_from_now(0, 0)
        assert log.durability.recovery_point == 4, disk.failed
        append(log, b"e")
        log.flush()
        assert check_log(log) == [], disk.failed
        disk.materialise(at % 6)
        with opened(data, Unsynced()) as again:
            assert values(again.log("t", 0)) == [b"a", b"b", b"c", b"d", b"e"], disk.failed
        is_marked = (data / "t-0" / paths.UNSYNCED).exists()
        shutil.rmtree(data)
        if not disk.failed:
            assert not is_marked
            break
        at += 1
    assert at > 10


def test_a_stop_anywhere_loses_nothing_that_a_stop_may_not_lose(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240)
    acknowledged: list[bytes] = []
    flushed = 0
    stops = Stops(data, seeds=(0, 2, 3), expected=lambda: (tuple(acknowledged), flushed))
    stops.disk.armed = False
    manager, log = a_log(data, stops.disk)
    acknowledged += [b"a", b"b", b"c", b"d"]
    flushed = 1
    stops.disk.armed = True
    fail(log, stops.disk)
    rescue(log, Task(), NOW_MS)
    flushed = 4
    append(log, b"e")
    acknowledged.append(b"e")
    log.flush()
    flushed = 5
    manager.close()
    stops.end()

    def check(path: Path, found: Found) -> None:
        known, durable = found.expected
        assert isinstance(known, tuple)
        assert isinstance(durable, int)
        with opened(path, Unsynced()) as again:
            got = values(again.log("t", 0))
            if found.lost:
                assert got[:durable] == list(known[:durable])
                assert got == [*known, b"e"][: len(got)]
            else:
                assert got[: len(known)] == list(known)
            append(again.log("t", 0), b"later")

    stops.judge(check, tmp_path / "found")


class AppendedBehindTheLook(Files):
    """Calls `meanwhile` once, between the measuring of a log and its return."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] | None = None

    def size(self, fd: int) -> int:
        size = super().size(fd)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return size


def test_what_is_appended_while_a_flush_looks_is_nothing_that_was_cut(tmp_path: Path) -> None:
    """A worker's thread flushes, the owner's appends."""
    files = AppendedBehindTheLook()
    with opened(tmp_path, files) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"a")
        plan = log.durability.start_flush()
        appended: list[int] = []
        files.meanwhile = lambda: appended.append(append(log, b"b"))
        try:
            plan.run()
        finally:
            plan.finish()
        assert appended == [1]
        assert append(log, b"c") == 2
        assert values(log) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("how", ["append", "append after a failed one", "roll", "flush"])
def test_nothing_is_written_behind_what_somebody_has_cut_off(tmp_path: Path, how: str) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=clock_ms)
    try:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"kept")
        kept = log.active.size
        append(log, b"lost")
        path = Path(log.active.log_path)
        if how == "append after a failed one":
            disk.fail_next("pwrite", errno.ENOSPC, suffix=".log", partial=10)
            disk.fail_next("ftruncate", errno.EIO, suffix=".log")
            with pytest.raises(OSError, match="No space"):
                append(log, b"failed")
        os.truncate(path, kept + 3)
        actions: dict[str, Callable[[], object]] = {
            "append": lambda: append(log, b"refused"),
            "roll": lambda: log.roll(NOW_MS),
            "flush": log.flush,
        }
        with pytest.raises(CutShort, match=f"to {kept + 3}"):
            actions[how.split()[0]]()
        with pytest.raises(OSError, match="appends are refused"):
            append(log, b"refused")
        assert path.stat().st_size == kept + 3
        assert (path.parent / paths.UNSYNCED).exists()
        # Nor is it filled when the segment is closed.
        log.roll_unchecked(NOW_MS)
        assert path.stat().st_size == kept + 3
        manager.rescue(log, Task())
        append(log, b"behind")
        assert [place.first_offset for place in log.segments[0].damages] == [1]
        assert log.log_end_offset == 3
        assert not (path.parent / paths.UNSYNCED).exists()
    finally:
        manager.abandon()


def orders(plans: int) -> list[tuple[tuple[str, int], ...]]:
    """Return every order of runs and finishes in which the plans run one after another."""
    steps = [(step, number) for number in range(plans) for step in ("run", "finish")]
    return [
        order
        for order in itertools.permutations(steps)
        if all(order.index(("run", n)) < order.index(("finish", n)) for n in range(plans))
        and all(order.index(("run", n)) < order.index(("run", n + 1)) for n in range(plans - 1))
    ]


@pytest.mark.parametrize("plans", [2, 3])
@pytest.mark.parametrize("failing", [0, 1])
def test_no_flush_moves_the_recovery_point_past_one_that_failed(
    tmp_path: Path, plans: int, failing: int
) -> None:
    """The kernel reports a failed write once: the fsyncs of the other flushes succeed.

    Plan number ``failing`` fails, in every order of runs and finishes.
    """
    for number, order in enumerate(orders(plans)):
        data = tmp_path / str(number)
        data.mkdir()
        disk = SimulatedDisk(str(data))
        manager, log = a_log(data, disk)
        started = [log.durability.start_flush() for _ in range(plans)]
        acknowledged = 1
        for step, which in order:
            if step == "finish":
                started[which].finish()
                continue
            if which == failing:
                disk.fail_next("fdatasync", errno.EIO, suffix=f"{2:020}.log")
            try:
                started[which].run()
            except OSError:
                assert which >= failing, order
            else:
                assert which < failing, order
                acknowledged = log.log_end_offset
        durability = log.durability
        assert log.flush_error is not None
        assert durability.recovery_point <= acknowledged, order
        assert manager.due_flushes(NOW_MS) == [log], order
        with pytest.raises(OSError, match="fsync failed"):
            append(log, b"refused")
        manager.rescue(log, Task())
        append(log, b"e")
        log.flush()
        assert manager.due_flushes(2**64) == []
        disk.materialise(0)
        with opened(data) as again:
            assert values(again.log("t", 0)) == [b"a", b"b", b"c", b"d", b"e"]


class ReportedLate(SimulatedDisk):
    """Of an fsync that fails, the thread goes on only when ``release`` is set."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.failed, self.release = threading.Event(), threading.Event()

    def fdatasync(self, fd: int) -> None:
        try:
            super().fdatasync(fd)
        except OSError:
            self.failed.set()
            assert self.release.wait(HANG_S)
            raise


def test_a_flush_beside_one_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    disk = ReportedLate(str(tmp_path))
    manager, log = a_log(tmp_path, disk)
    plans = [log.durability.start_flush(), log.durability.start_flush()]
    begun = threading.Event()
    errors: list[OSError] = []

    def run(plan: FlushPlan, begun: threading.Event) -> None:
        begun.set()
        try:
            plan.run()
        except OSError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(plans[0], threading.Event())),
        threading.Thread(target=run, args=(plans[1], begun)),
    ]
    disk.fail_next("fdatasync", errno.EIO, suffix=".log")
    threads[0].start()
    assert disk.failed.wait(HANG_S)
    threads[1].start()
    assert begun.wait(HANG_S)
    disk.release.set()
    for thread, plan in zip(threads, plans, strict=True):
        thread.join()
        plan.finish()
    assert [error.errno for error in errors] == [errno.EIO, errno.EIO]
    assert log.durability.recovery_point == 1
    assert manager.due_flushes(NOW_MS) == [log]
    manager.close()
