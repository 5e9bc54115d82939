"""`kafkafs.spark.jobs.compact` in Spark itself: what the mount's own cleaner does, to the byte."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.jobs import compact
from kafkafs.spark.jobs.compact import Compaction
from kafkafs.spark.jobs.selection import Selection
from kafkafs.spark.location import owner_client
from kafkafs.spark.location.owner_client import OwnerNotReached
from storage import Log, LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.errors import InvalidConfig, UnknownTopicOrPartition
from storage.log.append import append_batches
from storage.task import Task
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, check_data, mounted
from tests.mount.programs import Running
from tests.storage.compaction.cleaned import Clock, put
from tests.storage.compaction.test_staged_round import files_of, small_map
from tests.storage.logs import opened, write_settings
from tests.storage.producers import Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak


def write(data: Path, clock: Clock, **settings: object) -> None:
    """Write a compacted topic `t` and another topic, with two partitions each.

    The cleaner has run on both partitions of `t`: on partition 0 before its last records.
    """
    data.mkdir()
    # When a log is opened, it drops producers that have been idle for long.
    clock.now_ms = time.time_ns() // 1_000_000
    settings |= {"log_index_interval_bytes": 150, "log_cleaner_delete_retention_ms": 1000}
    write_settings(data, **settings)
    with opened(data, clock_ms=clock) as manager:
        for topic in ("t", "other"):
            manager.create_topic(topic, 2)
            manager.change_topic_settings(topic, {"internal.segment.bytes": "1500"})
        manager.change_topic_settings("t", {"cleanup.policy": "compact"})
        for topic in ("t", "other"):
            for partition in range(2):
                log = manager.log(topic, partition)
                for turn in range(2):
                    write_batches(log, clock.now_ms, random.Random(10 * partition + turn))
                    log.roll(clock.now_ms)
                    if turn == partition and topic == "t":
                        LogCleaner(manager).clean(log, Task())
    clock.now_ms += 2000


def write_batches(log: Log, now_ms: int, draw: random.Random) -> None:
    """Batches of 20 keys and of all codecs, tombstones, and transactions of both ends."""
    producer = Producer(draw.randrange(100), transactional=True, now_ms=now_ms)
    for number in range(100):
        pairs = [
            (b"key %d" % draw.randrange(20), draw.choice((None, b"x" * draw.randrange(30))))
            for _ in range(draw.randrange(1, 7))
        ]
        put(log, *pairs, timestamp_ms=now_ms, codec=draw.randrange(5))
        if number % 20 == 5:
            append_batches(log, producer.batch(b"sent"), now_ns=now_ms * 1_000_000)
        elif number % 20 == 15:
            end = draw.choice((producer.commit, producer.abort))
            append_batches(log, end(), now_ns=now_ms * 1_000_000)


def state(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and not path.name.endswith(".deleted")
    }


def logs(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / "t-0").glob("*.log")}


@pytest.mark.parametrize("keys", [15, 1000], ids=["in rounds", "at once"])
def test_like_the_mounts_own_cleaner(spark: SparkSession, tmp_path: Path, keys: int) -> None:
    """To the byte, also where the offset map is too small for all keys."""
    clock = Clock()
    data, copy = tmp_path / "data", tmp_path / "copy"
    write(data, clock, **small_map(keys))
    shutil.copytree(data, copy)
    with opened(copy, clock_ms=clock) as manager:
        logs = [manager.log("t", partition) for partition in range(2)]
        expected = [LogCleaner(manager).clean_all(log, Task()) for log in logs]
        files = [files_of(log) for log in logs]
        offsets = dict(manager.checkpoints.cleaned)

    before = state(data)
    dry = compact.run(spark, str(data), dry_run=True, now_ms=clock.now_ms)
    assert state(data) == before
    report = compact.run(spark, str(data), now_ms=clock.now_ms)
    for each, rounds in ((dry, [some[:1] for some in expected]), (report, expected)):
        assert each.faults == []
        done = [cleaned for some in rounds for cleaned in some]
        for name in ("records_read", "records_kept", "bytes_after"):
            assert each.figures[name] == sum(getattr(cleaned, name) for cleaned in done)
        assert (each.figures["partitions"], each.figures["rounds"]) == (2, len(done))
        assert [row[:4] for row in each.tables[0].rows] == [
            ("t", partition, cleaned.first_dirty_offset, cleaned.end_offset)
            for partition, some in enumerate(rounds)
            for cleaned in some
        ]
    full = sum(some[0].map_full for some in expected)
    assert (full > 0) == (keys == 15)
    assert len([note for note in dry.notes if "only the first round" in note]) == full
    assert not [name for name in state(data) if name.endswith(".staged")]
    with opened(data, clock_ms=clock) as manager:
        assert [files_of(manager.log("t", number)) for number in range(2)] == files
        assert manager.checkpoints.cleaned == offsets


def test_a_fault_of_one_partition_keeps_no_other(spark: SparkSession, tmp_path: Path) -> None:
    clock = Clock()
    data = tmp_path / "data"
    write(data, clock)
    sealed = sorted((data / "t-0").glob("*.log"))[1]
    damaged = bytearray(sealed.read_bytes())
    damaged[-1] ^= 1
    sealed.write_bytes(damaged)
    before = logs(data)
    report = compact.run(spark, str(data), now_ms=clock.now_ms)
    [fault] = report.faults
    assert fault.startswith("t-0: ")
    assert sealed.name in fault
    assert [row[:2] for row in report.tables[0].rows] == [("t", 1)]
    assert logs(data) == before
    assert not list(data.rglob("*.staged"))


def test_what_was_cleaned_meanwhile_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    clock = Clock()
    data = tmp_path / "data"
    write(data, clock)
    work = Compaction(spark, str(data), now_ms=clock.now_ms)
    rounds = work.plan(Selection((("t", 0),)))
    outputs = work.clean(rounds)
    with opened(data, clock_ms=clock) as manager:
        LogCleaner(manager).clean(manager.log("t", 0), Task())
    before = {name for name in state(data) if not name.endswith(".staged")}
    assert work.swap(rounds, outputs) == ()
    work.tidy()
    assert [fault for fault in work.faults if "its segments have changed" in fault]
    assert {name for name in state(data) if name.startswith("t-0")} <= before
    check_data(data)


def test_what_there_is_nothing_to_be_done_of(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        manager.create_topic("t", 1)
    report = compact.run(spark, str(data))
    assert report.notes == ["nothing to compact"]
    with pytest.raises(UnknownTopicOrPartition):
        compact.run(spark, str(data), Selection((("no", None),)))
    with pytest.raises(FileNotFoundError):
        compact.run(spark, str(tmp_path / "no"))
    with pytest.raises(InvalidConfig):
        compact.run(spark, "")


def test_nobody_would_put_it_in(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that takes no requests has the directory: known before the work, not after it."""
    monkeypatch.setattr(owner_client, "CHECK_PATIENCE_S", 0.0)
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        manager.create_topic("t", 1)
        with pytest.raises(OwnerNotReached, match="open"):
            compact.run(spark, str(data))
        assert compact.run(spark, str(data), dry_run=True).faults == []


def fill(mount: Mount, orders: Path, rounds: range) -> None:
    """Records of a few keys; each round ends its segment."""
    for number in rounds:
        lines = b"".join(b"%d\t%06d\n" % (key, number * 100 + key) for key in range(50))
        append(orders.parent / ".kv" / orders.name, lines)
        append(orders.parent / ".control" / "roll", b"run\n")


def test_a_mounted_directory_is_swapped_by_its_daemon(spark: SparkSession, tmp_path: Path) -> None:
    """A reader with `tail -f` gets each record once."""
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        append(
            orders.parent / ".config",
            b"cleanup.policy=compact\nmin.cleanable.dirty.ratio=1\nfile.delete.delay.ms=1000\n",
        )
        with Running(["tail", "-f", "-n", "+1", "--sleep-interval=0.02", orders]) as tail:
            fill(mount, orders, range(4))
            tail.read_until(b"000349\n")
            report = compact.run(spark, str(mount.data))
            assert report.faults == []
            assert report.figures["records_kept"] == 50
            fill(mount, orders, range(4, 6))
            shown = tail.read_until(b"000549\n")
            assert tail.errors() == ""
        assert shown.splitlines() == [
            b"%06d" % (number * 100 + key) for number in range(6) for key in range(50)
        ]
        assert orders.read_bytes().splitlines()[:50] == [b"%06d" % (300 + n) for n in range(50)]
        compact.run(spark, str(mount.data))
        assert orders.read_bytes().splitlines() == [b"%06d" % (500 + n) for n in range(50)]
        assert not list(mount.data.rglob("*.staged"))
