"""Damage that was there before the mount: EIO exactly there, through the kernel and coreutils."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.record.header import size_at
from tests.mount.contract.writing import append
from tests.mount.control import do
from tests.mount.mounting import Mount, mounted
from tests.storage.logs import write_settings

COUNT = 24
PER_SEGMENT = 12
LINES = [b"%02d" % number + b"x" * 400 + b"\n" for number in range(COUNT)]


NUMBERS = (0, PER_SEGMENT + 5)
"""The damaged batches, each in a topic of its own."""


def topic_of(number: int) -> str:
    return f"damaged-{number}"


def log_of(data: Path, number: int) -> Path:
    """The segment that a batch of the topic is in."""
    logs = (data / f"{topic_of(number)}-0").glob("*.log")
    return sorted(logs)[number // PER_SEGMENT]


def damage(path: Path, number: int) -> None:
    """Flip a bit in the value of a batch."""
    data, start = bytearray(path.read_bytes()), 0
    for _ in range(number):
        start += size_at(data, start)
    data[start + 100] ^= 8
    path.write_bytes(data)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount with a topic for each batch, which was damaged while nothing was mounted."""
    base = tmp_path_factory.mktemp("damaged")
    (base / "data").mkdir()
    write_settings(base / "data", log_index_interval_bytes=0)
    with mounted(base) as mount:
        for number in NUMBERS:
            partition = mount.topic(topic_of(number))
            for line in LINES[:PER_SEGMENT]:
                append(partition, line)
            do(partition, "roll", "run")
            for line in LINES[PER_SEGMENT:]:
                append(partition, line)
        mount.stop()
        for number in NUMBERS:
            damage(log_of(mount.data, number), number % PER_SEGMENT)
        mount.start()
        yield mount
        # The end of the fixture checks that all that is left is whole.
        for number in NUMBERS:
            (mount / topic_of(number)).rmdir()


@pytest.mark.parametrize("number", NUMBERS)
def test_every_other_record_is_read(damaged: Mount, number: int) -> None:
    mount = damaged
    orders = mount / topic_of(number) / "0"
    size = int(mount.run("stat -c %s $orders", orders=orders))
    assert size == len(b"".join(LINES)), "as long as it was"
    # cat shows what comes before, and says why it ends.
    shown = mount.sh("cat $orders", orders=orders)
    assert shown.returncode == 1
    assert shown.stdout == b"".join(LINES[:number])
    assert os.strerror(errno.EIO).encode() in shown.stderr
    # tail and names that begin after it show the rest.
    behind = b"".join(LINES[number + 1 :])
    assert mount.run("tail -c $count $orders", orders=orders, count=len(behind)) == behind
    assert mount.run("cat $orders@$first", orders=orders, first=number + 1) == behind
    rows = mount.run(
        "cat $topic/.jsonl/0@$first", topic=orders.parent, first=number + 1
    ).splitlines()
    assert [json.loads(row)["offset"] for row in rows] == [*range(number + 1, COUNT)]
    assert mount.sh("cat $orders@$first", orders=orders, first=number).returncode == 1
    log = log_of(mount.data, number)
    events = [line for line in mount.events().splitlines() if "Run `kafkafs verify`" in line]
    (said,) = [line for line in events if f"/{log.parent.name}/" in line]
    assert f"offsets {number} to {number} are damaged" in said
    assert f"{log}, position " in said
    append(orders, b"more\n")
    assert mount.run("tail -n 1 $orders", orders=orders) == b"more\n"


SHOW_MAPPED = """
import mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, 1) as shown:
    for page in map(int, sys.argv[2:]):
        print(shown[page * 4096 : (page + 1) * 4096].hex(), flush=True)
"""


@pytest.mark.parametrize("name", [".snapshot/0", f"0@..{COUNT}"])
def test_a_snapshot_with_damage_is_not_cut_off(damaged: Mount, tmp_path: Path, name: str) -> None:
    """sendfile and a map end with an error, not as if the file ended, and not in zeros."""
    number = PER_SEGMENT + 5
    snapshot = damaged / topic_of(number) / name
    text = b"".join(LINES)
    pages = [text[at : at + 4096] for at in range(0, len(text), 4096)]
    assert LINES[number] in pages[1]
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        shutil.copyfile(snapshot, tmp_path / "sent")
    assert (tmp_path / "sent").read_bytes() == pages[0]
    command = [sys.executable, "-c", SHOW_MAPPED, str(snapshot)]
    mapped = subprocess.run([*command, "0", "2", "1"], capture_output=True, check=False)
    assert mapped.returncode == -signal.SIGBUS
    shown = [bytes.fromhex(line.decode()) for line in mapped.stdout.splitlines()]
    first, last = shown
    assert first == pages[0]
    # Another test may have appended to it.
    assert last.startswith(pages[2])
