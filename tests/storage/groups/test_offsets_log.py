"""Reading a partition of positions, whole or in steps, finds what Kafka's rule for them gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.follow.follow_directory import DirectoryFollower
from storage.groups.offset_records import Committed, commit_key, group_of
from storage.groups.offsets_log import OffsetsLog
from storage.record.control import ABORT, COMMIT
from storage.task import Task
from tests.storage.groups.records import (
    Pair,
    end,
    position,
    positions,
    taken_back,
    write,
    write_in_transaction,
)
from tests.storage.logs import NOW_MS, append, opened, write_settings

OFFSETS = "__consumer_offsets"
LONG = "m" * 3000
# Two types of keys of the same committed offset.
COMMIT_TYPE, LEGACY_TYPE = b"\0\1", b"\0\0"


class Rule:
    """`OffsetMetadataManager.replay`, by the letter: what counts of the records so far."""

    def __init__(self) -> None:
        self.counts: dict[bytes, tuple[int, bytes]] = {}
        self.pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}

    def commit(self, offset: int, pair: Pair, producer: int | None) -> None:
        key, value = pair
        key = COMMIT_TYPE + key[2:]
        if value is None:
            self.counts.pop(key, None)
            for each in self.pending.values():
                each.pop(key, None)
        elif producer is None:
            self.counts[key] = offset, value
        else:
            self.pending.setdefault(producer, {})[key] = offset, value

    def end(self, producer: int, kind: int) -> None:
        for key, (offset, value) in self.pending.pop(producer, {}).items():
            known = self.counts.get(key)
            if kind == COMMIT and value is not None and (known is None or known[0] < offset):
                self.counts[key] = offset, value


class History:
    """Writes at random, to a log and to the rule."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.rule = Rule()
        self.random = random.Random(seed)
        self.sequences = dict.fromkeys(range(5, 8), 0)

    def pair(self) -> Pair:
        number = self.random.randrange(6)
        key, value = position("g", "orders", number, self.random.randrange(99), metadata=LONG)
        return self.random.choice((COMMIT_TYPE, LEGACY_TYPE)) + key[2:], value

    def step(self) -> None:
        offset = self.log.log_end_offset
        producer = self.random.choice(list(self.sequences))
        kind = self.random.randrange(8)
        if kind < 3:
            pair = self.pair()
            write(self.log, pair)
            self.rule.commit(offset, pair, None)
        elif kind == 3:
            pair = taken_back("g", "orders", self.random.randrange(6))
            write(self.log, pair)
            self.rule.commit(offset, pair, None)
        elif kind < 6:
            pairs = [self.pair() for _ in range(self.random.randint(1, 3))]
            write_in_transaction(self.log, producer, self.sequences[producer], *pairs)
            self.sequences[producer] += len(pairs)
            for number, pair in enumerate(pairs):
                self.rule.commit(offset + number, pair, producer)
        elif producer in self.rule.pending:
            marker = self.random.choice([COMMIT, ABORT])
            end(self.log, producer, marker)
            self.rule.end(producer, marker)
        elif self.random.random() < 0.2:
            self.log.roll(NOW_MS)


def found(read: OffsetsLog) -> dict[bytes, bytes]:
    read.read_on()
    assert read.is_read
    name = group_of(commit_key("g", "orders", 0))
    assert name is not None
    return dict(read.groups[name].newest) if name in read.groups else {}


@pytest.mark.parametrize("seed", range(3))
def test_whole_or_in_steps(tmp_path: Path, seed: int) -> None:
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    with opened(tmp_path) as manager:
        manager.groups.prepare()
        log = manager.log(OFFSETS, 0)
        history = History(log, seed)
        often, sometimes = OffsetsLog(log, 1), OffsetsLog(log, 1)
        # As much as is read many batches at a time.
        while log.size < 2_500_000:
            history.step()
            expected = {key: value for key, (_, value) in history.rule.counts.items()}
            if history.random.random() < 0.3:
                assert found(often) == expected
            if history.random.random() < 0.005:
                assert found(sometimes) == expected
        assert found(often) == found(sometimes) == found(OffsetsLog(log, 1)) == expected


def look_at_groups(manager: LogManager, follower: DirectoryFollower) -> None:
    for log in manager.groups.logs:
        follower.look(log)


def test_what_a_cleaner_takes_before_it_was_read_is_gone(tmp_path: Path) -> None:
    """Of a directory that another process writes, too."""
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    now_ms = NOW_MS
    with LogManager.open(str(tmp_path), clock_ms=lambda: now_ms) as manager:
        log = manager.create_topic("orders").partitions[0]
        append(log, b"x")
        for name in ("stays", "goes"):
            manager.groups.commit(name, "orders", {0: Committed(1)})
        with LogManager.open(str(tmp_path), read_only=True, clock_ms=lambda: now_ms) as other:
            follower = DirectoryFollower(other)
            assert other.groups.names() == manager.groups.names() == ["goes", "stays"]
            offsets = manager.log(OFFSETS, 0)
            # Written to the log directly: `manager.groups` has not read this tombstone.
            write(offsets, taken_back("goes", "orders", 0))
            offsets.roll(now_ms)
            for _ in range(3):
                LogCleaner(manager).clean_all(offsets, Task())
                now_ms += 2 * 86_400_000
            assert [each.key for each in offsets.records()] == [commit_key("stays", "orders", 0)]
            look_at_groups(other, follower)
            assert other.groups.names() == ["stays"]
            assert manager.groups.names() == ["stays"]


def test_a_directory_that_another_process_writes_is_followed(tmp_path: Path) -> None:
    write_settings(tmp_path, offsets_topic_num_partitions=2)
    with LogManager.open(str(tmp_path)) as manager:
        append(manager.create_topic("orders").partitions[0], b"x", b"y")
        with LogManager.open(str(tmp_path), read_only=True) as other:
            follower = DirectoryFollower(other)
            assert other.groups.names() == []
            manager.groups.commit("g", "orders", {0: Committed(1)})
            follower.look_for_partitions()
            look_at_groups(other, follower)
            assert positions(other, "g") == {("orders", 0): 1}
            manager.groups.commit("g", "orders", {0: Committed(2)})
            look_at_groups(other, follower)
            assert positions(other, "g") == {("orders", 0): 2}
            manager.groups.forget("g")
            look_at_groups(other, follower)
            assert other.groups.names() == []
