"""Somebody cuts a file that is derived from the log, under the daemon that uses it: nothing is
lost, nothing is invented, and the file comes back.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.mounting import SETTINGS, Mount, mounted

LINES = [b"%03d" % number + b"x" * 300 + b"\n" for number in range(150)]
#: Lines of the first segment.
SEALED = 100
#: Many entries in every index.
OFTEN = SETTINGS + "log.index.interval.bytes=500\n"


def make(mount: Mount) -> Path:
    """A partition of a sealed segment and an active one."""
    orders = mount.topic()
    for line in LINES[:SEALED]:
        append(orders, line)
    mount.run("echo run > orders/.control/roll")
    for line in LINES[SEALED:]:
        append(orders, line)
    return orders


def read_everywhere(mount: Mount, orders: Path, lines: list[bytes]) -> None:
    """By position, by offset and by time."""
    text = b"".join(lines)
    with orders.open("rb", buffering=0) as file:
        for at in (0, len(text) // 4, len(text) // 2, len(text) - 1000):
            assert os.pread(file.fileno(), 500, at) == text[at : at + 500]
    for offset in (0, 40, SEALED - 1, SEALED, SEALED + 40, len(lines) - 1):
        name = f"0@{offset}"
        with (
            (orders.parent / name).open("rb") as shown,
            (mount / f"orders/.jsonl/{name}").open("rb") as rows,
        ):
            assert shown.readline() == lines[offset]
            assert rows.readline().startswith(b'{"offset":%d,' % offset)
    assert (orders.parent / "0@-15m").read_bytes() == text


@pytest.mark.parametrize(
    ("suffix", "left"),
    [
        *((".lines", 0), (".lines", 9), (".index", 0), (".timeindex", 9), (".txnindex", 0)),
        *((".snapshot", 0), (".snapshot", 9)),
    ],
)
def test_it_is_cut_and_comes_back(tmp_path: Path, suffix: str, left: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/kafkafs.properties").write_text(OFTEN)
    with mounted(tmp_path) as mount:
        orders = make(mount)
        files = sorted((mount.data / "orders-0").glob("*" + suffix))
        before = [path.read_bytes() for path in files]
        for path in files:
            os.truncate(path, min(left, path.stat().st_size))
        read_everywhere(mount, orders, LINES)
        if suffix in (".index", ".timeindex"):
            # The sealed segment's is there again; the other waits for the next roll.
            assert files[0].read_bytes() == before[0]
            assert f"{files[0].name} was truncated by another process" in mount.events()
        # Now they are in memory.
        for path in files:
            os.truncate(path, min(left, path.stat().st_size))
        read_everywhere(mount, orders, LINES)
        lines = [*LINES, *(b"more%d\n" % number for number in range(50))]
        for line in lines[len(LINES) :]:
            append(orders, line)
        read_everywhere(mount, orders, lines)
        mount.run("echo run > orders/.control/flush; echo run > orders/.control/roll")
        append(orders, b"end\n")
        lines.append(b"end\n")
        read_everywhere(mount, orders, lines)
        mount.restart()
        read_everywhere(mount, orders, lines)
