"""Topics that the brokers of formats v0 and v1 are filled with."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence

from storage import Record
from tests.interop.brokers import OldBroker
from tests.interop.clients import SECONDS, Sender, consume
from tests.interop.workload import T, mixed, wait_cleaned

CODECS = ("none", "gzip", "snappy", "lz4")
# A broker of 0.8 cannot be asked what it understands.
V0_CLIENT = {"api.version.request": "false", "broker.version.fallback": "0.8.2.2"}


def plain(count: int, first_ms: int = T, *, seed: int = 0) -> list[Record]:
    """Records without headers, which the old formats do not have."""
    return [record._replace(headers=()) for record in mixed(count, first_ms, seed=seed)]


def client(broker: OldBroker) -> dict[str, str]:
    """Return the settings that librdkafka needs for this broker."""
    return V0_CLIENT if broker.magic == 0 else {}


def sender(broker: OldBroker, codec: str) -> Sender:
    return Sender(broker, compression_type=codec, **_underscored(client(broker)))


def _underscored(config: dict[str, str]) -> dict[str, object]:
    return {name.replace(".", "_"): value for name, value in config.items()}


def read(broker: OldBroker, topic: str) -> list[Record]:
    """Everything that a consumer gets of the topic."""
    return consume(broker, topic, config=client(broker))


def console_producer(broker: OldBroker, topic: str, codec: str) -> list[str]:
    """The command that writes lines of key, TAB and value with that release's own producer."""
    words = ["--broker-list", broker.address, "--topic", topic, "--batch-size", "50"]
    words += ["--request-required-acks", "1", "--property", "parse.key=true"]
    if codec != "none":
        words += ["--compression-codec", codec]
    return broker.java("kafka.tools.ConsoleProducer", *words)


def run_all(commands: Sequence[tuple[Sequence[str], str]]) -> None:
    """Run commands at the same time, each with its standard input."""
    started = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, _ in commands
    ]
    for process, (command, given) in zip(started, commands, strict=True):
        _, errors = process.communicate(given, SECONDS)
        assert process.returncode == 0, (command, errors)


def create_topics(broker: OldBroker, topics: dict[str, dict[str, object]]) -> None:
    """Create topics with settings (`_` for `.`) by that release's own tool."""
    commands: list[tuple[list[str], str]] = []
    for topic, settings in topics.items():
        words = ["--zookeeper", broker.zookeeper, "--create", "--topic", topic]
        words += ["--partitions", "1", "--replication-factor", "1"]
        for name, value in settings.items():
            words += ["--config", f"{name.replace('_', '.')}={value}"]
        commands.append((broker.java("kafka.admin.TopicCommand", *words), ""))
    run_all(commands)


def fill(broker: OldBroker) -> tuple[str, ...]:
    """Make all topics; returns their names."""
    codecs(broker)
    with_settings(broker)
    return (*CODECS, "compacted", *(("append-time", "mixed") if broker.magic == 1 else ()))


def codecs(broker: OldBroker) -> None:
    """A topic for each codec, from librdkafka and from that release's console producer."""
    for codec in CODECS:
        producer = sender(broker, codec)
        for batch in range(3):
            producer.send(codec, plain(40, T + 1000 * batch, seed=batch))
    lines = "".join(f"key {n % 7}\tvalue {n} {'x' * n}\n" for n in range(200))
    run_all([(console_producer(broker, codec, codec), lines) for codec in CODECS])


def with_settings(broker: OldBroker) -> None:
    """`compacted`: cleaned, with holes in compressed sets.

    With v1 also `append-time` in every codec, and `mixed`: v0, then v1.
    """
    compact = {
        "cleanup_policy": "compact",
        "segment_bytes": 8000,
        "min_cleanable_dirty_ratio": 0.001,
    }
    topics: dict[str, dict[str, object]] = {"compacted": compact}
    if broker.magic == 1:
        topics["append-time"] = {"message_timestamp_type": "LogAppendTime"}
        topics["mixed"] = {"message_format_version": "0.9.0"}
    create_topics(broker, topics)
    compacted(broker)
    if broker.magic == 1:
        for codec in CODECS:
            sender(broker, codec).send("append-time", plain(30))
            sender(broker, codec).send("mixed", plain(30))
        change = ["--zookeeper", broker.zookeeper, "--alter", "--entity-type", "topics"]
        change += ["--entity-name", "mixed", "--add-config", "message.format.version=0.10.2"]
        mark = len(broker.server.lines)
        run_all([(broker.java("kafka.admin.ConfigCommand", *change), "")])
        broker.server.wait_for("Processing override for entityPath: topics/mixed", mark)
        for codec in CODECS:
            sender(broker, codec).send("mixed", plain(30, seed=1))


def compacted(broker: OldBroker) -> None:
    """Keys again and again, in sets of every codec; written to after the cleaning too."""
    senders = [sender(broker, codec) for codec in CODECS]
    for turn in range(12):
        keyed = [
            record._replace(key=record.key or f"turn {turn}".encode())
            for record in plain(50, T + 2000 * turn, seed=turn)
        ]
        senders[turn % len(senders)].send("compacted", keyed)
    # These large records roll the segment, so that all records before them are cleaned.
    mark = len(broker.server.lines)
    for number in range(2):
        incompressible = random.Random(number).randbytes(5000)
        senders[0].send("compacted", [Record(0, T + 30_000, 0, b"rolls", incompressible)])
    wait_cleaned(broker, "compacted", mark)
    senders[1].send("compacted", [Record(0, T + 30_010, 0, b"after", b"x" * n) for n in range(5)])
