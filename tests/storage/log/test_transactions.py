"""Transactions in a log: what is stable, what is shown."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import pytest

from storage import LogManager
from storage.errors import (
    CorruptRecord,
    InvalidTxnState,
    ReadOnlyLog,
)
from storage.index.txn_index import TxnEntry
from storage.log.append import abort_transaction
from storage.manager import EXPIRATION_CHECK_MS
from storage.record.control import ABORT, COMMIT
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.waiting import at_once
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, opened_log, remove_head, values
from tests.storage.transactions import Client, Watcher, marker, new_log, produced, put


def test_times_are_looked_up_below_the_bound(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"0", timestamp_ms=NOW_MS)
        client = Client(log, 7)
        client.send(b"1", timestamp_ms=NOW_MS + 5)
        append(log, b"2", timestamp_ms=NOW_MS + 9)
        assert log.reader.offset_for_timestamp(NOW_MS) == (NOW_MS, 0)
        assert log.reader.offset_for_timestamp(NOW_MS + 1) is None
        assert log.reader.offset_for_timestamp(NOW_MS + 1, "read_uncommitted") == (NOW_MS + 5, 1)
        assert log.reader.offset_for_timestamp(NOW_MS + 6) is None
        assert log.reader.offset_for_timestamp(NOW_MS + 6, "read_uncommitted") == (NOW_MS + 9, 2)
        client.commit()
        assert log.reader.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 5, 1)
        assert log.reader.offset_for_timestamp(NOW_MS + 9) == (NOW_MS + 9, 2)


def test_aborted_records_stay_known_until_their_files_are_gone(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        client = Client(log, 7)
        for _ in range(3):
            client.send(b"a")
            client.abort()
            log.roll(NOW_MS)
        assert log.transactions.is_aborted(7, 0)
        remove_head(log, 2, NOW_MS)
        assert [log.transactions.is_aborted(7, offset) for offset in (0, 2, 4)] == [True] * 3
        assert len(log.transactions.aborted()) == 1
        for path in log.release_retired(1 << 62):
            os.unlink(path)
        remove_head(log, 1, NOW_MS)
        assert [log.transactions.is_aborted(7, offset) for offset in (0, 2, 4)] == [
            False,
            False,
            True,
        ]


def test_listeners_hear_when_data_becomes_stable(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        watcher = Watcher()
        manager.log_group.listeners.append(watcher)
        log = new_log(manager)
        first, second = Client(log, 7), Client(log, 8)
        first.send(b"a")
        second.send(b"b")
        second.commit()
        append(log, b"plain")
        second.send(b"c")
        assert watcher.events == [("appended", 0)] * 5
        first.abort()
        assert watcher.events[5:] == [("appended", 4), ("stabilized", 4)]
        second.commit()
        assert watcher.events[7:] == [("appended", 7), ("stabilized", 7)]


def test_transactions_over_several_segments(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        first, second = Client(log, 7), Client(log, 8)
        append(log, b"0")
        first.send(b"1")
        log.roll(NOW_MS)
        second.send(b"2")
        log.roll(NOW_MS)
        append(log, b"3")
        assert [s.stable_size > 0 for s in log.segments] == [True, False, False]
        assert all(s.size > s.stable_size for s in log.segments)
        first.abort()
        assert [s.size == s.stable_size for s in log.segments] == [True, False, False]
        second.abort()
        assert all(s.size == s.stable_size for s in log.segments)


def test_no_segment_becomes_stable_before_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may measure their text at any moment."""
    with opened_log(tmp_path) as log:
        producer = Client(log, 7)
        for _ in range(3):
            producer.send(b"a")
            log.roll(NOW_MS)
        member = Segment.__dict__["stable_size"]
        stable: list[list[bool]] = []

        def become(segment: Segment, size: int) -> None:
            member.__set__(segment, size)
            stable.append([each.size == each.stable_size > 0 for each in log.segments[:3]])

        monkeypatch.setattr(Segment, "stable_size", property(member.__get__, become))
        producer.commit()
        assert stable[-1] == [True] * 3
        assert all(each == sorted(each, reverse=True) for each in stable), stable


def test_what_may_not_be_done_to_a_transaction(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        with pytest.raises(InvalidTxnState, match="unknown"):
            abort_transaction(log, 7, NOW_NS)
        producer = Client(log, 7)
        producer.send(b"a")
        with pytest.raises(InvalidTxnState, match="while a transaction is open"):
            producer.send(b"b", transactional=False)
        put(log, marker(7, COMMIT, coordinator_epoch=3))
        with pytest.raises(InvalidTxnState, match="no transaction is open"):
            abort_transaction(log, 7, NOW_NS)
        with pytest.raises(InvalidTxnState, match="coordinator epoch 2"):
            put(log, marker(7, ABORT, coordinator_epoch=2))
        producer.send(b"b")
        at = abort_transaction(log, 7, NOW_NS)
        (header,) = [h for _, h in SegmentReader(log.active).batches() if h.base_offset == at]
        assert (header.is_control, header.is_transactional, header.producer_epoch) == (
            True,
            True,
            0,
        )
        assert log.producers.by_id[7].coordinator_epoch == 3
        assert log.transactions.aborted() == [TxnEntry(7, 2, 3, 4)]
    with LogManager.open(str(tmp_path), read_only=True) as manager, pytest.raises(ReadOnlyLog):
        abort_transaction(manager.log("t", 0), 7, NOW_NS)


def test_expired_producers_are_forgotten_and_open_transactions_are_not(tmp_path: Path) -> None:
    now_ms = NOW_MS
    with opened(tmp_path, clock_ms=lambda: now_ms) as manager:
        log = new_log(manager)
        put(log, produced([b"a"], 7, 0, timestamp_ms=NOW_MS - 10))
        Client(log, 8).send(b"b")
        day = manager.settings.broker.producer_id_expiration_ms
        now_ms = NOW_MS + day - 11
        manager.sweep(now_ms)
        assert set(log.producers.by_id) == {7, 8}
        now_ms += EXPIRATION_CHECK_MS
        manager.sweep(now_ms)
        assert set(log.producers.by_id) == {8}
        put(log, produced([b"c"], 7, 99))
        abort_transaction(log, 8, NOW_NS)
        assert values(log) == [b"a", b"c"]


def test_aborted_transactions_can_be_asked_for_from_any_thread(tmp_path: Path) -> None:
    with opened_log(tmp_path, internal_segment_bytes=1000) as log:
        producer = Client(log, 7)
        wrong: list[int] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                end = log.last_stable_offset
                wrong.extend(n for n in range(0, end, 2) if not log.transactions.is_aborted(7, n))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            producer.send(b"a")
            producer.abort()
        over.set()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_aborted_transactions_before_what_recovery_reads_stay_known(tmp_path: Path) -> None:
    """It begins at an index entry; what is aborted before that only the transaction index says."""
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager, index_interval_bytes=150)
    producer = Client(log, 7)
    producer.send(b"first")
    producer.abort()
    for _ in range(5):
        append(log, b"x" * 100)
    last = producer.send(b"last").base_offset
    producer.abort()
    for _ in range(2):
        append(log, b"x" * 100)
    log.flush()
    manager.checkpoint()
    append(log, b"y")
    manager.abandon()
    with opened_log(tmp_path) as log:
        assert [entry.first_offset for entry in log.transactions.aborted()] == [0, last]
        assert values(log) == [b"x" * 100] * 7 + [b"y"]


def refuse_logs(disk: SimulatedDisk) -> None:
    """From now on, no log can be read."""
    for operation in ("pread", "preadv", "preadv_nowait"):
        disk.fail_next(operation, errno.EIO, suffix=".log", times=-1)


def with_two_open(data: Path, files: SimulatedDisk) -> AbstractContextManager[LogManager]:
    """Two transactions are open in the first of two segments, since before a restart."""
    with opened_log(data, files) as log:
        Client(log, 7).send(b"a")
        append(log, b"b")
        Client(log, 8).send(b"c")
        append(log, b"d")
        log.roll(NOW_MS)
        append(log, b"e")
    return opened(data, files)


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_for_which_the_log_cannot_be_read_is_not_written(
    tmp_path: Path, kind: int
) -> None:
    """The next stable offset is the start of the other transaction, which must be read first."""
    disk = SimulatedDisk(str(tmp_path))
    with with_two_open(tmp_path, disk) as manager:
        watcher = Watcher()
        manager.log_group.listeners.append(watcher)
        log = manager.log("t", 0)
        sizes = [(s.size, s.stable_size) for s in log.segments]
        refuse_logs(disk)
        with pytest.raises(OSError, match="Input/output"):
            put(log, marker(7, kind))
        disk.heal()
        assert (log.log_end_offset, log.last_stable_offset) == (5, 0)
        assert [(s.size, s.stable_size) for s in log.segments] == sizes
        assert log.transactions.aborted() == []
        assert watcher.events == []
        assert put(log, marker(7, kind))[0].base_offset == 5
        assert log.last_stable_offset == 2
        assert watcher.events == [("appended", 2), ("stabilized", 2)]
        put(log, marker(8, COMMIT))
        assert values(log) == [*([b"a"] if kind == COMMIT else []), b"b", b"c", b"d", b"e"]


def test_an_abort_that_cannot_be_written_aborts_nothing(tmp_path: Path) -> None:
    """The file of the active segment is deleted, and its descriptor closed."""
    manager = LogManager.open(str(tmp_path))
    log = new_log(manager)
    client = Client(log, 7)
    client.send(b"a")
    log.flush()
    log.active.close_descriptors()
    os.unlink(log.active.log_path)
    with pytest.raises(CorruptRecord, match="the file is missing"):
        client.abort()
    assert log.transactions.aborted() == []
    assert log.active.txn_index.entries == ()
    manager.abandon()


def test_a_log_start_moves_into_open_transactions_without_a_read(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with with_two_open(tmp_path, disk) as manager:
        log = manager.log("t", 0)
        refuse_logs(disk)
        log.raise_log_start(3)
        remove_head(log, 1, NOW_MS)
        for producer in (7, 8):
            put(log, marker(producer, COMMIT))
        disk.heal()
        assert values(log) == [b"e"]


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_batch_of_an_open_transaction_in_which_the_log_starts(tmp_path: Path, kind: int) -> None:
    with opened_log(tmp_path) as log:
        producer = Client(log, 7)
        producer.send(b"deleted", b"a")
        append(log, b"after")
        log.raise_log_start(1)

        def read() -> list[int]:
            return [header.base_offset for _, header in log.reader.batches(1, log.log_end_offset)]

        assert read() == []
        producer.end(kind)
        assert read() == ([2] if kind == ABORT else [0, 2])


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_damage_before_a_marker_ends_no_transaction_otherwise(
    tmp_path: Path, kind: int, read_only: bool
) -> None:
    """The segment is read from its start, as its index is missing."""
    with opened_log(tmp_path) as log:
        producer = Client(log, 7)
        producer.send(b"in it")
        log.roll(NOW_MS)
        append(log, b"damaged")
        producer.end(kind)
        log.roll(NOW_MS)
        append(log, b"after")
        path = Path(log.segments[1].log_path)
    path.with_suffix(".index").unlink()
    good = path.read_bytes()

    def first() -> list[bytes | None]:
        with LogManager.open(str(tmp_path), read_only=read_only) as manager:
            return [record.value for record in islice(manager.log("t", 0).records(), 1)]

    path.write_bytes(good[:70] + b"!" + good[71:])
    expected = [b"damaged"] if kind == ABORT else [b"in it"]
    if kind == ABORT:
        with pytest.raises(CorruptRecord):
            first()
    else:
        assert first() == expected
    path.write_bytes(good)
    assert first() == expected


def test_markers_where_the_whole_log_was_deleted_read_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with with_two_open(tmp_path, disk) as manager:
        log = manager.log("t", 0)
        log.roll(NOW_MS)
        remove_head(log, 2, NOW_MS)
        refuse_logs(disk)
        put(log, marker(7, COMMIT))
        append(log, b"f")
        assert log.last_stable_offset == 5
        put(log, marker(8, COMMIT))
        disk.heal()
        assert values(log) == [b"f"]


def test_a_request_does_not_wait_for_the_transaction_indexes(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        producer = Client(log, 7)
        producer.send(b"a")
        put(log, marker(7, ABORT))
        append(log, b"b")
    with opened_log(tmp_path) as log:
        for segment in log.segments:
            # As where a start had no need to read it.
            segment._txn_index = None
        with pytest.raises(BlockingIOError):
            at_once(log.transactions.is_aborted, 7, 0)
        assert log.transactions.is_aborted(7, 0)
        assert at_once(log.transactions.is_aborted, 7, 0)
