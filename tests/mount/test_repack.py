"""Segments are repacked by a real daemon: a shipper that was stopped reads each line once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import SETTINGS, Mount, mounted
from tests.waits import until

SETTING = "kafkafs.repack=zstd\\nfile.delete.delay.ms=0\\n"
LINES = 300


class Writer:
    """A daemon that repacks, and what was written through its mount."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.text = b""
        mount.topic("t")
        mount.run(f"printf '{SETTING}' >> t/.config")

    def append(self) -> None:
        """Each line is a batch of its own."""
        with open(self.mount / "t" / "0", "ab", buffering=0) as file:
            for number in range(LINES):
                line = b"%d the same words again and again\n" % (len(self.text) + number)
                file.write(line)
                self.text += line

    def seal(self) -> None:
        """Append, close the segment, and wait until it is repacked."""
        self.append()
        self.mount.run("echo run > t/.control/roll")
        until(self.is_repacked)

    def is_repacked(self) -> bool:
        """Whether the sealed segments are repacked, and the old files deleted."""
        directory = self.mount.data / "t-0"
        sealed = sorted(directory.glob("*.log"))[:-1]
        try:
            sizes = [path.stat().st_size for path in sealed]
        except FileNotFoundError:
            return False  # it is being renamed
        # Without any, the sealed one is being renamed.
        is_small = bool(sizes) and max(sizes) < LINES * 20
        return is_small and not list(directory.glob("*.log.*"))


class Shipper:
    """A program that remembers the inode and the position of the file that it has read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inode = path.stat().st_ino
        self.text = b""

    def read(self, size: int = -1) -> None:
        """Open the file, go on, and close it."""
        with open(self.path, "rb", buffering=0) as file:
            assert os.fstat(file.fileno()).st_ino == self.inode
            file.seek(len(self.text))
            self.text += file.read(size)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    base = tmp_path / "own"
    (base / "data").mkdir(parents=True)
    settings = SETTINGS.replace("86400000", "0")
    (base / "data" / "kafkafs.properties").write_text(settings)
    with mounted(base) as mount:
        yield Writer(mount)


def killed(mount: Mount) -> None:
    mount.kill()
    mount.start()


def test_a_shipper_that_was_stopped_for_three_seals_reads_each_line_once(writer: Writer) -> None:
    writer.append()
    shipper = Shipper(writer.mount / "t" / ".follow" / "0")
    shipper.read(5000)
    steps: list[Callable[[Mount], None]] = [Mount.restart, killed, lambda mount: None]
    for step in steps:
        writer.seal()
        step(writer.mount)
    shipper.read()
    assert shipper.text == writer.text


def test_it_reads_each_line_once_in_a_read_only_mount_beside(
    writer: Writer, tmp_path: Path
) -> None:
    base = tmp_path / "beside"
    base.mkdir()
    (base / "data").symlink_to(writer.mount.data)
    writer.append()
    with mounted(base, "ro") as beside:
        files = [beside / "t" / name for name in ("0", ".jsonl/0", ".snapshot/0", "0@50..100")]
        inodes = [file.stat().st_ino for file in files]
        piece = files[3].read_bytes()
        shipper = Shipper(beside / "t" / ".follow" / "0")
        shipper.read(5000)
        steps: list[Callable[[Mount], None]] = [lambda mount: None, Mount.restart, killed]
        for step in steps:
            writer.seal()
            step(beside)
            shipper.read(5000)
        shipper.read()
        assert shipper.text == writer.text == files[0].read_bytes()
        assert piece == files[3].read_bytes()
        for file, inode in zip(files, inodes, strict=True):
            # A snapshot of a longer log is another file.
            assert (file.stat().st_ino == inode) == (file.parent.name != ".snapshot"), file
