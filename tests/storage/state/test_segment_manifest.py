"""A sealed segment that vanishes is missed: reading fails there, and all else goes on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager, paths
from storage.directory.retain import delete_records, remove_now, retain
from storage.segment.reader import SegmentReader
from storage.state.manifest_file import FILE_NAME
from storage.task import Task
from tests.broker_files import start_epochs_at
from tests.crash.disk import SimulatedDisk
from tests.oracle import crc32c
from tests.storage.logs import NOW_MS, append, log_file, opened, opened_log, readable, values

LINES = [b"line %d" % n for n in range(12)]
BASES = [0, 3, 6, 9]


def fill(data: Path, *, clean: bool = True, settings: dict[str, str] | None = None) -> None:
    """Four segments of three records, all of them flushed."""
    manager = LogManager.open(str(data))
    log = manager.create_topic("t", 1).partitions[0]
    for name, value in (settings or {}).items():
        manager.change_topic_settings("t", {name: value})
    for n, line in enumerate(LINES):
        if n in BASES[1:]:
            log.roll(NOW_MS)
        append(log, line, timestamp_ms=NOW_MS + n)
    log.flush()
    manager.checkpoint()
    manager.close() if clean else manager.abandon()


def opened_with_faults(data: Path) -> LogManager:
    return LogManager.open(str(data), clock_ms=lambda: NOW_MS)


def vanish(data: Path, *bases: int, whole: bool = False) -> None:
    for base in bases:
        for path in [*(data / "t-0").glob(f"{base:020d}.*")] if whole else [log_file(data, base)]:
            path.unlink()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("gone", "whole"),
    [([0], False), ([3], True), ([0, 3], True), ([3, 6], False), ([0, 6], True), ([0, 3, 6], True)],
)
def test_it_fails_there_and_nowhere_else(
    tmp_path: Path, gone: list[int], clean: bool, whole: bool
) -> None:
    fill(tmp_path, clean=clean)
    vanish(tmp_path, *gone, whole=whole)
    lost = {base + n for base in gone for n in range(3)}
    expected = [None if n in lost else line for n, line in enumerate(LINES)]
    for n in range(3):
        with opened_with_faults(tmp_path) as manager:
            log = manager.log("t", 0)
            assert log.log_start_offset == 0
            assert readable(log) == expected
            assert len(manager.faults) == len(gone)
            for base, fault in zip(gone, manager.faults, strict=True):
                assert f"offsets {base} to {base + 2}" in fault
                assert str(log_file(tmp_path, base)) in fault
            assert append(log, b"more %d" % n) == 12 + n
            expected.append(b"more %d" % n)
            log.roll(NOW_MS)
            manager.checkpoint()


@pytest.mark.parametrize("base", [0, 3])
def test_what_comes_back_ends_it(tmp_path: Path, base: int) -> None:
    fill(tmp_path)
    shutil.copy(log_file(tmp_path, base), tmp_path / "kept")
    vanish(tmp_path, base, whole=True)
    with opened_with_faults(tmp_path) as manager:
        assert None in readable(manager.log("t", 0))
    shutil.copy(tmp_path / "kept", log_file(tmp_path, base))
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert readable(manager.log("t", 0)) == LINES


@pytest.mark.parametrize("gone", [[0], [3], [3, 6], [0, 6]])
def test_it_ends_when_the_loss_is_accepted(
    tmp_path: Path, gone: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    vanish(tmp_path, *gone)
    outcome = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert outcome.exit_code == 1
    for base in gone:
        assert str(log_file(tmp_path, base)) in outcome.output
    outcome = CliRunner().invoke(main, ["repair", "--apply", str(tmp_path)])
    assert f"offsets {gone[0]} to {gone[0] + 2}" in caplog.text
    assert outcome.output.endswith("1 of them incomplete\n")
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).exit_code == 1
    outcome = CliRunner().invoke(main, ["repair", "--apply", str(tmp_path), "--accept-loss"])
    assert outcome.exit_code == 0
    assert f"gave up offsets {gone[0]} to {gone[0] + 2}" in outcome.output
    left = [line for n, line in enumerate(LINES) if n - n % 3 not in gone]
    for arguments in (
        ["verify"],
        ["repair", "--apply"],
        ["repair", "--salvage", "--apply"],
        ["verify"],
    ):
        outcome = CliRunner().invoke(main, [arguments[0], str(tmp_path), *arguments[1:]])
        assert outcome.exit_code == 0, outcome.output
        with opened(tmp_path) as manager:
            assert manager.faults == []
            assert values(manager.log("t", 0)) == left


@pytest.mark.parametrize("left", [0, 40])
def test_a_file_that_is_shorter_than_it_was(tmp_path: Path, left: int) -> None:
    """Nothing in what is left of it says so, where it is empty."""
    fill(tmp_path)
    data = log_file(tmp_path, 3).read_bytes()
    log_file(tmp_path, 3).write_bytes(data[:left])
    for _ in range(2):
        with opened_with_faults(tmp_path) as manager:
            log = manager.log("t", 0)
            assert readable(log) == [*LINES[:3], None, None, None, *LINES[6:]]
            assert "offsets 3 to 5" in manager.faults[0]
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).exit_code == 1
    log_file(tmp_path, 3).write_bytes(data)
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert readable(manager.log("t", 0)) == LINES


def test_the_only_segment_of_a_log_whose_head_was_deleted(tmp_path: Path) -> None:
    """No offset is given twice: the manifest has where the log starts."""
    fill(tmp_path)
    with opened_with_faults(tmp_path) as manager:
        manager.log("t", 0).roll(NOW_MS)
        delete_records(manager, manager.log("t", 0), 12, Task())
        retain(manager, [manager.log("t", 0)], Task())
        remove_now(manager.log("t", 0))
        assert append(manager.log("t", 0), b"next") == 12
    vanish(tmp_path, 12)
    with opened_with_faults(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (12, 12)
        with pytest.raises(OSError, match="accept-loss") as caught:
            append(log, b"again")
        assert caught.value.errno == errno.EIO


def broker_was_here(data: Path) -> None:
    (data / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")


def detach_again(data: Path) -> None:
    broker_was_here(data)
    assert CliRunner().invoke(main, ["detach", str(data)]).exit_code == 0


def without_book(data: Path) -> None:
    (data / "t-0" / FILE_NAME).unlink()


def bad_book(data: Path) -> None:
    (data / "t-0" / FILE_NAME).write_bytes(b"version 0\nstart 0\nsegment 0")


@pytest.mark.parametrize("what", [broker_was_here, detach_again, without_book, bad_book])
def test_nothing_is_concluded(tmp_path: Path, what: Callable[[Path], None]) -> None:
    """A broker deletes and cleans without an update of the manifest, so it is ignored."""
    fill(tmp_path)
    if what is detach_again:
        # The broker has deleted the head and cleaned before it went.
        vanish(tmp_path, 0, 3, whole=True)
        start_epochs_at(tmp_path / "t-0", 6)
        what(tmp_path)
    else:
        what(tmp_path)
        vanish(tmp_path, 0, 3, whole=True)
    for _ in range(2):
        with opened_log(tmp_path) as log:
            assert (log.log_start_offset, values(log)) == (6, LINES[6:])
            assert log.losses == []


def test_a_book_is_not_believed_that_does_not_fit(tmp_path: Path) -> None:
    """Somebody has made one segment of two."""
    fill(tmp_path)
    merged = log_file(tmp_path, 3).read_bytes() + log_file(tmp_path, 6).read_bytes()
    vanish(tmp_path, 6, whole=True)
    log_file(tmp_path, 3).write_bytes(merged)
    for suffix in ("index", "timeindex"):
        log_file(tmp_path, 3).with_suffix(f".{suffix}").unlink()
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == LINES


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_deleted_is_not_missed(tmp_path: Path, clean: bool) -> None:
    fill(tmp_path)
    for start in (3, 7, 9):
        manager = LogManager.open(str(tmp_path))
        log = manager.log("t", 0)
        delete_records(manager, log, start, Task())
        retain(manager, [log], Task())
        assert manager.faults == []
        manager.close() if clean else manager.abandon()
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == LINES[9:]


def test_retention_deletes_what_is_missing_too(tmp_path: Path) -> None:
    fill(tmp_path)
    vanish(tmp_path, 3)
    with opened_with_faults(tmp_path) as manager:
        log = manager.log("t", 0)
        delete_records(manager, log, 7, Task())
        retain(manager, [log], Task())
        assert [segment.base_offset for segment in log.segments] == [6, 9]
        assert log.losses == []
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == LINES[7:]


@pytest.mark.parametrize("clean", [True, False])
def test_a_full_disk_takes_no_book_and_what_was_deleted_is_not_missed(
    tmp_path: Path, clean: bool
) -> None:
    """A start after a kill carries a deletion out; what was claimed of that must not stay."""
    fill(tmp_path)
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    delete_records(manager, manager.log("t", 0), 6, Task())
    manager.abandon()
    disk = SimulatedDisk(str(tmp_path))
    disk.fail_next("open", errno.ENOSPC, suffix=f"{FILE_NAME}.tmp", times=9)
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    manager.checkpoint()
    manager.close() if clean else manager.abandon()
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == LINES[6:]


def test_an_emptied_file_stays_in_the_log_when_its_loss_is_accepted(tmp_path: Path) -> None:
    """Only a segment without a file leaves the log."""
    fill(tmp_path)
    log_file(tmp_path, 3).write_bytes(b"")
    with opened_with_faults(tmp_path) as manager:
        log = manager.log("t", 0)
        assert len(log.losses) == 1
        log.accept_loss()
        assert log.losses == []
        assert [segment.base_offset for segment in log.segments] == BASES
    with opened_with_faults(tmp_path) as manager:
        assert manager.faults == []
        assert [segment.base_offset for segment in manager.log("t", 0).segments] == BASES
        assert values(manager.log("t", 0)) == [*LINES[:3], *LINES[6:]]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("interval", [0, 4096])
@pytest.mark.parametrize("left", [0, 40, 74, 100, 148])
def test_the_indexes_end_where_the_log_does_when_a_loss_is_accepted(
    tmp_path: Path, left: int, interval: int, is_open: bool
) -> None:
    """Also if the file gets shorter while the log is open, and its indexes are in memory. The words
    of removed records go.
    """
    fill(tmp_path, settings={"index.interval.bytes": str(interval)})
    words = log_file(tmp_path, 3).with_suffix(paths.WORDS)
    words.touch()
    if not is_open:
        os.truncate(log_file(tmp_path, 3), left)
    with opened_with_faults(tmp_path) as manager:
        log = manager.log("t", 0)
        segment = log.segments[1]
        if is_open:
            assert readable(log) == LINES
            os.truncate(log_file(tmp_path, 3), left)
            SegmentReader(segment).check_again(left, segment.size)
        log.accept_loss()
        assert log.losses == []
        assert not words.exists()
        whole = LINES[3 : 3 + left // 74]
        assert values(log) == [*LINES[:3], *whole, *LINES[6:]]
    outcome = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output


def test_a_full_disk_takes_no_book_and_a_loss_stays_accepted(tmp_path: Path) -> None:
    fill(tmp_path)
    vanish(tmp_path, 3)
    disk = SimulatedDisk(str(tmp_path))
    disk.fail_next("open", errno.ENOSPC, suffix=f"{FILE_NAME}.tmp", times=9)
    with LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS) as manager:
        manager.log("t", 0).accept_loss()
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert values(manager.log("t", 0)) == [*LINES[:3], *LINES[6:]]


@pytest.mark.parametrize(
    "lines",
    [
        ("start 0", "segment 3 6 222"),
        ("start 0", "segment 3 6 222 1 1"),
        ("start 0", f"segment 3 6 {2**49} 1"),
        ("start 0", f"segment 3 6 222 {2**63}"),
        ("start 0", f"segment 3 {2**63} 222 1"),
        ("start 0", "segment 6 3 222 1"),
        ("start 0", "segment 3 6 -1 1"),
        ("start 0", "segment 3 6 222 1", "segment 3 6 222 1"),
        ("start 0", "segment 6 9 222 1", "segment 3 6 222 1"),
        (f"start {2**63}",),
        ("start -1",),
    ],
    ids=str,
)
@pytest.mark.parametrize("read_only", [True, False])
def test_a_book_of_what_cannot_be(tmp_path: Path, lines: tuple[str, ...], read_only: bool) -> None:
    """Its checksum is right.  The log does without."""
    fill(tmp_path)
    body = "".join(f"{line}\n" for line in ("version 0", *lines)).encode()
    (tmp_path / "t-0" / FILE_NAME).write_bytes(body + b"crc %08x\n" % crc32c(body))
    with LogManager.open(str(tmp_path), read_only=read_only) as manager:
        assert values(manager.log("t", 0)) == LINES
        assert "not a segment manifest" in manager.faults[0]
    outcome = CliRunner().invoke(main, ["verify", str(tmp_path)])
    assert outcome.exit_code == (1 if read_only else 0)
