"""Text that is rendered ahead of who reads in order: exact, counted, and within its budget."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.tree.handles import Handle
from kafkafs.tree.read_ahead import PIECE
from storage.errors import SegmentGone
from storage.files import Files
from tests.kafkafs.trees import Tree, a_tree, asked, in_thread, write

SIZE = 4096
TEXT = b"".join(b"line %07d of what is read in order\n" % number for number in range(30_000))


class CountedReads(Files):
    """The disk, and how often a log was read that is in the page cache."""

    def __init__(self) -> None:
        self.reads = 0

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        self.reads += 1
        return super().preadv_nowait(fd, buffer, position)


@pytest.fixture
def files() -> CountedReads:
    return CountedReads()


@pytest.fixture
def tree(tmp_path: Path, files: CountedReads) -> Iterator[Tree]:
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.append("t/0", TEXT)
        yield tree


def opened(tree: Tree, path: str = "t/0") -> Handle:
    return tree.open(path)


def piece(handle: Handle, position: int, size: int = SIZE) -> bytes:
    """A read as the daemon answers it."""
    return bytes(asked(handle.read, position, size))


def read_in_order(handle: Handle, size: int, start: int = 0, end: int = 1 << 30) -> bytes:
    """Read on until nothing comes."""
    text = b""
    while start + len(text) < end and (more := piece(handle, start + len(text), size)):
        text += more
    return text


def test_what_is_ahead_is_not_read_from_the_log_again(tree: Tree, files: CountedReads) -> None:
    handle = opened(tree)
    assert read_in_order(handle, SIZE, end=4 * PIECE) == TEXT[: 4 * PIECE]
    files.reads = 0
    again = read_in_order(handle, SIZE, start=4 * PIECE, end=6 * PIECE)
    assert again == TEXT[4 * PIECE : 6 * PIECE]
    # Pieces may begin anywhere, and a read of the log may return fewer bytes than it requested.
    assert files.reads <= 6
    handle.release()


def test_no_more_is_rendered_than_was_read(tree: Tree) -> None:
    ahead = tree.fs.mount.read_ahead
    handle = opened(tree)
    for number in range(20):
        assert piece(handle, (number * 7919 * SIZE) % len(TEXT) // SIZE * SIZE)
        assert ahead.held_bytes == 0
    read_in_order(handle, SIZE, start=0, end=3 * SIZE)
    assert 0 < ahead.held_bytes <= 4 * SIZE
    handle.release()
    assert ahead.held_bytes == 0


@pytest.mark.parametrize(
    ("path", "size"),
    [
        (path, size)
        for n, path in enumerate(("t/0", "t/.jsonl/0", "t/.kv/0", "t/.batches/0", "t/.follow/0"))
        for size in (1000, 4096, 5000, 16384, 98304, 131072, PIECE, 3 * PIECE + 5)[n % 2 :: 2]
    ],
)
def test_pieces_of_any_size_in_any_view(tree: Tree, path: str, size: int) -> None:
    once = opened(tree, path)
    whole = bytes(once.read(0, tree.attributes(tree.node(path)).size))
    handle = opened(tree, path)
    assert read_in_order(handle, size) == whole
    handle.release()
    once.release()


def test_a_reader_that_jumps_gets_the_bytes_of_the_place(tree: Tree) -> None:
    handle = opened(tree)
    read_in_order(handle, SIZE, end=20 * SIZE)
    for position, size in (
        (20 * SIZE + 7, 100),
        (3, 50),
        (53, 0),
        (21 * SIZE, 9 * SIZE),
        (19 * SIZE, 10),
    ):
        assert piece(handle, position, size) == TEXT[position : position + size]
    handle.release()


def test_the_end_grows_behind_what_is_ahead(tree: Tree) -> None:
    """A reader at the end gets the whole new lines, though a piece ends there."""
    handle = opened(tree)
    assert read_in_order(handle, SIZE) == TEXT
    text = TEXT
    for number in range(300):
        line = b"appended %d\n" % number
        tree.append("t/0", line)
        assert piece(handle, len(text)) == line
        text += line
    start = len(TEXT) - 3 * SIZE
    assert read_in_order(handle, SIZE, start=start) == text[start:]
    handle.release()


def test_a_range_ends_where_it_ends(tree: Tree) -> None:
    handle = opened(tree, "t/0@10..20000")
    lines = TEXT.splitlines(keepends=True)
    assert read_in_order(handle, SIZE) == b"".join(lines[10:20000])
    handle.release()


def test_what_is_gone_is_not_shown_from_memory(tree: Tree) -> None:
    """The records go and so do their files: who still reads there gets ESTALE, as without."""
    tree.roll()
    tree.append("t/0", b"what stays\n")
    handle = opened(tree)
    read_in_order(handle, SIZE, end=20 * SIZE)
    assert tree.fs.mount.read_ahead.held_bytes
    tree.remove_head(1)
    assert piece(handle, 20 * SIZE) == TEXT[20 * SIZE : 21 * SIZE]
    in_thread(tree.fs.partitions.housekeeping)
    tree.delete_files()
    with pytest.raises(SegmentGone):
        piece(handle, 21 * SIZE)
    handle.release()


def test_a_thousand_open_files_hold_the_budget(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", MountOptions(memory=1 << 20)) as tree:
        tree.mkdir("t")
        tree.append("t/0", TEXT)
        ahead = tree.fs.mount.read_ahead
        node = tree.node("t/0")
        handles = [node.open(os.O_RDONLY) for _ in range(1000)]
        for handle in handles:
            assert piece(handle, 0) + piece(handle, SIZE) == TEXT[: 2 * SIZE]
        for handle in handles[:20]:
            assert read_in_order(handle, SIZE, end=4 * PIECE) == TEXT[: 4 * PIECE]
            assert ahead.held_bytes <= 1 << 20
        ahead.age()
        assert piece(handles[19], 4 * PIECE) == TEXT[4 * PIECE : 4 * PIECE + SIZE]
        ahead.age()
        assert ahead.held_bytes <= PIECE
        ahead.age()
        assert ahead.held_bytes == 0
        for handle in handles:
            handle.release()


def test_an_open_file_that_also_writes(tree: Tree) -> None:
    handle = tree.open("t/0", os.O_RDWR | os.O_APPEND)
    text = b""
    for number in range(100):
        line = b"written %d\n" % number
        write(handle, 0, line)
        text += piece(handle, len(text))
    assert text == TEXT[: len(text)]
    handle.release()
