"""Backups of what is being written, and what they give back: the commands of docs/admin.md."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.manager import LogManager
from tests.mount.contract.writing import append
from tests.mount.control import do
from tests.mount.mounting import kafkafs, mounted
from tests.mount.programs import program

ROOT = Path(__file__).parents[2]
SKIPPED = ("*-offset-checkpoint", ".kafka_cleanshutdown", "*/*.words", "*/*.words.tmp")
TAR = " ".join(f"--exclude='./{name}'" for name in SKIPPED)
RSYNC = " ".join(f"--exclude='/{name}'" for name in SKIPPED)
EXCLUDED = "printf '" + "".join(f"data/{name}\\n" for name in SKIPPED) + "' > excluded"
#: How each copies `data`, and puts it into `restored`. tar says with status 1 what it saw growing.
COMMANDS = {
    "tar": (
        f"tar -C data {TAR} -cf backup.tar . || test $? = 1",
        "mkdir restored && tar -C restored -xf backup.tar",
    ),
    "rsync": (f"rsync -a {RSYNC} data/ backup/", "rsync -a backup/ restored/"),
    "restic": (
        f"{EXCLUDED} && restic -q -r backup init &&"
        " restic -q -r backup backup --exclude-file=excluded data",
        "restic -q -r backup restore latest --target there && mv there/data restored",
    ),
}


def test_the_documents_leave_the_same_files_out() -> None:
    """`tests/mount/test_documents.py` runs the document's commands while nothing is written."""
    text = (ROOT / "docs/admin.md").read_text()
    for command in (f"tar -C data {TAR} ", f"rsync -a {RSYNC} data/ ", EXCLUDED):
        assert command in text


@contextmanager
def writing(orders: Path) -> Iterator[list[int]]:
    """Lines are appended meanwhile, and the log rolls; gives how many are acknowledged."""
    ended, acknowledged, some = threading.Event(), [0], threading.Event()

    def write() -> None:
        while not ended.is_set():
            append(orders, lines(acknowledged[0], acknowledged[0] + 50))
            acknowledged[0] += 50
            if acknowledged[0] % 500 == 0:
                do(orders, "roll", "run")
                some.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        some.wait()
        yield acknowledged
    finally:
        ended.set()
        thread.join()


def lines(start: int, end: int) -> bytes:
    return b"".join(b"%08d is backed up\n" % number for number in range(start, end))


def run(command: str, directory: Path) -> None:
    environment = {**os.environ, "RESTIC_PASSWORD": "secret", "HOME": str(directory)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["tar", "rsync", pytest.param("restic", marks=pytest.mark.soak)])
def test_a_copy_of_the_data_directory_is_a_beginning(tmp_path: Path, name: str) -> None:
    program(name)
    copy, restore = COMMANDS[name]
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        with writing(orders) as acknowledged:
            before = acknowledged[0]
            run(copy, tmp_path)
        text = orders.read_bytes()
    run(restore, tmp_path)
    verified = kafkafs("verify", tmp_path / "restored")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "restored").rename(again / "data")
    with mounted(again) as mount:
        orders = mount / "orders/0"
        restored = orders.read_bytes()
        assert text.startswith(restored)
        assert len(restored) >= len(lines(0, before))
        append(orders, b"and goes on\n")
        assert orders.read_bytes() == restored + b"and goes on\n"
    with LogManager.open(str(again / "data"), read_only=True) as manager:
        assert manager.clean


def test_a_copy_through_the_mount_is_a_beginning(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        with writing(orders) as acknowledged:
            before = acknowledged[0]
            run("cp mnt/orders/.batches/0 batches", tmp_path)
            run("tar -C mnt -cf values.tar orders || test $? = 1", tmp_path)
            run("rsync -a mnt/orders/ values/", tmp_path)
        text = orders.read_bytes()
        for topic in ("batches", "tar", "rsync"):
            mount.topic(topic)
        run("cp batches mnt/batches/.batches/0", tmp_path)
        run("tar -C mnt/tar --strip-components=1 --overwrite -xf values.tar orders/0", tmp_path)
        run("rsync --inplace values/0 mnt/rsync/0", tmp_path)
        for topic in ("batches", "tar", "rsync"):
            restored = (mount / topic / "0").read_bytes()
            assert text.startswith(restored)
            assert len(restored) >= len(lines(0, before))
        stored = (tmp_path / "batches").read_bytes()
        assert (mount / "batches/.batches/0").read_bytes() == stored
        assert (mount / "orders/.batches/0").read_bytes().startswith(stored)
