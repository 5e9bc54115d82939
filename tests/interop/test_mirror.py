"""Topics of a broker are copied, byte for byte, and go on after a kill."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.properties import ClientSettings
from kafka_client.requests import EARLIEST, LATEST, produce
from kafkafs.mirror import housekeeping
from kafkafs.mirror import mirror as module
from kafkafs.mirror.facts import Facts
from kafkafs.mirror.mirror import Mirror, Options
from kafkafs.mirror.topics import MirrorRefused
from storage import Record, encode, paths
from storage.files import Files
from storage.log.append import append_as_follower
from storage.manager import LogManager
from storage.record._batch import assign_offsets
from storage.record.header import parse_header
from storage.state import checkpoint_file, mirror_file
from storage.verify.verify import verify
from tests.fork_server import KAFKAFS
from tests.interop import clients
from tests.interop.brokers import Broker, OldBroker, stored
from tests.interop.clients import Sender
from tests.interop.kafka_tools import dump_log_segments
from tests.interop.workload import OPEN_MS
from tests.waits import HANG_S, until

T = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With topics of all kinds of batches."""
    broker = Broker(
        tmp_path_factory.mktemp("mirror"),
        broker_session_timeout_ms=60_000,
        # A cleaner keeps the last batch of a producer that is known.
        producer_id_expiration_ms=500,
        producer_id_expiration_check_interval_ms=200,
    )
    try:
        broker.start()
        topics: dict[str, dict[str, object]] = {
            "orders": {},
            "tx": {},
            "started": {"retention.ms": -1},
            "empty": {},
        }
        clients.create_topics(broker, topics)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            Sender(broker, compression_type=codec).send("orders", records(codec.encode(), 20))
        sender = Sender(broker, transactional_id="t", transaction_timeout_ms=OPEN_MS)
        for commit in (True, False, True):
            with sender.transaction(commit=commit):
                sender.send("tx", records(b"tx", 5))
        sender.producer.begin_transaction()
        sender.send("tx", records(b"open", 2))
        Sender(broker).send("started", records(b"s", 10))
        clients.delete_records(broker, "started", 7)
        yield broker
    finally:
        broker.kill()


def records(prefix: bytes, count: int) -> list[Record]:
    return [Record(number, T + number, 0, prefix, prefix * number) for number in range(count)]


class Run:
    """One run of a mirror; `lines` are its reports."""

    def __init__(
        self, broker: Broker | OldBroker, data: Path, *patterns: str, **options: Any
    ) -> None:
        self.lines: list[str] = []
        self.data = data
        self.broker = broker
        self.options = Options(
            f"kafka://{broker.address}", patterns or ("*",), consumer={"max_wait_ms": 50}, **options
        )

    def __call__(self, stop: Callable[[], bool] | None = None) -> Facts:
        """Copy up to the end, or until `stop` says so."""
        with Cluster(parse_brokers(self.broker.address), ClientSettings()) as cluster:
            mirror = Mirror(cluster, str(self.data), self.options, self.lines.append)
            self.facts = mirror.facts
            mirror.run(stop is None, stop or (lambda: False))
        return self.facts


def test_batches_and_offsets_are_those_of_the_broker(broker: Broker, tmp_path: Path) -> None:
    run = Run(broker, tmp_path)
    facts = run()
    assert (run.lines, facts.gaps, facts.waiting, facts.left) == ([], 0, {}, 0)
    for topic in ("orders", "tx", "started", "empty"):
        assert stored(tmp_path / f"{topic}-0") == stored(broker.partition(topic)), topic
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert sorted(manager.topics) == ["empty", "orders", "started", "tx"]
        tx = manager.log("tx", 0)
        assert tx.last_stable_offset == clients.offsets(broker, "tx", committed=True)[1]
        assert manager.log("started", 0).log_start_offset == 7
    theirs, ours = (
        each / "partition.metadata" for each in (broker.partition("tx"), tmp_path / "tx-0")
    )
    assert ours.read_text() == theirs.read_text()
    status = mirror_file.read(Files(), str(tmp_path))
    assert status is not None
    copy = status.partitions["started", 0]
    assert (copy.start, copy.end, copy.source_start, copy.source_end, copy.state) == (
        7,
        10,
        7,
        10,
        "ok",
    )
    assert copy.at_end_ms > T
    assert status.settings == {"started": {"retention.ms": "-1"}}


def test_a_mirror_begins_in_a_new_directory_only(broker: Broker, tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        manager.create_topic("mine", 1)
    with pytest.raises(MirrorRefused, match="this directory has topics"):
        Run(broker, tmp_path)()


def test_another_cluster_is_refused(broker: Broker, tmp_path: Path) -> None:
    Run(broker, tmp_path, "orders")()
    status = mirror_file.read(Files(), str(tmp_path))
    assert status is not None
    status.cluster = "another"
    mirror_file.write(Files(), str(tmp_path), status)
    with pytest.raises(MirrorRefused, match="mirrors cluster another"):
        Run(broker, tmp_path, "orders")()


@pytest.mark.parametrize(
    ("start", "first"), [(EARLIEST, 0), (LATEST, 20), (T + 5, 5), (T + 99, 20)]
)
def test_a_copy_begins_at_the_start_that_was_first_given(
    broker: Broker, tmp_path: Path, start: int, first: int
) -> None:
    """Also a later run has it. A topic that is created meanwhile begins with its first record."""
    topic = f"from-{start}"
    clients.create_topic(broker, topic)
    Sender(broker).send(topic, records(b"v", 20))
    Run(broker, tmp_path, "from-*", start=start)()
    Sender(broker).send(topic, records(b"w", 3))
    clients.create_topic(broker, f"{topic}-new")
    Sender(broker).send(f"{topic}-new", records(b"n", 2))
    run = Run(broker, tmp_path, "from-*")
    assert (run().gaps, run.lines) == (0, [])
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log, new = manager.log(topic, 0), manager.log(f"{topic}-new", 0)
        assert (log.log_start_offset, log.log_end_offset) == (first, 23)
        assert (new.log_start_offset, new.log_end_offset) == (0, 2)


def mirrored(
    broker: Broker | OldBroker, data: Path, topic: str, count: int, **settings: Any
) -> Run:
    """A topic with records, that was copied."""
    clients.create_topic(broker, topic, **settings)
    Sender(broker).send(topic, records(b"v", count))
    run = Run(broker, data, topic)
    assert run().gaps == 0
    return run


def named(data: Path, topic: str) -> list[tuple[str, int, int]]:
    """The gaps of a copy."""
    with LogManager.open(str(data), read_only=True) as manager:
        return [gap[:3] for gap in manager.log(topic, 0).gaps]


def test_records_that_were_deleted_before_they_were_copied(broker: Broker, tmp_path: Path) -> None:
    run = mirrored(broker, tmp_path, "overtaken", 5)
    before = stored(tmp_path / "overtaken-0")
    Sender(broker).send("overtaken", records(b"w", 5))
    clients.delete_records(broker, "overtaken", 10)
    assert run().gaps == 1
    assert named(tmp_path, "overtaken") == [("deleted", 5, 9)]
    assert run().gaps == 0
    Sender(broker).send("overtaken", records(b"x", 5))
    clients.delete_records(broker, "overtaken", 12)
    assert run().gaps == 0
    assert named(tmp_path, "overtaken") == [("deleted", 5, 9)]
    log = stored(broker.partition("overtaken"))
    assert stored(tmp_path / "overtaken-0") == before + log[-len(stored_batch(log, 10)) :]
    assert "overtaken:0: offsets 5 to 9 were deleted in the cluster" in run.lines[0]


def test_deletions_are_followed_on_request(broker: Broker, tmp_path: Path) -> None:
    keeps = mirrored(broker, tmp_path, "shorter", 5)
    clients.delete_records(broker, "shorter", 3)
    follows = Run(broker, tmp_path, "shorter", follow_deletes=True)
    for run, start in ((keeps, 0), (follows, 3)):
        assert run().gaps == 0
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            assert manager.log("shorter", 0).log_start_offset == start


def test_a_topic_that_is_not_there_is_a_fault(broker: Broker, tmp_path: Path) -> None:
    run = Run(broker, tmp_path, "nope")
    run()
    assert list(run.facts.faults.values()) == run.lines
    assert run.lines == ["the cluster has no topic nope, or it may not be read"]


def stored_batch(log: bytes, offset: int) -> bytes:
    """The batches from an offset on."""
    while (header := parse_header(log)).base_offset < offset:
        log = log[header.size :]
    return log


def test_a_topic_that_was_created_again(broker: Broker, tmp_path: Path) -> None:
    run = mirrored(broker, tmp_path, "again", 5)
    before = stored(tmp_path / "again-0")
    status = mirror_file.read(Files(), str(tmp_path))
    assert status is not None
    old = f"again.{status.ids['again']}"
    clients.delete_topic(broker, "again")
    clients.create_topic(broker, "again")
    Sender(broker).send("again", records(b"new", 7))
    assert run().gaps == 0
    assert stored(tmp_path / f"{old}-0") == before
    assert stored(tmp_path / "again-0") == stored(broker.partition("again"))
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert manager.log(old, 0).log_end_offset == 5
    assert run.lines == [f"again: the topic was created again; the copy of the old one is {old}"]
    clients.delete_topic(broker, "again")
    run()
    assert [line.partition(":")[0] for line in run.lines[1:]] == ["again"]
    assert stored(tmp_path / "again-0")


def as_before_topic_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is one that has no ids, and whose answers to Fetch report no divergence."""
    monkeypatch.setattr("kafka_client.fetch._LAST", 11)
    monkeypatch.setattr("kafka_client.fetch._LAST_WITH_NAMES", 11)
    monkeypatch.setattr("kafkafs.mirror.topics.id_text", lambda _: mirror_file.NO_ID)


def test_records_that_the_leader_has_lost(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an unclean election: our logs have more records of an epoch than the leader."""
    old, new = tmp_path / "old", tmp_path / "new"
    mirrored(broker, new, "lost-new", 5)
    with monkeypatch.context() as patch:
        as_before_topic_ids(patch)
        mirrored(broker, old, "lost-old", 5)
    broker.stop()
    broker.start()
    for data in (old, new):
        topic = f"lost-{data.name}"
        before = stored(data / f"{topic}-0")
        with LogManager.open(str(data), mirrors=True) as manager:
            log = manager.log(topic, 0)
            batch = bytearray(encode(records(b"lost", 3)))
            assign_offsets(batch, 5, log.epochs.latest)
            append_as_follower(log, batch, 0)
        Sender(broker).send(topic, records(b"w", 5))
        with monkeypatch.context() as patch:
            if data == old:
                as_before_topic_ids(patch)
            run = Run(broker, data, topic)
            assert (run().gaps, run.facts.waiting) == (1, {})
        assert named(data, topic) == [("diverged", 5, 7)]
        assert stored(data / f"{topic}-0") == stored(broker.partition(topic)) != before
        (kept,) = (data / f"{topic}-0").glob("*.diverged")
        assert kept.read_bytes() == bytes(batch)


@pytest.mark.parametrize("count", [3, 5, 7])
def test_a_topic_that_was_created_again_without_ids(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Its records show it. The records that were copied stay."""
    as_before_topic_ids(monkeypatch)
    topic = f"without-{count}"
    run = mirrored(broker, tmp_path, topic, 5)
    assert (run().gaps, run.facts.waiting) == (0, {})
    before = stored(tmp_path / f"{topic}-0")
    clients.delete_topic(broker, topic)
    clients.create_topic(broker, topic)
    Sender(broker).send(topic, records(b"new", count))
    assert (run().gaps, list(run.facts.waiting)) == (0, [(topic, 0)])
    assert "is it another topic?" in run.facts.waiting[topic, 0]
    assert stored(tmp_path / f"{topic}-0") == before


def test_a_running_mirror_follows_the_cluster(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, partitions, topics, a restart of the broker, and a topic that is created again."""
    monkeypatch.setattr("kafkafs.mirror.mirror._LOOK_MS", 100)
    monkeypatch.setattr("kafka_client.consume.TIMEOUT_S", 0.5)
    clients.create_topic(broker, "run-1")
    run = Run(broker, tmp_path, "run-*")

    def shown(topic: str, number: int = 0) -> int:
        """The log end that another process sees."""
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            found = manager.topics.get(topic)
            log = None if found is None else found.partitions.get(number)
            return -1 if log is None else log.log_end_offset

    def script() -> Iterator[None]:
        Sender(broker).send("run-1", records(b"v", 5))
        while shown("run-1") < 5:
            yield
        clients.create_topic(broker, "run-2")
        Sender(broker).send("run-2", records(b"v", 3))
        clients.add_partitions(broker, "run-1", 3)
        while shown("run-2") < 3 or shown("run-1", 2) < 0:
            yield
        broker.stop()
        while "run-1:0: waits" not in "\n".join(run.lines):
            yield
        broker.start()
        Sender(broker).send("run-1", records(b"w", 5))
        while shown("run-1") < 10:
            yield
        clients.delete_topic(broker, "run-2")
        while not run.lines[-1].startswith("run-2:0: waits"):
            yield
        assert shown("run-2") == 3
        clients.create_topic(broker, "run-2")
        Sender(broker).send("run-2", records(b"new", 4))
        while shown("run-2") != 4:
            yield

    steps = script()
    run(lambda: next(steps, True) is True)
    assert run.facts.gaps == 0
    assert stored(tmp_path / "run-1-0") == stored(broker.partition("run-1"))
    assert stored(tmp_path / "run-2-0") == stored(broker.partition("run-2"))


# -- compacted topics, and holes -------------------------------------------------------------------


def clean(broker: Broker, topic: str, **settings: object) -> None:
    """A topic with transactions and tombstones, that the broker has cleaned up to its last segment.

    Its first batch lies above the log start.
    """
    clients.create_topic(broker, topic)
    config = {"cleanup_policy": "compact", "segment_ms": 1, "min_cleanable_dirty_ratio": 0}
    clients.set_topic(broker, topic, **config, **settings)
    sender = Sender(broker, transactional_id=topic)
    for commit in (True, False, True):
        with sender.transaction(commit=commit):
            sender.send(topic, records(b"tx", 3))
    plain = Sender(broker)
    for number in range(3):
        plain.send(topic, [Record(0, T, 0, b"key %d" % key, b"v" * key) for key in range(4)])
        plain.send(topic, [Record(0, T, 0, b"key 0", None), Record(0, T, 0, b"tx", b"%d" % number)])
    ends = {(topic, 0): max(int(log.stem) for log in broker.partition(topic).glob("*.log"))}
    checkpoint = str(broker.data / paths.CLEANER_OFFSETS)
    until(lambda: ends.items() <= checkpoint_file.read_offsets(Files(), checkpoint).items())
    assert parse_header(stored(broker.partition(topic))).base_offset > 0


def dumped(data: Path, topics: Iterable[str]) -> list[str]:
    """Return the output of Kafka's tool about logs and aborted transactions, without positions."""
    logs = [log for topic in topics for log in sorted((data / f"{topic}-0").glob("*.log"))]
    # The index of what is cleaned may name transactions without records.
    aborted = sorted((data / "tx-0").glob("*.txnindex"))
    printed, _ = dump_log_segments([*logs, *aborted], "--print-data-log")
    lines = [re.sub(r" position: \d+", "", line) for line in printed.splitlines()]
    return [line for line in lines if not line.startswith(("Dumping", "Log starting"))]


def test_kafkas_tool_prints_the_same_of_both(broker: Broker, tmp_path: Path) -> None:
    """Topics of all kinds. The broker has cleaned one of them, which is copied without a gap."""
    clean(broker, "cleaned")
    topics = ("orders", "tx", "started", "cleaned")
    run = Run(broker, tmp_path, *topics)
    assert (run().gaps, run.lines) == (0, [])
    for topic in topics:
        assert stored(tmp_path / f"{topic}-0") == stored(broker.partition(topic)), topic
    ours = dumped(tmp_path, topics)
    assert ours == dumped(broker.data, topics)
    assert sum("firstOffset" in line for line in ours) == 1
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert manager.log("cleaned", 0).log_start_offset == 0


# -- faults ----------------------------------------------------------------------------------------


def large(prefix: bytes, count: int, size: int) -> list[Record]:
    return [Record(number, T, 0, prefix, bytes([number % 251]) * size) for number in range(count)]


def test_a_mirror_that_is_killed_goes_on(broker: Broker, tmp_path: Path) -> None:
    """At any time, also while it writes. In the last run the broker is restarted."""
    clients.create_topic(broker, "killed", 2)
    sender = Sender(broker, transactional_id="killed", linger_ms=0)
    for commit in (True, False) * 3:
        with sender.transaction(commit=commit):
            sender.send("killed", large(b"k", 400, 10_000))
    # The last transaction ends before its marker is written.
    until(
        lambda: (
            clients.offsets(broker, "killed", committed=True)
            == clients.offsets(broker, "killed", committed=False)
        )
    )
    directory, place = tmp_path / "killed-0", f"kafka://{broker.address}"
    end = len(stored(broker.partition("killed")))

    def size() -> int:
        return sum(path.stat().st_size for path in directory.glob("*.log"))

    def reached(least: int) -> bool:
        return size() >= least

    wanted = sorted(random.Random(7).sample(range(1, end), 4))
    for least in [0, *wanted]:
        with subprocess.Popen([*KAFKAFS, "mirror", place, tmp_path, "killed"]) as process:
            until(lambda: directory.exists())
            until(partial(reached, least))
            process.kill()
    with subprocess.Popen([*KAFKAFS, "mirror", place, tmp_path, "killed"]) as process:
        until(lambda: size() == end)
        broker.stop()
        broker.start()
        Sender(broker).send("killed", records(b"after", 5))
        until(lambda: size() > end)
        process.terminate()
    assert process.returncode == 0
    assert Run(broker, tmp_path, "killed")().gaps == 0
    assert stored(directory) == stored(broker.partition("killed"))
    assert verify(str(tmp_path)).faults == []
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert len(manager.log("killed", 0).transactions.aborted()) == 3


# -- changes while a mirror runs -------------------------------------------------------------------


def watched(run: Run, steps: Callable[[], Iterator[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a mirror that looks at the metadata all the time, until the steps end.

    They go on after each round of answers.
    """
    monkeypatch.setattr(module, "_LOOK_MS", 100)
    monkeypatch.setattr(housekeeping, "_SWEEP_MS", 100)
    rounds = steps()
    begun = time.monotonic()

    def stop() -> bool:
        assert time.monotonic() < begun + HANG_S
        return next(rounds, True) is True

    run(stop)


def test_partitions_and_topics_are_created_while_a_mirror_runs(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is copied from its beginning, also if the mirror began at the end."""
    clients.create_topic(broker, "grown")
    Sender(broker).send("grown", records(b"v", 5))
    run = Run(broker, tmp_path, "grown*", start=LATEST)

    def steps() -> Iterator[None]:
        clients.add_partitions(broker, "grown", 3)
        Sender(broker, partitioner="consistent").send("grown", records(b"v", 5))
        with Cluster(parse_brokers(broker.address), ClientSettings()) as cluster:
            produce(cluster, TopicPartition("grown", 2), encode(records(b"third", 3)))
        clients.create_topic(broker, "grown-new")
        Sender(broker).send("grown-new", records(b"n", 4))
        while not all((tmp_path / name).exists() for name in ("grown-2", "grown-new-0")):
            yield
        while run.facts.left or run.facts.copied_offsets < 12:
            yield

    watched(run, steps, monkeypatch)
    assert (run.facts.gaps, run.lines) == (0, [])
    for name in ("grown-1", "grown-2", "grown-new-0"):
        assert stored(tmp_path / name) == stored(broker.data / name), name
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert [manager.log("grown", number).log_start_offset for number in range(3)] == [5, 0, 0]
        assert manager.log("grown", 2).log_end_offset == 3


def run_without_marker(
    broker: Broker, data: Path, topic: str, key: str, *, commit: bool
) -> tuple[Run, Sender]:
    """Copy a record of an open transaction, and end it. Return when its marker is compacted away:
    the run, which can go on, and the producer.
    """
    clients.create_topic(
        broker,
        topic,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.001,
        internal_segment_bytes=4000,
        delete_retention_ms=0,
    )
    plain, sender = Sender(broker), Sender(broker, transactional_id=topic)
    plain.send(topic, keyed("a", "b"))
    sender.producer.begin_transaction()
    sender.send(topic, keyed(key))
    run = Run(broker, data, topic)
    run()
    end = sender.producer.commit_transaction if commit else sender.producer.abort_transaction
    end(HANG_S)
    directory = broker.partition(topic)

    def has_marker() -> bool:
        plain.send(topic, keyed("a", "b", size=1500))
        return has_producer(stored(directory))

    until(lambda: not has_marker())
    return run, sender


def test_a_transaction_whose_marker_was_compacted_away(broker: Broker, tmp_path: Path) -> None:
    run, _ = run_without_marker(broker, tmp_path, "marker", "a", commit=True)
    before = stored(tmp_path / "marker-0")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert manager.log("marker", 0).last_stable_offset == 2
    assert run().gaps >= 1
    assert ("aborted", 3, 3) in named(tmp_path, "marker")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("marker", 0)
        assert log.last_stable_offset == log.log_end_offset == clients.offsets(broker, "marker")[1]
        ours = [record.offset for record in log.records()]
    # The record of the transaction is not shown. The broker may clean on.
    theirs = [record.offset for record in clients.consume(broker, "marker")]
    assert ours[:2] == [0, 1]
    assert ours[2] > 3
    assert ours[-len(theirs) :] == theirs
    assert stored(tmp_path / "marker-0").startswith(before)
    assert run().gaps == 0


def test_a_later_transaction_of_the_producer_ends_none_whose_marker_was_compacted_away(
    broker: Broker, tmp_path: Path
) -> None:
    """Its COMMIT marker would show the records of the first one, which was aborted."""
    run, sender = run_without_marker(broker, tmp_path, "later", "aborted", commit=False)
    with sender.transaction():
        sender.send("later", keyed("committed"))
    assert run().gaps >= 1
    assert ("aborted", 3, 3) in named(tmp_path, "later")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("later", 0)
        assert log.last_stable_offset == log.log_end_offset == clients.offsets(broker, "later")[1]
        ours = list(log.records())
    assert [record.key for record in ours if len(record.key or b"") > 1] == [b"committed"]
    theirs = clients.consume(broker, "later", committed=True)
    assert ours[-len(theirs) :] == theirs
    assert run().gaps == 0


def test_a_transaction_of_which_records_are_left_gets_its_marker(
    broker: Broker, tmp_path: Path
) -> None:
    """The cleaner has removed all that lay before the marker."""
    clients.create_topic(
        broker,
        "left",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.001,
        internal_segment_bytes=4000,
    )
    plain, sender = Sender(broker), Sender(broker, transactional_id="left")
    plain.send("left", keyed("a", "b"))
    sender.producer.begin_transaction()
    sender.send("left", keyed("committed"))
    run = Run(broker, tmp_path, "left")
    assert run().gaps == 0
    plain.send("left", keyed("a", "b"))
    sender.producer.commit_transaction(HANG_S)

    def is_cleaned() -> bool:
        plain.send("left", keyed("a", "b", size=1500))
        return parse_header(stored_batch(stored(broker.partition("left")), 3)).base_offset > 4

    until(is_cleaned)
    assert run().gaps == 0
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert b"committed" in {record.key for record in manager.log("left", 0).records()}


def keyed(*keys: str, size: int = 1) -> list[Record]:
    return [Record(0, T, 0, key.encode(), random.randbytes(size)) for key in keys]


def has_producer(log: bytes) -> bool:
    """Whether a batch has a producer."""
    while log:
        header = parse_header(log)
        if header.producer_id >= 0:
            return True
        log = log[header.size :]
    return False
