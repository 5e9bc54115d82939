"""A mirror commits the offsets that groups have in the cluster, and says which it cannot commit."""

from __future__ import annotations

from pathlib import Path

from kafka_client.cluster import TopicPartition
from kafka_client.errors import BrokerError
from kafka_client.requests import Committed, CommittedOffsets
from kafkafs.mirror.groups import commit_all
from storage import LogManager
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.groups.records import positions

UNSTABLE = 88


def test_offsets_that_cannot_be_copied_are_named_and_stop_no_others(tmp_path: Path) -> None:
    make_mirror(tmp_path)
    with LogManager.open(str(tmp_path), mirrors=True) as manager:
        for topic in ("a", "b"):
            manager.create_topic(topic, 2)
        offsets: CommittedOffsets = {
            TopicPartition("a", 0): Committed(1, -1, "m" * 5000),
            TopicPartition("b", 0): Committed(2, -1, ""),
            TopicPartition("b", 1): BrokerError(UNSTABLE, "b:1"),
        }
        others = {TopicPartition("a", 0): Committed(3, -1, "")}
        failed = commit_all(manager, {"g": offsets, "h": {**others}})
        assert positions(manager, "g") == {("b", 0): 2}
        assert positions(manager, "h") == {("a", 0): 3}
    assert failed == {
        "g": "b:1: UNSTABLE_OFFSET_COMMIT, "
        "a: the metadata of a committed offset has at most 4096 bytes, not 5000"
    }
