"""Repacking: which batches are joined, and a log that has the same records afterwards."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from storage import Log, LogManager, Record, encode
from storage.compaction._join import Joiner
from storage.compaction.repack import PLAIN_BYTES, Repacked, due, repack, repack_all
from storage.errors import CorruptRecord, TaskCancelled
from storage.files import Files
from storage.log.append import append_batches
from storage.record import compression
from storage.record._plain import seal
from storage.record.batch import decode
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import (
    APPEND_TIME_BIT,
    FLAGS_POSITION,
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
)
from storage.record.plain import plain, recompress
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.history import read
from storage.task import Task
from tests.crash.failing_disk import FailingDisk
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, values

HEADERS = (("a", b"1"), ("b", None))

T = TypeVar("T")


def stored(segment: Segment) -> list[tuple[BatchHeader, bytes]]:
    reader = SegmentReader(segment)
    return [(header, reader.read(at, header.size)) for at, header in reader.batches()]


def records_of(log: Log) -> list[tuple[Record, int, int, int]]:
    """Each record that is stored, with its batch's epoch, producer and flags but the codec."""
    return [
        (record, header.leader_epoch, header.producer_id, header.attributes & ~7)
        for segment in log.segments
        for header, data in stored(segment)
        for record in decode(data)
    ]


def new_log(manager: LogManager, codec: str = "zstd", **settings: object) -> Log:
    manager.create_topic("t", 1)
    manager.change_topic_settings("t", {"kafkafs.repack": codec})
    for name, value in settings.items():
        manager.change_topic_settings("t", {name.replace("_", "."): str(value)})
    return manager.log("t", 0)


def line(number: int) -> bytes:
    return b"%d the same words in each line " % number * 3


def fill(log: Log, count: int = 50) -> None:
    for number in range(count):
        append(log, line(number), timestamp_ms=NOW_MS + number)
    log.roll(NOW_MS)


def repacked(log: Log) -> list[Repacked]:
    return repack_all(log, NOW_MS, Task())


@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip", "snappy"])
def test_lines_become_one_batch_of_the_codec(tmp_path: Path, codec: str) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, codec)
        fill(log)
        old = log.segments[0]
        os.utime(old.log_path, ns=(1, 1_600_000_000_000_000_000))
        old.is_dated = False
        old.date(0)
        before = records_of(log)
        (outcome,) = repacked(log)
        new = log.segments[0]
        ((header, _),) = stored(new)
        assert header.records_count == 50
        assert ("none", "gzip", "snappy", "lz4", "zstd")[header.codec] == codec
        assert records_of(log) == before
        assert outcome == (old.size, new.size)
        assert new.size < old.size / 3
        assert (new.base_offset, new.next_offset) == (old.base_offset, old.next_offset)
        assert new.largest_timestamp == old.largest_timestamp == NOW_MS + 49
        assert os.stat(new.log_path).st_mtime_ns == new.mtime_ns == 1_600_000_000_000_000_000
        assert repacked(log) == []
        assert log.segments[0] is new


def put(log: Log, *records: Record, codec: int = 0, epoch: int | None = None, **more: int) -> None:
    base = log.log_end_offset
    moved = [record._replace(offset=base + n) for n, record in enumerate(records)]
    data = recompress(encode(moved, leader_epoch=epoch or 0, **more), codec)
    append_batches(log, data, now_ns=NOW_NS)


def record(value: bytes | None = b"v" * 100, timestamp: int = NOW_MS, **more: object) -> Record:
    return Record(0, timestamp, 0, None, value, **more)  # type: ignore[arg-type]


def test_what_may_not_be_joined_is_copied_byte_for_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, record())
        put(log, record(None), record(headers=HEADERS), codec=4)
        put(log, record(timestamp=-1))
        put(log, record(), producer_id=7, producer_epoch=0, base_sequence=0)
        put(log, record(), producer_id=7, producer_epoch=0, base_sequence=1)
        tx = {"attributes": TRANSACTIONAL_BIT, "producer_id": 8, "producer_epoch": 0}
        put(log, record(), base_sequence=0, **tx)
        append_batches(log, encode_marker(COMMIT, 8, 0, 0, 0, NOW_MS, 0), now_ns=NOW_NS)
        put(log, record(), base_sequence=1, **tx)
        append_batches(log, encode_marker(ABORT, 8, 0, 0, 0, NOW_MS, 0), now_ns=NOW_NS)
        put(log, record(), producer_epoch=3)
        put(log, record(), base_sequence=3)
        put(log, record())
        put(log, record(), codec=1)
        log.roll(NOW_MS)
        before, old = records_of(log), stored(log.segments[0])
        shown, aborted = list(log.records()), log.segments[0].aborted
        assert len(aborted) == 1
        assert len(repacked(log)) == 1
        assert records_of(log) == before
        assert list(log.records()) == shown
        assert log.segments[0].aborted == aborted
        new = stored(log.segments[0])
        assert [header.records_count for header, _ in new] == [4, 1, 1, 1, 1, 1, 1, 1, 1, 2]
        assert [data for _, data in new[1:9]] == [data for _, data in old[3:11]]
        assert log.producers == log.producers


def test_epochs_and_append_times_are_kept_apart(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, message_timestamp_type="LogAppendTime")
        for at in (0, 0, 1, 1, 1):
            now = NOW_NS + at * 1_000_000
            log.append(bytearray(encode([record(), record(timestamp=5)])), now_ns=now)
        manager.change_topic_settings("t", {"message.timestamp.type": "CreateTime"})
        for _ in range(2):
            put(log, record())
        log.roll(NOW_MS)
        before = records_of(log)
        assert len(repacked(log)) == 1
        assert records_of(log) == before
        counts = [header.records_count for header, _ in stored(log.segments[0])]
        assert counts == [4, 6, 2]
        times = [header.attributes & APPEND_TIME_BIT for header, _ in stored(log.segments[0])]
        assert times == [8, 8, 0]


def test_a_batch_is_as_large_as_is_allowed(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for number in range(100):
            append(log, b"%d " % number * 4000, timestamp_ms=NOW_MS + number * 1000)
        append(log, b"x" * (PLAIN_BYTES + 1))
        append(log, b"x" * (PLAIN_BYTES + 1))
        log.roll(NOW_MS)
        before = records_of(log)
        assert len(repacked(log)) == 1
        assert records_of(log) == before
        sizes = [len(plain(data, 0, len(data))[0]) for _, data in stored(log.segments[0])]
        assert max(sizes[:-2]) <= PLAIN_BYTES < min(sizes[-2:])
        assert all(a + b > PLAIN_BYTES for a, b in itertools.pairwise(sizes))
        # There is nothing more to join.
        log.history.repacked_below = 0
        assert repacked(log) == []


def test_max_message_bytes_limits_a_batch_even_if_its_bytes_cannot_be_compressed(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, max_message_bytes=2000)
        for _ in range(20):
            append(log, os.urandom(300))
        log.roll(NOW_MS)
        before = records_of(log)
        assert len(repacked(log)) == 1
        assert records_of(log) == before
        assert all(500 < header.size <= 2000 for header, _ in stored(log.segments[0]))


@pytest.mark.parametrize("log_start", [0, 7])
def test_only_decided_sealed_segments_of_allowed_logs_are_due(
    tmp_path: Path, log_start: int
) -> None:
    """Also if the open transaction has begun below the log start."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        fill(log, 5)
        put(
            *(log, record()),
            attributes=TRANSACTIONAL_BIT,
            producer_id=8,
            producer_epoch=0,
            base_sequence=0,
        )
        log.roll(NOW_MS)
        fill(log, 5)
        if log_start:
            log.raise_log_start(log_start)
        assert due(log) == [log.segments[0]]
        append_batches(log, encode_marker(COMMIT, 8, 0, 0, 0, NOW_MS, 0), now_ns=NOW_NS)
        assert due(log) == list(log.segments[:3])
        for name, value in (
            ("kafkafs.repack", "off"),
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("cleanup.policy", "none"),
        ):
            manager.change_topic_settings("t", {"kafkafs.repack": "zstd", name: value})
            assert due(log) == []
            with pytest.raises(TaskCancelled):
                repack(log, log.segments[0], NOW_MS, Task())
            manager.change_topic_settings("t", {"cleanup.policy": "delete"})


def test_what_is_no_gain_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        append(log, os.urandom(300_000))
        append(log, os.urandom(300_000))
        log.roll(NOW_MS)
        old = log.segments
        assert repacked(log) == []
        assert log.segments == old
        assert due(log) == []


def test_without_room_the_segment_stays(tmp_path: Path) -> None:
    disk = FailingDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = new_log(manager)
        fill(log)
        log.flush()
        old, before = log.segments, values(log)
        disk.fail_from_now(errno.ENOSPC, 1)
        with pytest.raises(OSError, match="No space"):
            repacked(log)
        disk.fail_from_now(0, 0)
        assert (log.segments, values(log), log.cleaning) == (old, before, False)
        assert not [name for name in os.listdir(log.directory) if ".cleaned" in name]
        assert len(repacked(log)) == 1


class Small(Files):
    """A disk with little room."""

    free = 0

    def space(self, path: str) -> os.statvfs_result:
        found = list(super().space(path))
        found[4] = self.free // found[1]
        return os.statvfs_result(found)


def test_a_segment_without_room_does_not_stop_smaller_ones(tmp_path: Path) -> None:
    files = Small()
    with opened(tmp_path, files) as manager:
        log = new_log(manager)
        for count in (50, 10, 10):
            fill(log, count)
        append(log, b"active")
        before, large = records_of(log), log.segments[0]
        files.free = 2 * large.size - files.space(log.directory).f_frsize
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                repacked(log)
            assert log.counters.segments_repacked == 2
            assert due(log) == [large]
        log.save_history()
    with opened(tmp_path, files) as manager:
        log = manager.log("t", 0)
        assert due(log) == [log.segments[0]]
        files.free = 1 << 30
        assert len(repacked(log)) == 1
        assert due(log) == []
        assert records_of(log) == before
    with opened(tmp_path, files) as manager:
        assert due(manager.log("t", 0)) == []


def overwrite(segment: Segment, number: int, change: Callable[[bytearray], None]) -> bytes:
    """Change a batch of a segment in its file."""
    position, header = list(SegmentReader(segment).batches())[number]
    data = bytearray(SegmentReader(segment).read(position, header.size))
    change(data)
    with open(segment.log_path, "r+b") as file:
        file.seek(position)
        file.write(data)
    return bytes(data)


def three_segments(
    data: Path, files: Files | None = None, producer_epoch: int = -1
) -> tuple[LogManager, Log]:
    """Each has eight batches of three records."""
    manager = LogManager.open(str(data), files=files)
    log = new_log(manager)
    for _ in range(3):
        for number in range(8):
            put(log, *[record(line(number))] * 3, producer_epoch=producer_epoch)
        log.roll(NOW_MS)
    log.flush()
    return manager, log


def value(data: bytearray) -> None:
    data[HEADER_SIZE + 20] ^= 1


def base_offset(bit: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[7] ^= bit

    return change


@pytest.mark.parametrize("producer_epoch", [-1, 1], ids=["joined", "copied"])
@pytest.mark.parametrize(
    ("number", "change"),
    [(4, value), (5, base_offset(1)), (4, base_offset(4)), (4, base_offset(32))],
    ids=["CRC", "15 to 14", "12 to 8", "12 to 44"],
)
def test_a_damaged_segment_stays_and_the_others_are_repacked(
    tmp_path: Path, number: int, change: Callable[[bytearray], None], producer_epoch: int
) -> None:
    manager, log = three_segments(tmp_path, producer_epoch=producer_epoch)
    damaged = log.segments[0]
    overwrite(damaged, number, change)
    found = Path(damaged.log_path).read_bytes()
    assert len(repacked(log)) == (2 if producer_epoch < 0 else 0)
    assert log.segments[0] is damaged
    assert Path(damaged.log_path).read_bytes() == found
    assert damaged.damages
    assert due(log) == []
    manager.abandon()


def put_byte(position: int, byte: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] = byte
        seal(data)

    return change


# The first record: two bytes of length, attributes, timestamp delta, offset delta, key length.
@pytest.mark.parametrize(
    "change",
    [
        put_byte(HEADER_SIZE, 0),
        put_byte(HEADER_SIZE + 4, 6),
        put_byte(HEADER_SIZE + 4, 1),
        put_byte(HEADER_SIZE + 5, 3),
        put_byte(HEADER_SIZE + 6, 0xFE),
        put_byte(-1, 2),
        put_byte(FLAGS_POSITION, 4),
    ],
    ids=["length", "offset", "offset below 0", "key", "value", "headers", "codec"],
)
def test_a_batch_that_cannot_be_read_is_copied(
    tmp_path: Path, change: Callable[[bytearray], None], caplog: pytest.LogCaptureFixture
) -> None:
    manager, log = three_segments(tmp_path)
    first, fifth = (overwrite(log.segments[1], number, change) for number in (0, 4))
    old = [data for _, data in stored(log.segments[1])]
    assert len(repacked(log)) == 3
    headers, data = zip(*stored(log.segments[1]), strict=True)
    assert [header.records_count for header in headers] == [3, 9, 3, 9]
    assert (data[0], data[2]) == (first, fifth)
    for joined, batches in ((data[1], old[1:4]), (data[3], old[5:8])):
        assert decode(joined) == [each for batch in batches for each in decode(batch)]
    assert not log.segments[1].damages
    assert [text for _, _, text in caplog.record_tuples if "cannot be read" in text]
    assert len(caplog.records) == 1
    assert due(log) == []
    manager.abandon()


class Failing(Files):
    """A disk that returns wrong bytes, or an error, at the next read of a whole segment."""

    fault: int | None = None

    def preadv(self, fd: int, buffer: memoryview | bytearray, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        fault, self.fault = self.fault, None
        if fault:
            raise OSError(fault, os.strerror(fault))
        if fault is not None:
            buffer[count // 2] ^= 1
        return count


def test_a_segment_that_is_read_wrongly_once_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Failing()
    manager, log = three_segments(tmp_path, files)
    first, before = log.segments[0], records_of(log)
    files.fault = 0
    assert len(repacked(log)) == 2
    assert (log.segments[0], first.damages) == (first, ())
    assert records_of(log) == before
    assert [level for _, level, _ in caplog.record_tuples] == [logging.WARNING]
    assert due(log) == []
    manager.close()


def test_an_error_of_the_disk_stops_it(tmp_path: Path) -> None:
    files = Failing()
    manager, log = three_segments(tmp_path, files)
    old = log.segments
    files.fault = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        repacked(log)
    assert log.segments == old
    assert len(repacked(log)) == 3
    manager.close()


@pytest.mark.parametrize("at", ["repacking", "replacing"])
def test_a_setting_that_changes_meanwhile_stops_it(tmp_path: Path, at: str) -> None:
    class Changing(Task):
        def begin(self, phase: str, total: int) -> None:
            if phase == at:
                manager.change_topic_settings("t", {"kafkafs.repack": "off"})
            super().begin(phase, total)

    with opened(tmp_path) as manager:
        log = new_log(manager)
        fill(log)
        old = log.segments
        with pytest.raises(TaskCancelled):
            repack(log, old[0], NOW_MS, Changing())
        assert log.segments == old
        assert not [name for name in os.listdir(log.directory) if name.endswith(".swap")]


def joined(batches: Sequence[bytes], limit: int = 1 << 20) -> list[Record]:
    joiner = Joiner(limit)
    for batch in batches:
        assert joiner.add(plain(batch, 0, len(batch))[0])
    assert joiner.count == len(batches)
    return decode(joiner.take())


def test_joining_keeps_extreme_numbers() -> None:
    first = [Record(5, 1 << 62, 0, b"k", None), Record(9, -(1 << 62), 0, None, b"", HEADERS)]
    second = [
        Record(5 + (1 << 31) - 2, -1, 0, None, b"x" * 300),
        Record(4 + (1 << 31), 0, 0, b"", b""),
    ]
    assert joined([encode(first), encode(second)]) == first + second


def test_offsets_that_do_not_fit_one_batch_are_not_joined() -> None:
    joiner = Joiner(1 << 20)
    assert joiner.add(plain(data := encode([Record(5, 0, 0, None, b"")]), 0, len(data))[0])
    far = encode([Record(5 + (1 << 31), 0, 0, None, b"")])
    assert not joiner.add(plain(far, 0, len(far))[0])
    for offset in (4, 5):
        before = encode([Record(offset, 0, 0, None, b"")])
        assert not joiner.add(plain(before, 0, len(before))[0])
    assert decode(joiner.take()) == [Record(5, 0, 0, None, b"")]


def test_a_record_that_becomes_longer_than_the_limit_is_not_joined() -> None:
    batches = [encode([Record(offset, 0, 0, None, b"v")]) for offset in (0, 100)]
    size = sum(map(len, batches)) - HEADER_SIZE
    for more, fits in ((0, False), (1, True)):  # the offset delta takes two bytes, not one
        joiner = Joiner(size + more)
        assert joiner.add(plain(batches[0], 0, len(batches[0]))[0])
        assert joiner.add(plain(batches[1], 0, len(batches[1]))[0]) is fits


def test_a_malformed_record_changes_nothing() -> None:
    joiner = Joiner(1 << 20)
    good = encode([Record(0, 0, 0, None, b"good")])
    bad = bytearray(plain(data := encode([Record(1, 0, 0, None, b"bad")]), 0, len(data))[0])
    bad[61] = 126
    with pytest.raises(CorruptRecord):
        joiner.add(bad)
    assert joiner.count == 0
    joiner.add(plain(good, 0, len(good))[0])
    with pytest.raises(CorruptRecord):
        joiner.add(bad)
    assert joiner.take() == good


def test_damage_in_another_segment_leaves_this_one_due(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        log = new_log(manager, "zstd")
        fill(log)
        fill(log)
        first, other, _ = log.segments
        os.unlink(other.log_path)
        other.close_descriptors()
        with pytest.raises(CorruptRecord):
            repacked(log)
        assert due(log) == [first, other]


def test_a_batch_that_differs_after_its_compression_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a bit in memory changes before the first one is compressed."""

    def compress(codec: int, data: Buffer, level: int | None) -> bytes:
        monkeypatch.undo()
        changed = bytearray(data)
        changed[40] ^= 1
        return compression.compress(codec, changed, level)

    with opened(tmp_path) as manager:
        log = new_log(manager, max_message_bytes=1000)
        for _ in range(20):
            put(log, record())
        log.roll(NOW_MS)
        old, before = log.segments, records_of(log)
        monkeypatch.setattr("storage.record.plain.compress", compress)
        with pytest.raises(CorruptRecord, match="differs after"):
            repacked(log)
        assert log.segments == old
        assert len(repacked(log)) == 1
        assert records_of(log) == before


def test_a_truncation_forgets_the_segments_from_its_end_on(tmp_path: Path) -> None:
    """Other bytes may get their base offsets and sizes."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for _ in range(4):
            fill(log, 5)
        assert len(repacked(log)) == 4
        history = log.history
        history.note_repacked(log.segments[-2].base_offset, is_postponed=True)
        manager.truncate(log, 12)
        assert not history.is_repack_due(log.segments[0].base_offset)
        # It gets other records.
        assert history.is_repack_due(log.active.base_offset)
        assert history.is_repack_due(15)
        recorded = read(manager.files, log.directory)
        assert {base for base, _ in recorded.repacked} == {0, 5}
        assert recorded.unchanged_from > 15


def test_a_truncation_right_after_a_repack_leaves_later_records_due(tmp_path: Path) -> None:
    """Of several segments: a later one has been repacked when the truncation may begin."""

    def then_truncated(work: Callable[[], T]) -> T:
        result = work()
        if log.counters.segments_repacked == 2 and not log.cleaning and log.log_end_offset > 2:
            manager.truncate(log, 2)
        return result

    with opened(tmp_path) as manager:
        log = new_log(manager)
        fill(log, 5)
        fill(log, 50)
        fill(log, 5)
        with pytest.raises(TaskCancelled):
            repack_all(log, NOW_MS, Task(then_truncated))
        assert log.log_end_offset <= 2
        fill(log)
        fill(log)
        assert len(repacked(log)) == 2
