"""A file as it is on the disk: any part of it, whatever is in the page cache."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage.files import Files
from storage.segment.direct_io import BLOCK, DirectFile

SIZE = 3 * BLOCK + 100


class Refusing(Files):
    """A disk with a bad block, or a file system without O_DIRECT."""

    def __init__(self, *, bad_block: int = -1, direct: bool = True) -> None:
        self.bad = range(bad_block * BLOCK, (bad_block + 1) * BLOCK)
        self.direct = direct
        self.opened: list[int] = []

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self.opened.append(flags)
        if flags & os.O_DIRECT and not self.direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return super().open(path, flags, mode)

    def preadv_once(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        if position < self.bad.stop and position + len(buffer) > self.bad.start >= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().preadv_once(fd, buffer, position)


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, bytes]:
    data = os.urandom(SIZE)
    path = tmp_path / "file"
    path.write_bytes(data)
    return str(path), data


@pytest.mark.parametrize("direct", [True, False])
def test_any_part(written: tuple[str, bytes], direct: bool) -> None:
    path, data = written
    files = Refusing(direct=direct)
    source = DirectFile(files, path)
    for position in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5, SIZE - 1, SIZE, SIZE + BLOCK):
        for size in (0, 1, 12, BLOCK, SIZE, 3 << 20):
            assert source.read(position, size) == data[position : position + size]
    source.settle()
    source.close()
    assert len(files.opened) == (1 if direct else 2)


def test_what_was_just_written_is_on_the_disk(written: tuple[str, bytes]) -> None:
    path, _ = written
    source = DirectFile(Files(), path)
    with open(path, "r+b", buffering=0) as file:
        file.seek(BLOCK + 7)
        file.write(b"news")
        file.seek(0, os.SEEK_END)
        file.write(b"more")
    assert bytes(source.read(BLOCK + 7, 4)) == b"news"
    assert bytes(source.read(SIZE, 100)) == b"more"
    source.close()


def test_a_file_that_grows_while_it_is_read(
    written: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = written
    read = os.preadv

    def appended_meanwhile(fd: int, buffers: list[memoryview], position: int) -> int:
        count = read(fd, buffers, position)
        with open(path, "ab", buffering=0) as file:
            file.write(b"more")
        return count

    source = DirectFile(Files(), path)
    monkeypatch.setattr(os, "preadv", appended_meanwhile)
    for _ in range(3):
        assert source.read(2 * BLOCK + 5, SIZE - 2 * BLOCK - 5) == data[2 * BLOCK + 5 :]
    source.close()


def test_what_cannot_be_read_is_zeros(written: tuple[str, bytes]) -> None:
    path, data = written
    source = DirectFile(Refusing(bad_block=1), path)
    expected = data[:BLOCK] + bytes(BLOCK) + data[2 * BLOCK :]
    assert source.read(0, SIZE) == expected
    assert source.read(BLOCK + 50, SIZE) == expected[BLOCK + 50 :]
    assert source.read(2 * BLOCK, SIZE) == data[2 * BLOCK :]
    source.close()


def test_other_errors_are_told(written: tuple[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectFile(Files(), str(tmp_path / "none"))
