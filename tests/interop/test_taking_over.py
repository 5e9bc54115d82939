"""We take over the directory of a real broker, and delete the segments that the broker deletes.

Its topics are kept for ever, deleted from by time or by size, compacted, or have the broker's
defaults. Some settings are on the topics, some on the broker, one only in its server.properties.
The broker stops before it has applied any of them. If kafkafs does not know the broker's file, it
deletes only from the topic that has all its settings itself. If it knows the file, it deletes the
segments that the broker deletes when it runs again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from storage import Record
from tests.interop import clients
from tests.interop.brokers import Broker, write_properties
from tests.interop.clients import Sender, create_topics, set_topic
from tests.mount.mounting import Mount, kafkafs, mounted
from tests.storage.logs import write_settings
from tests.waits import until

pytestmark = pytest.mark.soak

DAY_MS = 86_400_000
DAYS = (60, 50, 40, 30, 20, 10, 1)
"""How old each segment's records are."""
PER_SEGMENT = 10
OWN = {"segment.ms": 1000}
TOPICS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "for-ever": {"retention.ms": -1, "retention.bytes": -1},
    "by-size": {"retention.ms": -1},
    "by-time": {"retention.ms": 25 * DAY_MS},
    "all-said": {"retention.ms": 35 * DAY_MS, "retention.bytes": -1, "cleanup.policy": "delete"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
    "both": {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": 0.01,
        # In a broker, it is chance whether retention or the cleaner runs first.
        "retention.ms": -1,
        "retention.bytes": -1,
    },
}
LATER = {
    "log_initial_task_delay_ms": DAY_MS,
    "log_retention_check_interval_ms": DAY_MS,
    "log_cleaner_backoff_ms": DAY_MS,
}
FAST = {
    "log_initial_task_delay_ms": 0,
    "log_retention_check_interval_ms": 20,
    "log_cleaner_backoff_ms": 20,
}


class Taken:
    """The directory that the broker has left, and the broker's server.properties."""

    def __init__(self, base: Path) -> None:
        self.base = base
        # The value of log.retention.bytes that is set on the broker overrides this one, and is
        # smaller: until it has read its metadata log, a starting broker uses its file.
        self.broker = Broker(
            base / "broker", log_retention_ms=45 * DAY_MS, log_retention_bytes=1 << 40, **LATER
        )
        self.server = self.broker.base / "server.properties"
        self.broker.start()
        self._fill()
        self.broker.stop()
        self.left = base / "left"
        shutil.copytree(self.broker.data, self.left)

    def _fill(self) -> None:
        create_topics(self.broker, {name: {**OWN, **own} for name, own in TOPICS.items()})
        sender = Sender(self.broker)
        now_ms = time.time_ns() // 1_000_000
        for topic in TOPICS:
            for days in DAYS:
                sender.send(topic, _segment(days, now_ms - days * DAY_MS))
        logs = sorted(self.broker.partition("by-size").glob("*.log"))
        sizes = [path.stat().st_size for path in logs]
        set_topic(self.broker, "by-size", retention_bytes=sum(sizes[3:]))
        self.broker_bytes = sum(sizes[4:])
        self._set_on_broker("log.retention.bytes", self.broker_bytes)
        group = Consumer({"bootstrap.servers": self.broker.address, "group.id": "g"})
        try:
            for offset in range(5):
                group.commit(offsets=[TopicPartition("plain", 0, offset)], asynchronous=False)
        finally:
            group.close()

    def _set_on_broker(self, name: str, value: object) -> None:
        entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        client = clients.admin(self.broker)
        for done in client.incremental_alter_configs([resource]).values():
            done.result(clients.SECONDS)

    def copy(self, name: str) -> Path:
        """A directory of its own with the broker's directory as ``data``."""
        base = self.base / name
        shutil.copytree(self.left, base / "data")
        write_settings(base / "data", **FAST)
        return base

    def let_go(self) -> dict[str, list[str]]:
        """Let the broker apply its settings. Return the segments that it then has, by topic."""
        lines = dict(
            line.split("=", 1) for line in self.server.read_text().splitlines() if "=" in line
        )
        fast = {name.replace("_", "."): value for name, value in FAST.items()}
        write_properties(self.server, {**lines, **fast})
        before = {topic: _bases(self.broker.data, topic) for topic in TOPICS}
        self.broker.start()
        going = ("plain", "by-size", "by-time", "all-said", "both", "compacted")
        until(lambda: all(_bases(self.broker.data, topic) != before[topic] for topic in going))
        # Wait for one more round of retention: it deletes nothing more of the other topics.
        mark = len(self.broker.server.lines)
        Sender(self.broker).send("for-ever", _segment(0, time.time_ns() // 1_000_000 + 2000))
        set_topic(self.broker, "for-ever", retention_bytes=1)
        self.broker.server.wait_for("for-ever-0.*Incremented log start offset to", mark)
        return {topic: _bases(self.broker.data, topic) for topic in TOPICS if topic != "for-ever"}


def _segment(days: int, timestamp: int) -> list[Record]:
    """A batch that a segment of its own is rolled for, of keys that each has."""
    return [
        Record(0, timestamp, 0, b"key %d" % n, b"%d days %d" % (days, n))
        for n in range(PER_SEGMENT)
    ]


def _bases(data: Path, topic: str) -> list[str]:
    return sorted(path.name for path in (data / f"{topic}-0").glob("*.log"))


def _logs(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in data.glob("*-0/*.log")}


def _passes(mount: Mount) -> float:
    return _metric(mount, "kafkafs_retention_passes_total")


def _metric(mount: Mount, name: str) -> float:
    for line in (mount / ".kafkafs/metrics").read_text().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no {name}")


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    found: Taken | None = None
    try:
        found = Taken(tmp_path_factory.mktemp("taken"))
        yield found
    finally:
        if found is not None:
            found.broker.kill()


def test_what_is_not_known_is_kept(taken: Taken) -> None:
    """Segments are deleted only of the topic that has all its settings itself."""
    base = taken.copy("unknown")
    before = _logs(base / "data")
    assert "__consumer_offsets-0/00000000000000000000.log" in before
    with mounted(base) as mount:
        until(lambda: _passes(mount) >= 3)
        until(lambda: _metric(mount, "kafkafs_deleted_segments_total") == 3)
        command = f"kafkafs config {base / 'data'} --broker-config FILE"
        for file in (".kafkafs/topics", ".kafkafs/log"):
            lines = (mount / file).read_text().splitlines()
            told = [line for line in lines if command in line]
            assert {topic for topic in TOPICS if any(topic in line for line in told)} == {
                *TOPICS
            } - {"all-said"}
        until(lambda: _passes(mount) >= 6)
    after = _logs(base / "data")
    gone = before.keys() - after.keys()
    assert {name.split("/")[0] for name in gone} == {"all-said-0"}
    assert all(after[name] == before[name] for name in after)
    for command in ("prune", "compact"):
        done = kafkafs(command, base / "data")
        assert done.returncode == 0, done.stderr
        assert "--broker-config" in done.stderr
    assert _logs(base / "data") == after


def test_what_is_known_is_applied_as_the_broker_does(taken: Taken) -> None:
    base = taken.copy("known")
    before = _logs(base / "data")
    done = kafkafs("config", base / "data", "--broker-config", taken.server)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = kafkafs("config", base / "data", "by-time").stdout.splitlines()
    assert f"retention.ms={25 * DAY_MS}" in shown
    own = f"# retention.bytes={taken.broker_bytes} (log.retention.bytes, set on the broker)"
    assert own in shown
    with mounted(base) as mount:
        until(lambda: _metric(mount, "kafkafs_compactions_total") >= 2)
        passed = _passes(mount)
        until(lambda: _passes(mount) >= passed + 3)
        theirs = taken.let_go()
        assert "--broker-config" not in mount.events()
    assert {each: _bases(base / "data", each) for each in theirs} == theirs
    after = _logs(base / "data")
    kept = [name for name in before if name.startswith("for-ever")]
    assert len(kept) == len(DAYS)
    assert all(after[name] == before[name] for name in kept)
