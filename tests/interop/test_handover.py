"""`kafkafs handover`: a broker serves what the mount showed, and its producers go on there.

The broker is given our topics at once, with the producer ids that it has given out itself among
theirs; it is used, killed, and used again.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.record.plain import recompress
from storage.task import Task
from tests.interop.brokers import Broker
from tests.interop.clients import (
    SECONDS,
    Sender,
    admin,
    console_line,
    console_producer,
    consume_all,
    create_topic,
    offsets,
)
from tests.interop.kafka_tools import CONFIGS, java_command, run_tool
from tests.interop.workload import CODECS, OPEN_MS, T, mixed, values
from tests.mount.mounting import SETTINGS, Mount, kafkafs
from tests.storage.old_logs import write_legacy
from tests.storage.transactions import Client
from tests.waits import until

pytestmark = pytest.mark.soak

OURS = tuple(f"ours-{codec}" for codec in CODECS)
OLD = ("v0", "v1")
TOPICS = (*OURS, *OLD, "late", "transactions", "compacted", "epochs", "emptied", "never")
# Each topic in LONG has records from this offset on.
LATER = 60
LONG = tuple(topic for topic in TOPICS if topic not in ("emptied", "never"))


def fill(log: Log, codec: int = 0) -> None:
    """Batches in several segments."""
    for number in range(12):
        records = mixed(10, T + 200 * number, seed=number)
        numbered = [record._replace(offset=n) for n, record in enumerate(records)]
        log.append(bytearray(recompress(encode(numbered), codec)), now_ns=T * 1_000_000)
        if number % 4 == 3:
            log.roll(T)


def write_ours(data: Path) -> None:
    data.mkdir()
    (data / "kafkafs.properties").write_text(
        SETTINGS + "log.retention.ms=-1\nlog.index.interval.bytes=500\n"
    )
    for magic, topic in enumerate(OLD):
        write_legacy(data, topic, magic)
    with LogManager.open(str(data)) as manager:
        logs = {
            topic: manager.create_topic(topic, 1).partitions[0]
            for topic in TOPICS
            if topic not in OLD
        }
        for codec, topic in enumerate(OURS):
            manager.change_topic_settings(topic, {"compression.type": "producer"})
            fill(logs[topic], codec)
        fill(logs["late"])
        logs["late"].raise_log_start(47)
        fill(logs["emptied"])
        logs["emptied"].raise_log_start(logs["emptied"].log_end_offset)
        write_transactions(logs["transactions"])
        write_compacted(manager, logs["compacted"])
        fill(logs["epochs"])
    raise_epochs(data / "epochs-0")


def write_transactions(log: Log) -> None:
    """By the ids that a broker gives out, from 0 on, and at each start from another thousand on."""
    for producer_id in (1000 * start + number for start in range(5) for number in range(8)):
        client = Client(log, producer_id)
        for number in range(3):
            client.send(b"%d.%d" % (producer_id, number), b"more", timestamp_ms=T + number)
        client.end(producer_id % 2)
        if producer_id % 7 == 6:
            log.roll(T)
    log.raise_log_start(3)


def write_compacted(manager: LogManager, log: Log) -> None:
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}
    manager.change_topic_settings("compacted", dict(settings))
    for number in range(6):
        records = [
            Record(n, T + 10 * number + n, 0, b"%d" % (n % 7), b"%d.%d" % (number, n))
            for n in range(20)
        ]
        log.append(bytearray(encode(records)), now_ns=T * 1_000_000)
        log.roll(T)
    assert LogCleaner(manager).clean(log, Task()) is not None


def raise_epochs(directory: Path) -> None:
    """As a cluster's leaders give them out, one with each segment, far above a new topic's."""
    for number, path in enumerate(sorted(directory.glob("*.log"))):
        data = bytearray(path.read_bytes())
        at = 0
        while at < len(data):
            data[at + 12 : at + 16] = (5 + number).to_bytes(4, "big")
            at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        path.write_bytes(data)


def as_record(line: bytes) -> Record:
    """Return the record that a line of `.jsonl` shows."""

    def data(value: object) -> bytes | None:
        assert value is None or isinstance(value, str), value
        return None if value is None else value.encode()

    found = json.loads(line)
    headers = tuple((name, data(value)) for name, value in found["headers"])
    timestamp = found["timestamp"]
    return Record(
        found["offset"],
        -1 if timestamp is None else timestamp,
        int(found["timestampType"] == "LogAppendTime"),
        data(found["key"]),
        data(found["value"]),
        headers,
    )


class Shown:
    """Records in the mount: all, and those from LATER on."""

    def __init__(self, mount: Mount) -> None:
        self.records: dict[str, list[Record]] = {}
        self.later: dict[str, list[Record]] = {}
        for topic in TOPICS:
            views = mount / topic / ".jsonl"
            self.records[topic] = read(views / "0")
            self.later[topic] = read(views / f"0@{LATER}")


def read(path: Path) -> list[Record]:
    return [as_record(line) for line in path.read_bytes().splitlines()]


def broker_commands(printed: str) -> list[list[str]]:
    """The commands that were printed, for the tools of Kafka's jars."""
    mains = {
        "kafka-topics": "org.apache.kafka.tools.TopicCommand",
        "kafka-configs": CONFIGS,
    }
    words = [shlex.split(line) for line in printed.splitlines() if line.startswith("kafka-")]
    return [[mains[first], *rest] for first, *rest in words]


def run_commands(broker: Broker, printed: str) -> int:
    commands = broker_commands(printed)
    for main, *arguments in commands:
        given = [broker.address if word == "localhost:9092" else word for word in arguments]
        done = run_tool(main, *given)
        assert done.returncode == 0, (given, done.stdout, done.stderr)
    return len(commands)


class Handed:
    """A broker that was given our topics, and what it has said and served since."""

    def __init__(self, base: Path, broker: Broker) -> None:
        data = base / "data"
        write_ours(data)
        mount = Mount(base)
        try:
            mount.start()
            self.shown = Shown(mount)
            mount.stop()
        finally:
            mount.end()
        self.broker = broker.start()
        create_topic(broker, "its-own")
        Sender(broker, enable_idempotence=True).send("its-own", values(0, 10))
        # Some are there, the others are created by what the dry run prints.
        for topic in TOPICS[:3]:
            create_topic(broker, topic)
        first = kafkafs("handover", data, broker.data, "--dry-run")
        assert first.returncode == 1
        assert (
            f"the data directory is in use by process {broker.server.process.pid}" in first.stderr
        )
        assert run_commands(broker, first.stdout) == len(TOPICS)
        java = subprocess.Popen(
            java_command(*console_producer(broker, "transactions", "none")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        broker.stop()
        self.refused = kafkafs("handover", data, broker.data, "its-own")
        self.again = kafkafs("handover", data, broker.data, "--dry-run")
        self.done = kafkafs("handover", data, broker.data)
        assert self.done.returncode == 0, self.done.stderr
        self.ours = {topic: listed(kafkafs("config", data, topic).stdout) for topic in TOPICS}
        broker.start()
        assert run_commands(broker, self.done.stdout) == len(TOPICS)
        self.theirs = {topic: described(broker, topic) for topic in TOPICS}
        self.records = consume_all(broker, TOPICS, committed=True)
        self.later = consume_all(broker, LONG, committed=True, first=LATER)
        self.starts = {topic: offsets(broker, topic)[0] for topic in TOPICS}
        lines = (console_line(Record(0, 0, 0, b"java", b"%d" % n)) for n in range(20))
        said, _ = java.communicate("".join(lines))
        assert java.returncode == 0, said
        plain, transactional = self.go_on("first")
        self.appended = consume_all(broker, TOPICS, committed=True)
        self.lines = list(broker.server.lines)
        broker.kill()
        broker.start()
        # The same producers append again, then new ones with ids that are new to the cluster.
        self.send(plain, transactional, "after a kill")
        self.go_on("second")
        self.at_last = consume_all(broker, TOPICS, committed=True)
        self.lines += broker.server.lines
        broker.stop()
        with LogManager.open(str(broker.data), read_only=True) as manager:
            self.read = {
                topic: list(manager.log(topic, 0).records(isolation="read_committed"))
                for topic in TOPICS
            }

    def go_on(self, name: str) -> tuple[list[Sender], Sender]:
        """Producers of every kind begin to write to all topics."""
        plain = [Sender(self.broker, enable_idempotence=True) for _ in range(3)]
        transactional = Sender(self.broker, transactional_id=name, transaction_timeout_ms=OPEN_MS)
        self.send(plain, transactional, name)
        return plain, transactional

    def send(self, plain: list[Sender], transactional: Sender, value: str) -> None:
        for topic in TOPICS:
            for sender in plain:
                for _ in range(2):
                    sender.send(topic, [Record(0, T, 0, b"new", value.encode())])
            with transactional.transaction():
                transactional.send(topic, [Record(0, T, 0, b"new", value.encode())])
        for topic in TOPICS:
            until(
                lambda: offsets(self.broker, topic, committed=True) == offsets(self.broker, topic)  # noqa: B023
            )


def described(broker: Broker, topic: str) -> dict[str, str]:
    """All settings of a topic, by the broker."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    client = admin(broker)
    (done,) = client.describe_configs([resource]).values()
    return {name: str(entry.value) for name, entry in done.result(SECONDS).items()}


def listed(text: str) -> dict[str, tuple[str, bool]]:
    """Return the settings that `kafkafs config` lists: the value, and whether it is set."""
    found: dict[str, tuple[str, bool]] = {}
    for line in text.splitlines():
        name, value = line.removeprefix("# ").split("=", 1)
        found[name] = value.partition(" ")[0], not line.startswith("#")
    return found


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handed]:
    base = tmp_path_factory.mktemp("handed")
    broker = Broker(base / "broker")
    try:
        yield Handed(base, broker)
    finally:
        broker.kill()


@pytest.mark.parametrize("topic", TOPICS)
def test_consumers_get_what_the_mount_showed(topic: str, handed: Handed) -> None:
    assert handed.records[topic] == handed.shown.records[topic]
    if topic in LONG:
        assert handed.records[topic]
        assert handed.later[topic] == handed.shown.later[topic]


def test_log_starts(handed: Handed) -> None:
    assert handed.starts["late"] == 47
    assert handed.starts["transactions"] == 3
    assert handed.starts["emptied"] == 120
    assert handed.starts["v1"] == 5
    assert handed.starts["compacted"] == 0


@pytest.mark.parametrize("topic", TOPICS)
def test_producers_go_on(topic: str, handed: Handed) -> None:
    """Also over a kill of the broker, which has ids of ours in no segment that it recovers."""
    before = handed.records[topic]
    assert handed.appended[topic][: len(before)] == before
    new = [each.value for each in handed.at_last[topic][len(before) :] if each.key == b"new"]
    assert new == [b"first"] * 7 + [b"after a kill"] * 7 + [b"second"] * 7
    assert handed.read[topic] == handed.at_last[topic]


def test_a_java_producer_goes_on(handed: Handed) -> None:
    """It was there before the handover, with an id of this cluster that ours has, too."""
    found = [each.value for each in handed.at_last["transactions"] if each.key == b"java"]
    assert found == [b"%d" % number for number in range(20)]


def test_the_broker_finds_nothing_to_mend(handed: Handed) -> None:
    names = re.compile("|".join(rf"\b{topic}-0\b" for topic in TOPICS))
    faults = re.compile(
        r"(?i)corrupt|truncat|invalid|stray|unreasonabl|rebuilding index|out of order|error process"
    )
    found = [line for line in handed.lines if names.search(line) and faults.search(line)]
    assert found == []


def test_settings_are_printed_as_commands(handed: Handed) -> None:
    """They were run before the handover and after it: the broker has what we have, of what is set
    and of what decides what goes.
    """
    for topic in TOPICS:
        ours, theirs = handed.ours[topic], handed.theirs[topic]
        decides = {"cleanup.policy", "retention.ms", "retention.bytes"}
        told = decides | {name for name, (_, is_set) in ours.items() if is_set}
        assert {name: theirs[name] for name in told} == {name: ours[name][0] for name in told}
    assert handed.theirs["compacted"]["cleanup.policy"] == "compact"
    assert handed.theirs[OURS[0]]["compression.type"] == "producer"
    assert [words[0] for words in broker_commands(handed.done.stdout)] == [CONFIGS] * len(TOPICS)
    assert handed.done.stdout.endswith("# now start the broker\n")


def test_what_is_not_ours_is_refused(handed: Handed) -> None:
    assert handed.refused.returncode == 3
    assert "there is no topic 'its-own'" in handed.refused.stderr
    assert (handed.again.returncode, handed.again.stderr) == (0, "")


def test_no_broker_starts_on_half_a_handover(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    broker.format()
    (broker.data / "kafkafs.handover").mkdir()
    with pytest.raises(AssertionError, match=r"(?s)kafkafs\.handover"):
        broker.start()
