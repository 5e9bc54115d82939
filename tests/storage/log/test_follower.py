"""Batches from a leader are stored unchanged, and the log has the state of a broker's follower."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.errors import CorruptRecord, InvalidRecord
from storage.index.txn_index import TxnEntry
from storage.log.append import append_as_follower, holes, parse_as_follower
from storage.record.control import ABORT
from storage.record.header import CONTROL_BIT, HEADER_SIZE, pack, parse_header
from tests import oracle
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, opened_log, sizes_of, values
from tests.storage.transactions import Client, marker, new_log, produced, put

FAR = 1 << 31


def at(data: bytes | bytearray, offset: int, epoch: int = 0) -> bytes:
    """A batch as a leader stores it: no CRC covers these two."""
    return struct.pack(">q", offset) + data[8:12] + struct.pack(">i", epoch) + data[16:]


def emptied(data: bytes | bytearray) -> bytes:
    """The empty batch that a cleaner leaves if offsets or sequences still count."""
    header = parse_header(data)
    return pack(header._replace(records_count=0, base_timestamp=-1, batch_length=49), b"")


V0 = oracle.put_message(oracle.Message(1, b"k", b"v0"), 0)
V1 = oracle.put_message(oracle.Message(3, b"k", b"v1", NOW_MS), 1)
WRAPPER = oracle.put_wrapper(
    [oracle.Message(n, b"k", b"w%d" % n, NOW_MS + n) for n in range(3)], 1, 1, offset=6
)


def fetched(log: Log, max_bytes: int) -> Iterator[bytes]:
    """The whole batches that a leader sends, up to its log end."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes, isolation="read_uncommitted")
        size, last = 0, offset
        while len(data) - size >= HEADER_SIZE and parse_header(data, size).size <= len(data) - size:
            header = parse_header(data, size)
            size, last = size + header.size, header.last_offset
        yield data[:size]
        offset = last + 1


def stored(log: Log) -> bytes:
    return b"".join(Path(segment.log_path).read_bytes()[: segment.size] for segment in log.segments)


def facts(log: Log) -> tuple[object, ...]:
    """The state that a follower has in common with its leader."""
    # A leader keeps more than the last batch of a producer: only it has to find duplicates.
    producers = [each._replace(batches=each.batches[-1:]) for each in log.producers]
    return (
        *(log.log_end_offset, log.last_stable_offset, log.epochs.entries),
        *(log.transactions.aborted(), sorted(producers)),
    )


def judged_again(path: Path, judge: Callable[[Log], None]) -> None:
    """Judge the log after a clean stop, and after a kill that leaves nothing but batches."""
    with opened(path) as manager:
        judge(manager.log("t", 0))
    names = (paths.CLEAN_SHUTDOWN, paths.RECOVERY_POINTS, f"t-0/{paths.LEADER_EPOCH_CHECKPOINT}")
    for name in names:
        (path / name).unlink()
    for suffix in (*paths.INDEX_SUFFIXES, paths.SNAPSHOT):
        for file in path.glob(f"t-0/*{suffix}"):
            file.unlink()
    with opened(path) as manager:
        judge(manager.log("t", 0))


def led(manager: LogManager) -> Log:
    """A log with transactions, other producers and several segments."""
    log = new_log(manager, index_interval_bytes=100)
    one, two, plain = Client(log, 7), Client(log, 8, epoch=3), Client(log, 9)
    append(log, b"first")
    for number in range(4):
        one.send(b"a%d" % number, b"b")
        two.send(b"c%d" % number * 30)
        plain.send(b"d", transactional=False)
        one.abort() if number % 2 else one.commit()
        two.commit() if number % 2 else two.abort()
        log.roll(NOW_MS)
    two.send(b"left open")
    append(log, b"after it", timestamp_ms=NOW_MS + 1)
    one.send(b"aborted")
    one.abort()
    return log


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_a_follower_equals_its_leader(tmp_path: Path, max_bytes: int) -> None:
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    leader.mkdir()
    follower.mkdir()
    with opened(leader) as manager, opened(follower) as other:
        source, copy = led(manager), new_log(other, internal_segment_bytes=600)
        for data in fetched(source, max_bytes):
            append_as_follower(copy, memoryview(data), NOW_NS)
        assert len(copy.segments) > 1
        expected, data, seen = facts(source), stored(source), values(source)

        def judge(log: Log) -> None:
            assert stored(log) == data
            assert facts(log) == expected
            assert values(log) == seen

        judge(copy)
    judged_again(follower, judge)


def test_offsets_jump_and_epochs_begin(tmp_path: Path) -> None:
    """Some jumps are too far for one segment."""
    sent = [(3, 1), (4, 1), (9, 4), (FAR + 100, 4), (FAR + 101, 5), (3 * FAR, 9)]

    def judge(log: Log) -> None:
        assert [record.offset for record in log.records()] == [offset for offset, _ in sent]
        assert log.epochs.entries == [(1, 3), (4, 9), (5, FAR + 101), (9, 3 * FAR)]
        assert (log.log_start_offset, log.log_end_offset) == (0, 3 * FAR + 1)

    with opened_log(tmp_path) as log:
        data = b"".join(at(batch([b"x"]), *each) for each in sent)
        append_as_follower(log, data, NOW_NS)
        judge(log)
    judged_again(tmp_path, judge)


def test_holes_before_batches_and_between_them(tmp_path: Path) -> None:
    three = at(batch([b"x"] * 3), 9, 1)
    with opened_log(tmp_path) as log:
        data = at(batch([b"x"]), 3, 1) + at(batch([b"x"]), 4, 1) + three + at(batch([b"x"]), 12, 1)
        assert holes(parse_as_follower(log, data), 0) == [(0, 2), (5, 8)]
        assert holes(parse_as_follower(log, data), 3) == [(5, 8)]
        # The first batch begins below the log end of a log without records.
        assert holes(parse_as_follower(log, three), 10) == []
        # A wrapper has the offset of its last message.
        older = V0 + V1 + WRAPPER
        assert holes(parse_as_follower(log, older), 0) == [(0, 0), (2, 2)]


def test_batches_of_older_formats(tmp_path: Path) -> None:
    def judge(log: Log) -> None:
        assert stored(log) == data
        found = [(record.offset, record.value) for record in log.records()]
        assert found[:5] == [(1, b"v0"), (3, b"v1"), (4, b"w0"), (5, b"w1"), (6, b"w2")]
        assert log.epochs.entries == epochs

    with opened_log(tmp_path, index_interval_bytes=0) as log:
        data, epochs = V0 + V1 + WRAPPER, list[tuple[int, int]]()
        append_as_follower(log, data, NOW_NS)
        judge(log)
        data, epochs = data + at(batch([b"v2"]), 8, 5), [(5, 8)]
        append_as_follower(log, at(batch([b"v2"]), 8, 5), NOW_NS)
        judge(log)
    judged_again(tmp_path, judge)


def test_a_control_batch_without_its_marker_ends_nothing(tmp_path: Path) -> None:
    """A cleaner has left it of an earlier transaction. (`ProducerStateManager` skips it, too.)"""

    def judge(log: Log) -> None:
        assert log.last_stable_offset == stable
        assert [entry[:3] for entry in log.transactions.aborted()] == aborted
        assert log.producers.by_id[7].epoch == 0

    with opened_log(tmp_path) as log:
        ours = at(produced([b"open"], 7, transactional=True), 0)
        left = at(emptied(marker(7, ABORT, epoch=1)), 1)
        append_as_follower(log, ours + left, NOW_NS)
        stable, aborted = 0, list[tuple[int, ...]]()
        judge(log)
    judged_again(tmp_path, judge)
    with opened_log(tmp_path) as log:
        append_as_follower(log, at(marker(7, ABORT), 5), NOW_NS)
        stable, aborted = 6, [(7, 0, 5)]
        judge(log)
    judged_again(tmp_path, judge)


@pytest.mark.parametrize("follows", [False, True])
def test_a_marker_without_the_transactional_bit_ends_its_transaction(
    tmp_path: Path, follows: bool
) -> None:
    """As in a broker; before a restart as after it."""
    plain = bytes(marker(7, ABORT))
    header = parse_header(plain)
    plain = pack(header._replace(attributes=CONTROL_BIT), plain[HEADER_SIZE:])

    def judge(log: Log) -> None:
        assert log.transactions.aborted() == [TxnEntry(7, 0, 1, 2)]
        assert (log.last_stable_offset, values(log)) == (2, [])

    with opened(tmp_path) as manager:
        log = new_log(manager)
        for n, each in enumerate((bytes(produced([b"a"], transactional=True)), plain)):
            if follows:
                append_as_follower(log, at(each, n), NOW_NS)
            else:
                put(log, each)
        judge(log)
    judged_again(tmp_path, judge)


def test_an_empty_batch_keeps_the_sequence_of_its_producer(tmp_path: Path) -> None:
    def judge(log: Log) -> None:
        producer = log.producers.by_id[7]
        assert (producer.last_sequence, producer.last_offset) == (12, 22)
        assert values(log) == []

    with opened_log(tmp_path) as log:
        append_as_follower(log, at(emptied(produced([b"x"] * 3, 7, 10)), 20), NOW_NS)
        judge(log)
    judged_again(tmp_path, judge)


def test_an_append_fills_several_segments(tmp_path: Path) -> None:
    """The largest batch has one for itself."""
    with opened_log(tmp_path, internal_segment_bytes=200) as log:
        sent = [at(batch([b"x" * (300 if n == 3 else 10)]), n) for n in range(6)]
        append_as_follower(log, b"".join(sent), NOW_NS)
        assert [segment.base_offset for segment in log.segments] == [0, 2, 3, 4]
        assert stored(log) == b"".join(sent)


def broken(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


GOOD = at(batch([b"good"] * 3), 10)
NO_MARKER = pack(parse_header(marker(7, ABORT)), b"\x10\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOOD + broken(at(batch([b"x"]), 20)), "the CRC is wrong"),
        (GOOD + broken(oracle.put_message(oracle.Message(20, None, b"x"), 0)), "the CRC is wrong"),
        (GOOD + at(batch([b"x"]), 12), "base offset 12 is below 13"),
        (GOOD + at(batch([b"x"]), -1), "base offset -1 is below 13"),
        (GOOD + at(batch([b"x"]), 20)[:-1], "the batch is truncated"),
        (GOOD + b"?", "the batch is truncated"),
        (GOOD + at(batch([b"x"]), paths.MAX_OFFSET), "exceeds the largest offset"),
        (at(batch([b"x"]), 1), "base offset 1 is below 2"),
        (GOOD + at(NO_MARKER, 3 * FAR), "does not fit its batch"),
        (GOOD + at(batch([b"x"]), 20)[:16] + b"\3" + GOOD[17:], "unknown record format: magic 3"),
    ],
)
def test_what_is_not_whole_or_not_next_is_refused_as_a_whole(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"a", b"b")
        before = facts(log), sizes_of(log.active)
        with pytest.raises((InvalidRecord, CorruptRecord), match=reason):
            append_as_follower(log, data, NOW_NS)
        assert (facts(log), sizes_of(log.active)) == before
        append_as_follower(log, GOOD, NOW_NS)
        assert log.log_end_offset == 13
