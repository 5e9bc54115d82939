"""Ready batches: duplicates and gaps, what is checked, what the settings make of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage import Appended, Log, LogListener, LogManager
from storage.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    RecordTooLarge,
)
from storage.index.txn_index import TxnEntry
from storage.log.append import append_as_follower, append_batches
from storage.log.validator import validated
from storage.record.control import COMMIT
from storage.record.header import pack, parse_header
from storage.record.plain import recompress
from storage.segment.reader import SegmentReader
from storage.segment.segment import MAX_OFFSET_SPAN, Segment
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, batch, opened, opened_log, values
from tests.storage.transactions import Client, Watcher, marker, new_log, produced, put


def test_a_duplicate_within_one_request(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        twice = produced([b"a"], 7, 0)
        assert put(log, twice, twice) == [Appended(0, 0, False), Appended(0, 0, True)]
        assert values(log) == [b"a"]


@pytest.mark.parametrize("repeated", [False, True])
def test_what_is_written_without_a_copy_leaves_duplicates_out_too(
    tmp_path: Path, repeated: bool
) -> None:
    with opened_log(tmp_path) as log:
        first, second = produced([b"a", b"b"], 7, 0), produced([b"c"], 7, 2)
        if repeated:
            put(log, first)
        data = bytearray(first + second)
        found = append_batches(
            log,
            data,
            now_ns=NOW_NS,
            checked=validated(bytes(data), log.config, NOW_MS),
            in_place=True,
        )
        assert found == [Appended(0, 1, repeated), Appended(2, 2, False)]
        assert values(log) == [b"a", b"b", b"c"]
        headers = [header for _, header in SegmentReader(log.active).batches()]
        assert [header.base_offset for header in headers] == [0, 2]


@pytest.mark.parametrize("sequence", [0, 2, 5])
def test_a_gap_appends_nothing_of_the_request(tmp_path: Path, sequence: int) -> None:
    with opened_log(tmp_path) as log:
        put(log, produced([b"a", b"b", b"c"], 7, 0))
        with pytest.raises(OutOfOrderSequence, match="producer 7: sequence"):
            put(log, produced([b"d"], 7, 3), produced([b"e"], 8, 0), produced([b"f"], 7, sequence))
        assert values(log) == [b"a", b"b", b"c"]
        assert log.producers.by_id.get(8) is None
        assert put(log, produced([b"d"], 7, 3)) == [Appended(3, 3, False)]


def test_epochs(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        put(log, produced([b"a"], 7, 40, epoch=3))  # an unknown producer may begin anywhere
        with pytest.raises(InvalidProducerEpoch, match="epoch 2 is fenced"):
            put(log, produced([b"b"], 7, 41, epoch=2))
        with pytest.raises(OutOfOrderSequence, match="but expected 0"):
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
    with opened_log(tmp_path) as log:
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
    with opened_log(tmp_path, files=disk) as log:
        producer = Client(log, 7)
        producer.send(b"a")
        for suffix in (".log", ".txnindex"):
            before = (log.log_end_offset, log.producers.by_id.get(7), log.last_stable_offset)
            disk.fail_next("pwrite", 28, suffix=suffix)
            with pytest.raises(OSError, match="No space"):
                producer.abort()
            assert (
                log.log_end_offset,
                log.producers.by_id.get(7),
                log.last_stable_offset,
            ) == before
            assert log.transactions.aborted() == []
            assert not log.transactions.is_aborted(7, 0)
        producer.abort()
        assert log.transactions.aborted() == [TxnEntry(7, 0, 1, 2)]


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("cut_fails", [False, True])
def test_what_was_refused_does_not_come_back(tmp_path: Path, suffix: str, cut_fails: bool) -> None:
    """The disk fails after two of three batches, each as long as the next append."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log = new_log(manager, index_interval_bytes=0)
    put(log, batch([b"1"]))
    size = log.size
    disk.fail_next("pwrite", errno.ENOSPC, suffix=suffix, partial=2 * size)
    if cut_fails:
        disk.fail_next("ftruncate", errno.EIO, suffix=".log")
    with pytest.raises(OSError, match="No space"):
        put(log, batch([b"x"]), batch([b"y"]), batch([b"z"]))
    if not cut_fails:
        assert os.stat(log.active.log_path).st_size == size
    put(log, batch([b"2"], NOW_MS + 1))
    disk.kill()
    with opened(tmp_path) as manager:
        assert manager.cuts == []
        assert values(manager.log("t", 0)) == [b"1", b"2"]


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
    with opened_log(tmp_path) as log:
        outcome = put(log, *given)
        assert [(each.base_offset, each.last_offset) for each in outcome] == [
            (0, 0),
            (1, 1),
            (2, 6),
            (7, 16),
            (17, 17),
        ]
        found = [header for _, header in SegmentReader(log.active).batches()]
        assert [header.codec for header in found] == [1, 4, 0, 0, 0]
        assert log.log_end_offset == 18
        assert [(r.offset, r.value) for r in log.records()] == [
            (0, b"gzip"),
            (1, b"zstd"),
            (7, b"s0"),
            (8, b"s1"),
            (17, b"plain"),
        ]
        five = log.producers.by_id.get(5)
        assert five is not None
        assert (five.last_sequence, five.last_offset) == (7, 6)


def test_older_formats_become_v2(tmp_path: Path) -> None:
    v0 = bytes.fromhex("000000000000000500000014a4cdab3a0000000000016b0000000568656c6c6f")
    v1 = bytes.fromhex(
        "00000000000000050000001caa1f677901000000018bcfe56800000000016b0000000568656c6c6f"
    )
    with opened_log(tmp_path) as log:
        put(log, v0, v1)
        assert [header.magic for _, header in SegmentReader(log.active).batches()] == [2, 2]
        assert [(r.offset, r.timestamp, r.value) for r in log.records()] == [
            (0, -1, b"hello"),
            (1, NOW_MS, b"hello"),
        ]


# -- what a view appends, by the topic's settings ------------------------------------------------


def test_compression_type(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        watcher = Watcher()
        manager.log_group.listeners.append(watcher)
        log = new_log(manager, compression_type="gzip")
        block = batch([b"x" * 100] * 50)
        log.append(block, now_ns=NOW_NS)
        log.append(bytearray(batch([b"a"]) + batch([b"b", b"c"])), now_ns=NOW_NS)
        headers = [header for _, header in SegmentReader(log.active).batches()]
        assert [header.codec for header in headers] == [1] * 3
        assert headers[0].size < len(block) // 4
        assert values(log) == [b"x" * 100] * 50 + [b"a", b"b", b"c"]
        assert len(watcher.events) == 2


def test_with_append_times_a_producer_is_known_by_those(tmp_path: Path) -> None:
    """Its own clock may be days late. Its retry is a duplicate."""
    with opened(tmp_path, clock_ms=lambda: NOW_MS) as manager:
        log = new_log(manager)
        manager.change_topic_settings("t", {"message.timestamp.type": "LogAppendTime"})
        once = bytes(produced([b"once"], 7, 0, timestamp_ms=NOW_MS - 90_000_000))
        append_batches(log, once, now_ns=NOW_NS)
        manager.sweep(NOW_MS + 1000)
        assert append_batches(log, once, now_ns=NOW_NS) == [Appended(0, 0, True)]
        assert values(log) == [b"once"]


def test_what_is_prepared_is_judged_and_not_yet_there(tmp_path: Path) -> None:
    """Batches that were made here, in two steps: the first one says all that content can do."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        put(log, produced([b"before"], 7, 0))
        files = {path: path.stat().st_size for path in Path(log.directory).glob("0*")}
        ready = log.assign(batch([b"one", b"two"]), now_ns=NOW_NS)
        manager.change_topic_settings(log.topic, {"max.message.bytes": "100"})
        with pytest.raises(RecordTooLarge):
            log.assign(batch([b"v" * 100]), now_ns=NOW_NS)
        with pytest.raises(InvalidTimestamp):
            log.assign(batch([b"ahead"], NOW_MS + 3_700_000), now_ns=NOW_NS)
        manager.change_topic_settings(log.topic, {"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecord):
            log.assign(batch([b"no key"]), now_ns=NOW_NS)
        assert values(log) == [b"before"]
        assert {path: path.stat().st_size for path in Path(log.directory).glob("0*")} == files
        assert log.append_assigned(ready, NOW_NS) == 1
        assert values(log) == [b"before", b"one", b"two"]
        assert log.log_end_offset == 3


@pytest.mark.parametrize("gap", [MAX_OFFSET_SPAN, MAX_OFFSET_SPAN + 1])
def test_offsets_far_behind_the_base_of_an_empty_segment(tmp_path: Path, gap: int) -> None:
    class AtTheEnd(LogListener[Log]):
        def rolled(self, log: Log, sealed: Segment, active: Segment) -> None:
            assert log.log_end_offset == active.base_offset

    with opened_log(tmp_path) as log:
        log.listeners.append(AtTheEnd())
        data = batch([b"1"])
        data[:8] = gap.to_bytes(8, "big")
        append_as_follower(log, data, NOW_NS)
        log.roll(NOW_MS)
        assert values(log) == [b"1"]
        assert log.log_end_offset == gap + 1
