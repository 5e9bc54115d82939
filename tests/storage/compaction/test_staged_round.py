"""A round into staged files makes the very files that the log's own cleaner makes."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage import Log, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.staged_round import preview
from storage.errors import StorageError
from storage.files import Files
from storage.log.append import append_batches
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import TRANSACTIONAL_BIT
from storage.record.plain import recompress
from storage.segment.reader import SegmentReader
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from tests.storage.compaction.cleaned import Clock, compacted, contents, put, roll
from tests.storage.compaction.staging import clean_staged, planned, staged
from tests.storage.logs import opened
from tests.storage.old_logs import write_legacy

RETENTION_MS = 1000
KINDS = (".log", ".index", ".timeindex", ".txnindex")


class Writer:
    """Appends at random: keys of all kinds, tombstones, codecs, producers, transactions."""

    def __init__(self, seed: int, clock: Clock, keys: int) -> None:
        self.draw = random.Random(seed)
        self.clock = clock
        self.keys = keys
        self.sequences = dict.fromkeys(range(8), 0)
        self.open: set[int] = set()

    def pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        draw = self.draw
        return [
            (
                b"key %d" % draw.randrange(self.keys),
                None if draw.random() < 0.15 else b"x" * draw.randrange(30),
            )
            for _ in range(draw.randrange(1, 7))
        ]

    def write(self, log: Log) -> None:
        draw = self.draw
        what = draw.random()
        now_ms = self.clock.now_ms
        if what < 0.12:
            log.roll(now_ms)
            return
        if what < 0.3 and self.open:
            producer = draw.choice(sorted(self.open))
            self.open.discard(producer)
            kind = draw.choice((ABORT, COMMIT))
            batch = bytearray(encode_marker(kind, producer, 0, 0, 0, now_ms, 0))
        else:
            producer = draw.choice([-1, -1, *range(8)])
            transactional = producer >= 3
            if transactional:
                self.open.add(producer)
            pairs = self.pairs()
            records = [Record(n, now_ms + n, 0, k, v) for n, (k, v) in enumerate(pairs)]
            made = encode(
                records,
                attributes=TRANSACTIONAL_BIT if transactional else 0,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=self.sequences.get(producer, -1),
            )
            if producer >= 0:
                self.sequences[producer] += len(pairs)
            batch = bytearray(recompress(made, draw.choice((0, 0, 0, 1, 2, 3, 4))))
        append_batches(log, batch, now_ns=now_ms * 1_000_000)

    def end_all(self, log: Log) -> None:
        """End some of the open transactions, so that not all of the log waits for one."""
        for producer in sorted(self.open):
            if self.draw.random() < 0.8:
                kind = self.draw.choice((ABORT, COMMIT))
                marker = encode_marker(kind, producer, 0, 0, 0, self.clock.now_ms, 0)
                append_batches(log, bytearray(marker), now_ns=self.clock.now_ms * 1_000_000)
                self.open.discard(producer)


def files_of(log: Log) -> dict[str, bytes]:
    """Of the sealed segments, with their times."""
    found = {}
    for segment in log.segments[:-1]:
        for kind in KINDS:
            path = Path(segment.file_path(kind))
            if path.exists():
                found[path.name] = path.read_bytes()
        stat = Path(segment.log_path).stat()
        found[f"{segment.base_offset} is of"] = b"%d" % stat.st_mtime_ns
    return found


def facts_of(log: Log) -> list[tuple[object, ...]]:
    """What is known of the sealed segments while the log is open."""
    return [
        (
            segment.base_offset,
            segment.next_offset,
            segment.size,
            segment.stable_size,
            segment.first_timestamp,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            segment.mtime_ns,
            segment.aborted,
        )
        for segment in log.segments[:-1]
    ]


def checkpoint(data: Path) -> int | None:
    return read_offsets(Files(), str(data / "cleaner-offset-checkpoint")).get(("t", 0))


def small_map(keys: int) -> dict[str, Any]:
    """Settings with which an offset map holds this number of keys."""
    size = 1 << 20
    factor = (keys + 0.5) / (size // 24)
    return {
        "log_cleaner_dedupe_buffer_size": size,
        "log_cleaner_io_buffer_load_factor": f"{factor:.8f}",
    }


def compare(data: Path, clock: Clock) -> None:
    """Clean the log and a copy of it, either way, in as many rounds as the map needs."""
    copy = data.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)
    with opened(copy, clock_ms=clock) as manager:
        log = manager.log("t", 0)
        expected = LogCleaner(manager).clean_all(log, Task())
        if not expected:
            return  # a transaction that is open holds back all of it
        files, facts = files_of(log), facts_of(log)
        read = contents(log)
    with opened(data, clock_ms=clock) as manager:
        log = manager.log("t", 0)
        for each in expected:
            counted = preview(planned(manager, log), manager.files, Task())
            cleaned = clean_staged(manager, log)
            assert cleaned_facts(cleaned) == cleaned_facts(each)
            assert counted.bytes_after == cleaned.bytes_after
        assert files_of(log) == files
        assert facts_of(log) == facts
        assert contents(log) == read
        assert staged(os.listdir(log.directory)) == []
    assert checkpoint(data) == checkpoint(copy)


def cleaned_facts(cleaned: object) -> list[object]:
    return [getattr(cleaned, name) for name in cleaned.__slots__ if name != "elapsed_ms"]  # type: ignore[attr-defined]


LOGS = pytest.mark.parametrize(
    ("keys", "mapped", "segment_bytes"),
    [
        (3, None, 600),
        (3, 2, 1500),
        (30, None, 1500),
        (30, 8, 600),
        (300, None, 600),
        (300, 60, 1500),
    ],
)
"""The number of keys, how many of them a map holds, and the size of a segment."""


@LOGS
def test_random_logs(tmp_path: Path, keys: int, mapped: int | None, segment_bytes: int) -> None:
    """Cleaned several times, with all that a producer may do in between."""
    clean_at_random(tmp_path, keys, mapped, segment_bytes, turns=3, count=50)


@pytest.mark.soak
@LOGS
def test_long_random_logs(
    tmp_path: Path, keys: int, mapped: int | None, segment_bytes: int
) -> None:
    clean_at_random(tmp_path, keys, mapped, segment_bytes, turns=4, count=100)


def clean_at_random(
    tmp_path: Path, keys: int, mapped: int | None, segment_bytes: int, turns: int, count: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    clock = Clock()
    writer = Writer(keys, clock, keys)
    settings: dict[str, Any] = {"log_index_size_max_bytes": 240, "log_index_interval_bytes": 150}
    if mapped is not None:
        settings |= small_map(mapped)
    with compacted(data, clock=clock, **settings) as (manager, log):
        for name, value in (
            ("internal.segment.bytes", str(segment_bytes)),
            ("delete.retention.ms", str(RETENTION_MS)),
            ("file.delete.delay.ms", "0"),
        ):
            manager.change_topic_settings("t", {name: value})
    for turn in range(turns):
        with opened(data, clock_ms=clock) as manager:
            log = manager.log("t", 0)
            for _ in range(count):
                writer.write(log)
            writer.end_all(log)
            log.roll(clock.now_ms)
            put(log, (b"tail", b"%d" % turn))
        clock.now_ms += RETENTION_MS * (turn % 2) + 10
        compare(data, clock)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(tmp_path: Path, magic: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    clock = Clock()
    write_legacy(data, "t", magic, segments=4)
    with opened(data, clock_ms=clock) as manager:
        manager.change_topic_settings("t", {"cleanup.policy": "compact"})
        manager.change_topic_settings("t", {"delete.retention.ms": "5"})
        log = manager.log("t", 0)
        put(log, (b"k9", b"new"), (b"k0", None))
        roll(log)
    for _ in range(2):
        clock.now_ms += 10
        compare(data, clock)


def test_nothing_is_changed_where_it_is_only_counted(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
        roll(log)
        before = sorted(os.listdir(log.directory))
        counted = preview(planned(manager, log), manager.files, Task())
        assert sorted(os.listdir(log.directory)) == before
        assert (counted.records_read, counted.records_kept) == (3, 2)


@pytest.mark.parametrize("number", range(4))
def test_a_base_offset_that_is_damaged(tmp_path: Path, number: int) -> None:
    """No CRC covers it: nothing that was made of it is put in."""
    with compacted(tmp_path) as (manager, log):
        for each in range(2):
            put(log, (b"a", b"1"), (b"b", b"2"))
            put(log, (b"c%d" % each, b"1"), (b"b", b"2"))
            roll(log)
        places = [
            (segment, at)
            for segment in log.segments[:-1]
            for at, _ in SegmentReader(segment).batches()
        ]
        segment, at = places[number]
        path = Path(segment.log_path)
        stored = path.read_bytes()
        path.write_bytes(stored[:at] + (1 << 40).to_bytes(8, "big") + stored[at + 8 :])
        manager.checkpoint()
        segments, names = log.segments, sorted(os.listdir(log.directory))
        with pytest.raises(StorageError):
            LogCleaner(manager).clean(log, Task())
        with pytest.raises(StorageError):
            clean_staged(manager, log)
        assert log.segments is segments
        assert [name for name in sorted(os.listdir(log.directory)) if "staged" not in name] == names
        path.write_bytes(stored)
