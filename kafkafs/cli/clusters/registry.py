"""Reads the topic `_schemas` of a cluster, where a Confluent Schema Registry stores its schemas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_client.cluster import UNKNOWN_TOPIC, TopicPartition
from kafka_client.errors import BrokerError
from kafkafs.cli.clusters.ranges import lines_of, spans
from kafkafs.cli.clusters.windows import Windows
from kafkafs.cli.common.mount_files import Read


@contextmanager
def opened_registry(windows: Windows, topic: str, *_: str) -> Iterator[Read]:
    """Yield a function that reads the `jsonl` text of the topic. It grows with the topic.

    Errors: ClientError; FileNotFoundError if there is no such topic.
    """
    partition = TopicPartition(topic, 0)
    error = windows.cluster.refresh([topic]).topics[topic].error
    if error and error != UNKNOWN_TOPIC:
        windows.report(BrokerError(error, topic))
    if error:
        raise FileNotFoundError(topic)
    text = bytearray()
    offset, looked_at = 0, -1

    def read(position: int, size: int) -> bytes:
        nonlocal offset, looked_at
        # A schema is older than its records, so one look for each window finds it.
        if position >= len(text) and windows.count != looked_at:
            for _, span in spans(windows, [(partition, str(offset))], follow=False):
                for window in windows.of({partition: span}):
                    for lines in lines_of(window):
                        text.extend(lines)
                    offset = window.end
            looked_at = windows.count
        return bytes(text[position : position + size])

    yield read
