"""Apache Kafka's DumpLogSegments finds nothing wrong with what we wrote, rolled and recovered."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from storage import Log, LogManager, Record, encode
from storage.log.append import append_as_follower, append_batches
from storage.record.control import ABORT
from tests import oracle
from tests.interop.kafka_tools import Dumped, batches, complaints, dump_log_segments, records
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_MS, batch, opened
from tests.storage.producers import Producer
from tests.storage.transactions import marker, produced


def random_batch(rng: random.Random, now_ms: int) -> list[Record]:
    """Records with and without keys, values and headers; timestamps go back and forth."""

    def text(longest: int) -> bytes | None:
        length = rng.choice([0, 1, 10, longest])
        return None if rng.random() < 0.1 else "".join(rng.choices("aé€𝄞 :", k=length)).encode()

    return [
        Record(
            number,
            now_ms + rng.randrange(-50, 50),
            0,
            text(20),
            text(600),
            tuple((f"h{n}", text(5)) for n in range(rng.randrange(3))),
        )
        for number in range(rng.randrange(1, 15))
    ]


def expected(offset: int, record: Record) -> Dumped:
    return Dumped(
        offset,
        record.timestamp,
        None if record.key is None else record.key.decode(),
        None if record.value is None else record.value.decode(),
        tuple(name for name, _ in record.headers),
    )


def append(log: Log, batch: list[Record]) -> list[Dumped]:
    """Append one batch; returns what DumpLogSegments must say of it."""
    first = log.append(bytearray(encode(batch)), now_ns=batch[-1].timestamp * 1_000_000)
    return [expected(first + number, record) for number, record in enumerate(batch)]


def fill(manager: LogManager, seed: int, count: int, **settings: object) -> list[Dumped]:
    """A topic ``t`` of random batches, rolled now and then."""
    log = manager.create_topic("t", 1).partitions[0]
    for name, value in settings.items():
        manager.change_topic_settings("t", {name.replace("_", "."): str(value)})
    rng = random.Random(seed)
    written: list[Dumped] = []
    for number in range(count):
        written += append(log, random_batch(rng, NOW_MS + 10 * number))
        if rng.random() < 4 / count:
            log.roll(NOW_MS + 10 * number)
    return written


def files(partition: Path, suffix: str) -> list[Path]:
    return sorted(partition.glob(f"*{suffix}"))


def judge(partition: Path) -> list[Dumped]:
    """Dump a closed partition, and check its indexes; returns the records that were printed."""
    logs = files(partition, ".log")
    offset_indexes, time_indexes = files(partition, ".index"), files(partition, ".timeindex")
    assert len(offset_indexes) == len(time_indexes) == len(logs)
    indexes = [*offset_indexes, *time_indexes]

    everything = [*logs, *indexes, *files(partition, ".snapshot")]
    printed, errors = dump_log_segments(everything, "--deep-iteration", "--print-data-log")
    assert complaints(errors) == []
    assert "invalid bytes" not in printed
    found = list(records(printed))
    assert sum(count for _, _, count in batches(printed)) == len(found)
    # The dump of an index stops at a zero entry; the counts say that it looked at all of them.
    lines = printed.splitlines()
    assert sum(line.startswith("offset: ") for line in lines) == entries(offset_indexes, 8)
    assert sum(line.startswith("timestamp: ") for line in lines) == entries(time_indexes, 12)

    checked, errors = dump_log_segments(indexes, "--index-sanity-check")
    assert complaints(errors) == []
    passed = re.findall(r"(\S+)(?: passed sanity check| is empty)\.", checked)
    assert sorted(passed) == sorted(map(str, indexes))
    return found


def entries(indexes: list[Path], size: int) -> int:
    sizes = [index.stat().st_size for index in indexes]
    assert all(bytes_ % size == 0 for bytes_ in sizes)
    return sum(sizes) // size


@pytest.mark.parametrize(
    ("interval", "codec"),
    [(0, "uncompressed"), (500, "lz4"), (4096, "snappy"), (100, "gzip"), (200, "zstd")],
)
def test_written_and_rolled(tmp_path: Path, interval: int, codec: str) -> None:
    with opened(tmp_path) as manager:
        written = fill(manager, 7, 100, index_interval_bytes=interval, compression_type=codec)
        assert len(manager.log("t", 0).segments) > 1
    assert judge(tmp_path / "t-0") == written


def test_as_a_leader_has_sent_them(tmp_path: Path) -> None:
    """Batches of every format, with the offsets that they have."""
    old = [
        oracle.put_message(oracle.Message(0, b"k", b"v0"), 0),
        oracle.put_message(oracle.Message(1, b"k", b"v1", NOW_MS), 1),
        oracle.put_wrapper(
            [oracle.Message(n, b"k", b"w", NOW_MS + n) for n in range(3)], 1, 1, offset=4
        ),
    ]
    ours = at(produced([b"one", b"two"], 7, transactional=True), 5)
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"index.interval.bytes": "0"})
        append_as_follower(log, b"".join(old) + ours, NOW_MS * 1_000_000)
        log.roll(NOW_MS)
        append_as_follower(log, at(marker(7, ABORT), 7) + at(batch([b"x"]), 8), NOW_MS * 1_000_000)
    partition = tmp_path / "t-0"
    every = [
        file for suffix in (".log", ".index", ".timeindex") for file in files(partition, suffix)
    ]
    printed, errors = dump_log_segments(every, "--deep-iteration", "--print-data-log")
    assert complaints(errors) == []
    assert re.findall(r"^\| offset: (\d+)", printed, re.MULTILINE) == list("012345678")


def test_while_it_grows(tmp_path: Path) -> None:
    """Indexes of an active segment are pre-sized; a dump stops at the first zero entry."""
    with opened(tmp_path) as manager:
        written = fill(manager, 2, 100, index_interval_bytes=500)
        partition = tmp_path / "t-0"
        printed, errors = dump_log_segments(files(partition, ".log"), "--print-data-log")
        assert complaints(errors) == []
        assert list(records(printed)) == written
        listed, errors = dump_log_segments(
            [*files(partition, ".index"), *files(partition, ".timeindex")]
        )
        assert complaints(errors) == []
        assert listed.count("position: ") > 20


def kill(data: Path, seed: int, **settings: object) -> list[Dumped]:
    """Write and die: nothing is closed, trimmed or checkpointed."""
    manager = LogManager.open(str(data))
    written = fill(manager, seed, 120, index_interval_bytes=500, **settings)
    manager.abandon()
    return written


def test_recovered_after_a_kill(tmp_path: Path) -> None:
    written = kill(tmp_path, 3, compression_type="zstd")
    with opened(tmp_path):
        pass
    assert judge(tmp_path / "t-0") == written


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_producers_and_transactions(tmp_path: Path, killed: bool) -> None:
    """In each codec, committed, aborted and left open, over several segments."""
    manager = LogManager.open(str(tmp_path))
    log = manager.create_topic("t", 1).partitions[0]
    manager.change_topic_settings("t", {"index.interval.bytes": "300"})
    now_ms = time.time_ns() // 1_000_000
    producers = [Producer(n, transactional=n > 0, codec=n, now_ms=now_ms) for n in range(5)]
    count = 0
    for turn in range(30):
        for producer in producers:
            batches = bytearray(producer.batch(*[b"value %d" % turn] * 10))
            count += 10
            if producer.transactional and turn % 3 == 2 and turn < 29:
                ended = producer.abort() if (turn // 3 + producer.producer_id) % 2 else None
                batches += ended or producer.commit()
            append_batches(log, batches, now_ns=now_ms * 1_000_000)
        if turn % 8 == 7:
            log.roll(now_ms)
    if killed:
        manager.abandon()
        with opened(tmp_path) as manager:
            assert manager.cuts == []
    else:
        manager.close()
    partition = tmp_path / "t-0"
    assert len(judge(partition)) == count
    printed, errors = dump_log_segments(
        [*files(partition, ".txnindex"), files(partition, ".snapshot")[-1]]
    )
    assert complaints(errors) == []
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        aborted = log.transactions.aborted()
        assert printed.count("lastStableOffset: ") == len(aborted) > 10
        for entry in aborted:
            assert (
                f"producerId: {entry.producer_id} firstOffset: {entry.first_offset}"
                f" lastOffset: {entry.last_offset} lastStableOffset: {entry.last_stable_offset}"
            ) in printed
        for known in log.producers:
            first = known.transaction_first_offset
            opened_at = "OptionalLong.empty" if first < 0 else f"OptionalLong[{first}]"
            assert (
                f"producerId: {known.producer_id} producerEpoch: {known.epoch} "
                f"coordinatorEpoch: {known.coordinator_epoch} currentTxnFirstOffset: {opened_at}"
            ) in printed
    assert printed.count("OptionalLong[") == 4


def test_the_judge_sees_a_wrong_entry(tmp_path: Path) -> None:
    """The other tests would be worth nothing if DumpLogSegments were silent about anything."""
    with opened(tmp_path) as manager:
        fill(manager, 6, 50, index_interval_bytes=500)
    index = files(tmp_path / "t-0", ".index")[0]
    content = bytearray(index.read_bytes())
    content[3] += 1
    index.write_bytes(content)
    _, errors = dump_log_segments([index])
    assert any(line.startswith("Mismatches in") for line in complaints(errors))
