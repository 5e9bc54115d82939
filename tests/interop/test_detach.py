"""A real broker and a directory that was detached from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import Record
from storage.paths import LOCK
from tests.interop.brokers import Broker
from tests.interop.clients import Sender, consume_all, create_topics
from tests.interop.workload import T
from tests.mount.mounting import kafkafs

pytestmark = pytest.mark.soak

TOPICS: dict[str, dict[str, object]] = {"kept": {}, "compacted": {"cleanup.policy": "compact"}}


def numbered(first: int, count: int) -> list[Record]:
    return [Record(0, T + n, 0, b"%d" % (n % 7), b"%d" % n) for n in range(first, first + count)]


def contents(data: Path) -> dict[str, bytes]:
    found = {path.relative_to(data): path for path in data.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if path.name != LOCK}


def test_it_refuses_to_start_and_once_that_is_taken_back_has_all(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker").start()
    try:
        create_topics(broker, TOPICS)
        sender = Sender(broker, enable_idempotence=True)
        for topic in TOPICS:
            sender.send(topic, numbered(0, 100))
        records = consume_all(broker, tuple(TOPICS), committed=True)
        broker.stop()
        before = contents(broker.data)
        assert kafkafs("detach", broker.data).returncode == 0
        detached = contents(broker.data)
        with pytest.raises(AssertionError, match=r"(?s)ended without saying.*meta\.properties"):
            broker.start()
        assert contents(broker.data) == detached
        assert kafkafs("detach", broker.data, "--undo").returncode == 0
        assert contents(broker.data) == before
        broker.start()
        assert consume_all(broker, tuple(TOPICS), committed=True) == records
        sender.send("kept", numbered(100, 10))
        assert len(consume_all(broker, ("kept",), committed=True)["kept"]) == 110
        broker.stop()
    finally:
        broker.kill()
