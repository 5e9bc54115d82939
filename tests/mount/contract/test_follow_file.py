"""`.follow/N`: "keeps its `st_ino`, and bytes keep their positions" in the contract, and "`st_size`
counts every byte that the file has ever shown" in the contract. `.ship/N` shows the same after a
first line that never changes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.writing import append, view
from tests.mount.control import do, facts
from tests.mount.mounting import Mount, fails, mounted
from tests.waits import until

HEAD = 1100
"""Bytes of the first line of `.ship/N`."""
LINE = 20
"""Bytes of each line that `lines` makes."""


def lines(start: int, end: int) -> bytes:
    return b"".join(b"%09d followed.\n" % number for number in range(start, end))


class Followed:
    """A partition that is cleaned and shortened, and all that it has ever shown."""

    def __init__(self, mount: Mount, path: Path) -> None:
        self.mount = mount
        self.path = path
        self.file, self.ship = view(path, ".follow"), view(path, ".ship")
        self.text = b""
        with self.ship.open("rb") as file:
            self.head = file.read(HEAD)
        # A ratio that no cleaner reaches by itself.
        settings = b"cleanup.policy=compact,delete\nmin.cleanable.dirty.ratio=1\n"
        append(path.parent / ".config", settings)

    def append(self, count: int, keys: int = 10) -> None:
        """Append `count` records of `keys` keys."""
        first = len(self.text) // LINE
        new = lines(first, first + count)
        rows = [b"%d\t%s" % (number % keys, line) for number, line in enumerate(_lines(new))]
        append(view(self.path, ".kv"), b"".join(rows))
        self.text += new

    def segment(self, count: int) -> None:
        self.append(count)
        do(self.path, "roll", "run")

    def retain(self) -> None:
        """All but the active segment go."""
        append(self.path.parent / ".config", b"retention.bytes=1\n")
        do(self.path, "retention", "run")
        append(self.path.parent / ".config", b"retention.bytes=\n")

    def clean(self) -> None:
        do(self.path, "compaction", "run")
        until(lambda: facts(self.path, "compaction")["state"] == "idle")
        assert facts(self.path, "compaction")["last_outcome"] == "done"

    @property
    def inode(self) -> int:
        return self.file.stat().st_ino

    @property
    def first(self) -> int:
        return int(os.getxattr(self.file, "user.kafkafs.first_position"))

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        fd = os.open(self.file, os.O_RDONLY)
        try:
            yield fd
        finally:
            os.close(fd)

    def check(self, first: int) -> None:
        """All is there from a position on, and newlines before it."""
        assert self.file.stat().st_size == len(self.text)
        assert self.first == first
        with self.opened() as fd:
            assert os.pread(fd, len(self.text) + 1, first) == self.text[first:]
            shown = b"\n" * first + self.text[first:]
            for position in {0, first // 2, max(first - 1, 0)}:
                assert os.pread(fd, 1, position) == shown[position : position + 1]
                assert os.pread(fd, len(shown) + 1, position) == shown[position:]
        self.check_ship(first, shown)

    def check_ship(self, first: int, shown: bytes) -> None:
        """The same after the head."""
        shown = self.head + shown
        assert self.ship.stat().st_size == len(shown)
        assert int(os.getxattr(self.ship, "user.kafkafs.first_position")) == HEAD + first
        fd = os.open(self.ship, os.O_RDONLY)
        try:
            for position in {0, 1000, HEAD - 1, HEAD, HEAD + first}:
                for size in (1, 99, 101, 512, len(shown) + 1):
                    assert os.pread(fd, size, position) == shown[position : position + size]
            assert os.pread(fd, 1, len(shown)) == b""
        finally:
            os.close(fd)


def _lines(text: bytes) -> list[bytes]:
    return text.splitlines(keepends=True)


@pytest.fixture
def followed(mount: Mount) -> Followed:
    return Followed(mount, new_topic(mount))


def test_it_shows_the_values_and_is_for_reading(followed: Followed) -> None:
    """`.follow/0`: values again, for `tail -F` and log shippers."""
    followed.append(100)
    assert followed.file.read_bytes() == followed.path.read_bytes() == followed.text
    assert os.listdir(followed.file.parent) == ["0"]
    assert followed.inode != followed.path.stat().st_ino
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND, os.O_WRONLY, os.O_TRUNC):
        fails(errno.EPERM, os.open, followed.file, flags)
    fails(errno.EPERM, os.truncate, followed.file, 0)
    fails(errno.EPERM, os.unlink, followed.file)
    fails(errno.ENOENT, os.stat, followed.file.parent / "1")
    assert followed.file.read_bytes() == followed.text
    assert ".follow/0 refused: this file is read-only" in followed.mount.events()


def test_the_first_line_of_ship_names_the_partition(followed: Followed) -> None:
    """`#kafkafs`, the follow nonce, topic id, topic, partition, blanks: 1,100 bytes, for each file
    other ones.
    """
    topic = followed.path.parent.name
    (followed.path.parent / "1").touch()
    other = view(followed.path.with_name("1"), ".ship")
    head, other_head = followed.head, other.read_bytes()
    assert len(head) == len(other_head) == HEAD
    words = head.decode().split(" ")[:5]
    assert (words[0], words[3:]) == ("#kafkafs", [topic, "0"])
    metadata = followed.mount.data / f"{topic}-0" / "partition.metadata"
    assert f"topic_id: {words[2]}" in metadata.read_text().splitlines()
    history = followed.mount.data / f"{topic}-0" / "kafkafs.history"
    assert f"follow {words[1]}\n" in history.read_text()
    assert head == " ".join(words).encode().ljust(HEAD - 1) + b"\n"
    assert other_head != head
    inodes = {path.stat().st_ino for path in (followed.path, followed.file, followed.ship, other)}
    assert len(inodes) == 4
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND, os.O_WRONLY, os.O_TRUNC):
        fails(errno.EPERM, os.open, followed.ship, flags)
    followed.append(3)
    assert followed.ship.read_bytes() == head + followed.text


def test_at_names_are_those_of_the_topic(followed: Followed) -> None:
    """They work in every view directory."""
    followed.append(100)
    name = followed.file.parent / "0@-3"
    assert name.read_bytes() == followed.text[-3 * LINE :]
    assert name.stat().st_ino == followed.path.with_name("0@-3").stat().st_ino


def test_positions_never_move(followed: Followed) -> None:
    """… over retention, compaction and delete-records."""
    inode = followed.inode
    for _ in range(3):
        followed.segment(30)
    followed.append(10)
    followed.check(0)
    followed.clean()
    followed.check(90 * LINE)
    followed.segment(30)
    followed.append(5)
    followed.check(90 * LINE)
    followed.retain()
    followed.check(130 * LINE)
    followed.append(10)
    do(followed.path, "delete-records", "0 133")
    followed.check(133 * LINE)
    do(followed.path, "roll", "run")
    followed.append(10)
    do(followed.path, "delete-records", "0 150")
    do(followed.path, "retention", "run")
    followed.check(150 * LINE)
    followed.clean()
    followed.check(150 * LINE)
    assert followed.inode == inode


def test_who_begins_after_retention_is_given_newlines(followed: Followed) -> None:
    """A follower that begins at 0 continues, and the log has no line about it."""
    assert followed.first == 0
    followed.segment(50)
    followed.append(5)
    followed.retain()
    shown = b"\n" * 50 * LINE + lines(50, 55)
    assert followed.file.read_bytes() == shown
    with followed.opened() as fd:
        assert b"".join(iter(lambda: os.read(fd, 333), b"")) == shown
        assert "missed" not in followed.mount.events()
        # A reader that got newlines has missed nothing.
        os.lseek(fd, 49 * LINE, os.SEEK_SET)
        assert os.read(fd, LINE) == b"\n" * LINE
        do(followed.path, "roll", "run")
        followed.append(5)
        followed.retain()
        assert os.read(fd, 10 * LINE) == lines(50, 60)
    assert "missed" not in followed.mount.events()


def test_who_comes_back_to_what_is_gone_is_named(followed: Followed) -> None:
    assert followed.first == 0
    followed.segment(50)
    followed.append(5)
    followed.retain()
    with followed.opened() as fd:
        os.lseek(fd, 20 * LINE, os.SEEK_SET)
        assert os.read(fd, 100 * LINE) == b"\n" * 30 * LINE + lines(50, 55)
    name = f"{followed.path.parent.name}/.follow/0: the reader at position {20 * LINE} missed"
    assert followed.mount.events().count(name) == 1


def test_what_a_reader_missed_is_one_line(tmp_path: Path) -> None:
    """… with a line in `.kafkafs/log` that names the offsets that the reader missed."""
    with mounted(tmp_path, "follow_gaps=error") as strict:
        followed = Followed(strict, strict.topic())
        _check_what_is_said(followed)
        # The first line of `.ship` can always be read.
        fd = os.open(followed.ship, os.O_RDONLY)
        try:
            assert os.pread(fd, 2000, 0) == followed.head
            fails(errno.ESTALE, os.pread, fd, 2000, HEAD)
        finally:
            os.close(fd)
        missed = f"/.ship/0: the reader at position {HEAD} missed offsets 0 to 99"
        assert missed in strict.events()
        assert f"can continue at position {HEAD + followed.first}" in strict.events()


def _check_what_is_said(followed: Followed) -> None:
    for _ in range(4):
        followed.segment(25)
    followed.append(5)
    inode = followed.inode
    assert followed.file.read_bytes() == followed.text
    followed.retain()
    name = f"{followed.path.parent.name}/.follow/0"
    said = f"{name}: the reader at position "

    def told() -> list[str]:
        found = re.findall(f"{re.escape(said)}(.*)", followed.mount.events())
        return [str(line) for line in found]

    with followed.opened() as fd:
        for position in (25 * LINE, 25 * LINE, 0, 30 * LINE):
            fails(errno.ESTALE, os.pread, fd, 100, position)
        assert len(told()) == 1
        assert told()[0].startswith("500 missed offsets 25 to 99")
        assert told()[0].endswith(f"can continue at position {followed.first}")
        assert os.pread(fd, LINE, followed.first) == lines(100, 101)
    with followed.opened() as fd:
        fails(errno.ESTALE, os.pread, fd, 100, 30 * LINE)
        assert told()[1].startswith("600 missed offsets up to 99, possibly from 25 on")
    assert followed.inode == inode
    assert len(told()) == 2
    assert "read: " not in followed.mount.events()


# -- remounts ------------------------------------------------------------------------------------


def test_it_is_the_same_after_a_remount(own: Mount) -> None:
    """… positions never move, also across remounts (the base is a checkpoint)."""
    followed = Followed(own, own.topic())
    inode = followed.inode
    assert followed.file.read_bytes() == b""
    for number, end in enumerate((own.stop, own.kill)):
        followed.segment(20)
        followed.segment(20)
        followed.append(3)
        followed.clean() if number % 2 else followed.retain()
        first = (len(followed.text) // LINE - 3) * LINE
        followed.check(first)
        end()
        own.start()
        followed.check(first)
        assert followed.inode == inode
        followed.append(3)
        do(followed.path, "roll", "run")


def test_commands_without_a_mount_keep_it(own: Mount) -> None:
    """The view indexes can be deleted: what goes is measured then."""
    followed = Followed(own, own.topic())
    inode = followed.inode
    assert followed.file.read_bytes() == b""

    def offline(has_indexes: bool, *words: str) -> None:
        own.stop()
        if not has_indexes:
            for path in own.data.glob("*/*.lines"):
                path.unlink()
        subprocess.run([*KAFKAFS, *words], check=True, capture_output=True)
        own.start()
        assert followed.inode == inode

    for has_indexes in (True, False):
        followed.segment(50)
        followed.segment(50)
        followed.append(10)
        end = len(followed.text)
        offline(has_indexes, "compact", str(own.data), "orders")
        followed.check(end - 10 * LINE)
        followed.segment(20)
        followed.append(10)
        append(followed.path.parent / ".config", b"retention.bytes=1\n")
        offline(has_indexes, "prune", str(own.data))
        followed.check(end + 20 * LINE)
        append(followed.path.parent / ".config", b"retention.bytes=\n")
