"""Fixtures: a cluster with the topic `t`, of one partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_client.fake_broker import batch
from tests.kafkafs.mirror.fake_source import Source, SourceLog, SourceTopic


@pytest.fixture
def log() -> SourceLog:
    """The log of `t:0`: two batches."""
    return SourceLog([batch(0), batch(5)])


@pytest.fixture
def source(log: SourceLog) -> Iterator[Source]:
    with Source(t=SourceTopic(logs={0: log})) as source:
        yield source
