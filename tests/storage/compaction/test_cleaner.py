"""One round of cleaning over real directories: what stays, where, and in which files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.errors import InvalidRecord
from storage.log.append import append_batches
from storage.record.compression import CODECS
from storage.segment.reader import SegmentReader
from storage.settings.config import LONG_MAX
from storage.task import Task
from tests import oracle
from tests.storage.compaction.cleaned import Clock, clean, compacted, contents, put, roll
from tests.storage.logs import NOW_MS, NOW_NS, opened
from tests.storage.old_logs import messages, wrapper
from tests.storage.producers import Producer
from tests.storage.segmented import names

DAY_MS = 86_400_000
ZSTD = 4


def batches(log: Log) -> list[tuple[int, int, int, int]]:
    """(base offset, last offset, attributes, records) of all that is stored."""
    return [
        (header.base_offset, header.last_offset, header.attributes, header.records_count)
        for segment in log.segments
        for _, header in SegmentReader(segment).batches()
    ]


def test_the_latest_of_each_key_stays_in_its_place(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
        roll(log)
        put(log, (b"c", b"4"), (b"b", b"5"))
        roll(log)
        put(log, (b"a", b"6"))
        cleaned = clean(manager, log)
        # The active segment's record of `a` does not count yet.
        assert contents(log) == [
            (2, b"a", b"3"),
            (3, b"c", b"4"),
            (4, b"b", b"5"),
            (5, b"a", b"6"),
        ]
        assert (cleaned.first_dirty_offset, cleaned.end_offset) == (0, 5)
        assert (cleaned.records_read, cleaned.records_kept, cleaned.map_keys) == (5, 3, 3)
        assert (cleaned.segments_before, cleaned.segments_after) == (2, 1)
        assert [segment.base_offset for segment in log.segments] == [0, 5]
        assert log.segments[0].next_offset == 5
        assert names(log, ".cleaned") == names(log, ".swap") == []
    with compacted(tmp_path) as (manager, log):
        assert [record[0] for record in contents(log)] == [2, 3, 4, 5]
        assert LogCleaner(manager).first_dirty(log) == 5
        assert names(log, ".deleted") == []
        roll(log)
        clean(manager, log)
        assert [record[0] for record in contents(log)] == [3, 4, 5]


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_codecs_stay_and_untouched_batches_are_copied(tmp_path: Path, codec: int) -> None:
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", b"1" * 50), (b"b", b"2" * 50), codec=codec)
        put(log, (b"c", b"3" * 50), (b"d", b"4" * 50), codec=codec)
        put(log, (b"a", b"5" * 50), codec=codec)
        roll(log)
        stored = SegmentReader(log.segments[0]).read(0, log.segments[0].size)
        (_, _), (second, _), (third, _) = SegmentReader(log.segments[0]).batches()
        clean(manager, log)
        assert [record[0] for record in contents(log)] == [1, 2, 3, 4]
        assert {attributes & 7 for _, _, attributes, _ in batches(log)} == {codec}
        _, (second_now, _), _ = SegmentReader(log.segments[0]).batches()
        size = log.segments[0].size
        assert SegmentReader(log.segments[0]).read(second_now, size - second_now) == stored[second:]
        assert third > second


def test_a_round_that_changes_nothing_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", b"1"), (b"b", b"2"))
        roll(log)
        before = log.segments
        cleaned = clean(manager, log)
        assert cleaned.records_kept == 2
        assert log.segments is before
        assert names(log, ".deleted") == names(log, ".cleaned") == []
        assert LogCleaner(manager).first_dirty(log) == 2


def test_an_emptied_log_keeps_its_end(tmp_path: Path) -> None:
    """The last batch of the log stays without its records: the log's end is not lost by it."""
    clock = Clock()
    with compacted(tmp_path, clock=clock) as (manager, log):
        put(log, (b"a", None))
        put(log, (b"b", None))
        roll(log)
        clean(manager, log)
        clock.now_ms += DAY_MS
        clean(manager, log)
        assert contents(log) == []
        assert batches(log) == [(1, 1, 0, 0)]
        assert log.log_end_offset == 2
    with compacted(tmp_path) as (manager, log):
        assert log.log_end_offset == 2


def test_a_record_above_the_limit_stops_the_round(tmp_path: Path) -> None:
    """`max.decompressed.message.bytes` concerns compressed batches only."""
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", bytes(1000)))
        put(log, (b"b", b"1"), (b"b", bytes(500)), codec=ZSTD)
        roll(log)
        before, cleaner = log.segments, LogCleaner(manager)
        manager.change_topic_settings("t", {"max.decompressed.message.bytes": "507"})
        limit = "a record of 508 bytes exceeds max.decompressed.message.bytes=507"
        for work in (cleaner.clean, cleaner.preview):
            with pytest.raises(InvalidRecord, match=limit) as raised:
                work(log, Task())
            assert raised.value.path == log.segments[0].log_path
        assert limit in cleaner.uncleanable[log]
        assert log.segments is before
        manager.change_topic_settings("t", {"max.decompressed.message.bytes": "508"})
        clean(manager, log)
        assert [offset for offset, *_ in contents(log)] == [0, 2]


def test_transactions(tmp_path: Path) -> None:
    clock = Clock()
    with compacted(tmp_path, clock=clock) as (manager, log):
        good, bad = Producer(1, transactional=True), Producer(2, transactional=True)
        for batch in (
            good.batch(b"1"),
            bad.batch(b"2"),
            good.commit(),
            bad.abort(),
            good.batch(b"3"),
            good.commit(),
        ):
            append_batches(log, batch, now_ns=NOW_NS)
        roll(log)
        cleaned = clean(manager, log)
        assert cleaned.records_aborted == 1
        assert [record.value for record in log.records()] == [b"3"]
        # Of aborted data, only the header with its producer's last sequence is left.
        assert [batch[0] for batch in batches(log)] == [1, 2, 3, 4, 5]
        assert len(log.segments[0].aborted) == 1
        clean(manager, log)
        clock.now_ms += DAY_MS
        clean(manager, log)
        assert [record.value for record in log.records()] == [b"3"]
    with compacted(tmp_path) as (manager, log):
        assert [producer.producer_id for producer in log.producers] == [1, 2]
        assert log.producers.by_id.get(1).last_sequence == 1  # type: ignore[union-attr]
        assert log.producers.by_id.get(2).last_sequence == 0  # type: ignore[union-attr]


def test_times_and_sizes_of_what_is_written(tmp_path: Path) -> None:
    with compacted(tmp_path, log_index_interval_bytes=0) as (manager, log):
        for number in range(50):
            put(log, (b"%d" % (number % 25), b"x" * number), timestamp_ms=NOW_MS + number)
            if number % 10 == 9:
                roll(log, NOW_MS + number)
        mtime_ns = log.segments[4].mtime_ns
        clean(manager, log)
        (segment,) = log.segments[:1]
        assert os.stat(segment.log_path).st_mtime_ns == mtime_ns
        assert segment.max_timestamp == NOW_MS + 49
        # Indexes are those that recovery would build: the directory's check compares them.
        assert segment.offset_index.count > 20
        assert segment.time_index.last_entry == (NOW_MS + 49, 49)


@pytest.mark.parametrize("is_known", [False, True])
def test_cleaning_ends_before_damage(
    tmp_path: Path, is_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is not read again and again, and one line says why."""
    with compacted(tmp_path) as (_, log):
        for value in (b"1", b"2", b"333333333333", b"4"):
            put(log, (b"a", value), (b"a", value), (b"b" + value, value))
            roll(log)
        path = Path(log.segments[2].log_path)
    data = path.read_bytes()
    at = data.index(b"333")
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        segment = log.segments[2]
        path.write_bytes(data[:at] + b"4" + data[at + 1 :])
        if is_known:
            SegmentReader(segment).check_again(0, segment.size)
        cleaner = LogCleaner(manager)
        assert cleaner.filthiest(NOW_MS) is log
        cleaned = cleaner.clean(log, Task())
        assert cleaned is not None
        assert cleaned.end_offset == segment.base_offset
        assert path.read_bytes() == data[:at] + b"4" + data[at + 1 :]
        for _ in range(3):
            assert cleaner.filthiest(NOW_MS) is None
        assert segment in log.segments
        said = [line for line in caplog.messages if "compaction ends before" in line]
        assert len(said) == 1
        assert str(path) in said[0]
        assert cleaner.uncleanable.keys() == {log}
        path.write_bytes(data)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        cleaner = LogCleaner(manager)
        assert cleaner.filthiest(NOW_MS) is log
        assert cleaner.clean_all(log, Task())
        assert cleaner.uncleanable == {}
        assert [value for _, key, value in contents(log) if key == b"a"] == [b"4"]


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_batch_larger_than_what_is_read_at_a_time(tmp_path: Path, codec: int) -> None:
    with compacted(tmp_path, message_max_bytes=10 << 20) as (manager, log):
        large = os.urandom(3 << 20)
        put(log, (b"a", b"1"))
        put(log, (b"a", large), (b"b", large), codec=codec)
        put(log, (b"b", b"2"))
        roll(log)
        clean(manager, log)
        assert contents(log) == [(1, b"a", large), (3, b"b", b"2")]


def test_a_marker_gets_a_horizon_and_goes_a_round_later(tmp_path: Path) -> None:
    """A reader learns meanwhile that the transaction has ended (KIP-534)."""
    clock = Clock()
    with compacted(tmp_path, clock=clock) as (manager, log):
        producer, later = Producer(1, transactional=True), Producer(1, epoch=1)
        for batch in (producer.batch(b"1"), producer.abort(), later.batch(b"2")):
            append_batches(log, batch, now_ns=NOW_NS)
        roll(log)
        found = []
        over_ms = NOW_MS + DAY_MS
        for clock.now_ms in (NOW_MS, NOW_MS, over_ms - 1, over_ms):
            cleaned = clean(manager, log)
            markers = [
                header.delete_horizon
                for _, header in SegmentReader(log.segments[0]).batches()
                if header.is_control and header.records_count
            ]
            found.append((cleaned.markers, markers))
        assert found == [(0, [None]), (0, [over_ms]), (0, [over_ms]), (1, [])]


def test_each_message_of_the_old_formats_becomes_a_batch(tmp_path: Path) -> None:
    """Uncompressed ones; a set stays one batch."""
    found: list[oracle.Message] = [*messages(0, 20, 1), oracle.Message(20, b"k0", b"new", NOW_MS)]
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(
        b"".join(oracle.put_message(message, 1) for message in found)
        + wrapper(messages(21, 20, 1), 1, 1)
    )
    with compacted(tmp_path) as (manager, log):
        roll(log)
        clean(manager, log)
        kept = [message.offset for message in found[1:] if message.key is not None]
        *single, last = batches(log)
        assert [(base, end, count) for base, end, _, count in single] == [
            (offset, offset, 1) for offset in kept
        ]
        assert last[3] == 7


def test_the_longest_delete_retention_keeps_tombstones_for_ever(tmp_path: Path) -> None:
    with compacted(tmp_path, log_cleaner_delete_retention_ms=LONG_MAX) as (manager, log):
        put(log, (b"a", b"1"), (b"a", None))
        roll(log)
        for _ in range(2):
            clean(manager, log)
            assert contents(log) == [(1, b"a", None)]
        assert [record.timestamp for record in log.records()] == [NOW_MS]


class CountingTask(Task):
    """Notes how many descriptors the process has."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptors: list[int] = []

    def advance(self, size: int) -> None:
        super().advance(size)
        self.descriptors.append(len(os.listdir("/proc/self/fd")))


def test_many_segments_need_few_descriptors(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        for n in range(200):
            put(log, (b"a", b"%d" % n))
            roll(log)
        log.flush()
        for _ in range(2):
            manager.sweep(NOW_MS)  # closes what writing has opened
        task = CountingTask()
        assert clean(manager, log, task).segments_before == 200
        assert len(task.descriptors) == 400
        assert max(task.descriptors) - min(task.descriptors) < 100
