"""A restart learns producers and transactions from snapshots, and from the log after them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.errors import CorruptRecord
from storage.index.txn_index import TxnEntry
from storage.log.append import abort_transaction
from storage.record.control import ABORT, COMMIT
from storage.recovery import segment
from storage.state.producer_state import ProducerState
from tests.crash.disk import SimulatedDisk
from tests.log_check import check
from tests.storage.logs import NOW_MS, NOW_NS, CountedReads, opened, values
from tests.storage.transactions import Client, new_log, produced, put


def snapshots(data: Path) -> list[int]:
    return sorted(int(path.stem) for path in (data / "t-0").glob("*.snapshot"))


def test_a_checkpoint_takes_snapshots_of_what_has_grown(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        manager.checkpoint()
        assert snapshots(tmp_path) == [0]
        put(log, produced([b"a"], 7, 0))
        manager.checkpoint()
        manager.checkpoint()
        assert snapshots(tmp_path) == [0, 1]
        log.roll(NOW_MS)
        put(log, produced([b"b"], 7, 1))
        manager.checkpoint()
        assert snapshots(tmp_path) == [0, 1, 2]
        put(log, produced([b"c"], 7, 2))
        log.roll(NOW_MS)
        assert snapshots(tmp_path) == [0, 1, 3]
        state = ProducerState.decode(
            (tmp_path / "t-0" / f"{3:020d}.snapshot").read_bytes(), path="f"
        )
        assert state.by_id[7].last_sequence == 2


def test_recovery_reads_no_more_because_of_producers(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path))
    log = new_log(manager)
    for n in range(300):
        put(log, produced([b"x" * 10_000], 7, n))
    log.flush()
    manager.checkpoint()
    put(log, produced([b"last"], 7, 300))
    manager.abandon()
    files = CountedReads()
    manager = LogManager.open(str(tmp_path), files=files, clock_ms=lambda: NOW_MS)
    log = manager.log("t", 0)
    assert log.producers.by_id[7].last_sequence == 300
    assert 0 < files.log_bytes_read < 30_000, "of 3 MB the last flushed batch and what follows"
    manager.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["snapshots", "newest", "damaged", "txnindex", "all indexes"])
@pytest.mark.parametrize("read_only", [False, True])
def test_producers_and_transactions_are_made_again(
    tmp_path: Path, clean: bool, lost: str, read_only: bool
) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager, index_interval_bytes=100)
    first, second, third = (Client(log, n) for n in (7, 8, 9))
    third.send(b"open")
    for n in range(4):
        first.send(b"%d" % n)
        second.send(b"s%d" % n)
        first.end(ABORT if n % 2 else COMMIT)
        log.roll(NOW_MS)
        second.end(COMMIT if n % 2 else ABORT)
        if n == 2:
            manager.checkpoint()
    expected = (dict(log.producers.by_id), log.transactions.aborted(), log.last_stable_offset)
    # Of a producer's batches a restart knows the last one.
    known = {n: p._replace(batches=p.batches[-1:]) for n, p in expected[0].items()}
    by_path = {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.snapshot")}
    if clean:
        manager.close()
    else:
        manager.abandon()
    for path in sorted((tmp_path / "t-0").iterdir()):
        snapshot = path.suffix == ".snapshot"
        if (
            (lost == "snapshots" and snapshot)
            or (lost == "newest" and snapshot and path.stem >= f"{log.active.base_offset:020d}")
            or (lost == "txnindex" and path.suffix == ".txnindex" and not clean)
            or (lost == "all indexes" and path.suffix in (".index", ".txnindex"))
        ):
            path.unlink()
        elif lost == "damaged" and (snapshot or path.suffix == ".txnindex"):
            path.write_bytes(path.read_bytes()[:-1])
    with LogManager.open(str(tmp_path), read_only=read_only, clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        state = {n: p._replace(batches=p.batches[-1:]) for n, p in log.producers.by_id.items()}
        assert (state, log.transactions.aborted(), log.last_stable_offset) == (known, *expected[1:])
        if lost not in ("all indexes", "damaged") or not read_only:
            assert check(manager) == []
    if not read_only:
        bases = {f"{segment.base_offset:020d}" for segment in log.segments}
        for path, before in by_path.items():
            if path.stem in bases:
                assert path.read_bytes() == before


def two_segments(data: Path) -> Log:
    """A closed log with a batch of another producer in each of two sealed segments."""
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        log = new_log(manager)
        for producer, value in ((7, b"a"), (8, b"b")):
            put(log, produced([value], producer, 0))
            log.roll(NOW_MS)
    return log


def test_what_a_cleaner_left_only_in_a_snapshot_counts(tmp_path: Path) -> None:
    """A snapshot knows of batches that are no longer in the log before it."""
    two_segments(tmp_path)
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / "t-0" / f"{0:020d}.timeindex").write_bytes(b"")
    (tmp_path / "t-0" / f"{2:020d}.snapshot").unlink()
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        assert set(log.producers.by_id) == {7, 8}
        assert put(log, produced([b"a"], 7, 0))[0].duplicate


def test_what_only_the_snapshot_of_a_clean_stop_knows_counts_after_a_kill(tmp_path: Path) -> None:
    """It lies in the last segment, whose transactions are read from its first batch on."""
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager)
    first, second = Client(log, 7), Client(log, 8)
    first.send(b"a")
    first.abort()
    stopped = ProducerState([*log.producers, log.producers.by_id[7]._replace(producer_id=9)])
    (tmp_path / "t-0" / f"{2:020d}.snapshot").write_bytes(stopped.encode())
    second.send(b"b")
    second.abort()
    expected = log.transactions.aborted()
    manager.abandon()
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / "t-0" / f"{0:020d}.txnindex").write_bytes(b"")
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        assert set(log.producers.by_id) == {7, 8, 9}
        assert log.transactions.aborted() == expected


@pytest.mark.parametrize("sign", ["", "meta.properties", "cleaner-offset-checkpoint"])
def test_what_only_a_snapshot_knows_is_no_fault_where_a_cleaner_may_have_been(
    tmp_path: Path, sign: str
) -> None:
    """A broker keeps elsewhere which of its topics are compacted."""
    log = two_segments(tmp_path)
    state = ProducerState([*log.producers, log.producers.by_id[7]._replace(producer_id=9)])
    (tmp_path / "t-0" / f"{2:020d}.snapshot").write_bytes(state.encode())
    if sign:
        (tmp_path / sign).write_text("0\n1\nt 0 2\n" if sign.startswith("c") else "version=1\n")
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        assert set(manager.log("t", 0).producers.by_id) == {7, 8, 9}
        faults = check(manager)
        assert len(faults) == (0 if sign else 1), faults
        assert all("where the log says None" in fault for fault in faults)


def test_a_cut_log_forgets_what_was_cut(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager)
    producer = Client(log, 7)
    producer.send(b"a")
    producer.abort()
    producer.send(b"b")
    keep = log.active.size
    producer.abort()
    manager.checkpoint()
    path = Path(log.active.log_path)
    manager.abandon()
    assert snapshots(tmp_path) == [4]
    os.truncate(path, keep)
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        assert log.transactions.aborted() == [TxnEntry(7, 0, 1, 2)]
        assert log.last_stable_offset == 2
        assert snapshots(tmp_path) == []
        abort_transaction(log, 7, NOW_NS)
        assert log.transactions.aborted() == [TxnEntry(7, 0, 1, 2), TxnEntry(7, 2, 3, 4)]
        assert check(manager) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_more_producers_than_are_remembered_are_read_again(
    tmp_path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager, index_interval_bytes=100)
    clients = [Client(log, n) for n in range(10)]
    for round_number in range(3):
        for client in clients:
            client.send(b"x")
            if (client.producer_id + round_number) % 3 == 0:
                client.abort()
        log.roll(NOW_MS)
    expected = (dict(log.producers.by_id), log.transactions.aborted(), log.last_stable_offset)
    manager.abandon()
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    for path in (tmp_path / "t-0").glob("*.txnindex"):
        path.unlink()
    monkeypatch.setattr(segment, "_MOST_REMEMBERED", 4)
    with LogManager.open(str(tmp_path), read_only=read_only, clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        found = (dict(log.producers.by_id), log.transactions.aborted(), log.last_stable_offset)
        assert found == expected
        assert len(expected[1]) == 10


@pytest.mark.parametrize("seed", range(-8, 8))
def test_a_snapshot_of_what_a_power_cut_took_does_not_come_back(tmp_path: Path, seed: int) -> None:
    """By then the log has other records where it was taken."""
    with opened(tmp_path) as manager:
        new_log(manager)
    ahead = tmp_path / "t-0" / f"{2:020d}.snapshot"
    ahead.write_bytes(ProducerState().encode())
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    assert not ahead.exists()
    log = manager.log("t", 0)
    for sequence in range(3):
        put(log, produced([b"other"], 7, sequence))
    disk.materialise(seed)
    assert not ahead.exists()


@pytest.mark.parametrize("read_only", [True, False])
def test_damage_where_the_last_snapshot_was_taken(tmp_path: Path, read_only: bool) -> None:
    """Garbage after the records of a log that was closed, and a segment far after it."""
    with opened(tmp_path) as manager:
        put(new_log(manager), produced([b"a"], 7, 0))
    directory = tmp_path / "t-0"
    with open(directory / paths.file_name(0, paths.LOG), "ab") as file:
        file.write(bytes(range(100, 200)))
    (directory / paths.file_name(777, paths.LOG)).touch()
    with LogManager.open(str(tmp_path), read_only=read_only, clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        if not read_only:
            # The producer goes on where it was.
            put(log, produced([b"b"], 7, 1))
            assert values(log, 777) == [b"b"]
        reading = log.records(0)
        assert next(reading).value == b"a"
        with pytest.raises(CorruptRecord, match="offsets 1 to 776"):
            next(reading)
