"""Reads the topic `_schemas` of a cluster, where a Confluent Schema Registry stores its schemas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_client.cluster import UNKNOWN_TOPIC, TopicPartition
from kafka_client.errors import BrokerError
from kafkafs.cli.clusters.pieces import ClusterReader
from kafkafs.cli.clusters.ranges import spans
from kafkafs.cli.clusters.text import text_of
from kafkafs.cli.common.mount_files import Read
from kafkafs.views import json_lines_view


@contextmanager
def opened_registry(reader: ClusterReader, topic: str, *_: str) -> Iterator[Read]:
    """Yield a function that reads the `jsonl` text of the topic. It grows with the topic.

    Errors: ClientError; FileNotFoundError if there is no such topic.
    """
    partition = TopicPartition(topic, 0)
    error = reader.cluster.refresh([topic]).topics[topic].error
    if error and error != UNKNOWN_TOPIC:
        reader.report(BrokerError(error, topic))
    if error:
        raise FileNotFoundError(topic)
    text, view = bytearray(), json_lines_view(reader.committed)
    offset, looked_at = 0, -1

    def read(position: int, size: int) -> bytes:
        nonlocal offset, looked_at
        # A schema is older than its records, so one look for each piece finds it.
        if position >= len(text) and reader.count != looked_at:
            for _, span in spans(reader, [(partition, str(offset))], follow=False):
                for piece in reader.pieces({partition: span}):
                    for lines in text_of(piece, view):
                        text.extend(lines)
                    offset = piece.end
            looked_at = reader.count
        return bytes(text[position : position + size])

    yield read
