"""The `sh` blocks of docs/kafka.md and docs/durability.md print what the pages show."""

from __future__ import annotations

import os
import subprocess
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from storage.paths import META_PROPERTIES
from tests import metadata_log as made
from tests.kafkafs.schemas.avro_values import encoded
from tests.kafkafs.schemas.registries import Topic, framed, lines_of
from tests.metadata_log import MetadataLog
from tests.mount.contract.writing import append
from tests.mount.mounting import mounted
from tests.pasted import commands, environment, is_like, scripts

DATA = "/var/lib/kafka/data"
PAYMENT = {
    "type": "record", "name": "Payment", "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2,
        }},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}  # fmt: skip


def run(line: str, directory: Path) -> list[str]:
    """The lines that a command prints; it must succeed."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=environment(directory),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout.splitlines()


def paste(script: str, directory: Path) -> int:
    """Run a block line by line.  Where it shows output, the output must be that, and … is anything.

    Returns how many lines showed output.
    """
    lines = commands(script)
    for line, shown in lines:
        printed = run(line, directory)
        if shown:
            assert len(printed) == len(shown), (line, printed)
            assert all(map(is_like, printed, shown)), (line, printed)
    return len([line for line in lines if line.shown])


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A broker's directory, as a stopped broker leaves it, with a topic and a group."""
    base = tmp_path / "broker"
    base.mkdir()
    with mounted(base) as mount:
        mount.run(
            r"""
            mkdir orders && touch orders/1
            printf 'order-4711\t{"n":3,"item":"apples"}\norder-4712\t{"n":1,"item":"pear"}\n' \
                >> orders/.kv/0
            printf 'order-4711\t{"state":"paid"}\n' >> orders/.kv/0
            printf 'order-4713\t{"n":2,"item":"plums"}\n' >> orders/.kv/1
            mkdir .groups/billing && echo 2 > .groups/billing/orders/0
            """
        )
    data = base / "data"
    for path in [*data.glob("kafkafs.*"), *data.glob("*/kafkafs*"), *data.glob("*/*.lines")]:
        path.unlink()
    records: dict[str, bytes] = {}
    for path in sorted(data.glob("*/partition.metadata")):
        topic, _, number = path.parent.name.rpartition("-")
        topic_id = path.read_text().partition("topic_id: ")[2].strip()
        records.setdefault(topic, made.topic(topic, topic_id))
        records[path.parent.name] = made.partition(topic_id, int(number))
    MetadataLog(data).append(*records.values())
    (data / META_PROPERTIES).write_text("version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n")
    return data


def on(broker: Path, heading: str) -> str:
    """The blocks below a heading of docs/kafka.md, about this directory."""
    properties = broker.parent / "server.properties"
    script = scripts("docs/kafka.md")[heading].replace(DATA, str(broker))
    return script.replace("/etc/kafka/server.properties", str(properties))


@pytest.mark.parametrize("heading", ["Finding one order", "Groups, lag and offsets"])
def test_looking_into_a_brokers_directory(broker: Path, tmp_path: Path, heading: str) -> None:
    files = {path: path.read_bytes() for path in broker.rglob("*") if path.is_file()}
    assert paste(on(broker, heading), tmp_path) > 3
    # Nothing was written into it.
    assert files == {path: path.read_bytes() for path in broker.rglob("*") if path.is_file()}


def test_values_in_avro(tmp_path: Path) -> None:
    registry = Topic()
    registry.register("payments-value", 1, 7, PAYMENT)
    payment = encoded(PAYMENT, {"id": 1, "amount": Decimal("12.50"), "day": date(2026, 11, 28)})
    payments = [(b"p1", framed(7, payment)), (b"p2", framed(7, payment[:1]))]
    with mounted(tmp_path) as mount:
        mount.run("mkdir payments _schemas")
        append(mount / "_schemas/.jsonl/0", registry.text)
        append(mount / "payments/.jsonl/0", lines_of(*payments))
        script = scripts("docs/kafka.md")["Reading Avro"].replace(DATA, str(tmp_path / "data"))
        assert paste(script, tmp_path) == 3


def test_a_broker_is_named_and_its_directory_detached(broker: Path, tmp_path: Path) -> None:
    assert scripts("docs/kafka.md").keys() == {
        *("Finding one order", "Reading Avro", "Groups, lag and offsets"),
        *("Settings", "Detaching from the broker"),
        # tests/interop/test_client.py runs these
        *("A cluster that you cannot log in to", "Backing up a cluster", "Restore points"),
    }
    (broker.parent / "server.properties").write_text("log.retention.hours=24\n")
    assert paste(on(broker, "Settings"), tmp_path) == 1
    assert paste(on(broker, "Detaching from the broker"), tmp_path) == 2
    assert "retention.ms=86400000" in "".join(run(f"kafkafs config {broker} orders", tmp_path))


def test_room_in_a_topic_that_never_had_retention(tmp_path: Path) -> None:
    (script,) = scripts("docs/durability.md").values()
    with mounted(tmp_path) as mount:
        mount.run("mkdir orders && seq 1000 >> orders/0")
        paste(script, tmp_path)
        assert (mount / "orders/0").read_bytes() == b""
        assert "log_start 1000\n" in (mount / "orders/.meta/0/offsets").read_text()
        segments = [name for name in os.listdir(mount / "orders/.raw/0") if name.endswith(".log")]
        assert len(segments) == 1
