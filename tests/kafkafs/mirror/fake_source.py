"""A cluster of one broker in memory, whose logs a test changes while a mirror copies them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_client.cluster import Cluster
from kafka_client.properties import ClientSettings
from kafkafs.mirror.facts import Facts
from kafkafs.mirror.mirror import Mirror, Options
from storage.record.header import parse_header
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import HANG_S, FakeBroker

ID, OTHER_ID, NO_ID = b"i" * 16, b"o" * 16, bytes(16)


@dataclass
class SourceLog:
    """A partition. `epochs`: the leader epochs, and the offsets at which they end."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    leader: int = 0
    epochs: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).last_offset + 1 if self.batches else self.start

    @property
    def epoch(self) -> int:
        return parse_header(self.batches[-1]).leader_epoch if self.batches else -1

    def fetch(self, asked: Struct) -> Struct:
        offset, epoch = asked["fetchOffset"], asked["lastFetchedEpoch"]
        found: Struct = {"highWatermark": self.end, "lastStableOffset": self.end}
        found |= {"logStartOffset": self.start, "records": b""}
        if not self.start <= offset <= self.end:
            return found | {"errorCode": 1}
        if self.epochs.get(epoch, offset) < offset:
            return found | {"divergingEpoch": {"epoch": epoch, "endOffset": self.epochs[epoch]}}
        rest = [each for each in self.batches if parse_header(each).last_offset >= offset]
        return found | {"records": b"".join(rest)}


@dataclass
class SourceTopic:
    id: bytes = ID
    error: int = 0
    logs: dict[int, SourceLog] = field(default_factory=lambda: {0: SourceLog()})


class Source(FakeBroker):
    """A broker with topics. It has no groups."""

    def __init__(self, **topics: SourceTopic) -> None:
        super().__init__(
            Metadata=self._metadata,
            Fetch=self._fetch,
            ListOffsets=self._list_offsets,
            OffsetForLeaderEpoch=self._end_offsets,
            DescribeConfigs=lambda *_: {},
            ListGroups=lambda *_: {},
        )
        self.topics = topics

    def __enter__(self) -> Source:
        super().__enter__()
        return self

    def count(self, name: str) -> int:
        """Return how many requests of a kind have come."""
        return [each for each, _, _ in self.requests].count(name)

    def _metadata(self, _version: int, data: Struct) -> Mapping[str, Any]:
        names = [*self.topics]
        if data["topics"] is not None:
            names = [bytes(each["name"]).decode() for each in data["topics"]]
        node = {"nodeId": 0, "host": self.address.host, "port": self.address.port}
        return {
            "clusterId": "cluster",
            "brokers": [node],
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> Struct:
        topic = self.topics.get(name, SourceTopic(NO_ID, 3, {}))
        parts = [
            {"partitionIndex": number, "leaderId": log.leader, "leaderEpoch": 0}
            for number, log in topic.logs.items()
        ]
        found = {"name": name, "errorCode": topic.error, "topicId": topic.id}
        return found | {"partitions": parts}

    def _fetch(self, _version: int, data: Struct) -> Mapping[str, Any]:
        names = {topic.id: name for name, topic in self.topics.items()}
        found = []
        for asked in data["topics"]:
            name = bytes(asked["topic"]).decode() or names.get(bytes(asked["topicId"]), "")
            topic = self.topics.get(name)
            parts = [
                {
                    "partitionIndex": each["partition"],
                    **(topic.logs[each["partition"]].fetch(each) if topic else {"errorCode": 100}),
                }
                for each in asked["partitions"]
            ]
            found.append({"topic": name, "topicId": asked["topicId"], "partitions": parts})
        return {"responses": found}

    def _list_offsets(self, _version: int, data: Struct) -> Mapping[str, Any]:
        def offset(log: SourceLog, time: int) -> int:
            return {-1: log.end, -2: log.start}.get(time, -1)

        return self._of_partitions(
            data,
            ("name", "partitionIndex"),
            lambda log, each: {
                "offset": offset(log, each["timestamp"]),
                "timestamp": -1,
                "leaderEpoch": log.epoch,
            },
        )

    def _end_offsets(self, _version: int, data: Struct) -> Mapping[str, Any]:
        def end(log: SourceLog, each: Struct) -> Struct:
            epoch = each["leaderEpoch"]
            return {"leaderEpoch": epoch, "endOffset": log.epochs.get(epoch, log.end)}

        return self._of_partitions(data, ("topic", "partition"), end)

    def _of_partitions(
        self, data: Struct, names: tuple[str, str], answer: Callable[[SourceLog, Struct], Struct]
    ) -> Mapping[str, Any]:
        of_topic, of_partition = names
        found = []
        for asked in data["topics"]:
            logs = self.topics[bytes(asked[of_topic]).decode()].logs
            parts = []
            for each in asked["partitions"]:
                number = each[of_partition]
                found_here = answer(logs[number], each)
                if logs[number].leader < 0:
                    found_here = {"errorCode": 5}
                parts.append({of_partition: number, **found_here})
            found.append({of_topic: asked[of_topic], "partitions": parts})
        return {"topics": found}


class Run:
    """One run of a mirror; `lines` are its reports."""

    def __init__(self, source: Source, data: Path, **options: Any) -> None:
        self.lines: list[str] = []
        self._source, self._data = source, str(data)
        self.options = Options("kafka://fake", consumer={"max_wait_ms": 20}, **options)

    def __call__(self, stop: Callable[[], bool] | None = None) -> Facts:
        """Copy up to the end, or until `stop` returns True."""
        deadline = time.monotonic() + HANG_S

        def ends() -> bool:
            assert time.monotonic() < deadline, self.lines
            return stop is not None and stop()

        with Cluster([self._source.address], ClientSettings()) as cluster:
            mirror = Mirror(cluster, self._data, self.options, self.lines.append)
            self.facts = mirror.facts
            mirror.run(stop is None, ends)
        return self.facts
