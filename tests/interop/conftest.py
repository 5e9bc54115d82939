"""Fetches Apache Kafka before the first test that needs it, so that no test's time holds it."""

from __future__ import annotations

import pytest

from tests.interop import kafka_tools


@pytest.fixture(scope="session", autouse=True)
def kafka() -> None:
    """Fail with what to install where Kafka cannot run here."""
    done = kafka_tools.run_tool(kafka_tools.DUMP, "--version")
    assert done.returncode == 0, done.stderr
