"""While a broker runs, our views show its records as its consumers and its own tools see them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager, Record
from tests.interop import workload
from tests.interop.brokers import Broker
from tests.interop.clients import NULL, console_line, consume_all, offsets
from tests.interop.kafka_tools import run_tool
from tests.interop.workload import CODECS
from tests.log_check import check
from tests.mount.mounting import Mount
from tests.view_text import TEXTS

Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
TOPICS = (
    *(f"{writer}-{codec}" for writer in ("rd", "broker", "java") for codec in CODECS),
    *("idempotent", "transactions", "append-time", "compacted", "retained", "epochs"),
)
TRANSACTIONAL = ("transactions", "compacted", "idempotent")
TOOLS = "org.apache.kafka.tools."

isolations = pytest.mark.parametrize("isolation", ISOLATIONS)
topics = pytest.mark.parametrize("topic", TOPICS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker that has all of `TOPICS`; of `transactions` one is open."""
    broker = Broker(tmp_path_factory.mktemp("wrote"), log_segment_delete_delay_ms=1000)
    try:
        broker.start()
        workload.epochs(broker)
        workload.codecs_by_librdkafka(broker)
        workload.codecs_by_java(broker)
        workload.idempotent(broker)
        workload.append_time(broker)
        workload.compacted(broker)
        workload.retained(broker)
        producer = workload.transactions(broker)
        yield broker
        del producer
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def consumed(broker: Broker) -> dict[Isolation, dict[str, list[Record]]]:
    """Return the records that a consumer gets of each topic, by isolation level."""
    return {
        isolation: consume_all(broker, TOPICS, committed=isolation == "read_committed")
        for isolation in ISOLATIONS
    }


@pytest.fixture(scope="module")
def mounts(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Isolation, Mount]]:
    """The running broker's directory, mounted for each isolation level."""
    started: dict[Isolation, Mount] = {}
    try:
        for isolation in ISOLATIONS:
            base = tmp_path_factory.mktemp(isolation)
            (base / "data").symlink_to(broker.data)
            started[isolation] = Mount(base, ["ro", f"isolation={isolation}"])
            started[isolation].start()
        yield started
    finally:
        for mount in started.values():
            mount.end()


@pytest.fixture(scope="module")
def manager(broker: Broker) -> Iterator[LogManager]:
    """The running broker's directory, opened by the library."""
    with LogManager.open(str(broker.data), read_only=True) as manager:
        yield manager


def table(path: Path) -> list[dict[str, int]]:
    """A table of `.meta`."""
    header, *lines = path.read_text().splitlines()
    names = header.split()
    return [dict(zip(names, map(int, line.split()), strict=True)) for line in lines]


def test_there_is_something_to_see(consumed: dict[Isolation, dict[str, list[Record]]]) -> None:
    for topic in TOPICS:
        assert consumed["read_uncommitted"][topic], topic
    committed = consumed["read_committed"]["transactions"]
    assert 0 < len(committed) < len(consumed["read_uncommitted"]["transactions"])
    assert consumed["read_committed"]["retained"][0].offset == 215


@topics
@isolations
def test_views(
    topic: str,
    isolation: Isolation,
    mounts: dict[Isolation, Mount],
    consumed: dict[Isolation, dict[str, list[Record]]],
) -> None:
    for directory, text in TEXTS.items():
        shown = (mounts[isolation] / topic / directory / "0").read_bytes()
        assert shown == text(consumed[isolation][topic]), directory


@pytest.mark.parametrize("directory", TEXTS)
@isolations
def test_cat_of_the_cluster(
    isolation: Isolation,
    directory: str,
    broker: Broker,
    consumed: dict[Isolation, dict[str, list[Record]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By answers of a batch or two, so that transactions begin and end in others."""
    monkeypatch.setattr("kafkafs.cli.clusters.pieces._FETCH_BYTES", 3000)
    view = directory.removeprefix(".") or "values"
    addresses = [f"kafka://{broker.address}/{topic}" for topic in TOPICS]
    options = ["--isolation", isolation, "--view", view]
    done = CliRunner().invoke(main, ["cat", *addresses, *options])
    assert (done.exit_code, done.stderr) == (0, "")
    expected = b"".join(TEXTS[directory](consumed[isolation][topic]) for topic in TOPICS)
    assert done.stdout_bytes == expected


@pytest.mark.parametrize("topic", ["transactions", "compacted"])
@isolations
def test_kafkas_consumer_sees_the_same(
    topic: str,
    isolation: Isolation,
    broker: Broker,
    consumed: dict[Isolation, dict[str, list[Record]]],
) -> None:
    """Offsets, times, headers, keys and values, with nulls, up to values that are no text."""
    before = takewhile(lambda record: record.key != b"rolls", consumed[isolation][topic])
    expected = list(before)
    assert len(expected) > 20
    consumer = ["--bootstrap-server", broker.address, "--topic", topic, "--from-beginning"]
    consumer += ["--isolation-level", isolation, "--max-messages", str(len(expected))]
    printed = ("timestamp", "offset", "headers", "key")
    for setting in (*(f"print.{name}=true" for name in printed), f"null.literal={NULL}"):
        consumer += ["--formatter-property", setting]
    done = run_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *consumer)
    assert done.stdout == "".join(map(as_printed, expected)), done.stderr


def as_printed(record: Record) -> str:
    """A record as Kafka's console consumer prints it."""
    headers, _, rest = console_line(record).partition("\t")
    shown = headers if record.headers else "NO_HEADERS"
    return f"CreateTime:{record.timestamp}\tOffset:{record.offset}\t{shown}\t{rest}"


@topics
def test_batches(topic: str, broker: Broker, mounts: dict[Isolation, Mount]) -> None:
    """`.batches` is all that is stored; its segments may begin before the log start."""
    stored = b"".join(log.read_bytes() for log in sorted(broker.partition(topic).glob("*.log")))
    shown = (mounts["read_committed"] / topic / ".batches" / "0").read_bytes()
    assert stored.endswith(shown)
    if topic != "retained":
        assert shown == stored


def test_offsets_are_what_kafka_get_offsets_says(
    broker: Broker, mounts: dict[Isolation, Mount], manager: LogManager
) -> None:
    said: dict[str, dict[str, int]] = {"earliest": {}, "latest": {}, "max-timestamp": {}}
    command = ["--bootstrap-server", broker.address, "--exclude-internal-topics", "--time"]
    tool = f"{TOOLS}GetOffsetShell"
    for time, answers in said.items():
        lines = run_tool(tool, *command, time).stdout.splitlines()
        answers |= {t: int(o) for t, _, o in (line.split(":") for line in lines)}
    for topic in TOPICS:
        meta = mounts["read_committed"] / topic / ".meta" / "0" / "offsets"
        shown = dict(line.split() for line in meta.read_text().splitlines())
        stable = offsets(broker, topic, committed=True)[1]
        assert int(shown["log_start"]) == said["earliest"][topic], topic
        assert int(shown["log_end"]) == said["latest"][topic], topic
        assert int(shown["last_stable"]) == stable, topic
        log = manager.log(topic, 0)
        latest_ms = max(segment.max_timestamp for segment in log.segments)
        newest = log.reader.offset_for_timestamp(latest_ms, "read_uncommitted")
        assert (-1 if newest is None else newest[1]) == said["max-timestamp"][topic], topic


def test_producers_are_what_kafka_transactions_says(
    broker: Broker, mounts: dict[Isolation, Mount]
) -> None:
    command = ["--bootstrap-server", broker.address, "describe-producers", "--partition", "0"]
    tool = f"{TOOLS}TransactionsCommand"
    columns = {
        "ProducerId": "producer_id",
        "ProducerEpoch": "epoch",
        "LatestCoordinatorEpoch": "coordinator_epoch",
        "LastSequence": "last_sequence",
        "LastTimestamp": "last_timestamp",
        "CurrentTransactionStartOffset": "transaction_first_offset",
    }
    for topic in TRANSACTIONAL:
        header, *lines = run_tool(tool, *command, "--topic", topic).stdout.splitlines()
        names = [columns[name] for name in header.split()]
        said = [
            {n: -1 if v == "None" else int(v) for n, v in zip(names, line.split(), strict=True)}
            for line in lines
        ]
        shown = table(mounts["read_committed"] / topic / ".meta" / "0" / "producers")
        found = [{name: row[name] for name in names} for row in shown]
        assert len(said) > 0
        assert sorted(found, key=lambda row: row["producer_id"]) == sorted(
            said, key=lambda row: row["producer_id"]
        )


def test_after_a_kill_nothing_is_missing(
    tmp_path: Path,
    broker: Broker,
    consumed: dict[Isolation, dict[str, list[Record]]],
) -> None:
    """Opened to be written to, as the broker's death would leave the directory."""
    # Checkpoints are written beside themselves and renamed.
    shutil.copytree(broker.data, tmp_path / "data", ignore=shutil.ignore_patterns("*.tmp"))
    with LogManager.open(str(tmp_path / "data")) as manager:
        assert (manager.cuts, manager.faults) == ([], [])
        for isolation in ISOLATIONS:
            for topic in TOPICS:
                found = list(manager.log(topic, 0).records(isolation=isolation))
                assert found == consumed[isolation][topic], (topic, isolation)
        assert check(manager) == []
