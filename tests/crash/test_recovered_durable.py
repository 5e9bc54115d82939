"""A start after a crash makes its changes durable before anything that relies on them.

The power fails once more: after the start, and after records that were appended and flushed then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.log.append import append_batches
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, append, clock_ms, opened, values
from tests.storage.transactions import Client, produced

SEEDS = range(10)


def killed(data: Path) -> None:
    """Segments of a broker, which writes no manifest; a half of the first one is flushed."""
    data.mkdir()
    manager = LogManager.open(str(data), clock_ms=clock_ms)
    log = manager.create_topic("t", 1).partitions[0]
    append(log, b"0")
    log.flush()
    manager.checkpoint()
    append(log, b"1")
    log.roll(NOW_MS)
    append(log, b"2")
    manager.abandon()
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for name in ("kafkafs.segments", f"{2:020d}.snapshot"):
        (data / "t-0" / name).unlink()


def damaged(data: Path) -> None:
    """A power cut has taken some of the other half."""
    killed(data)
    path = data / "t-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def begun(data: Path) -> None:
    """A partition that had only been begun."""
    killed(data)
    for path in (data / "t-0").glob("0*"):
        path.unlink()
    (data / "recovery-point-offset-checkpoint").unlink()


def after_a_second_cut(
    data: Path, build: Callable[[Path], None], live: Callable[[LogManager, Log], None]
) -> None:
    """Judge a log after each of several cuts, with ``live`` between two starts."""
    for seed in SEEDS:
        build(data)
        disk = SimulatedDisk(str(data))
        manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
        log = manager.log("t", 0)
        live(manager, log)
        log.flush()
        expected = values(log), log.log_start_offset, log.log_end_offset, log.producers.by_id
        disk.materialise(seed)
        with opened(data, Files(str(data)), clock_ms=clock_ms) as manager:
            log = manager.log("t", 0)
            found = values(log), log.log_start_offset, log.log_end_offset, log.producers.by_id
            assert found == expected, seed
        shutil.rmtree(data)


@pytest.mark.parametrize(("build", "left"), [(damaged, [b"0"]), (begun, [])])
def test_what_is_flushed_after_a_start_stays(
    tmp_path: Path, build: Callable[[Path], None], left: list[bytes]
) -> None:
    """No segment after the damage comes back, and no new one loses its name."""

    def live(manager: LogManager, log: Log) -> None:
        assert values(log) == left
        append(log, b"new")
        append(log, b"newer")

    after_a_second_cut(tmp_path / "data", build, live)


def test_no_transaction_that_is_cut_off_hides_what_comes_in_its_place(tmp_path: Path) -> None:
    """A power cut has taken it and its end, and not that it was aborted."""

    def build(data: Path) -> None:
        data.mkdir()
        manager = LogManager.open(str(data), clock_ms=clock_ms)
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"index.interval.bytes": "1"})
        append(log, b"0")
        append(log, b"1")
        log.flush()
        manager.checkpoint()
        path, size = Path(log.active.log_path), log.size
        client = Client(log, 7)
        client.send(b"aborted")
        client.abort()
        manager.abandon()
        os.truncate(path, size)
        (data / "t-0" / f"{2:020d}.snapshot").unlink()

    def live(manager: LogManager, log: Log) -> None:
        client = Client(log, 7)
        client.send(b"committed")
        client.commit()
        append(log, b"4")
        append(log, b"5")
        assert values(log) == [b"0", b"1", b"committed", b"4", b"5"]

    after_a_second_cut(tmp_path / "data", build, live)


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_killed_process_wrote_is_flushed_by_the_next_one(tmp_path: Path, ends: bool) -> None:
    """That a transaction was aborted, with its segment's name; what is known of its producer."""
    data = tmp_path / "data"
    for seed in SEEDS:
        data.mkdir()
        disk = SimulatedDisk(str(data))
        manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"0")
        log.flush()
        manager.checkpoint()
        client = Client(log, 7)
        client.send(b"aborted")
        log.roll(NOW_MS)
        client.send(b"aborted, too")
        if ends:
            client.abort()
        append(log, b"1")
        log.roll(NOW_MS)
        disk = disk.after_stop()
        manager = LogManager.open(str(data), files=disk, clock_ms=clock_ms)
        log = manager.log("t", 0)
        append(log, b"2")
        log.flush()
        manager.checkpoint()
        expected = values(log), log.log_end_offset, log.producers.by_id
        assert values(log) == ([b"0", b"1", b"2"] if ends else [b"0"])
        disk.materialise(seed)
        with opened(data, Files(str(data)), clock_ms=clock_ms) as manager:
            log = manager.log("t", 0)
            assert (values(log), log.log_end_offset, log.producers.by_id) == expected, seed
        shutil.rmtree(data)


def test_what_is_known_of_producers_outlives_their_records(tmp_path: Path) -> None:
    """A start rebuilds snapshots that a cut has emptied. Then retention deletes the segments."""

    def build(data: Path) -> None:
        data.mkdir()
        manager = LogManager.open(str(data), clock_ms=clock_ms)
        log = manager.create_topic("t", 1).partitions[0]
        append_batches(log, produced([b"0"]), now_ns=NOW_NS)
        log.roll(NOW_MS)
        append(log, b"1")
        manager.abandon()
        (data / "t-0" / f"{1:020d}.snapshot").write_bytes(b"")

    def live(manager: LogManager, log: Log) -> None:
        log.flush()
        assert delete_records(manager, log, 1, Task()) == 1
        assert retain(manager, [log], Task()).segments == 1
        assert log.producers.by_id.keys() == {7}

    after_a_second_cut(tmp_path / "data", build, live)
