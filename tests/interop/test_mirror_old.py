"""Topics of Kafka 2.4 are copied, whose clusters have no topic ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from kafkafs.mirror import mirror as module
from storage.files import Files
from storage.manager import LogManager
from storage.state import mirror_file
from storage.verify.verify import verify
from tests.interop import clients
from tests.interop.brokers import OldBroker, stored
from tests.interop.clients import Sender
from tests.interop.kafka_tools import POM_2_4
from tests.interop.test_mirror import Run, mirrored, records
from tests.interop.test_mirror_groups import OFFSETS, allowed, committed
from tests.interop.workload import CODECS
from tests.waits import HANG_S, until

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldBroker]:
    broker = OldBroker(
        tmp_path_factory.mktemp("old"),
        POM_2_4,
        offsets_topic_replication_factor=1,
        transaction_state_log_num_partitions=1,
        transaction_state_log_replication_factor=1,
        transaction_state_log_min_isr=1,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        allow_everyone_if_no_acl_found="true",
    )
    try:
        client = clients.admin(broker.start())
        # If a client asks before the broker is the controller, its admin requests time out.
        until(lambda: client.list_topics(timeout=HANG_S).controller_id == 1)
        yield broker
    finally:
        broker.kill()


def delete_topic(broker: OldBroker, topic: str) -> None:
    """Delete a topic. A new one can have its name when this returns."""
    mark = len(broker.server.lines)
    clients.delete_topic(broker, topic)
    broker.server.wait_for(f"Deletion of topic {topic} successfully completed", mark)


def create_again(broker: OldBroker, topic: str, count: int) -> None:
    """Create a topic, with a batch for each record: one of them begins at the end of the copy."""
    clients.create_topic(broker, topic)
    sender = Sender(broker)
    for record in records(b"new", count):
        sender.send(topic, [record])


def test_batches_and_groups_are_those_of_the_broker(broker: OldBroker, tmp_path: Path) -> None:
    clients.create_topics(broker, {"orders": {}, "tx": {}})
    for codec in CODECS:
        Sender(broker, compression_type=codec).send("orders", records(codec.encode(), 20))
    sender = Sender(broker, transactional_id="t")
    for commit in (True, False):
        with sender.transaction(commit=commit):
            sender.send("tx", records(b"tx", 5))
    sender.producer.begin_transaction()
    sender.send("tx", records(b"open", 2))
    clients.commit(broker, "readers", "orders", 33)
    clients.commit(broker, "others", "tx", 3)
    groups = {"readers": {("orders", 0): 33}, "others": {("tx", 0): 3}}
    reads, asks = (Run(broker, tmp_path / name, "orders", "tx") for name in ("reads", "asks"))
    assert (reads().gaps, reads.lines, reads.facts.waiting) == (0, [], {})
    with allowed(broker, AclOperation.DESCRIBE):
        assert (asks().gaps, asks.facts.waiting, asks.facts.faults) == (0, {}, {})
    assert stored(reads.data / f"{OFFSETS}-0") == stored(broker.partition(OFFSETS))
    for run in (reads, asks):
        for topic in ("orders", "tx"):
            assert stored(run.data / f"{topic}-0") == stored(broker.partition(topic)), topic
        with LogManager.open(str(run.data), read_only=True) as manager:
            end = manager.log("tx", 0).last_stable_offset
        assert end == clients.offsets(broker, "tx", committed=True)[1]
        assert committed(run.data) == groups
        status = mirror_file.read(Files(), str(run.data))
        assert status is not None
        assert {status.ids[topic] for topic in ("orders", "tx")} == {mirror_file.NO_ID}
        assert verify(str(run.data)).faults == []


@pytest.mark.parametrize("runs_on", [False, True])
@pytest.mark.parametrize("count", [3, 5, 7])
def test_a_topic_that_was_created_again(
    broker: OldBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, runs_on: bool
) -> None:
    """The new one has fewer records, as many, or more. `runs_on`: the mirror does so meanwhile."""
    monkeypatch.setattr(module, "_LOOK_MS", 200)
    topic = f"again-{count}-{runs_on}"
    run = mirrored(broker, tmp_path, topic, 5)
    before = stored(tmp_path / f"{topic}-0")

    def steps() -> Iterator[None]:
        yield
        delete_topic(broker, topic)
        while not run.facts.waiting:
            yield
        create_again(broker, topic, count)
        while "is it another topic?" not in run.facts.waiting.get((topic, 0), ""):
            yield

    if runs_on:
        rounds = steps()
        run(lambda: next(rounds, True) is True)
    else:
        delete_topic(broker, topic)
        run()
        create_again(broker, topic, count)
    for _ in range(2):
        assert (run().gaps, list(run.facts.waiting)) == (0, [(topic, 0)])
        assert "is it another topic?" in run.facts.waiting[topic, 0]
        assert stored(tmp_path / f"{topic}-0") == before
    assert verify(str(tmp_path)).faults == []
