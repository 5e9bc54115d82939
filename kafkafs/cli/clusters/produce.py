"""Appends lines to a topic of a cluster, as the files of a mount append to a log."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import BrokerError, ClientError, UnknownOutcome
from kafka_client.requests import TopicSettings, describe_topic_configs, produce
from kafkafs.cli.common.ending import fail
from kafkafs.views import TEXT_VIEWS, TextView
from storage.errors import InvalidRecord
from storage.log.partitioner import Partitioner
from storage.record.header import size_at
from storage.settings.config import LogConfig

# Codes of refused records: CORRUPT_MESSAGE (of old brokers, if a key is missing),
# MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD.
_OF_RECORDS = frozenset({2, 10, 18, 32, 87})


class TopicWriter:
    """Appends to one partition of a topic or, if `partition` is None, by the keys of records."""

    def __init__(self, cluster: Cluster, topic: str, partition: int | None, view: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._numbers: Collection[int] = ()
        self._view: TextView = TEXT_VIEWS[view]()
        self._partitioner = Partitioner()
        found = describe_topic_configs(cluster, [self._topic]).get(self._topic)
        in_force = found.in_force if isinstance(found, TopicSettings) else {}
        limit = in_force.get("max.message.bytes", "")
        self._limit = int(limit) if limit.isdecimal() else LogConfig().max_message_bytes
        self._lines = 0

    def write(self, data: bytes) -> None:
        """Append whole lines, and return when all in-sync replicas have them.

        Errors: InvalidRecord, RecordTooLarge, ClientError; nothing was appended. ClickException if
        a part of the lines may be in the log.
        """
        now_ms = time.time_ns() // 1_000_000
        batches, _ = self._view.parse(data, 0, len(data), now_ms, self._limit)
        if self._partition is not None:
            parts, sticky = {self._partition: batches}, None
        else:
            # Partitions may have been added before the last request.
            self._numbers = self._cluster.metadata.topics[self._topic].partitions or self._numbers
            parts, sticky = self._partitioner.route(batches, self._numbers, self._limit)
        count = data.count(b"\n")
        is_begun = False
        for number, part in parts.items():
            for batch in _batches(part):
                try:
                    produce(self._cluster, TopicPartition(self._topic, number), batch)
                except ClientError as error:
                    if not is_begun and not isinstance(error, UnknownOutcome):
                        if isinstance(error, BrokerError) and error.code in _OF_RECORDS:
                            raise InvalidRecord(str(error)) from None
                        raise
                    raise self._unfinished(error, count) from None
                is_begun = True
        if sticky is not None:
            self._partitioner.sticky = sticky
        self._lines += count

    def _unfinished(self, error: ClientError, count: int) -> Exception:
        lines = f"line {self._lines + 1}"
        if count > 1:
            lines = f"lines {self._lines + 1} to {self._lines + count}"
        return fail(
            f"{lines} of standard input: {error}; a part of them may be in the topic. All lines"
            " before them were appended"
        )


def _batches(data: bytes | bytearray) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = size_at(data, at)
        yield bytes(data[at : at + size])
        at += size
