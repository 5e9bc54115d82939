"""Common programs read snapshots of a whole topic, while lines are appended to it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, mounted
from tests.mount.programs import program

FIRST = b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """`orders` with two partitions, which begin with FIRST; partition 0 grows all the time."""
    with mounted(tmp_path_factory.mktemp("growing")) as mount:
        orders = mount.topic(partitions=2)
        for number in range(2):
            with open(orders.parent / str(number), "ab") as file:
                file.write(FIRST)
        is_over = threading.Event()

        def append() -> None:
            with open(orders, "ab", buffering=0) as file:
                while not is_over.wait(0.001):
                    file.write(b"more\n")

        appender = threading.Thread(target=append)
        appender.start()
        try:
            yield mount
        finally:
            is_over.set()
            appender.join()


def check(directory: Path) -> None:
    """Both partitions are there, whole, as they once were."""
    assert sorted(os.listdir(directory)) == ["0", "1"]
    grown = (directory / "0").read_bytes()
    assert grown.removeprefix(FIRST).replace(b"more\n", b"") == b""
    assert grown.startswith(FIRST)
    assert (directory / "1").read_bytes() == FIRST


@pytest.mark.parametrize(
    "command",
    [
        'cp --recursive orders/.snapshot "$TO"',
        'rsync --archive orders/.snapshot/ "$TO"',
        'mkdir "$TO"; tar -C orders/.snapshot -cf - . | tar -C "$TO" -xf -',
    ],
    ids=["cp", "rsync", "tar"],
)
def test_copies(growing: Mount, tmp_path: Path, command: str) -> None:
    """None of them says that a file has changed while it was read."""
    program("rsync")
    growing.run(command, TO=tmp_path / "copy")
    check(tmp_path / "copy")


def test_sendfile(growing: Mount, tmp_path: Path) -> None:
    """`shutil.copy` uses it."""
    for number in ("0", "1"):
        shutil.copy(growing / "orders" / ".snapshot" / number, tmp_path)
    check(tmp_path)


@pytest.mark.soak
def test_restic(growing: Mount, tmp_path: Path) -> None:
    program("restic")
    restic = 'RESTIC_PASSWORD=x HOME="$TO" restic -q -r "$TO/repository"'
    growing.run(f"{restic} init && {restic} backup orders/.snapshot", TO=tmp_path)
    growing.run(f'{restic} restore latest --target "$TO/there"', TO=tmp_path)
    (restored,) = (tmp_path / "there").rglob(".snapshot")
    check(restored)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            'grep -rc "^line 1$" orders/.snapshot | sort',
            b"orders/.snapshot/0:1\norders/.snapshot/1:1\n",
        ),
        ("sort orders/.snapshot/* | grep -c line", b"40000\n"),
        ("awk '/^line/ {n += $2} END {print n}' orders/.snapshot/*", b"399980000\n"),
        ("jq -r .value orders/.jsonl/.snapshot/* | grep -c line", b"40000\n"),
    ],
    ids=["grep", "sort", "awk", "jq"],
)
def test_readers(growing: Mount, command: str, said: bytes) -> None:
    program("jq")
    assert growing.run(command) == said
