"""A data directory that another process writes is followed: partitions, log starts, watermarks."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from storage.errors import SegmentGone, StorageError
from storage.files import Files
from storage.follow.follow_directory import DirectoryFollower
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.record.control import COMMIT
from tests.broker_files import (
    NOW_MS,
    BrokerDirectory,
    BrokerPartition,
    before_each_operation,
)
from tests.storage.logs import CountedReads, append, values
from tests.storage.producers import Producer
from tests.storage.transactions import Client

NEVER_FRESH = 1 << 62


class Starts(LogListener[Log]):
    """Notes the log starts that the listener gets."""

    def __init__(self) -> None:
        self.moved: list[int] = []

    def log_start_moved(self, log: Log) -> None:
        self.moved.append(log.log_start_offset)


class Followed:
    """A broker's directory and a manager that follows it."""

    def __init__(self, data: Path) -> None:
        self.broker = BrokerDirectory(data)
        self.until_high_watermark = False

    def open(self, files: Files | None = None) -> DirectoryFollower:
        self.starts = Starts()
        self.manager = LogManager.open(
            str(self.broker.data),
            read_only=True,
            files=files,
            clock_ms=lambda: NOW_MS,
        )
        self.manager.log_group.listeners.append(self.starts)
        self.follower = DirectoryFollower(
            self.manager,
            until_high_watermark=self.until_high_watermark,
            clock_ns=lambda: NEVER_FRESH,
        )
        return self.follower

    @property
    def names(self) -> list[str]:
        return [f"{log.topic}-{log.partition}" for log in self.manager.logs()]


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    followed = Followed(tmp_path / "data")
    yield followed
    followed.manager.close()


def test_logs_are_not_all_kept_open(followed: Followed) -> None:
    """There may be more of them than this process may have files open."""
    for partition in range(5):
        followed.broker.partition("t", partition, "AAAAAAAAAAAAAAAAAAAAAQ").append(b"one")
    followed.open()
    assert len(followed.names) == 5
    assert not any(log.active.is_open for log in followed.manager.logs())
    for log in followed.manager.logs():
        assert values(log) == [b"one"]


def test_partitions_appear(followed: Followed) -> None:
    first = followed.broker.partition("t", 0, "AAAAAAAAAAAAAAAAAAAAAQ")
    follower = followed.open()
    assert follower.look_for_partitions() == []
    followed.broker.partition("t", 1, "AAAAAAAAAAAAAAAAAAAAAQ").append(b"one")
    followed.broker.partition("u").append(b"two")
    appeared = follower.look_for_partitions()
    assert sorted((log.topic, log.partition) for log in appeared) == [("t", 1), ("u", 0)]
    assert followed.names == ["t-0", "t-1", "u-0"]
    assert values(followed.manager.log("t", 1)) == [b"one"]
    first.append(b"zero")
    assert follower.look(followed.manager.log("t", 0))
    assert follower.look_for_partitions() == []


def test_one_that_is_just_being_made_waits_for_its_topics_id(followed: Followed) -> None:
    follower = followed.open()
    partition = followed.broker.partition("t")
    metadata = partition.directory / "partition.metadata"
    later = metadata.rename(followed.broker.data / "later")
    assert follower.look_for_partitions() == []
    assert followed.names == []
    later.rename(metadata)
    assert len(follower.look_for_partitions()) == 1
    assert f"topic_id: {followed.manager.topic('t').id}" in metadata.read_text()


def test_one_of_an_old_broker_appears_with_its_first_record(followed: Followed) -> None:
    follower = followed.open()
    partition = followed.broker.partition("t")
    (partition.directory / "partition.metadata").unlink()
    assert follower.look_for_partitions() == []
    partition.append(b"zero")
    assert len(follower.look_for_partitions()) == 1


def test_one_that_cannot_be_loaded_yet_is_reported_once(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """Idle queries of Spark look 80 times a second."""
    follower = followed.open()
    link = followed.broker.data / "t-0"
    for _ in range(2):
        link.symlink_to("elsewhere")
        for _ in range(3):
            assert follower.look_for_partitions() == []
        assert [f"{link}: cannot load" in record.message for record in caplog.records] == [True]
        link.unlink()
        assert follower.look_for_partitions() == []
        caplog.clear()
    followed.broker.partition("t").append(b"zero")
    assert len(follower.look_for_partitions()) == 1
    assert caplog.records == []


def test_a_directory_that_is_empty_yet(followed: Followed) -> None:
    follower = followed.open()
    (followed.broker.data / "t-0").mkdir()
    assert follower.look_for_partitions() == []
    assert followed.names == []


def test_a_look_costs_one_stat_where_nothing_has_changed(followed: Followed) -> None:
    followed.broker.partition()
    files = CountedReads()
    follower = followed.open(files)
    follower.look_for_partitions()
    files.operations = 0
    follower.look_for_partitions()
    assert files.operations == 1


def test_a_deleted_topic_can_be_read_for_a_while(followed: Followed) -> None:
    partition = followed.broker.partition()
    partition.append(b"zero")
    partition.roll()
    partition.append(b"one")
    follower = followed.open()
    log = followed.manager.log("t", 0)
    renamed = followed.broker.delete(partition)
    follower.look_for_partitions()
    assert followed.manager.topics == {}
    assert log.closed
    assert not follower.look(log)
    assert follower.intact(log)
    assert values(log) == [b"zero", b"one"]
    assert followed.manager.sweep(NOW_MS + 59_999) is None
    assert values(log) == [b"zero", b"one"]
    assert followed.manager.sweep(NOW_MS + 60_000) is None
    assert not any(segment.is_open for segment in log.segments)
    assert sorted(path.name for path in renamed.glob("*.log")) == [
        "00000000000000000000.log",
        "00000000000000000001.log",
    ], "what is not ours stays"


def test_a_deleted_topic_lets_go_of_segments_that_had_left_before(followed: Followed) -> None:
    partition = followed.broker.partition()
    for value in (b"zero", b"one"):
        partition.append(value)
        partition.roll()
    follower = followed.open()
    log = followed.manager.log("t", 0)
    segments = log.segments
    assert values(log) == [b"zero", b"one"]
    partition.delete_head(1)
    follower.look(log)
    followed.broker.delete(partition)
    follower.look_for_partitions()
    assert followed.manager.sweep(NOW_MS + 60_000) is None
    assert not any(segment.is_open for segment in segments)


@pytest.mark.parametrize("name", ["t.ID-0", "t-0.0123456789abcdef0123456789abcdef-delete"])
def test_a_renamed_directory_can_be_read_for_a_while(followed: Followed, name: str) -> None:
    """Also through files that were not open."""
    old = followed.broker.partition()
    old.append(b"old")
    follower = followed.open()
    log = followed.manager.log("t", 0)
    log.active.close_descriptors()
    old.directory.rename(old.data / name)
    followed.broker.partition().append(b"new")
    follower.look_for_partitions()
    assert values(log) == [b"old"]
    assert values(followed.manager.log("t", 0)) == [b"new"]


@pytest.mark.parametrize("change", ["nothing", "append", "roll"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_log_gets_no_records_of_another_topic(tmp_path: Path, is_open: bool, change: str) -> None:
    """The directory is replaced before any operation of a look. The next look for partitions
    notices that.
    """
    for at, files in before_each_operation(5):
        followed = Followed(tmp_path / f"{at}")
        old = followed.broker.partition()
        for value in (b"a", b"b"):
            old.append(value)
            old.roll()
        old.append(b"c")

        def replace(followed: Followed = followed, old: BrokerPartition = old) -> None:
            old.directory.rename(old.data / "t.AAAAAAAAAAAAAAAAAAAAAQ-0")
            new = followed.broker.partition()
            for _ in range(2):
                new.append(b"1", b"2")
                new.roll()
            new.append(b"3")

        follower = followed.open(files)
        log = followed.manager.log("t", 0)
        assert values(log) == [b"a", b"b", b"c"]
        if not is_open:
            for segment in log.segments:
                segment.close_descriptors()
        if change == "append":
            old.append(b"d")
        elif change == "roll":
            old.roll()
        files.begin(replace)
        with contextlib.suppress(StorageError, OSError):
            follower.look(log)
        files.end()
        if not files.has_acted:
            continue
        for _ in range(2):
            with contextlib.suppress(StorageError, OSError):
                follower.look(log)
            others = {path.stat().st_ino for path in old.directory.iterdir()}
            mine = {segment.identity[1] for segment in log.segments if segment.identity}
            assert mine.isdisjoint(others), at
            assert log.log_end_offset in (3, 4)
            with contextlib.suppress(SegmentGone):
                assert values(log)[:3] == [b"a", b"b", b"c"]
            follower.look_for_partitions()
        assert values(followed.manager.log("t", 0)) == [b"1", b"2", b"1", b"2", b"3"]
        followed.manager.close()


def test_a_log_gets_no_producers_of_another_topic(tmp_path: Path) -> None:
    """The directory is replaced while the follower reads the snapshot at its new first segment."""
    for at, files in before_each_operation(5):
        followed = Followed(tmp_path / f"{at}")
        old, mine = followed.broker.partition(), Producer(1, transactional=True)
        old.put(mine.batch(b"open"), b"open")

        def replace(followed: Followed = followed, old: BrokerPartition = old) -> None:
            old.directory.rename(old.data / "t.AAAAAAAAAAAAAAAAAAAAAQ-0")
            new, other = followed.broker.partition(), Producer(2)
            for _ in range(5):
                new.put(other.batch(b"other"), b"other")
                new.roll()

        follower = followed.open(files)
        log = followed.manager.log("t", 0)
        old.put(mine.commit())
        for value in (b"never read", b"one", b"two"):
            old.roll()
            old.append(value)
        log.active.close_descriptors()
        old.delete_head(2)
        old.remove_deleted()
        files.begin(replace)
        with contextlib.suppress(StorageError, OSError):
            follower.look(log)
        files.end()
        with contextlib.suppress(StorageError, OSError):
            follower.look(log)
        assert {each.producer_id for each in log.producers} <= {1}, at
        followed.manager.close()


def test_a_partition_is_replaced_while_the_disk_cannot_be_read(tmp_path: Path) -> None:
    """One operation of a look for partitions fails. The next look does what is missing."""

    def fail() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for at, files in before_each_operation(5):
        followed = Followed(tmp_path / f"{at}")
        old = followed.broker.partition()
        old.append(b"old")
        follower = followed.open(files)
        log = followed.manager.log("t", 0)
        log.active.close_descriptors()
        followed.broker.delete(old)
        followed.broker.partition().append(b"new")
        files.begin(fail)
        with contextlib.suppress(OSError):
            follower.look_for_partitions()
        files.end()
        follower.look_for_partitions()
        assert values(log) == [b"old"], at
        (new,) = followed.manager.logs()
        assert values(new) == [b"new"], at
        assert not followed.manager.topics.faulty
        followed.manager.close()


def test_a_directory_is_replaced_while_it_is_opened(tmp_path: Path) -> None:
    """No log has the id of one and records of the other."""
    ids = "AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBBQ"
    for at, files in before_each_operation(5):
        followed = Followed(tmp_path / f"{at}")
        old = followed.broker.partition("t", 0, ids[0])
        old.append(b"a", b"b")
        old.roll()
        old.append(b"c")

        def replace(followed: Followed = followed, old: BrokerPartition = old) -> None:
            old.directory.rename(old.data / "t.AAAAAAAAAAAAAAAAAAAAAQ-0")
            new = followed.broker.partition("t", 0, ids[1])
            new.append(b"1")
            new.roll()
            new.append(b"2", b"3")

        files.begin(replace)
        follower = followed.open(files)
        files.end()
        if not files.has_acted:
            continue
        for _ in range(2):
            for log in list(followed.manager.logs()):
                with contextlib.suppress(StorageError, OSError):
                    follower.look(log)
                with contextlib.suppress(SegmentGone):
                    expected = {ids[0]: [b"a", b"b", b"c"], ids[1]: [b"1", b"2", b"3"]}
                    assert values(log) == expected[log.topic_id], at
            follower.look_for_partitions()
        assert values(followed.manager.log("t", 0)) == [b"1", b"2", b"3"], at
        followed.manager.close()


def test_one_of_the_same_name_waits_until_the_last_of_the_old_is_gone(followed: Followed) -> None:
    one = "AAAAAAAAAAAAAAAAAAAAAQ"
    old = [followed.broker.partition("t", number, one) for number in range(2)]
    follower = followed.open()
    followed.broker.delete(old[0])
    followed.broker.partition().append(b"new")
    assert follower.look_for_partitions() == []
    assert followed.names == ["t-1"]
    followed.broker.delete(old[1])
    assert len(follower.look_for_partitions()) == 1
    assert followed.names == ["t-0"]


def test_delete_records(followed: Followed) -> None:
    partition = followed.broker.partition()
    partition.append(b"zero", b"one")
    partition.append(b"two")
    follower = followed.open()
    log = followed.manager.log("t", 0)
    follower.look_at_log_starts()
    partition.delete_records(1)
    follower.look_at_log_starts()
    assert followed.starts.moved == [1]
    assert values(log) == [b"one", b"two"]
    partition.delete_records(0)
    follower.look_at_log_starts()
    assert followed.starts.moved == [1], "it never falls"
    partition.append(b"three")
    partition.delete_records(4)
    follower.look_at_log_starts()
    assert followed.starts.moved == [1, 4], "of what had not been seen"
    assert values(log) == []


def test_a_log_start_beyond_what_can_be_seen_waits(followed: Followed) -> None:
    partition = followed.broker.partition()
    partition.append(b"zero")
    follower = followed.open()
    partition.delete_records(2)
    follower.look_at_log_starts()
    assert followed.starts.moved == []
    partition.append(b"one", b"two")
    follower.look_at_log_starts()
    assert followed.starts.moved == [2]


def test_a_checkpoint_that_is_none_is_not_the_end(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    follower = followed.open()
    path = followed.broker.data / "log-start-offset-checkpoint"
    path.write_text("nonsense")
    follower.look_at_log_starts()
    follower.look_at_log_starts()
    assert [record.message.count(str(path)) for record in caplog.records] == [1]


# -- up to the high watermark --------------------------------------------------------------------


@pytest.mark.parametrize("end", range(8))
def test_a_log_ends_at_its_high_watermark(followed: Followed, end: int) -> None:
    followed.until_high_watermark = True
    partition = followed.broker.partition()
    starts = [0]
    for number in range(4):
        partition.append(*[b"%d" % n for n in range(number % 2 + 1)])
        starts.append(partition.next_offset)
        if number % 2:
            partition.roll()
    followed.broker.write_high_watermark(partition, end)
    follower = followed.open()
    log = followed.manager.log("t", 0)
    shown = max(start for start in starts if start <= end)
    assert log.log_end_offset == shown
    assert values(log) == [value for offset, value in partition.records if offset < shown]
    follower.look(log)
    assert log.log_end_offset == shown
    followed.broker.write_high_watermark(partition, partition.next_offset)
    follower.look(log)
    assert values(log) == partition.values
    assert [segment.base_offset for segment in log.segments] == partition.bases


@pytest.mark.parametrize("start", range(1, 4))
def test_the_batch_of_the_log_start_is_below_the_high_watermark(
    followed: Followed, start: int
) -> None:
    """A broker writes down where records were deleted at once, and the high watermark later."""
    followed.until_high_watermark = True
    partition = followed.broker.partition()
    partition.append(b"zero", b"one", b"two")
    partition.append(b"three")
    followed.broker.write_high_watermark(partition, 0)
    partition.delete_records(start)
    followed.open()
    log = followed.manager.log("t", 0)
    assert log.log_start_offset == start
    assert log.log_end_offset == 3


def test_appends_wait_for_the_high_watermark(followed: Followed) -> None:
    followed.until_high_watermark = True
    partition = followed.broker.partition()
    follower = followed.open()
    log = followed.manager.log("t", 0)
    for number in range(5):
        partition.append(b"%d" % number)
        if number == 2:
            partition.roll()
    assert not follower.look(log)
    for end in range(1, 6):
        followed.broker.write_high_watermark(partition, end)
        assert follower.look(log)
        assert values(log) == partition.values[:end]
        assert not follower.look(log)


# -- the lock ------------------------------------------------------------------------------------

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


def test_who_writes_it_has_the_lock(followed: Followed) -> None:
    follower = followed.open()
    assert not follower.is_written(), "there is none"
    lock = followed.broker.data / ".lock"
    lock.touch()
    assert not follower.is_written()
    command = [sys.executable, "-c", _HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert follower.is_written()
        holder.communicate()
    assert not follower.is_written()


def test_a_lock_of_our_own_is_not_anothers(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)):
        assert not Files().is_locked(str(tmp_path / ".lock"))
        # And it is still ours.
        command = [sys.executable, "-c", _HOLD, str(tmp_path / ".lock")]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert b"BlockingIOError" in done.stderr


def test_what_is_open_below_the_high_watermark_is_not_stable(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as writer:
        log = writer.create_topic("t", 1).partitions[0]
        append(log, b"before")
        client = Client(log, 7)
        client.send(b"open")
        append(log, b"behind it")
        writer.checkpoint()
        Client(log, 8).send(b"beyond")
        append(log, b"and more")
        reader = LogManager.open(str(tmp_path), read_only=True, clock_ms=lambda: NOW_MS)
        followed = reader.log("t", 0)
        follower = DirectoryFollower(reader, until_high_watermark=True)
        assert (followed.log_end_offset, followed.last_stable_offset) == (3, 1)
        assert values(followed) == [b"before"]
        client.end(COMMIT)
        writer.checkpoint()
        assert follower.look(followed)
        assert (followed.log_end_offset, followed.last_stable_offset) == (6, 3)
        assert values(followed) == [b"before", b"open", b"behind it"]
        reader.close()
