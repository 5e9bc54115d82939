"""`.meta`, `.raw` and extended attributes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from storage.log.log import Log
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails
from tests.mount.steering import SteeredMount
from tests.storage.logs import append as append_records
from tests.storage.logs import entries_of


def meta(path: Path, name: str) -> Path:
    return path.parent / ".meta" / path.name / name


def raw(path: Path) -> Path:
    return path.parent / ".raw" / path.name


def table(path: Path) -> list[dict[str, str]]:
    """A header line and columns."""
    header, *rows = path.read_text().splitlines()
    names = header.split()
    assert all(len(row.split()) == len(names) for row in rows)
    return [dict(zip(names, row.split(), strict=True)) for row in rows]


@pytest.fixture
def orders(steered_mount: SteeredMount) -> Path:
    """Three sealed segments and an active one, the first removed."""
    orders = new_topic(steered_mount)
    for number in range(4):
        if number:
            steered_mount.daemon.roll(orders.parent.name)
        for start in range(0, 400, 10):
            append(orders, b"".join(b"%0200d\n" % n for n in range(start, start + 10)))
    return orders


def data_directory(mount: Mount, orders: Path) -> Path:
    return mount.data / f"{orders.parent.name}-{orders.name}"


# -- .meta ---------------------------------------------------------------------------------------


@pytest.fixture
def written_by_another(tmp_path: Path) -> Iterator[tuple[Mount, Log]]:
    """A read-only mount of a directory that another process writes: two segments, and entries."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        grow(log)
        log.roll(1)
        grow(log)
        mount = Mount(tmp_path, ["ro"])
        try:
            mount.start()
            yield mount, log
        finally:
            mount.end()


def grow(log: Log) -> None:
    for _ in range(20):
        append_records(log, *[b"x" * 100] * 20)


def check_meta(mount: Mount, log: Log) -> None:
    """`.meta` and the attributes show the state of the process that writes the log."""
    path = mount / "orders" / "0"
    index = [
        {"offset": str(offset), "position": str(position)}
        for segment in log.segments
        for offset, position in entries_of(segment.offset_index)
    ]
    assert len(index) > 8
    assert table(meta(path, "index")) == index
    times = [
        {"timestamp": str(timestamp), "offset": str(offset)}
        for segment in log.segments
        for timestamp, offset in entries_of(segment.time_index)
    ]
    assert table(meta(path, "timeindex")) == times
    rows = table(meta(path, "segments"))
    assert [(row["base_offset"], row["next_offset"], row["bytes"]) for row in rows] == [
        (str(segment.base_offset), str(segment.next_offset), str(segment.size))
        for segment in log.segments
    ]
    assert [row["state"] for row in rows] == ["sealed"] * (len(rows) - 1) + ["active"]
    assert sum(int(row["index_entries"]) for row in rows) == len(index)
    assert sum(int(row["timeindex_entries"]) for row in rows) == len(times)
    assert sum(int(row["records"]) for row in rows) == log.log_end_offset
    assert [(row["first_timestamp"], row["last_timestamp"]) for row in rows] == [
        (str(segment.first_timestamp), str(segment.max_timestamp)) for segment in log.segments
    ]
    assert f"log_end {log.log_end_offset}\n" in meta(path, "offsets").read_text()
    shown = facts(path)
    assert (shown["log_end"], shown["records"]) == (str(log.log_end_offset),) * 2
    assert (shown["bytes"], shown["segments"]) == (str(log.size), str(len(log.segments)))
    assert shown["last_timestamp"] == str(log.active.max_timestamp)
    for name in os.listdir(meta(path, ".")):
        assert meta(path, name).stat().st_size == len(meta(path, name).read_bytes())


def test_meta_follows_the_process_that_writes(written_by_another: tuple[Mount, Log]) -> None:
    """Everything of `.meta` also with `-o ro`, beside who writes the log, as it is now."""
    mount, log = written_by_another
    check_meta(mount, log)
    grow(log)
    check_meta(mount, log)
    log.roll(1)
    grow(log)
    check_meta(mount, log)


# -- .raw ----------------------------------------------------------------------------------------


def test_raw_shows_nothing_else(steered_mount: SteeredMount, orders: Path) -> None:
    """Nor what is not part of Kafka's format, nor what waits for deletion."""
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    assert (data_directory(steered_mount, orders) / "kafkafs.history").exists()
    fails(errno.ENOENT, os.stat, raw(orders) / "kafkafs.history")
    fails(errno.ENOENT, os.stat, raw(orders) / f"{0:020d}.log")
    fails(errno.ENOENT, os.stat, raw(orders) / f"{0:020d}.log.deleted")
    fails(errno.ENOENT, os.stat, raw(orders) / f"{400:020d}.lines")
    assert f"{400:020d}.log" in os.listdir(raw(orders))


# -- extended attributes -------------------------------------------------------------------------


def facts(path: Path) -> dict[str, str]:
    return {
        name.removeprefix("user.kafkafs."): os.getxattr(path, name).decode()
        for name in os.listxattr(path)
    }


def test_extended_attributes(steered_mount: SteeredMount, orders: Path) -> None:
    """Extended attributes give the scalar facts without parsing: … (log_start, log_end, records,
    bytes, segments, first_timestamp, last_timestamp, generation).
    """
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    shown = facts(orders)
    generation = shown.pop("generation")
    rows = table(meta(orders, "segments"))[1:]
    assert shown == {
        "log_start": "400",
        "log_end": "1600",
        "last_stable": "1600",
        "records": "1200",
        "bytes": str(sum(int(row["bytes"]) for row in rows)),
        "segments": "3",
        "first_timestamp": rows[0]["first_timestamp"],
        "last_timestamp": rows[-1]["last_timestamp"],
    }
    append(orders, b"x\n")
    assert facts(orders)["log_end"] == "1601"
    assert facts(orders)["records"] == "1201"
    assert facts(orders)["generation"] == generation, "appending makes no new one"
    steered_mount.daemon.remove_head(orders.parent.name, 1)
    assert facts(orders)["generation"] != generation
    assert facts(orders)["records"] == "801"


def test_attributes_in_every_view(steered_mount: SteeredMount, orders: Path) -> None:
    """They are the partition's, whatever file of it is asked: but the view's own generation."""
    topic = orders.parent
    of_values = facts(orders)
    for view in (".kv", ".jsonl", ".batches"):
        shown = facts(topic / view / "0")
        assert shown == of_values, view
