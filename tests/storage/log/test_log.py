"""One partition: offsets, rolls, flushes, refusals."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from storage import LogManager
from storage.errors import (
    SegmentGone,
)
from storage.files import Files
from storage.segment.reader import SegmentReader
from storage.waiting import at_once
from tests.crash.disk import SimulatedDisk
from tests.crash.failing_disk import FailingDisk
from tests.storage.logs import (
    NOW_MS,
    NOW_NS,
    append,
    batch,
    entries_of,
    opened,
    opened_log,
    remove_head,
    values,
)
from tests.storage.transactions import new_log
from tests.waits import HANG_S


def test_rolls_before_the_size_is_exceeded(tmp_path: Path) -> None:
    size = len(batch([b"x" * 100]))
    with opened_log(tmp_path, internal_segment_bytes=3 * size) as log:
        for _ in range(10):
            append(log, b"x" * 100)
        assert [segment.size // size for segment in log.segments] == [3, 3, 3, 1]


def test_a_request_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    with opened_log(tmp_path, internal_segment_bytes=200) as log:
        append(log, b"small")
        append(log, b"x" * 1000)
        append(log, b"small")
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_rolls_when_time_has_passed_since_the_first_record(tmp_path: Path) -> None:
    with opened_log(tmp_path, segment_ms=1000) as log:
        append(log, b"a", timestamp_ms=NOW_MS)
        append(log, b"b", timestamp_ms=NOW_MS + 1000)
        assert len(log.segments) == 1, "waited must exceed segment.ms"
        append(log, b"c", timestamp_ms=NOW_MS + 1001)
        assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_rolling_writes_the_final_time_entry_and_trims(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"a", timestamp_ms=NOW_MS + 4)
        append(log, b"b", timestamp_ms=NOW_MS + 5)
        append(log, b"c", timestamp_ms=NOW_MS)
        index = Path(log.active.file_path(".index"))
        assert index.stat().st_size == 10485760, "pre-sized"
        assert Path(log.active.file_path(".timeindex")).stat().st_size == 10485756
        log.roll(NOW_MS)
        sealed = log.segments[0]
        assert entries_of(sealed.time_index) == [(NOW_MS + 5, 1)]
        assert index.stat().st_size == 0
        assert Path(sealed.file_path(".timeindex")).stat().st_size == 12
        assert (tmp_path / "t-0" / f"{3:020d}.snapshot").read_bytes().hex() == (
            "000148674bc700000000"
        )


def test_flush_moves_the_recovery_point(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        append(log, b"a")
        log.roll(NOW_MS)
        append(log, b"b")
        assert log.durability.recovery_point == 0
        assert manager.due_flushes(NOW_MS + 999) == []
        assert manager.due_flushes(NOW_MS + 1000) == [log]
        plan = log.durability.start_flush()
        append(log, b"c")
        plan.run()
        assert log.durability.recovery_point == 0, "moves at the end only"
        plan.finish()
        assert log.durability.recovery_point == 2
        assert manager.due_flushes(NOW_MS + 1000) == [log], "c is still to be flushed"
        log.flush()
        assert log.durability.recovery_point == 3
        assert manager.due_flushes(NOW_MS + 10**9) == []


def test_flushes_side_by_side(tmp_path: Path) -> None:
    """Both write the first leader epoch."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = new_log(manager)
    append(log, b"a")
    release = threading.Event()
    held = disk.delay("fsync", release, suffix="leader-epoch-checkpoint.tmp")
    plans = [log.durability.start_flush(), log.durability.start_flush()]
    threads = [threading.Thread(target=plan.run) for plan in plans]
    threads[0].start()
    assert held.wait(HANG_S)
    threads[1].start()
    release.set()
    for thread, plan in zip(threads, plans, strict=True):
        thread.join()
        plan.finish()
    assert log.flush_error is None
    assert log.durability.recovery_point == 1
    manager.close()


def test_flush_messages(tmp_path: Path) -> None:
    with opened_log(tmp_path, flush_messages=3) as log:
        append(log, b"a", b"b")
        assert log.durability.recovery_point == 0
        append(log, b"c")
        assert log.durability.recovery_point == 3
        log.append(batch([b"d", b"e", b"f"]), now_ns=NOW_NS, defer_flush=True)
        assert log.durability.recovery_point == 3
        assert log.durability.flush_due


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("at", range(1, 13))
def test_a_refused_append_leaves_nothing(tmp_path: Path, error: int, at: int) -> None:
    """One operation fails, or the disk is full for some time."""
    disk = FailingDisk(str(tmp_path))
    with opened_log(tmp_path, disk, internal_segment_bytes=300, index_interval_bytes=0) as log:
        expected: list[bytes | None] = []
        for n in range(3):
            append(log, b"%d" % n)
            expected.append(b"%d" % n)
        disk.fail_from_now(error, at)
        for n in range(3, 12):
            if n == 8:
                assert disk.failed
                disk.fail_from_now(0, 0)
            value = b"%d" % n
            with contextlib.suppress(OSError):
                append(log, value)
                expected.append(value)
            assert values(log) == expected
            assert log.log_end_offset == len(expected)
        assert log.active.size == os.stat(log.active.log_path).st_size
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == expected


@pytest.mark.parametrize(
    ("operation", "error", "suffix"),
    [
        ("open", errno.EMFILE, "leader-epoch-checkpoint.tmp"),
        ("pwrite", errno.ENOSPC, "leader-epoch-checkpoint.tmp"),
        ("fsync", errno.EIO, "leader-epoch-checkpoint.tmp"),
        ("sync_directory", errno.EMFILE, "t-0"),
    ],
)
def test_a_flush_that_fails_but_in_its_log_is_tried_again(
    tmp_path: Path, operation: str, error: int, suffix: str
) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened_log(tmp_path, files=disk, flush_messages=100) as log:
        append(log, b"1")
        log.roll(NOW_MS)
        # On a full disk a flush tries once more by itself.
        times = 2 if error == errno.ENOSPC else 1
        disk.fail_next(operation, error, suffix=suffix, times=times)
        with pytest.raises(OSError, match=os.strerror(error)):
            log.flush()
        assert log.durability.recovery_point == 0
        append(log, b"2")
        log.flush()
        assert log.durability.recovery_point == 2
        assert values(log) == [b"1", b"2"]


def test_after_a_failed_fsync_nothing_is_taken_until_it_is_on_the_disk(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = new_log(manager)
    append(log, b"a")
    disk.fail_next("fdatasync", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        log.flush()
    assert not log.active.leases
    with pytest.raises(OSError, match="appends are refused until"):
        log.flush()
    inode = log.active.log_stat().st_ino
    # The end sees to it.
    manager.close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert os.stat(tmp_path / "t-0" / f"{0:020}.log").st_ino != inode
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [b"a"]
        append(manager.log("t", 0), b"b")


def test_removed_segments_can_be_read_until_their_files_go(tmp_path: Path) -> None:
    with opened_log(tmp_path, file_delete_delay_ms=1000) as log:
        for n in range(3):
            append(log, b"%d" % n)
            log.roll(NOW_MS)
        head = log.segments[0]
        remove_head(log, 2, NOW_MS)
        assert log.log_start_offset == 2
        assert values(log) == [b"2"]
        assert head.log_path.endswith(".log.deleted")
        buffer = bytearray(head.size)
        assert SegmentReader(head).window(buffer, 0) == head.size
        head.lease()
        assert log.release_retired(NOW_MS + 999) == []
        unleased = log.release_retired(NOW_MS + 1000)
        assert all(f"{1:020d}" in path for path in unleased)
        for path in unleased:
            os.unlink(path)
        assert SegmentReader(head).window(buffer, 0) == head.size
        head.release()
        for path in log.release_retired(NOW_MS + 1000):
            os.unlink(path)
        with pytest.raises(SegmentGone):
            at_once(SegmentReader(head).window, buffer, 0)
        with pytest.raises(SegmentGone):
            head.lease()
        assert not list((tmp_path / "t-0").glob("*.deleted*"))


def test_descriptors_are_closed_by_age_of_use(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        for n in range(5):
            append(log, b"%d" % n)
            log.roll(NOW_MS)
        values(log)
        for _ in range(3):
            log.age_descriptors()
        assert [segment.is_open for segment in log.segments] == [True] * 5 + [False]
        # Unflushed segments stay open.
        log.flush()
        values(log)
        log.age_descriptors()
        at_once(SegmentReader(log.segments[0]).window, bytearray(10), 0)
        log.age_descriptors()
        assert [segment.is_open for segment in log.segments[:4]] == [True, False, False, False]
        assert values(log) == [b"%d" % n for n in range(5)]
        append(log, b"again")


class BecomesReadOnly(Files):
    """As a file system that the kernel makes read-only after an error (`errors=remount-ro`)."""

    is_read_only = False

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if self.is_read_only and flags & (os.O_ACCMODE | os.O_CREAT) != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return super().open(path, flags, mode)


def test_a_log_on_a_file_system_that_becomes_read_only_can_be_read(tmp_path: Path) -> None:
    """… also with closed files; and written as soon as the file system is writable again."""
    files = BecomesReadOnly()
    with opened_log(tmp_path, files=files) as log:
        append(log, b"a")
        log.flush()
        log.active.close_descriptors()
        files.is_read_only = True
        assert values(log) == [b"a"]
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            append(log, b"refused")
        assert values(log) == [b"a"]
        files.is_read_only = False
        append(log, b"b")
        assert values(log) == [b"a", b"b"]


def test_batches_carry_the_last_leader_epoch(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(new_log(manager), b"a")
        manager.log("t", 0).flush()
    epochs = tmp_path / "t-0" / "leader-epoch-checkpoint"
    assert epochs.read_text() == "0\n1\n0 0\n"
    epochs.write_text("0\n2\n0 0\n7 1\n")
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).epochs.latest == 0, "an epoch that begins at the end never was"
    epochs.write_text("0\n1\n5 0\n")
    with opened_log(tmp_path) as log:
        append(log, b"b")
        assert [header.leader_epoch for _, header in SegmentReader(log.active).batches()] == [0, 5]


def test_a_file_that_somebody_makes_in_the_place_of_a_new_segment(tmp_path: Path) -> None:
    class Beside(Files):
        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            if flags & os.O_CREAT and path.endswith(f"{1:020}.log"):
                Path(path).write_bytes(b"no batch")
            return super().open(path, flags, mode)

    with opened_log(tmp_path, Beside()) as log:
        append(log, b"a")
        with pytest.raises(FileExistsError):
            log.roll(NOW_MS)
        append(log, b"b")
        assert len(log.segments) == 1
        assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("settings", "is_outgrown"),
    [
        ({}, False),
        ({"retention.bytes": "8388608"}, True),
        ({"retention.bytes": "80000000"}, False),
        ({"retention.ms": "8000000"}, True),
        ({"retention.ms": "80000000"}, False),
        ({"segment.ms": "1999999"}, True),
        ({"segment.bytes": "1048576"}, True),
    ],
)
def test_smaller_settings_roll_a_larger_or_older_active_segment_at_once(
    tmp_path: Path, settings: dict[str, str], is_outgrown: bool
) -> None:
    now_ms = NOW_MS
    with opened(tmp_path, clock_ms=lambda: now_ms) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"x" * 1_000_000)
        append(log, b"x" * 100_000)
        now_ms += 2_000_000
        manager.change_topic_settings("t", settings)
        for each in list(manager.roll_due):
            manager.roll_if_outgrown(each)
        assert manager.roll_due == set()
        assert [segment.base_offset for segment in log.segments] == ([0, 2] if is_outgrown else [0])
