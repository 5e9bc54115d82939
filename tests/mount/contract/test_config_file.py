"""`.config`: units, what a change will delete, and that a setting is in force at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.mount.contract.writing import append, opened
from tests.mount.control import do, facts
from tests.mount.mounting import Mount, fails
from tests.waits import until


def config(orders: Path) -> Path:
    return orders.parent / ".config"


def lines(orders: Path) -> list[str]:
    return config(orders).read_text().splitlines()


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("retention.ms=7d", "604800000"),
        ("retention.ms=90 m", "5400000"),
        ("retention.bytes=10GiB", "10737418240"),
        ("segment.ms=1h", "3600000"),
        ("segment.bytes=64MiB", "67108864"),
        ("flush.ms=2s", "2000"),
        ("flush.ms=20ms", "20"),
    ],
)
def test_units(orders: Path, written: str, stored: str) -> None:
    append(config(orders), f"{written}\n".encode())
    name = written.partition("=")[0]
    assert f"{name}={stored}" in lines(orders)
    append(config(orders), f"{name}=\n".encode())


@pytest.mark.parametrize(
    ("written", "units"),
    [
        ("retention.ms=10GiB", "ms, s, m, h, d"),
        ("retention.ms=1w", "ms, s, m, h, d"),
        ("retention.bytes=10GB", "B, KiB, MiB, GiB, TiB"),
        ("retention.bytes=7d", "B, KiB, MiB, GiB, TiB"),
    ],
)
def test_units_that_it_does_not_have(mount: Mount, orders: Path, written: str, units: str) -> None:
    with opened(config(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, f"{written}\n".encode())
    said = mount.events().splitlines()[-1]
    assert f"{written} is not a number with one of the units {units}" in said


def test_what_deletes_data_says_so_and_how_much(mount: Mount) -> None:
    orders = mount.topic("said")
    for number in range(3):
        append(orders.parent / ".jsonl/0", b'{"value":"%d","timestamp":1000}\n' % number)
        do(orders, "roll", "run")
    size = sum(path.stat().st_size for path in (orders.parent / ".raw/0").glob("*.log"))
    append(config(orders), b"flush.ms=7\nretention.ms=-1\n")
    assert "retention run will delete" not in mount.events()
    append(config(orders), b"retention.ms=7d\nflush.ms=\n")
    assert (
        "said: retention.ms=7d, flush.ms=: the next retention run will delete 3 segments "
        f"({size} bytes, 3 records)"
    ) in mount.events().splitlines()[-1]
    told = mount.events()
    append(config(orders), b"retention.ms=14d\n")
    assert mount.events() == told


def test_settings_are_in_force_at_once_and_stay(own: Mount) -> None:
    orders = own.topic("orders")
    with opened(orders.parent / ".control/compaction") as fd:
        fails(errno.EINVAL, os.write, fd, b"run\n")
        append(config(orders), b"cleanup.policy=compact\n")
        os.write(fd, b"run\n")
    until(lambda: facts(orders, "compaction")["last_outcome"] == "done")
    with opened(orders) as fd:
        fails(errno.EINVAL, os.write, fd, b"without a key\n")
        append(config(orders), b"cleanup.policy=\n")
        os.write(fd, b"without a key\n")
    append(config(orders), b"retention.bytes=0\n")
    own.kill()
    own.start()
    assert lines(orders)[0] == "retention.bytes=0"
    do(orders, "retention", "run")
    assert orders.read_bytes() == b""
