"""A broker's cleaner and ours make the same of the same log, round after round, byte by byte.

Before each of the broker's rounds its topics are copied.  In the copy, below what the broker has
written since the last round, our own result of that round takes the place of the broker's.

Kafka 4.3 keeps the last batch of a round without its records, where 4.4 and we keep only the last
one of the log (KAFKA-20452).  That batch alone may differ, so that each of our rounds begins with
the broker's result there.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import LogManager, Record
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.paths import CLEANER_OFFSETS, LOG_STARTS, RECOVERY_POINTS
from storage.record.batch import decode
from storage.record.header import BatchHeader, parse_header
from storage.state.checkpoint_file import read_offsets, write_offsets
from storage.task import Task
from storage.verify.verify import verify
from tests.interop.brokers import Broker
from tests.interop.cleaner_workload import (
    DEDUPE_BYTES,
    NOT_CLEANED_AT,
    ROUNDS,
    SCENARIOS,
    Writers,
)
from tests.interop.cleaner_workload import LOG_STARTS as STARTS
from tests.interop.clients import create_topics, set_topics
from tests.interop.kafka_tools import IS_4_3
from tests.interop.workload import CODECS
from tests.log_check import check
from tests.storage.logs import write_topic_settings
from tests.waits import until

pytestmark = pytest.mark.soak

topics = pytest.mark.parametrize("topic", [scenario.topic for scenario in SCENARIOS])

_BEGUN = re.compile(r"offset map for log (\S+)-0 for \d+ segments in offset range \[(\d+), (\d+)\)")
_CLEANED = re.compile(r"cleaned log (\S+)-0 \(dirty section = \[\d+, (\d+)\]\)")
_LEFT = re.compile(r"End size: .* \(([\d,]+) messages\)")


class Round(NamedTuple):
    """One round of a cleaner: the dirty range's start and end, how far it got, what is left."""

    first_dirty: int
    first_uncleanable: int
    end: int
    records_kept: int


class Batch(NamedTuple):
    """A batch: its bytes, or where they are compressed its header without size and checksum, and
    its records.
    """

    header: BatchHeader
    stored: bytes
    records: list[Record]


def batches(log: Path) -> Iterator[Batch]:
    data = log.read_bytes()
    for header, stored in headers(data):
        if header.codec:
            yield Batch(header._replace(batch_length=0, crc=0), b"", decode(stored))
        else:
            yield Batch(header, stored, [])


def headers(data: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    """The header and all bytes of each batch."""
    at = 0
    while at < len(data):
        header = parse_header(data, at)
        yield header, data[at : at + header.size]
        at += header.size


def segments(partition: Path, ends: Collection[int] = ()) -> dict[str, list[Batch]]:
    """The batches of each segment, by its file's name; without empty ones up to these offsets."""
    return {
        log.name: [
            batch
            for batch in batches(log)
            if batch.header.records_count or batch.header.last_offset + 1 not in ends
        ]
        for log in sorted(partition.glob("*.log"))
    }


def active(partition: Path) -> int:
    """The base offset of the active segment."""
    return max(int(log.stem) for log in partition.glob("*.log"))


def rounds_in(lines: list[str]) -> dict[str, list[Round]]:
    """The broker's rounds with each topic, from the lines of its log."""
    found: dict[str, list[Round]] = {scenario.topic: [] for scenario in SCENARIOS}
    bounds = (0, 0)
    topic, end = "", 0
    for line in lines:
        if match := _BEGUN.search(line):
            bounds = (int(match[2]), int(match[3]))
        elif match := _CLEANED.search(line):
            topic, end = match[1], int(match[2])
        elif (match := _LEFT.search(line)) and topic in found:
            found[topic].append(Round(*bounds, end, int(match[1].replace(",", ""))))
    return found


class Cleanings:
    """The broker's topics before and after each of its rounds, and what we made of them."""

    def __init__(self, broker: Broker, base: Path) -> None:
        self.base = base
        self.theirs: list[dict[str, list[Round]]] = []
        self.ours: list[dict[str, list[Round]]] = []
        self.faults: list[object] = []
        self._broker = broker.start()
        self._now_ms = 0
        create_topics(broker, {s.topic: s.settings_between for s in SCENARIOS})
        writers = Writers(broker)
        for turn in range(ROUNDS):
            for scenario in SCENARIOS:
                scenario.write(writers, scenario.topic, turn)
            starts = {topic: each[turn] for topic, each in STARTS.items()}
            until(lambda: starts.items() <= self._offsets(LOG_STARTS).items())  # noqa: B023
            self._copy(base / f"before-{turn}")
            self._let_clean(turn)
            self._copy(base / f"after-{turn}")
            self._clean_ours(turn)

    def _offsets(self, checkpoint: str) -> dict[str, int]:
        found = read_offsets(Files(), str(self._broker.data / checkpoint))
        return {topic: offset for (topic, _), offset in found.items()}

    def _copy(self, to: Path) -> None:
        """Copy the broker's files of the topics while nobody writes to them."""
        to.mkdir()
        for scenario in SCENARIOS:
            partition = self._broker.partition(scenario.topic)
            leave = shutil.ignore_patterns("*.deleted", "*.tmp")
            shutil.copytree(partition, to / partition.name, ignore=leave)
        for name in (CLEANER_OFFSETS, LOG_STARTS):
            shutil.copy(self._broker.data / name, to)

    def _let_clean(self, turn: int) -> None:
        """Have all topics cleaned, as far as they can be."""
        broker, mark = self._broker, len(self._broker.server.lines)
        ends = {
            s.topic: s.ends[turn] if s.ends else active(broker.partition(s.topic))
            for s in SCENARIOS
        }
        set_topics(broker, {s.topic: s.settings for s in SCENARIOS})
        until(lambda: self._offsets(CLEANER_OFFSETS) == ends)
        set_topics(broker, {s.topic: NOT_CLEANED_AT for s in SCENARIOS})
        self.theirs.append(rounds_in(broker.server.lines[mark:]))

    def _clean_ours(self, turn: int) -> None:
        """Clean in the copy, and in it what is our own from the round before, by our cleaner."""
        data = self.base / f"ours-{turn}"
        shutil.copytree(self.base / f"before-{turn}", data)
        if turn > 0 and not IS_4_3:
            for scenario in SCENARIOS:
                self._take_over(f"{scenario.topic}-0", turn)
        # The broker is still running: this is what it has flushed for sure.
        flushed = {(s.topic, 0): active(data / f"{s.topic}-0") for s in SCENARIOS}
        write_offsets(Files(), str(data / RECOVERY_POINTS), flushed)
        (data / "kafkafs.properties").write_text(
            f"log.cleaner.dedupe.buffer.size={DEDUPE_BYTES}\nlog.retention.ms=-1\n"
        )
        for scenario in SCENARIOS:
            write_topic_settings(data, scenario.topic, scenario.settings)
        done: dict[str, list[Round]] = {}
        # The broker has not crashed. With the marker, we do not rebuild its indexes.
        (data / ".kafka_cleanshutdown").touch()
        with LogManager.open(str(data), clock_ms=lambda: self._now_ms) as manager:
            assert (manager.faults, manager.cuts) == ([], [])
            cleaner = LogCleaner(manager)
            for scenario in SCENARIOS:
                log = manager.log(scenario.topic, 0)
                self._now_ms = self._time_of(turn, scenario.topic)
                done[scenario.topic] = []
                while cleaner.plan(log, self._now_ms).is_due(log.config):
                    bound = cleaner.plan(log, self._now_ms).first_uncleanable_offset
                    cleaned = cleaner.clean(log, Task())
                    assert cleaned is not None
                    done[scenario.topic].append(as_round(cleaned, bound))
            assert cleaner.uncleanable == {}
            self.faults += check(manager)
        self.faults += verify(str(data)).faults
        self.ours.append(done)

    def _take_over(self, partition: str, turn: int) -> None:
        """Our segments of the round before, up to what was active then, instead of theirs."""
        before, now = self.base / f"ours-{turn - 1}" / partition, self.base / f"ours-{turn}"
        bound = active(self.base / f"after-{turn - 1}" / partition)
        kinds = ("log", "index", "timeindex", "txnindex")
        for file in (now / partition).iterdir():
            if file.name.endswith(kinds) and int(file.stem) < bound:
                file.unlink()
        for file in before.iterdir():
            if file.name.endswith(kinds) and int(file.stem) < bound:
                shutil.copy2(file, now / partition)

    def _time_of(self, turn: int, topic: str) -> int:
        """When the broker has cleaned, by the delete horizons that it has set."""
        retention = next(s for s in SCENARIOS if s.topic == topic).settings["delete.retention.ms"]
        before, after = (
            {
                header.delete_horizon
                for log in (self.base / f"{name}-{turn}" / f"{topic}-0").glob("*.log")
                for header, _ in headers(log.read_bytes())
            }
            for name in ("before", "after")
        )
        new = sorted(horizon for horizon in after - before if horizon is not None)
        return new[-1] - int(str(retention)) if new else time.time_ns() // 1_000_000

    def partitions(self, topic: str) -> Iterator[tuple[Path, Path, set[int]]]:
        """After each round, the broker's directory and ours, and where only the broker may keep an
        empty batch.
        """
        for turn in range(ROUNDS):
            yield (
                self.base / f"after-{turn}" / f"{topic}-0",
                self.base / f"ours-{turn}" / f"{topic}-0",
                {each.first_uncleanable for each in self.theirs[turn][topic] if IS_4_3},
            )


def as_round(cleaned: Cleaned, bound: int) -> Round:
    return Round(cleaned.first_dirty_offset, bound, cleaned.end_offset, cleaned.records_kept)


@pytest.fixture(scope="module")
def cleanings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cleanings]:
    base = tmp_path_factory.mktemp("cleaned")
    broker = Broker(base / "broker", log_cleaner_dedupe_buffer_size=DEDUPE_BYTES)
    try:
        yield Cleanings(broker, base)
    finally:
        broker.kill()


def test_there_is_something_to_see(cleanings: Cleanings) -> None:
    """Each topic has what it is there for, after the broker's rounds."""

    def after(turn: int, topic: str) -> list[tuple[BatchHeader, bytes]]:
        logs = (cleanings.base / f"after-{turn}" / f"{topic}-0").glob("*.log")
        return [batch for log in sorted(logs) for batch in headers(log.read_bytes())]

    def tombstones(turn: int, topic: str) -> set[int]:
        """Those whose time is running."""
        return {
            record.offset
            for header, stored in after(turn, topic)
            if header.delete_horizon is not None and not header.is_control
            for record in decode(stored)
            if record.value is None
        }

    first, last = tombstones(0, "tombstones-expire"), tombstones(1, "tombstones-expire")
    assert first
    assert last
    assert not first & last
    assert tombstones(0, "tombstones-stay") & tombstones(2, "tombstones-stay")
    for topic in ("producers", "transactions-stay", "drawn-0"):
        assert any(not header.records_count for header, _ in after(0, topic)), topic
    markers = [
        {header.base_offset: header.delete_horizon for header, _ in found if header.is_control}
        for found in (after(turn, "transactions-expire") for turn in range(ROUNDS))
    ]
    assert any(horizon is not None for horizon in markers[1].values())
    assert markers[1].keys() - markers[2].keys()
    for codec in CODECS:
        found = {CODECS[header.codec] for header, _ in after(0, f"everything-{codec}")}
        assert codec in found
    assert any(header.timestamp_type == 1 for header, _ in after(2, "append-time"))
    assert len(segments(cleanings.base / "after-2" / "groups-0")) > 5
    assert len(cleanings.theirs[0]["many-keys"]) == 3


@topics
def test_batches(topic: str, cleanings: Cleanings) -> None:
    """All of them, header and records, and the segments that they are in."""
    for theirs, ours, ends in cleanings.partitions(topic):
        assert segments(ours, ends) == segments(theirs, ends)


@topics
def test_indexes(topic: str, cleanings: Cleanings) -> None:
    """Of all segments but the active one, which is allocated ahead."""
    for theirs, ours, ends in cleanings.partitions(topic):
        stored, compared = segments(theirs), segments(theirs, ends)
        for log in sorted(theirs.glob("*.log"))[:-1]:
            if stored[log.name] != compared[log.name]:
                continue
            compressed = any(batch.header.codec for batch in batches(log))
            # Where a compressor has made another size of it, index entries are elsewhere.
            for kind in (".txnindex",) if compressed else (".index", ".timeindex", ".txnindex"):
                file = log.with_suffix(kind)
                mine = ours / file.name
                assert mine.exists() == file.exists(), file
                assert not file.exists() or mine.read_bytes() == file.read_bytes(), file


@topics
def test_rounds(topic: str, cleanings: Cleanings) -> None:
    """As many of them, each with the same dirty range, until the map was full."""
    for turn in range(ROUNDS):
        assert cleanings.ours[turn][topic] == cleanings.theirs[turn][topic], turn


def test_checkpoint(cleanings: Cleanings) -> None:
    for turn in range(ROUNDS):
        theirs, ours = (
            read_offsets(Files(), str(cleanings.base / f"{name}-{turn}" / CLEANER_OFFSETS))
            for name in ("after", "ours")
        )
        assert ours == theirs


@topics
def test_times_of_modification(topic: str, cleanings: Cleanings) -> None:
    """A cleaned segment keeps that of the last one that it was made of."""
    for theirs, ours, _ in cleanings.partitions(topic):
        for log in sorted(theirs.glob("*.log"))[:-1]:
            found = (ours / log.name).stat().st_mtime_ns
            assert found // 1_000_000 == log.stat().st_mtime_ns // 1_000_000


def test_our_directory_is_whole(cleanings: Cleanings) -> None:
    assert cleanings.faults == []
