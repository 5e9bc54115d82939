"""A broker serves our logs and appends to them. Then we append, and it serves them again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from storage import Log, LogManager, Record, encode
from storage.adopt.staged import AdoptRequest, StagedName
from storage.compaction.repack import repack_all
from storage.errors import TaskCancelled
from storage.log.append import abort_transaction
from storage.state.gaps_file import Gap
from storage.task import Task
from storage.verify.verify import verify
from tests.interop import workload
from tests.interop.brokers import Broker
from tests.interop.clients import Sender, consume, consume_all, create_topic
from tests.interop.kafka_tools import batches, complaints, dump_log_segments
from tests.interop.workload import CODECS, T, mixed, values
from tests.mount.mounting import Mount
from tests.storage.staging import stage

Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
CHECKPOINTS = ("log-start-offset", "cleaner-offset", "replication-offset")
COPIED = tuple(f"copied-{codec}" for codec in CODECS)
TOPICS = (
    *(f"ours-{codec}" for codec in CODECS),
    *COPIED,
    "late",
    "append-time",
    "repacked",
    "mounted",
    "transactions",
    "adopted",
)
Consumed = dict[Isolation, dict[str, list[Record]]]


def write(log: Log, batches: Sequence[Sequence[Record]]) -> list[Record]:
    """Append each as a batch and roll now and then; returns what a consumer must get of them."""
    written: list[Record] = []
    for number, records in enumerate(batches):
        numbered = [record._replace(offset=n) for n, record in enumerate(records)]
        first = log.append(bytearray(encode(numbered)), now_ns=T * 1_000_000)
        written += [record._replace(offset=first + record.offset) for record in numbered]
        if number % 7 == 6:
            log.roll(T)
    return written


def write_ours(data: Path) -> dict[str, list[Record]]:
    """Our own directory, with the topics that the library writes to."""
    expected: dict[str, list[Record]] = {}
    with LogManager.open(str(data)) as manager:
        for codec in CODECS:
            topic = f"ours-{codec}"
            log = manager.create_topic(topic, 1).partitions[0]
            compression = "uncompressed" if codec == "none" else codec
            manager.change_topic_settings(topic, {"compression.type": compression})
            manager.change_topic_settings(topic, {"index.interval.bytes": "500"})
            batches = [mixed(1 + n, T + 10 * n, seed=n) for n in range(30)]
            expected[topic] = write(log, batches)
        log = manager.create_topic("late", 1).partitions[0]
        log.note_gaps(Gap("missing", 0, 3, T))
        expected["late"] = write(log, [mixed(20, seed=n) for n in range(20)])
        log = manager.create_topic("append-time", 1).partitions[0]
        manager.change_topic_settings("append-time", {"message.timestamp.type": "LogAppendTime"})
        manager.change_topic_settings("append-time", {"compression.type": "lz4"})
        expected["append-time"] = [
            record._replace(timestamp=T, timestamp_type=1)
            for record in write(log, [mixed(20, seed=n) for n in range(3)])
        ]
        log = manager.create_topic("repacked", 1).partitions[0]
        manager.change_topic_settings("repacked", {"kafkafs.repack": "zstd"})
        expected["repacked"] = write(log, [mixed(1 + n % 5, T + 10 * n, seed=n) for n in range(49)])
        assert len(repack_all(log, T, Task())) == 7
        expected["adopted"] = write_adopted(manager)
    return expected


class StoppedHalfway(Task):
    """Has an adoption end when a part of it has been appended."""

    def advance(self, size: int) -> None:
        super().advance(size)
        if self.phase == "adopting" and self.done > 1000:
            raise TaskCancelled("cancelled")


def write_adopted(manager: LogManager) -> list[Record]:
    """Staged batches of two queries, of one run and of another, and one that was given up."""
    log = manager.create_topic("adopted", 1).partitions[0]
    written: list[Record] = []
    for query, batch, run in (("q", 0, "1"), ("other", 0, "1"), ("q", 1, "1"), ("q", 2, "2")):
        batches = [mixed(5, T + n, seed=n + batch) for n in range(9)]
        content = b"".join(
            encode([record._replace(offset=n) for n, record in enumerate(records)])
            for records in batches
        )
        name = StagedName(query, batch, 0, 0)
        file = stage(manager.files, manager.path, ("adopted", 0), name, content)
        request = AdoptRequest(query, batch, run, (file,))
        if batch == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("storage.log.staged_batches._CHUNK_BYTES", 500)
                with pytest.raises(TaskCancelled):
                    manager.adopter.adopt(request, StoppedHalfway(), lambda: T * 1_000_000)
        first = manager.adopter.adopt(request, Task(), lambda: T * 1_000_000).offsets["adopted", 0][
            0
        ]
        records = [record for batch in batches for record in batch]
        written += [record._replace(offset=first + n) for n, record in enumerate(records)]
        log.roll(T)
    return written


def write_mounted(data: Path, base: Path, transactions: Path) -> list[bytes]:
    """`mounted`, line by line, a copy of each of our compressed topics as it is stored, and
    `transactions` out of a broker's segment.
    """
    lines = [b"line %d" % number for number in range(2000)]
    base.mkdir()
    (base / "data").symlink_to(data)
    mount = Mount(base)
    try:
        mount.start()
        path = mount.topic("mounted")
        (mount / "mounted" / ".config").write_bytes(b"compression.type=zstd\n")
        with open(path, "ab", buffering=5000) as file:
            file.writelines(line + b"\n" for line in lines)
        for codec in CODECS:
            mount.topic(f"copied-{codec}")
            mount.run(f"cat ours-{codec}/.batches/0 >> copied-{codec}/.batches/0")
        mount.topic("transactions")
        mount.run("cat $SEGMENT >> transactions/.batches/0", SEGMENT=transactions)
        mount.stop()
    finally:
        mount.end()
    return lines


def hand_over(ours: Path, broker: Broker) -> None:
    """Put our segments in the places of the stopped broker's empty ones."""
    for topic in TOPICS:
        place = broker.partition(topic)
        for file in place.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        bases = sorted(int(log.stem) for log in (ours / f"{topic}-0").glob("*.log"))
        first = bases[1] if topic == "late" else 0
        for file in (ours / f"{topic}-0").iterdir():
            number = file.name.partition(".")[0]
            if (number.isdecimal() and int(number) >= first) or file.name.startswith("leader"):
                shutil.copy(file, place)
    for name in CHECKPOINTS:
        forget(broker.data / f"{name}-checkpoint")


def forget(checkpoint: Path) -> None:
    """Take our topics' lines out of a checkpoint."""
    if checkpoint.exists() and checkpoint.stat().st_size:  # a broker creates it empty
        version, _, *lines = checkpoint.read_text().splitlines()
        kept = [line for line in lines if line.split()[0] not in TOPICS]
        checkpoint.write_text("\n".join([version, str(len(kept)), *kept, ""]))


def consumed(broker: Broker) -> Consumed:
    return {
        isolation: consume_all(broker, TOPICS, committed=isolation == "read_committed")
        for isolation in ISOLATIONS
    }


def read_by_us(data: Path) -> Consumed:
    """Return the records that the library reads. The directory must be undamaged."""
    assert verify(str(data)).faults == []
    with LogManager.open(str(data), read_only=True) as manager:
        assert (manager.faults, manager.cuts) == ([], [])
        return {
            isolation: {
                topic: list(manager.log(topic, 0).records(isolation=isolation)) for topic in TOPICS
            }
            for isolation in ISOLATIONS
        }


def append_ours(data: Path, base: Path) -> None:
    """Append to each topic by the library and by the mount; abort what is left open."""
    with LogManager.open(str(data)) as manager:
        for topic in TOPICS:
            write(manager.log(topic, 0), [mixed(10, T + 10_000), values(0, 3, T + 10_020)])
        log = manager.log("transactions", 0)
        (hanging,) = [p for p in log.producers if p.in_transaction]
        abort_transaction(log, hanging.producer_id, (T + 10_030) * 1_000_000)
        assert log.last_stable_offset == log.log_end_offset
    base.mkdir()
    (base / "data").symlink_to(data)
    mount = Mount(base)
    try:
        mount.start()
        for topic in TOPICS:
            mount.run(f"seq 5 >> {topic}/0")
        mount.stop()
    finally:
        mount.end()


class Handed:
    """A broker that was given our partitions, and what was read at each step."""

    def __init__(self, broker: Broker, base: Path) -> None:
        self.base = base
        self.broker = broker.start()
        for topic in TOPICS:
            create_topic(broker, topic)
        open_one = workload.transactions(broker, "source")
        self.source: dict[Isolation, list[Record]] = {
            isolation: consume(broker, "source", committed=isolation == "read_committed")
            for isolation in ISOLATIONS
        }
        broker.stop()
        del open_one
        ours = base / "ours"
        ours.mkdir()
        self.expected = write_ours(ours)
        stored = broker.partition("source") / f"{0:020}.log"
        self.lines = write_mounted(ours, base / "mount", stored)
        hand_over(ours, broker)
        self.first = self.serve(b"appended by the broker", recovers=False)
        self.read = read_by_us(broker.data)
        append_ours(broker.data, base / "mount again")
        self.ours_again = read_by_us(broker.data)
        # The broker trusts our marker and our checkpoints: it recovers nothing.
        self.second = self.serve(b"", recovers=False)
        # Without these files, the broker checks all logs and rebuilds all indexes.
        (broker.data / ".kafka_cleanshutdown").unlink()
        forget(broker.data / "recovery-point-offset-checkpoint")
        for topic in TOPICS:
            for index in broker.partition(topic).glob("*index"):
                index.unlink()
        self.third = self.serve(b"", recovers=True)

    def serve(self, value: bytes, *, recovers: bool) -> Consumed:
        """Start the broker, let it append the value everywhere, consume all, stop it."""
        self.broker.start()
        if value:
            sender = Sender(self.broker, compression_type="lz4")
            transactional = Sender(self.broker, transactional_id="appends")
            for topic in TOPICS:
                sender.send(topic, [Record(0, T, 0, b"k", value, (("h", b"v"),))])
                with transactional.transaction():
                    transactional.send(topic, [Record(0, T, 0, b"k", value + b" in the end")])
            workload.settle(self.broker, "appends")
        found = consumed(self.broker)
        server = self.broker.server
        self.broker.stop()
        names = re.compile("|".join(rf"\b{topic}-0\b" for topic in TOPICS))
        said = [line for line in server.lines if names.search(line)]
        faults = re.compile(r"(?i)corrupt|truncat|invalid|stray|discard|unreasonabl|exception")
        assert [line for line in said if faults.search(line)] == []
        assert any("Recovering unflushed segment" in line for line in said) == recovers
        if not recovers:
            assert [line for line in said if "rebuilding index files" in line] == []
        return found


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handed]:
    base = tmp_path_factory.mktemp("serves")
    broker = Broker(base / "broker")
    try:
        yield Handed(broker, base)
    finally:
        broker.kill()


@pytest.mark.parametrize("topic", [f"ours-{codec}" for codec in CODECS])
def test_records_that_we_encoded(topic: str, handed: Handed) -> None:
    found = handed.first["read_uncommitted"]
    expected = handed.expected[topic]
    assert found[topic][: len(expected)] == expected
    copied = found[topic.replace("ours", "copied")]
    assert copied[: len(expected)] == expected


def test_batches_that_were_adopted(handed: Handed) -> None:
    found = handed.first["read_committed"]["adopted"]
    assert found[:-2] == handed.expected["adopted"]
    # The batch that was cancelled halfway has left records, which read_uncommitted shows.
    assert len(handed.first["read_uncommitted"]["adopted"]) > len(found)


def test_a_log_that_begins_late(handed: Handed) -> None:
    found = handed.first["read_uncommitted"]["late"]
    first = found[0].offset
    assert first > 0
    assert found[:-2] == [record for record in handed.expected["late"] if record.offset >= first]


def test_timestamps_of_appending(handed: Handed) -> None:
    expected = handed.expected["append-time"]
    assert handed.first["read_committed"]["append-time"][: len(expected)] == expected


def test_lines_that_were_written_through_the_mount(handed: Handed) -> None:
    found = handed.first["read_committed"]["mounted"]
    assert [record.value for record in found[:-2]] == handed.lines
    assert [record.offset for record in found[:-2]] == list(range(len(handed.lines)))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_producers_transactions(isolation: Isolation, handed: Handed) -> None:
    found = handed.first[isolation]["transactions"]
    expected = handed.source[isolation]
    assert found[: len(expected)] == expected
    # An open transaction hides the later records from read_committed consumers.
    assert len(found) == len(expected) + (2 if isolation == "read_uncommitted" else 0)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_we_read_what_the_broker_appended(topic: str, isolation: Isolation, handed: Handed) -> None:
    found = handed.read[isolation][topic]
    assert found == handed.first[isolation][topic]
    if (topic, isolation) != ("transactions", "read_committed"):
        assert [record.value for record in found[-2:]] == [
            b"appended by the broker",
            b"appended by the broker in the end",
        ]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_it_serves_what_we_appended_to_that(
    topic: str, isolation: Isolation, handed: Handed
) -> None:
    found = handed.ours_again[isolation][topic]
    assert [record.value for record in found[-5:]] == [b"1", b"2", b"3", b"4", b"5"]
    before = handed.read[isolation][topic]
    assert found[: len(before)] == before
    assert len(found) >= len(before) + 18
    assert handed.second[isolation][topic] == found, "by our marker"
    assert handed.third[isolation][topic] == found, "verified"


def test_the_transaction_that_we_aborted(handed: Handed) -> None:
    """Consumers get the committed records after it, and none of its own records."""
    committed = {record.offset for record in handed.third["read_committed"]["transactions"]}
    for record in handed.source["read_uncommitted"]:
        before = record in handed.source["read_committed"]
        behind = record.key == b"behind the open one" or record.value in {
            b"value %d" % number for number in range(120, 125)
        }
        assert (record.offset in committed) == (before or behind), record


def test_dump_log_segments_is_silent(handed: Handed) -> None:
    """On what we wrote before any broker saw it, and on what we and it have written together."""
    for data in (handed.base / "ours", handed.broker.data):
        files = [
            file
            for topic in TOPICS
            for file in sorted((data / f"{topic}-0").iterdir())
            if file.name.endswith(("log", "index", "snapshot"))
        ]
        printed, errors = dump_log_segments(files, "--deep-iteration")
        assert complaints(errors) == []
        assert "invalid bytes" not in printed
        assert all(batches(printed))
