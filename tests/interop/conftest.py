"""Fetches Apache Kafka before the first test that needs it, so that no test's time holds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import kafka_tools
from tests.interop.brokers import Member


@pytest.fixture(scope="session", autouse=True)
def kafka() -> None:
    """Fail with what to install where Kafka cannot run here."""
    kafka_tools.require("java", "default-jre-headless")
    kafka_tools.jars()


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
