"""Salvage takes back what is valid behind a hole, once, in order, with its offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from storage.index.txn_index import TxnEntry
from storage.log.append import append_batches
from storage.log.salvage import plan_salvage, salvage
from storage.record.plain import recompress
from storage.segment.cut import cut_files, purge
from storage.segment.reader import SegmentReader
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, opened_log, values
from tests.storage.recovery.test_partition import fill
from tests.storage.transactions import Client


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_what_is_behind_a_hole_comes_back(tmp_path: Path) -> None:
    lines = fill(tmp_path)
    damage(sorted((tmp_path / "t-0").glob("*.log"))[0], 140)  # inside of the second batch
    with opened_log(tmp_path) as log:
        assert values(log) == lines[:1]
        outcome = salvage(log, NOW_MS * 1_000_000)
        assert sum(salvaged.records for salvaged in outcome) == 10
        assert [(r.offset, r.value) for r in log.records()] == [
            (n, line) for n, line in enumerate(lines) if n != 1
        ]
        assert log.durability.recovery_point == log.log_end_offset == 12
        assert [salvaged.records for salvaged in salvage(log, 0)] == [0, 0, 0], "only once"
        assert cut_files(log.files, log.directory), "kept until it is purged"
    with opened_log(tmp_path) as log:
        assert len(values(log)) == 11
        assert purge(log.files, log.directory)
        assert cut_files(log.files, log.directory) == []
        assert purge(log.files, log.directory) == []


def test_offsets_that_were_given_out_since_are_not_given_twice(tmp_path: Path) -> None:
    lines = fill(tmp_path)
    damage(sorted((tmp_path / "t-0").glob("*.log"))[1], 140)  # offset 5 of 12
    with opened_log(tmp_path) as log:
        append(log, b"new 5")
        append(log, b"new 6")
        salvage(log, NOW_MS * 1_000_000)
        assert values(log) == [*lines[:5], b"new 5", b"new 6", *lines[7:]]


def test_what_is_taken_back_counts_for_producers_and_transactions(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = manager.create_topic("t", 1).partitions[0]
    first, second = Client(log, 7), Client(log, 8)
    append(log, b"lost")
    hole = log.active.size - 3
    first.send(b"a")
    append_batches(log, recompress(batch([b"gzip"]), 1), now_ns=NOW_NS)
    second.send(b"b")
    log.roll(NOW_MS)
    first.abort()
    second.send(b"c")
    manager.abandon()
    damage(tmp_path / "t-0" / f"{0:020d}.log", hole)
    with opened_log(tmp_path) as log:
        assert len(log.producers.by_id) == 0
        assert [salvaged.records for salvaged in salvage(log, NOW_NS)] == [3, 2]
        assert log.transactions.aborted() == [TxnEntry(7, 1, 4, 3)]
        assert log.last_stable_offset == 3
        assert values(log) == [b"gzip"]
        second.log = log
        second.send(b"d")
        second.commit()
        assert values(log) == [b"gzip", b"b", b"c", b"d"]
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [b"gzip", b"b", b"c", b"d"]


def test_leader_epochs_are_taken_back_too(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "t-0" / f"{8:020d}.log"
    data = bytearray(path.read_bytes())
    at = 0
    while at < len(data):
        data[at + 12 : at + 16] = (5).to_bytes(4, "big")
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    path.write_bytes(data)
    damage(tmp_path / "t-0" / f"{4:020d}.log", 140)  # offset 5
    with opened_log(tmp_path) as log:
        assert log.epochs.entries == [(0, 0)]
        salvage(log, NOW_NS)
        assert log.epochs.entries == [(0, 0), (5, 8)]
        append(log, b"next")
        assert [header.leader_epoch for _, header in SegmentReader(log.active).batches()][-1] == 5
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).epochs.entries == [(0, 0), (5, 8)]


def forged(first: int, last: int) -> bytes:
    """Batches as a user may put them into a value."""
    return b"".join(encode([Record(n, NOW_MS, 0, None, b"FORGED")]) for n in range(first, last + 1))


@pytest.mark.parametrize("at", [8, 10, 16, 70, 200])
@pytest.mark.parametrize("number", [1, 2])
def test_batches_in_a_value_are_not_taken(tmp_path: Path, number: int, at: int) -> None:
    """Some have offsets between the end of the truncated log and its old end."""
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for n in range(6):
            append(log, b"%d" % n + (b"y" * 500 + forged(1, 4) if n == number else b""))
        batches = list(SegmentReader(log.active).batches())
        kept = values(log)
        manager.abandon()
    damage(tmp_path / "t-0" / f"{0:020d}.log", batches[number][0] + at)
    with opened_log(tmp_path) as log:
        assert values(log) == kept[:number]
        (outcome,) = salvage(log, NOW_NS)
        assert values(log) == kept[:number] + kept[number + 1 :]
        assert len(outcome.left) == 1
        assert f"from position {batches[number][0]}: " in outcome.left[0]


def test_what_nothing_leads_to_is_left_and_said(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"0")
        append(log, b"1" + forged(1, 4))
        append(log, b"2")
        position = list(SegmentReader(log.active).batches())[1][0]
        size = log.active.size
        manager.abandon()
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[position : position + 100] = bytes(100)
    path.write_bytes(data)
    with opened_log(tmp_path) as log:
        (outcome,) = salvage(log, NOW_NS)
        assert values(log) == [b"0"]
        assert outcome.left == [
            f"{size - position} bytes from position {position}: "
            "batch length 0 is less than the header size, and no later batch was found"
        ]


@pytest.mark.parametrize("size", [1, 40])
def test_a_plan_says_what_will_be(tmp_path: Path, size: int) -> None:
    """Damage of the end of a batch and of the next one's header: only the index leads past it."""
    fill(tmp_path, count=24, per_segment=8)
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[140 : 140 + size] = bytes(size)
    path.write_bytes(data)
    before = {path: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    with LogManager.open(str(tmp_path), read_only=True, verify=True) as manager:
        planned = plan_salvage(manager.log("t", 0))
    assert {path: path.read_bytes() for path in (tmp_path / "t-0").iterdir()} == before
    with opened_log(tmp_path) as log:
        done = salvage(log, NOW_NS)
        assert done[0].records > 3
        assert [(one.batches, one.records, one.bytes, one.left) for one in planned] == [
            (one.batches, one.records, one.bytes, one.left) for one in done
        ]
        again = plan_salvage(log)
        assert [one.batches for one in again] == [0] * len(done)
        assert "offsets the log already has" in str(again[0])
