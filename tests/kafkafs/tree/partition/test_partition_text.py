"""A reader that asks only for the end of a log: the part of the log that is measured for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kafkafs.tree.files.start_file import StartFile
from storage import Log, paths
from storage.files import Files
from tests.kafkafs.start_files import DIRECTORIES, iso, start_file, text
from tests.kafkafs.trees import a_tree, clean, in_thread, read
from tests.storage.logs import NOW_MS, append


class WatchedFiles(Files):
    """Knows the names of the files that were read."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.read: set[str] = set()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def note(self, fd: int) -> None:
        self.read.add(os.path.basename(self.paths[fd]))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.note(fd)
        return super().pread(fd, size, position)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.note(fd)
        return super().preadv(fd, buffer, position)

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        self.note(fd)
        return super().preadv_nowait(fd, buffer, position)


def foreign(data: Path) -> None:
    """Five segments of 2000 records, as another has written them."""
    with a_tree(data) as tree:
        tree.mkdir("t")
        for number in range(5):
            for batch in range(20):
                append(
                    tree.log(),
                    *(b"%06d" % (number * 2000 + batch * 100 + n) for n in range(100)),
                    timestamp_ms=NOW_MS + number * 20 + batch,
                )
            if number < 4:
                tree.roll()
    for path in (data / "t-0").glob("*.lines"):
        path.unlink()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("0@-10", b"009990"),
        ("0@-2500", b"007500"),
        ("0@6100", b"006100"),
        (f"0@{iso(NOW_MS + 3 * 20 + 1)}", b"006100"),
    ],
)
@pytest.mark.parametrize("directory", DIRECTORIES[:2])
def test_nothing_before_the_segment_of_its_start_is_measured(
    tmp_path: Path, name: str, first: bytes, directory: str
) -> None:
    foreign(tmp_path / "data")
    files = WatchedFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        # Forget the files that were read to open the directory.
        files.read.clear()
        with_handle = tree.open(f"t/{directory}{name}")
        assert read(with_handle, 0, 6) == first
        logs = [int(name[:20]) // 2000 for name in files.read if name.endswith(".log")]
        assert min(logs) == int(first) // 2000
        # The rest is measured when somebody asks for it, and moves nothing.
        whole = b"".join(b"%06d\n" % number for number in range(10_000))
        assert tree.read(f"t/{directory}0") == whole
        assert read(with_handle, 0, 70_000) == whole[int(first) * 7 :]
        with_handle.release()


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 2500, 9999, 10_000])
def test_a_few_are_counted_without_measuring(tmp_path: Path, count: int) -> None:
    """Nobody else can look anything up in the directory before the lookup is answered."""
    foreign(tmp_path / "data")
    with a_tree(tmp_path / "data") as tree:
        topic = tree.directory("t")
        view = tree.fs.partitions.of(tree.log()).text(tree.fs.mount.views[0])
        file = in_thread(lambda: topic.lookup(f"0@-{count}"))
        assert isinstance(file, StartFile)
        assert file.start == 10_000 - count
        assert not any(extent.covered for extent in view.timeline.extents)


def test_what_is_left_unplaced_changes(tmp_path: Path) -> None:
    """The head that nobody has asked for is removed and cleaned, while the tail is read."""
    foreign(tmp_path / "data")
    expected = b"".join(b"%06d\n" % number for number in range(8500, 10_000))
    with a_tree(tmp_path / "data") as tree:
        file = start_file(tree, "0@8500")
        handle = tree.open(file)
        tree.remove_head(1)
        assert read(handle) == expected
        clean(tree.log(), 2, lambda record: record.offset % 2 == 0)
        assert read(handle) == expected
        assert start_file(tree, "0@8500") is file
        odd = b"".join(b"%06d\n" % number for number in range(2001, 6000, 2))
        rest = b"".join(b"%06d\n" % number for number in range(6000, 10_000))
        assert tree.read("t/0") == odd + rest
        tree.append("t/0", b"more\n")
        assert read(handle) == expected + b"more\n"
        assert (
            text(tree, "0@5990")
            == b"".join(b"%06d\n" % number for number in range(5991, 6000, 2)) + rest + b"more\n"
        )


def test_a_base_once_written_stays(tmp_path: Path) -> None:
    """Absolute positions stay valid, whatever part of the log is measured first."""

    def base(log: Log) -> tuple[int, int]:
        return log.history.base("values")

    foreign(tmp_path / "data")
    with a_tree(tmp_path / "data") as tree:
        assert text(tree, "0@8500")
        assert base(tree.log()) == (-1, 0), "where its first byte lies is not known yet"
        assert tree.read("t/0")[:7] == b"000000\n"
        assert base(tree.log()) == (0, 0)
    with a_tree(tmp_path / "data") as tree:
        # From another place, with another beginning of the timeline.
        assert text(tree, "0@9999") == b"009999\n"
        tree.remove_head(2)
        assert base(tree.log()) == (4000, 28_000)
        assert tree.read("t/0")[:7] == b"004000\n"
        tree.remove_head(1)
        assert base(tree.log()) == (6000, 42_000)
    with a_tree(tmp_path / "data") as tree:
        tree.remove_head(1)
        assert base(tree.log()) == (8000, 56_000)


class UnknownBlocks(Files):
    """While `broken`, the number of blocks of a file cannot be read."""

    broken = False

    def file_stat(self, path: str) -> os.stat_result:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().file_stat(path)


def test_a_roll_whose_blocks_cannot_be_counted_is_shown(tmp_path: Path) -> None:
    """The log has rolled already. So each view is updated, and the blocks are counted later."""
    files = UnknownBlocks()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.append("t/0", b"one\n")
        partition = tree.fs.partitions.of(tree.log())
        partition.blocks()
        files.broken = True
        tree.roll()
        files.broken = False
        tree.append("t/0", b"two\n")
        assert tree.read("t/0") == b"one\ntwo\n"
        sealed, active = tree.log().segments
        kinds = (paths.LOG, paths.INDEX, paths.TIMEINDEX)
        counted = sum(os.stat(sealed.file_path(kind)).st_blocks for kind in kinds)
        assert partition.blocks() == counted + 8
        assert active.size <= 4096
