"""A log that another process writes is followed: it shows what is there, whatever was done."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import LogManager, Record, encode, paths
from storage.errors import CorruptRecord, SegmentGone, UnusableFile
from storage.files import Files, Kind
from storage.follow.follow import LogFollower
from storage.index import txn_index
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.record.batch import decode
from storage.record.control import COMMIT
from storage.record.header import parse_header
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from tests.broker_files import (
    NOW_MS,
    BrokerDirectory,
    BrokerPartition,
    UnreadableFile,
    before_each_operation,
)
from tests.crash.disk import SimulatedDisk
from tests.log_check import check_log
from tests.storage.logs import append, opened, overwrite, remove_head, values
from tests.storage.producers import Producer

NEVER_FRESH = 1 << 62


class Told(LogListener[Log]):
    """Notes the events of a log, and checks that each one is true when it comes."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.segments: list[Segment] = []
        self.truncated_at = -1
        self.end = 0

    def appended(
        self, log: Log, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        assert segment is log.active
        assert segment.size == position + len(data)
        assert SegmentReader(segment).read(position, len(data)) == data
        # Each record once, and in order.
        assert int.from_bytes(data[:8], "big") >= self.end
        self.end = log.log_end_offset
        self.events.append("appended")

    def rolled(self, log: Log, sealed: Segment, active: Segment) -> None:
        assert log.segments[-2:] == (sealed, active)
        assert sealed.sealed
        self.segments.append(active)
        self.events.append("rolled")

    def removing(self, log: Log, segments: Sequence[Segment]) -> None:
        assert log.segments[: len(segments)] == tuple(segments)
        del self.segments[: len(segments)]
        self.events.append("removing")

    def swapping(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        at = log.segments.index(old[0]) if old else 0
        self.segments[at : at + len(old)] = new
        self.events.append("swapping")

    def swapped(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        assert self.segments == list(log.segments)
        self.events.append("swapped")

    def removed(self, log: Log, segment: Segment) -> None:
        self.events.append("removed")

    def truncated(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        assert self.segments[-len(old) :] == list(old)
        self.segments[-len(old) :] = new
        self.truncated_at = offset
        self.end = log.log_end_offset
        self.events.append("truncated")

    def take(self) -> list[str]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events


class Follow:
    """A partition that a broker writes, and the log that follows it."""

    def __init__(self, data: Path, files: Files | None = None, *, empty: bool = False) -> None:
        self.broker = BrokerDirectory(data)
        self.partition = self.broker.partition()
        if not empty:
            self.partition.append(b"zero")
        self.told = Told()
        self.manager = LogManager.open(str(data), read_only=True, files=files)
        self.manager.log_group.listeners.append(self.told)
        self.log = self.manager.log("t", 0)
        self.told.segments = list(self.log.segments)
        self.follower = LogFollower(self.log, lambda: NEVER_FRESH)

    def look(self) -> list[str]:
        self.follower.look()
        return self.told.take()

    def check(self) -> None:
        """It shows what the broker has, and knows it again."""
        assert values(self.log) == self.partition.values
        assert self.log.log_end_offset == self.partition.next_offset
        assert self.log.log_start_offset == self.partition.log_start
        assert self.told.segments == list(self.log.segments)
        assert [segment.base_offset for segment in self.log.segments] == self.partition.bases
        assert not self.follower.look()


NewFollow = Callable[..., Follow]


@pytest.fixture
def new_follow(tmp_path: Path) -> Iterator[NewFollow]:
    """Return a function that begins to follow another directory, and closes the one before."""
    with contextlib.ExitStack() as stack:

        def new(files: Files | None = None) -> Follow:
            stack.close()
            follow = Follow(Path(tempfile.mkdtemp(dir=tmp_path)) / "data", files)
            stack.callback(follow.manager.close)
            return follow

        yield new


@pytest.fixture
def follow(new_follow: NewFollow) -> Follow:
    return new_follow()


# -- the end -------------------------------------------------------------------------------------


def test_appends_and_rolls_of_our_own_writer(tmp_path: Path) -> None:
    with opened(tmp_path) as writer:
        writer.create_topic("t", 1)
        writer.change_topic_settings("t", {"internal.segment.bytes": "600"})
        writer.change_topic_settings("t", {"index.interval.bytes": "100"})
        log = writer.log("t", 0)
        append(log, b"0")
        with LogManager.open(str(tmp_path), read_only=True) as reader:
            seen = reader.log("t", 0)
            follower = LogFollower(seen, lambda: NEVER_FRESH)
            assert not follower.look()
            for n in range(1, 40):
                append(log, b"%d" % n)
                assert follower.look()
                assert values(seen) == [b"%d" % i for i in range(n + 1)]
                assert not follower.look()
            assert len(seen.segments) == len(log.segments)
            # The indexes that the writer extends are used.
            counts = [segment.offset_index.count for segment in log.segments]
            assert [segment.offset_index.count for segment in seen.segments] == counts
            assert max(counts) > 2
            assert check_log(seen) == []
            remove_head(log, 3, 0)
            assert follower.look()
            assert [s.base_offset for s in seen.segments] == [s.base_offset for s in log.segments]
            assert values(seen) == values(log)


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [
        ("open", "1.snapshot"),
        ("pwrite", "1.snapshot"),
        ("open", "1.log"),
        ("open", "1.index"),
        ("ftruncate", "1.timeindex"),
    ],
)
def test_a_roll_that_our_own_writer_takes_back(tmp_path: Path, operation: str, suffix: str) -> None:
    """On a full disk; the log goes on where it was."""
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as writer:
        log = writer.create_topic("t", 1).partitions[0]
        append(log, b"0")
        with LogManager.open(str(tmp_path), read_only=True) as reader:
            seen = reader.log("t", 0)
            follower = LogFollower(seen, lambda: NEVER_FRESH)
            disk.fail_next(operation, errno.ENOSPC, suffix=suffix)
            with pytest.raises(OSError, match="No space left"):
                log.roll(NOW_MS)
            assert not follower.look()
            append(log, b"1")
            assert follower.look()
            assert values(seen) == [b"0", b"1"]
            assert len(seen.segments) == 1
            assert log.roll(NOW_MS)
            append(log, b"2")
            assert follower.look()
            assert values(seen) == [b"0", b"1", b"2"]


def test_a_look_amid_a_roll_that_is_taken_back(tmp_path: Path) -> None:
    class Full(Files):
        """There is no room for the last file of the new segment."""

        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            if path.endswith("1.timeindex"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            fd = super().open(path, flags, mode)
            if path.endswith("1.log"):
                follower.look()
            return fd

    with opened(tmp_path, Full()) as writer:
        log = writer.create_topic("t", 1).partitions[0]
        append(log, b"0")
        with LogManager.open(str(tmp_path), read_only=True) as reader:
            seen = reader.log("t", 0)
            follower = LogFollower(seen, lambda: NEVER_FRESH)
            with pytest.raises(OSError, match="No space left"):
                log.roll(NOW_MS)
            assert len(seen.segments) == 2
            append(log, b"1")
            follower.look()
            assert values(seen) == [b"0", b"1"]


def test_a_batch_appears_when_it_is_whole_and_its_crc_right(follow: Follow) -> None:
    path = follow.partition.active
    before = path.read_bytes()
    batch = bytearray(follow.partition.batch(b"one", b"two"))
    for end in range(1, len(batch)):
        path.write_bytes(before + batch[:end])
        assert follow.look() == []
    batch[-1] ^= 1
    path.write_bytes(before + batch)
    assert follow.look() == []
    assert values(follow.log) == [b"zero"]
    batch[-1] ^= 1
    path.write_bytes(before + batch)
    assert follow.look() == ["appended"]
    assert values(follow.log) == [b"zero", b"one", b"two"]


def test_a_gap_between_two_segments(follow: Follow) -> None:
    """A follower replica's log may have one, where the leader's was compacted."""
    follow.partition.next_offset = 10
    follow.partition.roll()
    follow.partition.append(b"ten")
    assert follow.look() == ["rolled", "appended"]
    follow.check()


def test_a_preallocated_segment(follow: Follow) -> None:
    path = follow.partition.active
    size = path.stat().st_size
    os.truncate(path, 10_000)
    assert follow.look() == []
    overwrite(path, size, follow.partition.batch(b"one"))
    assert follow.look() == ["appended"]
    assert values(follow.log) == [b"zero", b"one"]


def test_a_large_batch(follow: Follow) -> None:
    follow.partition.append(b"x" * 9_000_000)
    follow.partition.append(b"y")
    assert follow.look() == ["appended", "appended"]
    follow.check()


def test_a_directory_whose_first_segment_comes_later(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = BrokerDirectory(data)
    partition = broker.partition()
    partition.active.unlink()
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        follower = LogFollower(log, lambda: NEVER_FRESH)
        assert not follower.look()
        partition.append(b"zero")
        assert follower.look()
        assert values(log) == [b"zero"]


def test_damage_in_a_sealed_segment_is_named(follow: Follow) -> None:
    with open(follow.partition.active, "ab") as file:
        file.write(b"nonsense" * 10)
    follow.partition.next_offset = 5
    follow.partition.roll()
    with pytest.raises(CorruptRecord) as raised:
        follow.look()
    assert raised.value.path == str(follow.partition.log(0))
    assert values(follow.log) == [b"zero"]


# -- what a look costs ---------------------------------------------------------------------------


class Counting(Files):
    """Counts what is asked of the disk; `on_stat` is called after each stat."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.on_stat: Callable[[str], None] = lambda path: None

    def file_stat(self, path: str) -> os.stat_result:
        self.asked.append("stat")
        found = super().file_stat(path)
        self.on_stat(path)
        return found

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        self.asked.append("listing")
        return super().listing(path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.asked.append("open")
        return super().open(path, flags, mode)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.asked.append("pread")
        return super().pread(fd, size, position)


def test_two_stats_where_nothing_has_changed(new_follow: NewFollow) -> None:
    files = Counting()
    follow = new_follow(files)
    follow.partition.append(b"one")
    follow.look()
    files.asked.clear()
    assert follow.look() == []
    assert files.asked == ["stat", "stat"]


def test_a_time_of_change_that_is_young_is_not_relied_on(new_follow: NewFollow) -> None:
    """Another change may come at the same moment: of a kernel's clock that ticks slowly."""
    files = Counting()
    follow = new_follow(files)
    changed = follow.partition.active.stat().st_mtime_ns
    follower = LogFollower(follow.log, lambda: changed)
    follower.look()
    files.asked.clear()
    follower.look()
    assert {"listing", "pread"} <= set(files.asked)


# -- the past ------------------------------------------------------------------------------------


def test_retention(follow: Follow) -> None:
    follow.partition.fill()
    follow.look()
    old = follow.log.segments[:2]
    data = [SegmentReader(segment).read(0, segment.size) for segment in old]
    old[1].close_descriptors()
    follow.partition.delete_head(2)
    assert follow.look() == ["removing"]
    follow.check()
    assert [segment for _, segment in follow.log.retired] == list(old)
    # One is open, the other has another name.
    assert [SegmentReader(segment).read(0, segment.size) for segment in old] == data
    old[1].close_descriptors()
    follow.partition.remove_deleted()
    assert SegmentReader(old[0]).read(0, old[0].size) == data[0]
    with pytest.raises(SegmentGone):
        SegmentReader(old[1]).read(0, 1)
    assert follow.log.release_retired(1 << 62) == []
    assert follow.told.take() == ["removed", "removed"]
    assert follow.log.retired == []


class Tail(LogListener[Log]):
    """The values that the listener gets as appended."""

    def __init__(self, log: Log) -> None:
        self.values: list[bytes | None] = []
        log.listeners.append(self)

    def appended(
        self, log: Log, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        at = 0
        while at < len(data):
            batch = bytes(data[at:])
            self.values += [record.value for record in decode(batch)]
            at += parse_header(batch).size


@pytest.mark.parametrize("unseen", [0, 1, 3])
def test_the_active_segment_is_cleaned_before_its_roll_is_seen(follow: Follow, unseen: int) -> None:
    partition = follow.partition
    partition.fill()
    partition.append(b"seen")
    follow.look()
    tail = Tail(follow.log)
    partition.append(b"not seen")
    for number in range(unseen):
        partition.roll()
        partition.append(b"%d" % number)
    partition.roll()
    partition.append(b"last")
    partition.clean(5 + unseen, lambda offset, value: value.startswith(b"b"))
    follow.look()
    assert tail.values == [b"not seen", *[b"%d" % n for n in range(unseen)], b"last"]
    follow.check()


@pytest.mark.parametrize("look_at", [2, 3, 8, 9])
def test_a_killed_broker_was_about_to_replace_what_is_not_seen_to_be_below_the_high_watermark(
    follow: Follow, look_at: int
) -> None:
    """The replaced files are below it. The broker removes them at once when it starts again."""
    partition = follow.partition
    partition.fill()
    follow.look()
    limit = partition.next_offset
    follower = LogFollower(follow.log, lambda: NEVER_FRESH, lambda: limit)
    tail = Tail(follow.log)
    written: list[bytes] = []
    for number in range(4):
        written += [b"a unseen %d" % number, b"b unseen %d" % number]
        partition.append(*written[-2:])
        partition.roll()
    partition.append(b"last")
    follower.look()
    assert tail.values == []
    partition.at_step(look_at, follower.look)
    partition.clean(8, lambda offset, value: value.startswith(b"a") or offset == 20)
    partition.remove_deleted()
    follower.look()
    limit = partition.next_offset
    follower.look()
    assert tail.values == [*written, b"last"]
    follow.check()


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        # The records that are left come before any later record.
        (b"b", ["rolled", "swapping", "swapped", "appended"]),
        (b"none", ["rolled", "appended", "swapping", "swapped"]),
    ],
)
def test_what_came_and_went_unseen(follow: Follow, kept: bytes, told: list[str]) -> None:
    """A reader of the earlier records does not skip the records that are left."""
    partition = follow.partition
    follow.look()
    partition.fill(5)
    partition.clean(5, lambda offset, value: value.startswith(kept))
    partition.remove_deleted()
    partition.append(b"more")
    assert follow.look() == ["appended", *told]
    follow.check()


def test_a_cleaned_segment_is_deleted_before_anything_that_a_look_asks_of_the_disk(
    new_follow: NewFollow,
) -> None:
    """The follower has read the first of two segments that became one, and not the second."""

    def delete(partition: BrokerPartition) -> None:
        partition.delete_head(2)
        partition.remove_deleted()

    for _, files in before_each_operation(10):
        follow = new_follow(files)
        # The deletion may leave the directory's mtime as it was.
        follow.follower = LogFollower(follow.log, lambda: 0)
        follow.partition.fill()
        follow.partition.clean(1, lambda offset, value: value.startswith(b"b"))
        follow.partition.clean(2, lambda offset, value: value.startswith(b"b"), first=1)
        for path in follow.partition.directory.glob(f"{7:020d}*{paths.DELETED}"):
            path.unlink()
        follow.partition.append(b"more")
        files.begin(partial(delete, follow.partition))
        follow.look()
        files.end()
        if files.has_acted:
            follow.look()
            follow.check()


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_what_was_read_is_intact_when_its_name_leads_to_a_cleaned_file(
    follow: Follow, times: int, is_open: bool
) -> None:
    partition = follow.partition
    partition.fill()
    partition.append(b"seen")
    follow.look()
    if not is_open:
        follow.log.active.close_descriptors()
    partition.roll()
    for _ in range(times):
        partition.clean(1, lambda offset, value: False, first=4)
        partition.remove_deleted()
    assert follow.follower.intact()
    follow.look()
    assert follow.follower.intact()
    follow.check()


def test_a_cleaned_segment_is_loaded_once_while_it_waits_for_hidden_records(
    new_follow: NewFollow,
) -> None:
    files = Counting()
    follow = new_follow(files)
    partition, producer = follow.partition, Producer(7, transactional=True)
    partition.put(producer.batch(b"a", b"b"), b"a", b"b")
    partition.roll()
    follow.look()
    limit = partition.next_offset
    follower = LogFollower(follow.log, lambda: NEVER_FRESH, lambda: limit)
    partition.put(producer.marker(COMMIT))
    partition.clean(1, lambda offset, value: True)
    old = follow.log.segments[0]
    for expected in (True, False, False):
        files.asked.clear()
        follower.look()
        assert follow.log.segments[0] is old
        assert ("open" in files.asked) == expected
    limit = partition.next_offset
    follower.look()
    follow.check()


def test_the_active_segment_has_its_name_again(follow: Follow) -> None:
    """Its writer began to delete it, and the disk refused the rest."""
    partition = follow.partition
    follower = LogFollower(follow.log, lambda: NEVER_FRESH, lambda: partition.next_offset)
    partition.append(b"more")
    path = partition.active
    data = path.read_bytes()
    os.truncate(path, len(data) - 1)
    partition.roll()
    partition.append(b"last")
    path.rename(f"{path}{paths.DELETED}")
    follower.look()
    assert follow.log.active.base_offset == 0
    Path(f"{path}{paths.DELETED}").rename(path)
    path.write_bytes(data)
    follower.look()
    assert values(follow.log) == partition.values
    assert not follower.look()


def test_appends_are_read_while_a_cleaned_segment_is_unreadable(follow: Follow) -> None:
    follow.partition.fill()
    follow.look()
    for segment in follow.log.segments[1:]:
        segment.close_descriptors()
    follow.partition.clean(3, lambda offset, value: value.startswith(b"b"))
    cleaned = follow.partition.log(0)
    cleaned.rename(follow.broker.data / "kept")
    cleaned.symlink_to("nowhere")
    for value in (b"one", b"two"):
        follow.partition.append(value)
        with pytest.raises(UnusableFile):
            follow.look()
        follow.partition.remove_deleted()
        assert follow.told.take() == ["appended"]
        assert values(follow.log)[-1] == value
    follow.partition.roll()
    follow.partition.append(b"three")
    follow.partition.clean(1, lambda offset, value: value.startswith(b"b"), first=2)
    with pytest.raises(UnusableFile):
        follow.look()
    (follow.broker.data / "kept").rename(cleaned)
    assert follow.look()[-2:] == ["swapping", "swapped"]
    follow.check()


class Unlisted(Files):
    """Has no descriptor left to list a directory."""

    is_full = False

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        if self.is_full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().listing(path)


def test_appends_are_read_while_the_directory_cannot_be_listed(new_follow: NewFollow) -> None:
    files = Unlisted()
    follow = new_follow(files)
    follow.look()
    (follow.partition.directory / "other").touch()
    files.is_full = True
    for value in (b"one", b"two"):
        follow.partition.append(value)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            follow.look()
        assert follow.told.take() == ["appended"]
        assert values(follow.log)[-1] == value
    files.is_full = False
    assert follow.look() == []
    follow.check()


def test_a_look_after_every_step_of_a_cleaner(follow: Follow) -> None:
    follow.partition.fill()
    follow.look()
    before = follow.partition.values
    seen: list[Any] = []

    def step() -> None:
        follow.look()
        seen.append(values(follow.log))

    follow.partition.step = step
    follow.partition.clean(3, lambda offset, value: value.startswith(b"b"))
    after = follow.partition.values
    # The swap counts as soon as it is decided, and as a whole.
    assert seen == [before] + [after] * (len(seen) - 1)
    follow.check()


@pytest.mark.parametrize(
    ("stopped", "is_read", "is_open"),
    [*itertools.product([3, 4, 5], [False, True], [False]), (4, False, True), (5, False, True)],
)
def test_a_swap_whose_old_files_are_gone_before_it_is_finished(
    follow: Follow, stopped: int, is_read: bool, is_open: bool
) -> None:
    """A broker that was killed in it removes what is put aside first when it starts."""
    partition = follow.partition
    partition.fill()
    if is_read:
        follow.look()
    for segment in follow.log.segments:
        if is_open:
            segment.open_log()
        else:
            segment.close_descriptors()
    seen: list[Any] = []

    def remove() -> None:
        for path in partition.directory.glob("*.deleted"):
            path.unlink()
        follow.look()
        seen.append(values(follow.log))

    partition.at_step(stopped, remove)
    partition.clean(3, lambda offset, value: value.startswith(b"b"))
    assert seen == [partition.values]
    kept = follow.log.segments[0]
    assert follow.look() == []
    assert follow.log.segments[0] is kept
    follow.check()


def test_what_a_killed_broker_was_about_to_replace_can_be_read_on(follow: Follow) -> None:
    """When it starts again it removes that at once, and not by and by as what it puts aside."""
    partition = follow.partition
    partition.fill()
    follow.look()
    old = follow.log.segments[:3]
    data = [SegmentReader(segment).read(0, segment.size) for segment in old]
    for segment in follow.log.segments:
        segment.close_descriptors()
    partition.at_step(2, follow.look)
    partition.clean(3, lambda offset, value: value.startswith(b"b"))
    partition.remove_deleted()
    follow.look()
    assert [SegmentReader(segment).read(0, segment.size) for segment in old] == data
    follow.check()


def test_one_segment_is_replaced_by_one_of_the_same_inode(follow: Follow) -> None:
    """Once the old file is deleted, any file may get its inode number."""
    follow.partition.fill()
    follow.look()
    first = follow.log.segments[0]
    first.close_descriptors()
    path = follow.partition.log(0)
    nine = encode([Record(0, NOW_MS, 0, b"k", b"nine")])
    assert len(nine) < path.stat().st_size
    path.write_bytes(nine)
    os.utime(path, ns=(1, 1))
    os.utime(follow.partition.directory)
    assert follow.look() == ["swapping", "swapped"]
    assert values(follow.log)[0] == b"nine"


# -- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_aborted_transaction_that_a_cleaned_index_lacks(follow: Follow, is_asked: bool) -> None:
    """Of one whose records it has not met a cleaner keeps the marker, but no entry."""
    partition, log = follow.partition, follow.log
    one, two = Producer(1, transactional=True), Producer(1, transactional=True, epoch=1)
    first = partition.put(one.batch(b"a"))
    follow.look()
    partition.roll()
    partition.put(one.abort())
    second = partition.put(two.batch(b"b"))
    partition.put(two.abort())
    index = partition.active.with_suffix(paths.TXNINDEX)
    index.write_bytes(index.read_bytes()[txn_index.ENTRY_SIZE :])
    if is_asked:
        # The follower then keeps the state of a producer.
        assert not log.transactions.is_aborted(1, first)
    follow.look()
    assert log.transactions.is_aborted(1, first)
    assert log.transactions.is_aborted(1, second)
    assert [entry.first_offset for entry in log.transactions.aborted()] == [first, second]
    assert log.last_stable_offset == log.log_end_offset


def test_a_transaction_whose_end_was_deleted_before_it_was_read(follow: Follow) -> None:
    """The records after it are shown, as they are to a process that opens the log now."""
    partition, log = follow.partition, follow.log
    producer = Producer(1, transactional=True)
    partition.put(producer.batch(b"open"), b"open")
    follow.look()
    partition.put(producer.commit())
    partition.roll()
    partition.append(b"never read")
    partition.roll()
    partition.append(b"one")
    partition.roll()
    partition.append(b"two")
    log.active.close_descriptors()
    partition.delete_head(2)
    partition.remove_deleted()
    follow.look()
    follow.check()
    assert log.last_stable_offset == log.log_end_offset


def test_a_transaction_of_which_nothing_was_left_to_read(follow: Follow) -> None:
    """A cleaner has removed its records, which were not read, and its marker in a later segment."""
    partition, log = follow.partition, follow.log
    follow.look()
    producer = Producer(1, transactional=True)
    partition.roll()
    aborted = partition.put(producer.batch(b"aborted"))
    partition.append(b"one")
    partition.roll()
    marker = partition.put(producer.abort())
    partition.append(b"two")
    partition.roll()
    partition.append(b"three")
    partition.clean(2, lambda offset, value: True, decided={aborted})
    partition.clean(1, lambda offset, value: True, first=1, decided={marker})
    partition.remove_deleted()
    follow.look()
    follow.check()
    assert log.last_stable_offset == log.log_end_offset


@pytest.mark.parametrize("is_bad", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_search_for_gaps_leaves_no_file_open(
    new_follow: NewFollow, is_deleted: bool, is_bad: bool
) -> None:
    """Otherwise the writer could not free the space of a segment that it deletes later.

    ``is_deleted``: the segment after the one that was read is still there under its old name.
    """
    files = UnreadableFile()
    files.number = errno.ENOMEM
    follow = new_follow(files)
    partition, log = follow.partition, follow.log
    producer = Producer(1, transactional=True)
    aborted = partition.put(producer.batch(b"aborted"))
    follow.look()
    partition.roll()
    partition.append(b"one")
    marker = partition.put(producer.abort())
    partition.append(b"two")
    for value in (b"three", b"four"):
        partition.roll()
        partition.append(value)
    for first in 0, 1, 1, 2:
        partition.clean(1, lambda offset, value: True, first, decided={aborted, marker})
    if not is_deleted:
        partition.remove_deleted()
    path = partition.log(partition.bases[1])
    files.inode = os.stat(f"{path}{paths.DELETED}" if is_deleted else path).st_ino
    if is_bad:
        with contextlib.suppress(OSError):
            follow.look()
    files.inode = -1
    follow.look()
    follow.check()
    for segment in (*log.segments, *(each for _, each in log.retired)):
        segment.close_descriptors()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            assert not descriptor.readlink().is_relative_to(partition.directory)


class Headers(Files):
    """Counts the reads of each file, by inode number."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[int] = Counter()

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.read[os.fstat(fd).st_ino] += 1
        return super().pread(fd, size, position)


def test_a_search_for_gaps_begins_at_the_end(new_follow: NewFollow) -> None:
    """Most segments of a cleaned log have gaps: one of them is searched."""
    files = Headers()
    follow = new_follow(files)
    partition = follow.partition
    producer = Producer(1, transactional=True)
    taken = {partition.put(producer.batch(b"aborted"))}
    follow.look()
    partition.roll()
    taken.add(partition.put(producer.abort()))
    for number in range(6):
        partition.append(b"gone")
        partition.append(b"%d" % number)
        partition.roll()
    for first in 0, 0, 1, 1, 2, 3, 4:
        partition.clean(1, lambda offset, value: value != b"gone", first, decided=taken)
    partition.remove_deleted()
    files.read.clear()
    follow.look()
    _, _, first, second, last, *_ = partition.bases
    reads = [files.read[os.stat(partition.log(base)).st_ino] for base in (first, second, last)]
    # One for the search, besides those that load a segment.
    assert reads == [reads[0], reads[0], reads[0] + 1]
    follow.check()


def test_what_is_before_a_segment_that_cannot_be_searched_for_gaps(new_follow: NewFollow) -> None:
    """It can be read although the disk cannot read a later segment."""
    files = UnreadableFile()
    follow = new_follow(files)
    partition = follow.partition
    producer = Producer(1, transactional=True)
    partition.put(producer.batch(b"inside"), b"inside")
    follow.look()
    partition.roll()
    partition.put(producer.commit())
    for value in (b"one", b"bad", b"last"):
        partition.append(value)
        partition.roll()
    partition.clean(1, lambda offset, value: True)
    partition.remove_deleted()
    files.inode = os.stat(partition.log(partition.bases[2])).st_ino
    with pytest.raises(OSError, match="Input/output error"):
        follow.look()
    assert values(follow.log) == [b"zero", b"inside", b"one"]
    files.inode = -1
    follow.look()
    follow.check()


def test_what_is_written_over_an_aborted_transaction_that_was_cut_off(follow: Follow) -> None:
    """A reader of the old end asks for its transactions, but others have its offsets now."""
    partition, log = follow.partition, follow.log
    one, two = Producer(1, transactional=True), Producer(1, transactional=True, epoch=1)
    kept = partition.put(one.batch(b"kept"))
    partition.put(one.abort())
    cut = partition.put(one.batch(b"cut"))
    partition.put(one.abort())
    follow.look()
    assert log.transactions.is_aborted(1, kept)
    assert log.transactions.is_aborted(1, cut)
    partition.truncate(cut)
    assert partition.put(two.batch(b"there"), b"there") == cut
    partition.put(two.commit())
    assert follow.look()[0] == "truncated"
    assert log.transactions.is_aborted(1, kept)
    assert not log.transactions.is_aborted(1, cut)


class Reusing(Files):
    """A disk that gives every log of one base the same inode number, one after the other."""

    def __init__(self, base: int) -> None:
        self._name = paths.file_name(base, paths.LOG)

    def _numbered(self, found: os.stat_result, path: str) -> os.stat_result:
        if not os.path.basename(path).startswith(self._name):
            return found
        fields = list(found)
        fields[1] = 1 << 40
        exact = {name: getattr(found, name) for name in ("st_mtime_ns", "st_blocks")}
        return os.stat_result(fields, exact)

    def file_stat(self, path: str) -> os.stat_result:
        return self._numbered(super().file_stat(path), path)

    def descriptor_stat(self, fd: int) -> os.stat_result:
        return self._numbered(super().descriptor_stat(fd), os.readlink(f"/proc/self/fd/{fd}"))


@pytest.mark.parametrize("base", [0, 13])
@pytest.mark.parametrize("looks", [False, True])
def test_an_inode_number_that_is_given_again(new_follow: NewFollow, looks: bool, base: int) -> None:
    """It is still another file: it was not cut, and cannot be read instead of the old one."""
    follow = new_follow(Reusing(base))
    partition = follow.partition
    partition.fill()
    partition.append(b"last")
    follow.look()
    assert base in partition.bases
    partition.roll()
    partition.append(b"new")
    for segment in follow.log.segments:
        segment.close_descriptors()
    for _ in range(2):
        partition.clean(len(partition.bases) - 2, lambda offset, value: value.startswith(b"b"))
        partition.clean(1, lambda offset, value: True, first=1)
        partition.remove_deleted()
        if looks:
            assert "truncated" not in follow.look()
    if not looks:
        for segment in follow.log.segments:
            with pytest.raises(SegmentGone):
                SegmentReader(segment).read(0, segment.size)
    assert "truncated" not in follow.look()
    follow.check()


# -- a log that is cut ---------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[b"ot"], [b"six", b"seven"], [b"other", b"more and more"]])
def test_a_cut_that_is_written_over_before_it_is_seen(follow: Follow, values: list[bytes]) -> None:
    partition = follow.partition
    for value in (b"one", b"two"):
        partition.append(value)
        follow.look()
    partition.truncate(1)
    for value in values:
        partition.append(value)
    assert not follow.follower.intact()
    assert follow.look() == ["truncated"]
    assert follow.told.truncated_at == 1
    assert follow.follower.intact()
    follow.check()


def test_a_cut_where_no_look_has_been_is_taken_for_the_last_before_it(follow: Follow) -> None:
    partition = follow.partition
    follow.look()
    partition.append(b"one")
    partition.append(b"two")
    follow.look()
    partition.truncate(2)
    assert follow.look() == ["truncated"]
    assert follow.told.truncated_at == 1
    follow.check()


class FailingRead(Files):
    """Lets one read of a log fail: the one after the next `left`."""

    left = -1

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().preadv(fd, buffer, position)


@pytest.mark.parametrize("failing", range(-1, 10))
def test_a_cut_below_the_high_watermark_is_told_after_a_read_error(
    new_follow: NewFollow, failing: int
) -> None:
    files = FailingRead()
    follow = new_follow(files)
    partition = follow.partition
    for value in (b"one", b"two"):
        partition.append(value)
    limit = 3
    follow.follower = LogFollower(follow.log, lambda: NEVER_FRESH, lambda: limit)
    follow.look()
    partition.truncate(1)
    for value in (b"other", b"more", b"hidden"):
        partition.append(value)
    files.left = failing
    with contextlib.suppress(OSError):
        follow.look()
    files.left = -1
    follow.follower.look()
    assert values(follow.log) == [b"zero", b"other", b"more"]
    assert follow.told.segments == list(follow.log.segments)
    assert follow.log.counters.truncations == 1


def test_a_cut_after_the_first_segment_was_cleaned_leaves_the_log_start(follow: Follow) -> None:
    partition = follow.partition
    partition.fill()
    partition.append(b"last")
    follow.look()
    partition.delete_records(2)
    follow.log.sync_with_writer(log_start=2)
    partition.clean(1, lambda offset, value: True)
    partition.truncate(partition.next_offset - 1)
    assert follow.look() == ["truncated"]
    follow.check()


def test_a_cut_log_whose_files_leave_before_anything_that_a_look_asks_of_the_disk(
    new_follow: NewFollow,
) -> None:
    """The writer drops everything, and has not made the first file of the new log."""

    def drop(partition: BrokerPartition) -> None:
        for path in partition.directory.glob(f"*{paths.LOG}"):
            path.rename(f"{path}{paths.DELETED}")

    for number, files in before_each_operation(10):
        follow = new_follow(files)
        follow.partition.fill()
        follow.partition.append(b"kept")
        offset = follow.partition.next_offset
        follow.partition.append(b"cut")
        follow.look()
        follow.partition.truncate(offset)
        files.begin(partial(drop, follow.partition))
        follow.look()
        files.end()
        bases = [segment.base_offset for segment in follow.log.segments]
        assert bases == follow.partition.bases, number
        follow.partition.start_over(1000)
        follow.partition.append(b"thousand")
        follow.look()
        follow.check()


def test_many_looks_are_remembered_sparsely(follow: Follow) -> None:
    partition = follow.partition
    for number in range(1, 300):
        partition.append(b"%d" % number)
        follow.look()
    assert len(follow.follower._tail._marked[1]) <= 64
    partition.truncate(290)
    follow.look()
    assert 280 <= follow.told.truncated_at <= 290
    follow.check()


# -- races ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "segments"), [(0, 1), (0, 4), (1, 2), (2, 1), (2, 4)])
def test_a_cleaner_comes_before_anything_that_a_look_asks_of_the_disk(
    new_follow: NewFollow, before: int, segments: int
) -> None:
    """Nothing is shown twice, and nothing is missed. `before`: what another has cleaned already."""
    for _, files in before_each_operation(10):
        follow = new_follow(files)
        clean = partial(follow.partition.clean, segments)
        follow.partition.fill(6)
        follow.look()
        if before:
            follow.partition.clean(before, lambda offset, value: not value.startswith(b"a"))
        follow.partition.append(b"last")
        follow.partition.roll()
        files.begin(lambda: clean(lambda offset, value: value.startswith((b"b", b"last"))))  # noqa: B023
        follow.look()
        files.end()
        offsets = [record.offset for record in follow.log.records()]
        assert offsets == sorted(set(offsets))
        assert {offset for offset, _ in follow.partition.records} <= {*offsets}
        follow.look()
        follow.check()


class Torn(Files):
    """Gives a large directory in pieces, as kernels do: ``between`` is called between two."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], object] | None = None

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        before = super().listing(path)
        if self.between is None or not path.endswith("t-0"):
            return before
        between, self.between = self.between, None
        between()
        # Logs come in the first piece, what is renamed to such in the second one.
        return [
            *[entry for entry in before if not entry[0].endswith(paths.SWAP)],
            *[entry for entry in super().listing(path) if not entry[0].endswith(paths.LOG)],
        ]


@pytest.mark.parametrize("first", [0, 2])
def test_a_swap_ends_while_a_large_directory_is_listed(new_follow: NewFollow, first: int) -> None:
    """Neither the old nor the new name is in the list: nothing is missed."""
    files = Torn()
    follow = new_follow(files)
    partition = follow.partition
    for number in range(1000):
        (partition.directory / f"other.{number}").touch()
    partition.fill(6)
    follow.look()
    seen: list[Any] = []
    final = partition.log(partition.bases[first])
    swapped = Path(f"{final}{paths.SWAP}")

    def look() -> None:
        files.between = lambda: swapped.rename(final)
        follow.look()
        seen.append(values(follow.log))
        final.rename(swapped)

    # The old files are renamed, and the new file has no name but `.swap` yet.
    partition.at_step(4, look)
    partition.clean(2, lambda offset, value: value.startswith(b"b"), first)
    assert seen == [partition.values]
    follow.look()
    follow.check()


@pytest.mark.parametrize(
    ("first", "is_seen", "removed"),
    [(0, False, False), (0, True, True), (4, False, True), (4, True, False)],
)
def test_the_active_segment_is_cleaned_before_anything_that_a_look_asks_of_the_disk(
    new_follow: NewFollow, first: int, is_seen: bool, removed: bool
) -> None:
    """The writer rolls the active segment and cleans it, alone or with all segments before it.

    The follower reports no truncation. It gets each new record once; or it swaps in the cleaned
    segment, if the old files were removed or the segment was cleaned alone.
    """

    def clean(partition: BrokerPartition) -> None:
        partition.append(b"unseen")
        partition.roll()
        partition.append(b"new")
        count = len(partition.bases) - 1 - first
        partition.clean(count, lambda offset, value: len(value) != 2, first)
        if removed:
            partition.remove_deleted()

    for _, files in before_each_operation(10):
        follow = new_follow(files)
        follow.partition.fill()
        follow.partition.append(b"seen")
        if is_seen:
            follow.look()
        for segment in follow.log.segments:
            # So that only its names tell.
            segment.close_descriptors()
        follow.partition.append(b"more")
        # The names are looked at, though there is no other log.
        (follow.partition.directory / "other").touch()
        tail = Tail(follow.log)
        files.begin(lambda: clean(follow.partition))  # noqa: B023
        told = follow.look()
        files.end()
        if not files.has_acted:
            continue
        told += follow.look()
        assert "truncated" not in told
        assert tail.values[-1] == b"new"
        is_all = tail.values[-3:] == [b"more", b"unseen", b"new"]
        is_taken = removed or first > 0
        assert is_all or (is_taken and "rolled swapping swapped appended" in " ".join(told))
        follow.check()


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("first", [0, 4])
def test_the_active_segment_is_cleaned_between_the_look_at_names_and_at_it(
    new_follow: NewFollow, first: int, removed: bool
) -> None:
    """It is not the file that was read any more: nothing is cut."""
    files = Counting()
    follow = new_follow(files)
    partition = follow.partition
    partition.fill()
    partition.append(b"seen")
    follow.look()
    partition.append(b"unseen")
    partition.roll()
    names = len(partition.bases)
    stats = 0

    def clean(path: str) -> None:
        nonlocal stats
        stats += path.endswith(".log")
        if stats == names:
            files.on_stat = lambda path: None
            partition.clean(5 - first, lambda offset, value: value.startswith(b"b"), first)
            if removed:
                partition.remove_deleted()

    files.on_stat = clean
    told = follow.look()
    assert stats == names
    assert "truncated" not in told
    assert told.count("appended") == 1
    follow.look()
    follow.check()


def test_a_directory_that_is_gone(follow: Follow) -> None:
    for path in follow.partition.directory.iterdir():
        path.unlink()
    follow.partition.directory.rmdir()
    assert follow.look() == []
    assert follow.follower.intact()


# -- anything ------------------------------------------------------------------------------------

_OPERATION = st.sampled_from(["append", "append", "roll", "delete", "clean", "cut", "remove"])


@given(st.lists(st.tuples(_OPERATION, st.integers(0, 7), st.booleans()), max_size=25))
def test_it_shows_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, bool]]
) -> None:
    follow = Follow(tmp_path_factory.mktemp("follow") / "data", empty=True)
    partition = follow.partition
    with contextlib.closing(follow.manager):
        for name, number, look in operations:
            if name == "append":
                partition.append(*[b"%d" % n for n in range(number + 1)])
            elif name == "roll" and partition.next_offset > partition.bases[-1]:
                partition.roll()
            elif name == "delete":
                partition.delete_head(min(number, len(partition.bases) - 1))
            elif name == "clean" and len(partition.bases) > 1:
                count = 1 + number % (len(partition.bases) - 1)
                partition.clean(count, lambda offset, value: offset % 3 == number % 3)  # noqa: B023
            elif name == "cut":
                starts = [*partition.batch_starts(), partition.next_offset]
                partition.truncate(starts[number % len(starts)])
                partition.log_start = min(partition.log_start, partition.next_offset)
            elif name == "remove":
                partition.remove_deleted()
            if look:
                follow.follower.look()
        follow.follower.look()
        follow.check()
