"""Fetches Apache Kafka before the first test that needs it, so that no test's time holds it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import Record
from tests.interop import kafka_tools, old_workload
from tests.interop.brokers import Member, OldBroker
from tests.interop.kafka_tools import V0_POM, V1_POM


@pytest.fixture(scope="session", autouse=True)
def kafka() -> None:
    """Fail with what to install where Kafka cannot run here."""
    kafka_tools.require("java", "default-jre-headless")
    kafka_tools.jars()


class Old:
    """A running broker of format v0 or v1, and what its consumers got of its topics.

    ``left`` is its directory as it was after an orderly stop, to be copied and not changed.
    """

    def __init__(self, broker: OldBroker, base: Path) -> None:
        broker.start()
        self.broker = broker
        self.topics = old_workload.fill(broker)
        self.consumed: dict[str, list[Record]] = {
            topic: old_workload.read(broker, topic) for topic in self.topics
        }
        broker.stop()
        self.left = base / "left"
        shutil.copytree(broker.data, self.left)
        broker.start()


@pytest.fixture(scope="session", params=[V0_POM, V1_POM], ids=["v0", "v1"])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    base = tmp_path_factory.mktemp("old")
    broker = OldBroker(base / "broker", request.param)
    try:
        yield Old(broker, base)
    finally:
        broker.kill()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    first = Member(tmp_path / "1", 1, None)
    members = [first, Member(tmp_path / "2", 2, first), Member(tmp_path / "3", 3, first)]
    try:
        for member in members:
            member.start()
        yield members
    finally:
        for member in members:
            member.kill()
