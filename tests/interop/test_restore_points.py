"""A handover of a restore point: Kafka's own consumers continue at a new broker, with nothing lost
and nothing twice.

The source has moved on since: records, committed offsets, and the end of a transaction that was
open at the point.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage import Record
from storage.files import Files
from storage.state import point_file
from storage.state.mirror_file import NO_ID
from storage.state.point_file import Point, Position, Range
from storage.verify.verify import verify
from tests.interop.brokers import Broker
from tests.interop.clients import SECONDS, Sender, create_topics, offsets
from tests.interop.kafka_tools import complaints, dump_log_segments
from tests.interop.kafka_tools import records as dumped
from tests.interop.test_groups import OFFSETS, console, described
from tests.interop.test_mirror import Run
from tests.mount.mounting import kafkafs

pytestmark = pytest.mark.soak

TOPICS: dict[str, dict[str, object]] = {"orders": {"retention.ms": -1, "segment.bytes": 1048576}}
#: By protocol of the group: the number of records that it reads before the point.
READ = {"classic": 7, "consumer": 30}
COMMITTED = ("--isolation-level", "read_committed")


def records(name: str, count: int) -> list[Record]:
    now_ms = int(time.time() * 1000)
    return [Record(n, now_ms, 0, None, f"{name} {n}".encode()) for n in range(count)]


def take_point(source: Broker, data: Path) -> str:
    """As a mirror does: the groups first, then the ends."""
    point = Point(int(time.time() * 1000), "C", ids={"orders": NO_ID})
    for (group, topic, number), (position, _, _) in described(source).items():
        point.groups.setdefault(group, {})[topic, number] = Position(position, 0)
    start, _ = offsets(source, "orders")
    _, end = offsets(source, "orders", committed=True)
    point.partitions["orders", 0] = Range(start, end)
    return point_file.write(Files(), str(data), point)


def fill(source: Broker) -> list[str]:
    """Write records; return the values that consumers get."""
    create_topics(source, TOPICS)
    Sender(source).send("orders", records("plain", 25))
    transactional = Sender(source, transactional_id="t")
    for commit in (True, False, True):
        with transactional.transaction(commit=commit):
            transactional.send("orders", records("committed" if commit else "aborted", 10))
    return [f"plain {n}" for n in range(25)] + [f"committed {n}" for n in range(10)] * 2


def leave_marker_above(source: Broker) -> Sender:
    """Commit a transaction whose marker lies above the last stable offset, since another one is
    open, whose producer is returned.
    """
    early, opened = (Sender(source, transactional_id=name) for name in ("early", "opened"))
    for each, name in ((early, "early"), (opened, "never")):
        each.producer.begin_transaction()
        each.send("orders", records(name, 2))
    early.producer.commit_transaction(SECONDS)
    return opened


def read_on(broker: Broker, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the values that the groups read next; `counts`: by protocol."""
    return {
        protocol: console(broker, f"of-{protocol}", "orders", count, protocol, *COMMITTED)
        for protocol, count in counts.items()
    }


def check_files(data: Path, count: int) -> None:
    """Check with Kafka's tool; `count`: of all records."""
    files = [
        path
        for topic in ("orders", OFFSETS)
        for path in sorted(data.glob(f"{topic}-*/*.log"))
        if path.stat().st_size
    ]
    printed, errors = dump_log_segments(files, "--print-data-log", "--deep-iteration")
    assert complaints(errors) == []
    assert sum(1 for _ in dumped(printed)) == count
    assert verify(str(data)).faults == []


def test_groups_continue_from_a_restore_point(tmp_path: Path) -> None:
    source = Broker(tmp_path / "source", offsets_topic_num_partitions=2)
    target = Broker(tmp_path / "target", offsets_topic_num_partitions=3)
    data = tmp_path / "data"
    try:
        source.start()
        expected = fill(source)
        read = read_on(source, READ)
        opened = leave_marker_above(source)
        expected += ["early 0", "early 1"]
        run = Run(source, data, "orders")
        run()
        name = take_point(source, data)
        assert kafkafs("points", data, "--keep", "safe").returncode == 0
        opened.producer.commit_transaction(SECONDS)
        Sender(source).send("orders", records("later", 20))
        read_on(source, dict.fromkeys(READ, 4))
        run()
        source.kill()
        target.start()
        create_topics(target, TOPICS)
        create_topics(target, {OFFSETS: {"cleanup.policy": "compact"}}, 3)
        target.stop()
        assert kafkafs("handover", "--at", name, data, target.data).returncode == 3
        done = kafkafs("handover", "--at", "safe", data, target.data)
        assert (done.returncode, done.stderr) == (0, "")
        assert "the transaction of producer" not in done.stdout
        check_files(target.data, 25 + 30 + 2 + len(READ))
        target.start()
        left = read_on(target, {group: len(expected) - count for group, count in READ.items()})
        for group in READ:
            assert read[group] + left[group] == expected
        Sender(target).send("orders", records("new", 1))
        for found in read_on(target, dict.fromkeys(READ, 1)).values():
            assert found == ["new 0"]
        target.stop()
        assert verify(str(target.data)).faults == []
    finally:
        source.kill()
        target.kill()
