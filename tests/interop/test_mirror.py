"""Topics of a broker are copied, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster
from kafka_client.properties import ClientSettings
from kafka_client.requests import EARLIEST, LATEST
from kafkafs.mirror.facts import Facts
from kafkafs.mirror.mirror import Mirror, Options
from kafkafs.mirror.topics import MirrorRefused
from storage import Record, paths
from storage.files import Files
from storage.manager import LogManager
from storage.record.header import parse_header
from storage.state import checkpoint_file, mirror_file
from tests.interop import clients
from tests.interop.brokers import Broker, OldBroker, stored
from tests.interop.clients import Sender
from tests.interop.workload import OPEN_MS
from tests.waits import until

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


def test_deletions_are_followed_on_request(broker: Broker, tmp_path: Path) -> None:
    keeps = mirrored(broker, tmp_path, "shorter", 5)
    clients.delete_records(broker, "shorter", 3)
    follows = Run(broker, tmp_path, "shorter", follow_deletes=True)
    for run, start in ((keeps, 0), (follows, 3)):
        assert run().gaps == 0
        with LogManager.open(str(tmp_path), read_only=True) as manager:
            assert manager.log("shorter", 0).log_start_offset == start


def test_a_running_mirror_follows_the_cluster(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, partitions, topics, a restart of the broker, and a topic that is created again.

    The first copies begin at their ends, later ones at their beginnings.
    """
    monkeypatch.setattr("kafkafs.mirror.mirror._LOOK_MS", 100)
    monkeypatch.setattr("kafka_client.consume.TIMEOUT_S", 0.5)
    clients.create_topic(broker, "run-1")
    run = Run(broker, tmp_path, "run-*", start=LATEST)

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


def test_a_cleaned_topic_is_copied_without_a_gap(broker: Broker, tmp_path: Path) -> None:
    """The index of what is aborted is the broker's, too."""
    clean(broker, "cleaned")
    run = Run(broker, tmp_path, "tx", "cleaned")
    assert (run().gaps, run.lines) == (0, [])
    assert stored(tmp_path / "cleaned-0") == stored(broker.partition("cleaned"))
    ours, theirs = (
        [path.read_bytes() for path in sorted(directory.glob("*.txnindex"))]
        for directory in (tmp_path / "tx-0", broker.partition("tx"))
    )
    assert ours == theirs
    assert any(ours)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert manager.log("cleaned", 0).log_start_offset == 0
