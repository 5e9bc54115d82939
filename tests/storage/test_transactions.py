"""Producers and transactions in a log: what is refused, what is stable, what is shown."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from storage import LATEST, MAX_TIMESTAMP, Appended, Log, LogListener, LogManager, loading
from storage.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTxnState,
    OutOfOrderSequence,
    ReadOnlyLog,
    RecordTooLarge,
)
from storage.files import Files
from storage.index.txn_index import TxnEntry
from storage.producer_state import MAX_SEQUENCE, ProducerState
from storage.record.batch import pack, parse_header
from storage.record.control import ABORT, COMMIT
from storage.record.plain import recompress
from storage.segment import Segment
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, values
from tests.storage.transactions import Client, marker, produced


def new_log(manager: LogManager, **overrides: object) -> Log:
    topic = manager.create_topic("t", 1)
    for name, value in overrides.items():
        manager.set_topic_setting("t", name.replace("_", "."), str(value))
    return topic.partitions[0]


def put(log: Log, *batches: bytes | bytearray, **options: object) -> list[Appended]:
    return log.append_batches(b"".join(batches), now_ns=NOW_NS, **options)  # type: ignore[arg-type]


class Watcher(LogListener):
    """What a log told, and what was stable then."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def appended(
        self, log: Log, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        assert segment.read_at(position, len(data)) == bytes(data)
        self.events.append(("appended", log.last_stable_offset))

    def stabilized(self, log: Log) -> None:
        self.events.append(("stabilized", log.last_stable_offset))


# -- sequences -----------------------------------------------------------------------------------


def test_a_duplicate_is_acknowledged_and_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        batches = [produced([b"%d" % n, b"x"], 7, 2 * n) for n in range(7)]
        for n, each in enumerate(batches):
            assert put(log, each) == [Appended(2 * n, 2 * n + 1, False)]
        size = log.size
        for n in range(2, 7):
            assert put(log, batches[n]) == [Appended(2 * n, 2 * n + 1, True)]
        with pytest.raises(OutOfOrderSequence):
            put(log, batches[1])  # only five are remembered
        assert log.size == size
        assert put(log, batches[6], produced([b"new"], 7, 14)) == [
            Appended(12, 13, True),
            Appended(14, 14, False),
        ]
        assert values(log)[-2:] == [b"x", b"new"]


def test_a_duplicate_within_one_request(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        twice = produced([b"a"], 7, 0)
        assert put(log, twice, twice) == [Appended(0, 0, False), Appended(0, 0, True)]
        assert values(log) == [b"a"]


@pytest.mark.parametrize("sequence", [0, 2, 5])
def test_a_gap_appends_nothing_of_the_request(tmp_path: Path, sequence: int) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, produced([b"a", b"b", b"c"], 7, 0))
        with pytest.raises(OutOfOrderSequence, match="producer 7: sequence"):
            put(log, produced([b"d"], 7, 3), produced([b"e"], 8, 0), produced([b"f"], 7, sequence))
        assert values(log) == [b"a", b"b", b"c"]
        assert log.producers.get(8) is None
        assert put(log, produced([b"d"], 7, 3)) == [Appended(3, 3, False)]


def test_sequences_wrap(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        first = produced([b"a", b"b"], 7, MAX_SEQUENCE - 2)
        over = produced([b"c", b"d", b"e"], 7, MAX_SEQUENCE)
        put(log, first, over, produced([b"f"], 7, 2))
        assert put(log, over) == [Appended(2, 4, True)]
        with pytest.raises(OutOfOrderSequence, match="3 should follow"):
            put(log, produced([b"g"], 7, 4))


def test_epochs(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, produced([b"a"], 7, 40, epoch=3))  # an unknown producer may begin anywhere
        with pytest.raises(InvalidProducerEpoch, match="epoch 2 is over"):
            put(log, produced([b"b"], 7, 41, epoch=2))
        with pytest.raises(OutOfOrderSequence, match="0 should follow"):
            put(log, produced([b"b"], 7, 41, epoch=4))
        put(log, produced([b"b"], 7, 0, epoch=4))
        with pytest.raises(InvalidProducerEpoch):
            put(log, marker(7, COMMIT, epoch=3))
        put(log, marker(7, COMMIT, epoch=5))
        with pytest.raises(InvalidProducerEpoch):
            put(log, produced([b"c"], 7, 1, epoch=4))
        put(log, produced([b"c"], 7, 0, epoch=5))


def test_gaps_that_come_through_one_handle_are_let_through(tmp_path: Path) -> None:
    """As copying a log does from which a cleaner or retention has taken batches."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, produced([b"old"], 9, 0))
        mine: dict[int, int] = {}
        put(log, produced([b"a"], 7, 5), produced([b"b"], 7, 50), trusted=mine)
        put(log, marker(7, COMMIT), produced([b"c"], 7, 3, epoch=2), trusted=mine)
        with pytest.raises(OutOfOrderSequence):
            put(log, produced([b"d"], 7, 30, epoch=2))
        with pytest.raises(OutOfOrderSequence):
            put(log, produced([b"d"], 9, 3), trusted=mine)
        with pytest.raises(InvalidProducerEpoch):
            put(log, produced([b"d"], 7, 4), trusted=mine)
        put(log, produced([b"d"], 7, 4, epoch=2))
        with pytest.raises(OutOfOrderSequence):
            put(log, produced([b"e"], 7, 30, epoch=2), trusted=mine)  # the one before was not ours
        assert put(log, produced([b"d"], 7, 4, epoch=2), trusted=mine)[0].duplicate
        put(log, produced([b"e"], 7, 30, epoch=2), trusted=mine)
        before = dict(mine)
        with pytest.raises(OutOfOrderSequence):
            put(log, produced([b"f"], 7, 31, epoch=2), produced([b"g"], 9, 3), trusted=mine)
        assert mine == before


def test_a_refused_disk_changes_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, files=disk) as manager:
        log = new_log(manager)
        producer = Client(log, 7)
        producer.send(b"a")
        for suffix in (".log", ".txnindex"):
            before = (log.log_end_offset, log.producers.get(7), log.last_stable_offset)
            disk.fail_next("pwrite", 28, suffix=suffix)
            with pytest.raises(OSError, match="No space"):
                producer.abort()
            assert (log.log_end_offset, log.producers.get(7), log.last_stable_offset) == before
            assert log.aborted_transactions() == []
            assert not log.is_aborted(7, 0)
        producer.abort()
        assert log.aborted_transactions() == [TxnEntry(7, 0, 1, 2)]


# -- what is stable, what is shown ---------------------------------------------------------------


def test_an_open_transaction_holds_back_what_follows(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        append(log, b"before")
        stable = log.active.size
        producer = Client(log, 7)
        producer.send(b"a", b"b")
        append(log, b"after")
        assert (log.last_stable_offset, log.high_watermark, log.log_end_offset) == (1, 4, 4)
        assert log.active.stable_size == stable
        assert values(log) == [b"before"]
        everything = [b"before", b"a", b"b", b"after"]
        assert [r.value for r in log.records(isolation="read_uncommitted")] == everything
        assert list(log.records(2)) == []
        assert log.read(1, 1000) == b""
        assert len(log.read(0, 1000)) == stable
        assert len(log.read(0, 1000, isolation="read_uncommitted")) == log.active.size
        assert log.list_offsets(LATEST) == (-1, 1)
        assert log.list_offsets(LATEST, "read_uncommitted") == (-1, 4)
        producer.commit()
        assert (log.last_stable_offset, log.log_end_offset) == (5, 5)
        assert log.active.stable_size == log.active.size
        assert values(log) == everything
        assert log.aborted_transactions() == []


def test_times_are_looked_up_below_the_bound(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        append(log, b"0", timestamp_ms=NOW_MS)
        client = Client(log, 7)
        client.send(b"1", timestamp_ms=NOW_MS + 5)
        append(log, b"2", timestamp_ms=NOW_MS + 9)
        assert log.list_offsets(NOW_MS) == (NOW_MS, 0)
        assert log.list_offsets(NOW_MS + 1) == (-1, -1)
        assert log.list_offsets(NOW_MS + 1, "read_uncommitted") == (NOW_MS + 5, 1)
        assert log.offset_for_timestamp(NOW_MS + 6) is None
        assert log.offset_for_timestamp(NOW_MS + 6, "read_uncommitted") == (NOW_MS + 9, 2)
        client.commit()
        assert log.list_offsets(NOW_MS + 1) == (NOW_MS + 5, 1)
        assert log.list_offsets(MAX_TIMESTAMP) == (NOW_MS + 9, 2)


def test_aborted_records_are_hidden(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        first, second = Client(log, 7), Client(log, 8)
        first.send(b"a0")
        second.send(b"b0")
        first.send(b"a1", b"a2")
        append(log, b"plain")
        first.abort()
        assert log.last_stable_offset == 1
        second.commit()
        first.send(b"a3")
        first.commit()
        assert values(log) == [b"b0", b"plain", b"a3"]
        assert len(list(log.records(isolation="read_uncommitted"))) == 6
        assert log.aborted_transactions() == [TxnEntry(7, 0, 5, 1)]
        hidden = [offset for offset in range(10) if log.is_aborted(7, offset)]
        assert hidden == [0, 1, 2, 3, 4, 5]
        assert not any(log.is_aborted(8, offset) for offset in range(10))
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [b"b0", b"plain", b"a3"]
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert values(manager.log("t", 0)) == [b"b0", b"plain", b"a3"]


def test_aborted_records_stay_known_until_their_files_are_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        client = Client(log, 7)
        for _ in range(3):
            client.send(b"a")
            client.abort()
            log.roll(NOW_MS)
        assert log.is_aborted(7, 0)
        log.remove_head(2, NOW_MS)
        assert [log.is_aborted(7, offset) for offset in (0, 2, 4)] == [True] * 3
        assert len(log.aborted_transactions()) == 1
        for path in log.release_retired(1 << 62):
            os.unlink(path)
        log.remove_head(1, NOW_MS)
        assert [log.is_aborted(7, offset) for offset in (0, 2, 4)] == [False, False, True]


def test_listeners_hear_when_data_becomes_stable(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        watcher = Watcher()
        manager.listeners.append(watcher)
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


def test_a_transaction_over_several_segments(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        first, second = Client(log, 7), Client(log, 8)
        append(log, b"0")
        first.send(b"1")
        log.roll(NOW_MS)
        second.send(b"2")
        log.roll(NOW_MS)
        append(log, b"3")
        sizes = [(s.stable_size, s.size > s.stable_size) for s in log.segments]
        assert [size > 0 for size, _ in sizes] == [True, False, False]
        assert all(more for _, more in sizes)
        first.abort()
        assert [s.size == s.stable_size for s in log.segments] == [True, False, False]
        second.abort()
        assert [s.size == s.stable_size for s in log.segments] == [True, True, True]
        assert [s.aborted for s in log.segments] == [
            (),
            (),
            (TxnEntry(7, 1, 4, 2), TxnEntry(8, 2, 5, 6)),
        ]
        assert sorted(os.path.basename(p) for p in tmp_path.rglob("*.txnindex")) == [
            f"{3:020d}.txnindex"
        ]
        assert values(log) == [b"0", b"3"]
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [b"0", b"3"]


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_an_open_transaction_outlives_a_restart(tmp_path: Path, end: str) -> None:
    manager = LogManager.open(str(tmp_path))
    log = new_log(manager)
    Client(log, 7).send(b"a")
    log.roll(NOW_MS)
    Client(log, 7).log.append_batches(produced([b"b"], 7, 1, transactional=True), now_ns=NOW_NS)
    append(log, b"c")
    getattr(manager, end)()
    with opened(tmp_path, clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        assert log.last_stable_offset == 0
        assert [s.stable_size for s in log.segments] == [0, 0]
        assert put(log, produced([b"b"], 7, 1, transactional=True))[0].duplicate
        assert log.abort_transaction(7, NOW_NS) == 3
        assert values(log) == [b"c"]
        assert log.aborted_transactions() == [TxnEntry(7, 0, 3, 4)]


def test_what_may_not_be_done_to_a_transaction(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        with pytest.raises(InvalidTxnState, match="unknown"):
            log.abort_transaction(7, NOW_NS)
        producer = Client(log, 7)
        producer.send(b"a")
        with pytest.raises(InvalidTxnState, match="while one is open"):
            producer.send(b"b", transactional=False)
        put(log, marker(7, COMMIT, coordinator_epoch=3))
        with pytest.raises(InvalidTxnState, match="no transaction is open"):
            log.abort_transaction(7, NOW_NS)
        with pytest.raises(InvalidTxnState, match="coordinator epoch 2"):
            put(log, marker(7, ABORT, coordinator_epoch=2))
        producer.send(b"b")
        at = log.abort_transaction(7, NOW_NS)
        (header,) = [h for _, h in log.active.batches() if h.base_offset == at]
        assert (header.is_control, header.is_transactional, header.producer_epoch) == (
            True,
            True,
            0,
        )
        assert log.producers.by_id[7].coordinator_epoch == 3
        assert log.aborted_transactions() == [TxnEntry(7, 2, 3, 4)]
    with LogManager.open(str(tmp_path), read_only=True) as manager, pytest.raises(ReadOnlyLog):
        manager.log("t", 0).abort_transaction(7, NOW_NS)


def test_an_abort_that_ends_no_transaction_aborts_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, produced([b"a"], 7, 0), marker(7, ABORT), marker(8, COMMIT))
        assert values(log) == [b"a"]
        assert log.log_end_offset == 3
        assert log.aborted_transactions() == []


def test_the_head_of_an_open_transaction_may_be_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, file_delete_delay_ms=0)
        Client(log, 7).send(b"a")
        log.roll(NOW_MS)
        append(log, b"b")
        log.remove_head(1, NOW_MS)
        assert log.last_stable_offset == log.log_start_offset == 1
        assert values(log) == []
        log.abort_transaction(7, NOW_NS)
        assert values(log) == [b"b"]
        remove = manager.sweep(NOW_MS)
        assert remove is not None
        remove()


def test_expired_producers_are_forgotten_and_open_transactions_are_not(tmp_path: Path) -> None:
    with opened(tmp_path, clock_ms=lambda: NOW_MS) as manager:
        log = new_log(manager)
        put(log, produced([b"a"], 7, 0, timestamp_ms=NOW_MS - 10))
        Client(log, 8).send(b"b")
        day = manager.settings.broker.producer_id_expiration_ms
        manager.sweep(NOW_MS + day - 11)
        assert set(log.producers.by_id) == {7, 8}
        manager.sweep(NOW_MS + day)
        assert set(log.producers.by_id) == {8}
        put(log, produced([b"c"], 7, 99))
        log.abort_transaction(8, NOW_NS)
        assert values(log) == [b"a", b"c"]


def test_aborted_transactions_can_be_asked_for_from_any_thread(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, internal_segment_bytes=1000)
        producer = Client(log, 7)
        wrong: list[int] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                end = log.last_stable_offset
                wrong.extend(n for n in range(0, end, 2) if not log.is_aborted(7, n))

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


# -- batches from elsewhere ----------------------------------------------------------------------


def test_batches_of_any_kind_pass_and_get_new_offsets(tmp_path: Path) -> None:
    empty = pack(
        parse_header(produced([b"x"], 5, 3, epoch=1))._replace(
            last_offset_delta=4, records_count=0, base_timestamp=-1
        ),
        b"",
    )
    sparse = bytearray(produced([b"s0", b"s1"], 6, 0))
    header = parse_header(sparse)._replace(base_offset=1000, last_offset_delta=9)
    given = [
        recompress(batch([b"gzip"]), 1),
        recompress(batch([b"zstd"]), 4),
        empty,
        pack(header, sparse[61:]),
        bytes(batch([b"plain"])),
    ]
    with opened(tmp_path) as manager:
        log = new_log(manager)
        outcome = put(log, *given)
        assert [(each.base_offset, each.last_offset) for each in outcome] == [
            (0, 0),
            (1, 1),
            (2, 6),
            (7, 16),
            (17, 17),
        ]
        found = [header for _, header in log.active.batches()]
        assert [header.codec for header in found] == [1, 4, 0, 0, 0]
        assert log.log_end_offset == 18
        assert [(r.offset, r.value) for r in log.records()] == [
            (0, b"gzip"),
            (1, b"zstd"),
            (7, b"s0"),
            (8, b"s1"),
            (17, b"plain"),
        ]
        five = log.producers.get(5)
        assert five is not None
        assert (five.last_sequence, five.last_offset) == (7, 6)


def test_older_formats_become_v2(tmp_path: Path) -> None:
    v0 = bytes.fromhex("000000000000000500000014a4cdab3a0000000000016b0000000568656c6c6f")
    v1 = bytes.fromhex(
        "00000000000000050000001caa1f677901000000018bcfe56800000000016b0000000568656c6c6f"
    )
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, v0, v1)
        assert [header.magic for _, header in log.active.batches()] == [2, 2]
        assert [(r.offset, r.timestamp, r.value) for r in log.records()] == [
            (0, -1, b"hello"),
            (1, NOW_MS, b"hello"),
        ]


def flipped(data: bytes | bytearray, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


GOOD = bytes(batch([b"good"]))
HEAD = parse_header(GOOD)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (flipped(GOOD, 65), "CRC"),
        (flipped(GOOD, 16), "magic 3"),
        (GOOD[:-1], "cut off"),
        (GOOD[:30], "cut off"),
        (pack(HEAD._replace(records_count=2), GOOD[61:]), "record count 2"),
        (pack(HEAD._replace(last_offset_delta=-1), GOOD[61:]), "last offset delta"),
        (pack(HEAD._replace(attributes=5), GOOD[61:]), "codec"),
        (pack(HEAD._replace(attributes=1), GOOD[61:]), "gzip"),
        (pack(HEAD._replace(attributes=0x10), GOOD[61:]), "without a producer"),
        (pack(HEAD._replace(producer_id=4), GOOD[61:]), "without an epoch"),
        (pack(HEAD._replace(attributes=0x20), GOOD[61:]), "control batch without a type"),
        (
            pack(
                parse_header(batch([b"a", b"b"]))._replace(last_offset_delta=0),
                batch([b"a", b"b"])[61:],
            ),
            "outside of its batch",
        ),
        (
            pack(
                parse_header(batch([b"a", b"b"]))._replace(last_offset_delta=1),
                batch([b"a"])[61:] * 2,
            ),
            "do not rise",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason(tmp_path: Path, bad: bytes, reason: str) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        with pytest.raises(InvalidRecord, match=f"batch 2, at byte {len(GOOD)}: .*{reason}"):
            put(log, GOOD, bad)
        assert log.log_end_offset == 0
        put(log, GOOD)


def test_the_topic_s_settings_hold_for_ready_batches(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, max_message_bytes=300, compression_type="lz4")
        with pytest.raises(RecordTooLarge):
            put(log, GOOD, recompress(batch([os.urandom(400)]), 1))
        compressible = batch([b"x" * 1000])
        put(log, compressible, produced([b"a"], 7, 0, transactional=True), marker(7, COMMIT))
        assert [header.codec for _, header in log.active.batches()] == [3, 3, 0]
        manager.set_topic_setting("t", "compression.type", "uncompressed")
        put(log, recompress(GOOD, 2))
        assert [header.codec for _, header in log.active.batches()][-1] == 0
        manager.set_topic_setting("t", "cleanup.policy", "compact")
        with pytest.raises(InvalidRecord, match="without a key"):
            put(log, produced([b"a"], 7, 1), GOOD)
        with pytest.raises(InvalidRecord, match="without a key"):
            put(log, recompress(GOOD, 4))
        put(log, recompress(produced([b"a"], 7, 1), 4))


# -- what a view appends, by the topic's settings ------------------------------------------------


@pytest.mark.parametrize(("kind", "codec"), [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_compression_type(tmp_path: Path, kind: str, codec: int) -> None:
    with opened(tmp_path) as manager:
        watcher = Watcher()
        manager.listeners.append(watcher)
        log = new_log(manager, compression_type=kind, compression_gzip_level=9)
        block = batch([b"x" * 100] * 50)
        log.append(block, now_ns=NOW_NS)
        log.append(bytearray(batch([b"a"]) + batch([b"b", b"c"])), now_ns=NOW_NS)
        headers = [header for _, header in log.active.batches()]
        assert [header.codec for header in headers] == [codec] * 3
        assert headers[0].size < len(block) // 4
        assert values(log) == [b"x" * 100] * 50 + [b"a", b"b", b"c"]
        assert len(watcher.events) == 2


def test_log_append_time(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager, message_timestamp_type="LogAppendTime", compression_type="zstd")
        later = (NOW_MS + 5) * 1_000_000
        log.append(batch([b"a"], NOW_MS - 999), now_ns=later)
        log.append_batches(produced([b"b"], 7, 0, timestamp_ms=5), now_ns=later + 1_000_000)
        log.append_batches(marker(7, COMMIT), now_ns=later + 2_000_000)
        assert [(r.timestamp, r.timestamp_type) for r in log.records()] == [
            (NOW_MS + 5, 1),
            (NOW_MS + 6, 1),
        ]
        headers = [header for _, header in log.active.batches()]
        assert [header.attributes for header in headers] == [0xC, 0xC, 0x30]
        assert headers[1].base_timestamp == 5
        assert log.offset_for_timestamp(NOW_MS + 6) == (NOW_MS + 6, 1)


@pytest.mark.parametrize("ready", [False, True])
def test_limits_of_timestamps(tmp_path: Path, ready: bool) -> None:
    with opened(tmp_path) as manager:
        log = new_log(
            manager,
            message_timestamp_before_max_ms=1000,
            message_timestamp_after_max_ms=2000,
        )

        def add(*timestamps: int) -> None:
            block = bytearray(b"".join(batch([b"x"], time) for time in timestamps))
            if ready:
                log.append_batches(block, now_ns=NOW_NS)
            else:
                log.append(block, now_ns=NOW_NS)

        add(NOW_MS - 1000, NOW_MS + 2000, -1)
        for wrong in (NOW_MS - 1001, NOW_MS + 2001):
            with pytest.raises(InvalidTimestamp, match=str(wrong)):
                add(NOW_MS, wrong)
        assert log.log_end_offset == 3
        manager.set_topic_setting("t", "message.timestamp.type", "LogAppendTime")
        add(0, NOW_MS * 2)
        assert [record.timestamp for record in log.records(3)] == [NOW_MS] * 2


# -- snapshots and recovery ----------------------------------------------------------------------


class CountingFiles(Files):
    """Counts what recovery reads of logs in one piece."""

    def __init__(self) -> None:
        self.read = 0

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        self.read += count
        return count


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
    files = CountingFiles()
    manager = LogManager.open(str(tmp_path), files=files, clock_ms=lambda: NOW_MS)
    log = manager.log("t", 0)
    assert log.producers.by_id[7].last_sequence == 300
    assert 0 < files.read < 30_000, "of 3 MB the last flushed batch and what follows"
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
    expected = (dict(log.producers.by_id), log.aborted_transactions(), log.last_stable_offset)
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
        assert (state, log.aborted_transactions(), log.last_stable_offset) == (known, *expected[1:])
        if lost not in ("all indexes", "damaged") or not read_only:
            assert manager.check() == []
    if not read_only:
        bases = {f"{segment.base_offset:020d}" for segment in log.segments}
        for path, before in by_path.items():
            if path.stem in bases:
                assert path.read_bytes() == before


def test_what_a_cleaner_left_only_in_a_snapshot_counts(tmp_path: Path) -> None:
    """A snapshot knows of batches that are no longer in the log before it."""
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager)
    put(log, produced([b"a"], 7, 0))
    log.roll(NOW_MS)
    put(log, produced([b"b"], 8, 0))
    log.roll(NOW_MS)
    manager.close()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / "t-0" / f"{0:020d}.timeindex").write_bytes(b"")
    (tmp_path / "t-0" / f"{2:020d}.snapshot").unlink()
    with LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        assert set(log.producers.by_id) == {7, 8}
        assert put(log, produced([b"a"], 7, 0))[0].duplicate


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
        assert log.aborted_transactions() == [TxnEntry(7, 0, 1, 2)]
        assert log.last_stable_offset == 2
        assert snapshots(tmp_path) == []
        log.abort_transaction(7, NOW_NS)
        assert log.aborted_transactions() == [TxnEntry(7, 0, 1, 2), TxnEntry(7, 2, 3, 4)]
        assert manager.check() == []


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
    expected = (dict(log.producers.by_id), log.aborted_transactions(), log.last_stable_offset)
    manager.abandon()
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        path.unlink()
    for path in (tmp_path / "t-0").glob("*.txnindex"):
        path.unlink()
    monkeypatch.setattr(loading, "_MOST_REMEMBERED", 4)
    with LogManager.open(str(tmp_path), read_only=read_only, clock_ms=lambda: NOW_MS) as manager:
        log = manager.log("t", 0)
        found = (dict(log.producers.by_id), log.aborted_transactions(), log.last_stable_offset)
        assert found == expected
        assert len(expected[1]) == 10
