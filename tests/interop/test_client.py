"""Our client and a broker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.errors import BrokerError, BrokerUnreachable
from kafka_client.fetch import Fetched, Position
from kafka_client.properties import ClientSettings
from kafka_client.requests import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    Committed,
    Offset,
    TopicSettings,
    describe_topic_configs,
    end_offsets_of_epochs,
    fetch_all_committed,
    fetch_committed,
    list_groups,
    list_offsets,
    may_read,
    produce,
)
from storage import Record, encode
from storage.record.batch import decode
from storage.record.header import parse_header
from tests.fork_server import KAFKAFS
from tests.interop import clients
from tests.interop.brokers import Broker
from tests.interop.clients import Sender
from tests.interop.kafka_tools import java_command
from tests.kafkafs.schemas.avro_values import encoded
from tests.kafkafs.schemas.registries import Topic, framed
from tests.mount.test_pages_for_operators import PAYMENT, paste
from tests.mount.test_pages_for_operators import run as run_line
from tests.pasted import commands, scripts
from tests.waits import HANG_S, until

T = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With topics of one partition that hold records of all kinds."""
    # On a busy machine a broker with a short session loses it, and its leader epochs rise.
    broker = Broker(tmp_path_factory.mktemp("client"), broker_session_timeout_ms=60_000)
    try:
        broker.start()
        topics: dict[str, dict[str, object]] = {
            "orders": {"segment.bytes": 1 << 20, "retention.ms": -1},
            "tx": {},
            "started": {},
            "empty": {},
            "_schemas": {"cleanup.policy": "compact"},
        }
        clients.create_topics(broker, topics)
        clients.create_topic(broker, "many", 3)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            Sender(broker, compression_type=codec).send("orders", records(codec.encode(), 20))
        sender = Sender(broker, transactional_id="t")
        for commit in (True, False, True):
            with sender.transaction(commit=commit):
                sender.send("tx", records(b"tx", 5))
        Sender(broker).send("started", records(b"s", 10))
        clients.delete_records(broker, "started", 7)
        yield broker
    finally:
        broker.kill()


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(parse_brokers(broker.address), ClientSettings()) as cluster:
        yield cluster


def records(prefix: bytes, count: int) -> list[Record]:
    return [
        Record(
            offset,
            T + offset,
            0,
            None if offset % 3 == 0 else prefix,
            prefix * offset if offset % 5 else None,
            (("h", b"x"), ("n", None)) if offset % 2 else (),
        )
        for offset in range(count)
    ]


def read(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, **options: Any
) -> bytes:
    """The bytes of all batches from one offset up to another."""
    data = b""
    with Consumer(cluster, {partition: Position(start)}, {partition: end}, **options) as consumer:
        while not consumer.is_done:
            for each in consumer.poll():
                assert each.error is None, each.error
                data += each.records
    return data


def polled(consumer: Consumer) -> list[Fetched]:
    """The next news."""
    while True:
        if found := list(consumer.poll()):
            return found


def stored(broker: Broker, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(broker.partition(topic).glob("*.log")))


def test_metadata_has_brokers_topics_and_leaders(broker: Broker, cluster: Cluster) -> None:
    metadata = cluster.refresh()
    assert [str(each) for each in metadata.brokers.values()] == [broker.address]
    assert sorted(name for name in metadata.topics if name[0] != "_") == [
        *("empty", "many", "orders", "started", "tx")
    ]
    orders = metadata.topics["orders"]
    assert (orders.error, len(orders.id), list(orders.partitions)) == (0, 16, [0])
    assert str(cluster.metadata.leader_of(TopicPartition("many", 2))) == broker.address
    assert cluster.refresh(["nope"]).topics["nope"].error == 3


def test_a_read_log_is_the_brokers_byte_for_byte(broker: Broker, cluster: Cluster) -> None:
    log = stored(broker, "orders")
    assert read(cluster, ORDERS, 0, 100) == log
    # Read small pieces. Several of them are not a whole batch.
    assert read(cluster, ORDERS, 0, 100, max_bytes=700, partition_bytes=700) == log


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_gets_the_same(
    broker: Broker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("kafka_client.fetch._LAST", version)
    monkeypatch.setattr("kafka_client.fetch._LAST_WITH_NAMES", min(version, 12))
    assert read(cluster, TopicPartition("tx", 0), 0, 18) == stored(broker, "tx")


def test_a_range_begins_and_ends_inside_batches(cluster: Cluster) -> None:
    data = read(cluster, ORDERS, 25, 41)
    first = parse_header(data)
    assert first.base_offset <= 25 <= first.last_offset
    assert [each.offset for each in decode(data)][-1] >= 25


def test_read_committed_ends_at_the_last_stable_offset(broker: Broker, cluster: Cluster) -> None:
    tx = TopicPartition("tx", 0)
    found: set[tuple[int, int]] = set()
    with Consumer(cluster, {tx: Position(0)}, {tx: 18}, committed=True) as consumer:
        while not consumer.is_done:
            for each in consumer.poll():
                found.update(each.aborted)
    assert found == {(parse_header(stored(broker, "tx")).producer_id, 6)}
    sender = Sender(broker, transactional_id="open")
    sender.producer.begin_transaction()
    sender.send("tx", records(b"open", 1))
    try:
        assert list_offsets(cluster, {tx: LATEST})[tx] == Offset(19, 0)
        assert list_offsets(cluster, {tx: LATEST}, committed=True)[tx] == Offset(18, 0)
    finally:
        sender.producer.abort_transaction()


def test_offsets_are_found_by_time(cluster: Cluster) -> None:
    started, gone = TopicPartition("started", 0), TopicPartition("gone", 0)
    found = list_offsets(cluster, {ORDERS: T + 5, started: EARLIEST, gone: LATEST})
    assert found[ORDERS] == Offset(5, 0, T + 5)
    assert found[started] == Offset(7, 0)
    assert list_offsets(cluster, {started: EARLIEST_LOCAL})[started] == Offset(7, 0)
    assert isinstance(error := found[gone], BrokerError)
    assert error.name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_an_offset_out_of_range_is_an_error_of_its_partition(cluster: Cluster) -> None:
    started = TopicPartition("started", 0)
    with Consumer(cluster, {started: Position(3), ORDERS: Position(0)}, {ORDERS: 100}) as consumer:
        found: list[Fetched] = []
        while not consumer.is_done:
            found += consumer.poll()
    errors = {each.partition: each.error for each in found if each.error}
    assert list(errors) == [started]
    assert str(errors[started]) == "started:0: OFFSET_OUT_OF_RANGE"


def test_an_epoch_that_the_leader_never_had_is_a_divergence(cluster: Cluster) -> None:
    end = list_offsets(cluster, {ORDERS: LATEST})[ORDERS]
    assert end_offsets_of_epochs(cluster, {ORDERS: 0}) == {ORDERS: Offset(100, 0)}
    assert end == Offset(100, 0)
    with Consumer(cluster, {ORDERS: Position(120, last_epoch=0)}) as consumer:
        (each,) = polled(consumer)
    assert each.diverging == (0, 100)


def test_a_session_sends_only_what_has_changed(cluster: Cluster) -> None:
    """A topic with three partitions. One of them gets a record."""
    parts = [TopicPartition("many", number) for number in range(3)]
    with Consumer(cluster, dict.fromkeys(parts, Position(0)), max_wait_ms=100) as consumer:
        assert len(polled(consumer)) == 3
        until(lambda: not list(consumer.poll()) and consumer.is_quiet)
        base = produce(cluster, parts[1], encode(records(b"new", 4)))
        found = [(each.partition, each.next_offset) for each in polled(consumer)]
    assert found == [(parts[1], base + 4)]


def test_a_produced_batch_is_read_by_others(broker: Broker, cluster: Cluster) -> None:
    empty = TopicPartition("empty", 0)
    wanted = records(b"mine", 7)
    assert produce(cluster, empty, encode(wanted)) == 0
    assert produce(cluster, empty, encode(wanted)) == 7
    assert clients.consume(broker, "empty")[:7] == wanted
    with pytest.raises(BrokerError, match="gone: UNKNOWN_TOPIC_OR_PARTITION"):
        produce(cluster, TopicPartition("gone", 0), encode(wanted))
    damaged = bytearray(encode(wanted))
    damaged[-1] ^= 1
    with pytest.raises(BrokerError, match="empty:0: CORRUPT_MESSAGE"):
        produce(cluster, empty, bytes(damaged))


def test_settings_of_topics(cluster: Cluster) -> None:
    found = describe_topic_configs(cluster, ["orders", "gone"])
    orders = found["orders"]
    assert isinstance(orders, TopicSettings)
    assert orders.set_here == {"segment.bytes": "1048576", "retention.ms": "-1"}
    assert orders.in_force.items() > orders.set_here.items()
    assert isinstance(found["gone"], BrokerError)


def test_the_right_to_read(cluster: Cluster) -> None:
    assert may_read(cluster, "orders") is True
    assert may_read(cluster, "gone") is None


def test_offsets_of_groups_are_read(
    broker: Broker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.commit(broker, "ours", "orders", 33)
    clients.commit(broker, "ours", "tx", 1)
    found = fetch_committed(cluster, "ours")
    assert {
        each: committed.offset
        for each, committed in found.items()
        if isinstance(committed, Committed)
    } == {
        ORDERS: 33,
        TopicPartition("tx", 0): 1,
    }
    clients.commit(broker, "theirs", "orders", 1)
    all_found = fetch_all_committed(cluster)
    assert (all_found["ours"], len(all_found) > 1) == (found, True)
    monkeypatch.setattr("kafka_client.requests._GROUPS_EACH", 1)
    assert fetch_all_committed(cluster) == all_found
    assert list_groups(cluster)["ours"] == "Empty"


# -- the commands ----------------------------------------------------------------------------------


def run(*words: str, text: str | None = None) -> str:
    """Return the output of a command, which must find nothing wrong."""
    done = subprocess.run(
        [*KAFKAFS, *words], input=text, capture_output=True, text=True, errors="backslashreplace"
    )
    assert (done.returncode, done.stderr) == (0, ""), words
    return done.stdout


@pytest.mark.parametrize("topic", ["orders", "tx", "started"])
def test_a_range_of_the_cluster_is_that_of_the_directory(broker: Broker, topic: str) -> None:
    place, data = f"kafka://{broker.address}", str(broker.data)
    time_s = "2023-11-14T22:13:20"
    spans = ["", "@3", "@-1", "@-4", "@-7..-2", "@5..9", f"@{time_s}.005Z", f"@..{time_s}.003Z"]
    places = [f"{topic}{span}" for span in spans]
    jsonl, stored = ["--view", "jsonl"], ["--view", "batches"]
    for options in (jsonl, ["--view", "kv", "--isolation", "read_uncommitted"], stored):
        assert run("cat", place, *places, *options) == run("cat", data, *places, *options)
    for where in ("key is null or offset > 12", f"topic <> '{topic}'"):
        options = ["--where", where]
        assert run("cat", place, topic, *options) == run("cat", data, topic, *options)


def test_what_is_appended_by_key_is_in_the_partition_of_a_local_log(
    broker: Broker, tmp_path: Path
) -> None:
    lines = "".join(f"key {number}\tvalue {number}\n" for number in range(50))
    clients.create_topic(broker, "keyed", 3)
    run("create", str(tmp_path), "keyed", "-p", "3")
    place = f"kafka://{broker.address}"
    for data in (place, str(tmp_path)):
        run("append", data, "keyed", "--view", "kv", text=lines)
        run("append", data, "keyed:1", text="at the end")
    assert run("cat", place, "keyed", "--view", "kv") == run(
        "cat", str(tmp_path), "keyed", "--view", "kv"
    )
    header = '{"value":"v","headers":[["h","x"],["n",null]],"timestamp":7}\n'
    run("append", f"{place}/keyed:2", "--view", "jsonl", text=header)
    assert clients.consume_all(broker, ["keyed"])  # read by another client, too
    last = json.loads(run("cat", f"{place}/keyed:2@-1", "--view", "jsonl"))
    facts = [last[name] for name in ("timestamp", "key", "value", "headers")]
    assert facts == [7, None, "v", [["h", "x"], ["n", None]]]


@contextlib.contextmanager
def followed(*words: str) -> Iterator[Callable[[], str]]:
    """A function that returns the next line of `cat -f`."""
    command = [*KAFKAFS, "cat", "-f", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline
        finally:
            process.terminate()


def send_schemas(broker: Broker, topic: Topic) -> None:
    schemas = [Record(0, T, 0, key, schema) for key, schema in topic.records]
    Sender(broker).send("_schemas", schemas)


def test_schemas_come_from_the_cluster(broker: Broker) -> None:
    """The topic `_schemas` grows while records are read."""
    clients.create_topic(broker, "avro")
    options = ["--decode", "--value-only"]
    with followed(f"kafka://{broker.address}/avro", *options) as line:
        for number, kind, value, text in ((1, "string", b"\2a", '"a"'), (2, "long", b"\2", "1")):
            topic = Topic()
            topic.register("avro-value", number, number, {"type": kind})
            send_schemas(broker, topic)
            frame = b"\0" + number.to_bytes(4, "big")
            Sender(broker).send("avro", [Record(0, T, 0, None, frame + value)])
            assert line() == f"{text}\n"


def test_recipes(broker: Broker, tmp_path: Path) -> None:
    """Those of docs/kafka.md."""
    now_ms = time.time_ns() // 1_000_000
    clients.create_topics(broker, {"recipes": {}, "payments": {}})
    orders = [
        (b"order-4711", b'{"n":3,"item":"apples"}'),
        (b"order-4712", b'{"n":1,"item":"pear"}'),
    ]
    Sender(broker).send("recipes", [Record(0, now_ms, 0, *each) for each in orders])
    payment = encoded(PAYMENT, {"id": 1, "amount": Decimal("12.50"), "day": date(2026, 11, 28)})
    Sender(broker).send("payments", [Record(0, now_ms, 0, b"p1", framed(7, payment))])
    registry = Topic()
    registry.register("payments-value", 1, 7, PAYMENT)
    send_schemas(broker, registry)
    script = scripts("docs/kafka.md")["A cluster that you cannot log in to"]
    for line, shown in commands(
        script.replace("broker:9092/orders", f"{broker.address}/recipes").replace(
            "broker:9092", broker.address
        )
    ):
        if " -f " in line:
            with followed(*shlex.split(line)[3:]) as next_line:
                assert [next_line().rstrip("\n") for _ in shown] == shown
        else:
            assert run_line(line, tmp_path) == shown


def test_recipes_of_a_mirror(
    broker: Broker, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test broker is the same one without the topic. A client finds it again."""
    clients.create_topic(broker, "mirrored")
    orders = [
        (b"order-4711", b'{"n":3,"item":"apples"}'),
        (b"order-4712", b'{"n":1,"item":"pear"}'),
    ]
    Sender(broker).send("mirrored", [Record(0, T, 0, *each) for each in orders])
    recipes = scripts("docs/kafka.md")
    copied, end, ended = recipe(broker, recipes["Backing up a cluster"]).partition("# End the")
    assert paste(copied, tmp_path) == 5
    clients.delete_topic(broker, "mirrored")
    monkeypatch.setenv("PATH", f"{kafka_topics(broker, tmp_path)}{os.pathsep}{os.environ['PATH']}")
    restored = recipe(broker, recipes["Restore points"])
    created, handed, shown = re.split(r"^systemctl .*\n", restored, flags=re.M)
    assert paste(created, tmp_path) == 2
    broker.stop()
    with pytest.raises(BrokerUnreachable, match="Connection refused"):
        cluster.refresh()
    assert paste(handed, tmp_path) == 1
    broker.start()
    assert read(cluster, ORDERS, 90, 100)
    assert paste(shown, tmp_path) == 1
    assert paste(end + ended, tmp_path) == 1


def recipe(broker: Broker, script: str) -> str:
    for shown, meant in {
        "orders": "mirrored",
        "broker:9092": broker.address,
        "localhost:9092": broker.address,
        "/var/lib/kafka-test": str(broker.data),
    }.items():
        script = script.replace(shown, meant)
    return script


def kafka_topics(broker: Broker, directory: Path) -> Path:
    """Return a directory with Kafka's command, for which `localhost:9092` is this broker."""
    command = shlex.join(java_command("org.apache.kafka.tools.TopicCommand"))
    path = directory / "bin/kafka-topics"
    path.parent.mkdir()
    path.write_text(f'#!/bin/bash\nexec {command} "${{@/localhost:9092/{broker.address}}}"\n')
    path.chmod(0o755)
    return path.parent


# -- the command mirror ----------------------------------------------------------------------------


@contextlib.contextmanager
def mirroring(*words: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A mirror that runs until it gets a signal."""
    command = [*KAFKAFS, "mirror", *map(str, words)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def received(notices: socket.socket) -> list[bytes]:
    """The messages that wait in a socket."""
    notices.setblocking(False)
    found: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(notices.recv(1000))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_mirror_in_order(
    broker: Broker, tmp_path: Path, number: signal.Signals
) -> None:
    """Its mount ends, too, and the service manager gets the state."""
    clients.create_topic(broker, f"ended-{number.name}", 2)
    place, topic = f"kafka://{broker.address}", f"ended-{number.name}"
    data, mount, metrics = tmp_path / "data", tmp_path / "mnt", tmp_path / "metrics.prom"
    mount.mkdir()
    run("append", place, f"{topic}:0", text="a\n")
    assert run("mirror", "--once", place, str(data), topic).startswith("copied 1 record, ")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(str(tmp_path / "notices"))
        notices.settimeout(HANG_S)
        words = ("--mount", mount, "--metrics", metrics, place, data, topic)
        with mirroring(*words, NOTIFY_SOCKET=str(tmp_path / "notices")) as process:
            assert notices.recv(100).startswith(b"STATUS=reading partitions: ")
            assert notices.recv(100) == b"READY=1"
            assert process.stderr is not None
            assert (
                process.stderr.readline() == "kafkafs: up to date: 2 partitions, 0 records behind\n"
            )
            run("append", place, f"{topic}:1", text="b\n")
            shown = mount / topic / "1"
            until(lambda: shown.exists() and shown.read_text() == "b\n")
            # A second mirror of the directory is refused.
            second = subprocess.run(
                [*KAFKAFS, "mirror", place, data], capture_output=True, text=True
            )
            assert (second.returncode, second.stdout) == (3, "")
            assert "used by a running kafkafs mirror" in second.stderr
            # A full queue would take no further message.
            received(notices)
            process.send_signal(number)
            process.send_signal(number)
            out, errors = process.communicate(timeout=HANG_S)
        assert (process.returncode, errors) == (0, "")
        assert out.splitlines()[-1].startswith("copied 1 record, ")
        *states, last = received(notices)
    assert all(state.startswith(b"WATCHDOG=1\nSTATUS=2 partitions, ") for state in states)
    assert last.startswith(b"STOPPING=1\n")
    assert not os.path.ismount(mount)
    assert (data / ".kafka_cleanshutdown").exists()
    samples = metrics.read_text().splitlines()
    assert f'kafkafs_mirror_lag{{partition="1",topic="{topic}"}} 0.0' in samples
    assert "kafkafs_mirror_copied_records_total 1.0" in samples
    described = json.loads(run("describe", str(data), "--json"))["result"]
    facts = [(row["log_end"], row["lag"]) for row in described["partitions"]]
    assert facts == [(1, 0), (1, 0)]


def test_a_gap_and_a_partition_that_cannot_be_copied_are_exit_statuses(
    broker: Broker, tmp_path: Path
) -> None:
    clients.create_topic(broker, "gone")
    Sender(broker).send("gone", records(b"g", 10))
    words = [*KAFKAFS, "mirror", "--once", f"kafka://{broker.address}", str(tmp_path), "gone"]

    def once(*others: str) -> tuple[int, str]:
        done = subprocess.run([*words, *others], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert once() == (0, "")
    for _ in range(2):
        Sender(broker).send("gone", records(b"h", 5))
    clients.delete_records(broker, "gone", 15)
    assert once() == (
        1,
        "kafkafs: gone:0: offsets 10 to 14 were deleted in the cluster before they were copied\n",
    )
    assert once() == (0, "")
    assert once("none") == (
        3,
        "kafkafs: the cluster has no topic none, or it may not be read\n",
    )
    admin = clients.admin(broker)
    for deleted in admin.delete_topics(["gone"]).values():
        deleted.result()
    until(lambda: "gone" not in admin.list_topics().topics)
    reason = (
        "UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted, or it may not be read. Its copy stays"
    )
    assert once() == (3, f"kafkafs: gone:0: waits: {reason}\n")
    assert run("ls", str(tmp_path)).splitlines()[-1] == (
        f"# gone:0: not copied at present: {reason}"
    )
