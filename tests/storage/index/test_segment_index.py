"""What both indexes do with their file: lengths, counts, and that no read ever leaves the file."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import SegmentGone
from storage.files import Files
from storage.index.segment_index import Entry, SegmentIndex
from tests.crash.disk import SimulatedDisk

PAIR = Struct(">ii")
FIRST = Struct(">i")
MANY = 3000  # more than the section that is searched first


def pack(*firsts: int) -> bytes:
    return b"".join(PAIR.pack(first, -first) for first in firsts)


class Pairs(SegmentIndex):
    """Entries as they are in the file."""

    layout = PAIR

    def _decoded(self, fields: Sequence[int]) -> Entry:
        return fields[0], fields[1]

    def _fault_of_ends(self, first: Entry, last: Entry) -> str | None:
        return None

    def _last_up_to(self, offset: int) -> int:
        return self.search(FIRST, 0, offset)


def opened(
    path: Path, *, writable: bool = True, mapped: bool = True, ignore_zero_tail: bool = False
) -> Pairs:
    return Pairs(
        Files(),
        str(path / "index"),
        0,
        100,
        writable=writable,
        mapped=mapped,
        ignore_zero_tail=ignore_zero_tail,
    )


@pytest.mark.parametrize("mapped", [True, False])
def test_append_read_and_reopen(tmp_path: Path, mapped: bool) -> None:
    file = opened(tmp_path, mapped=mapped)
    assert (file.count, file.capacity, file.data()) == (0, 12, b"")
    assert list(file.entries()) == []
    assert file.search(FIRST, 0, 10) == -1
    file.extend(pack(1))
    assert file.entry(0) == (1, -1)
    file.extend(pack(5, 9))
    assert list(file.entries()) == [(1, -1), (5, -5), (9, -9)]
    assert file.data() == pack(1, 5, 9)
    file.sync()
    file.close()
    for writable in (True, False):
        file = opened(tmp_path, writable=writable, mapped=mapped)
        assert file.data() == pack(1, 5, 9)
        assert file.entry(2) == (9, -9)
        file.sync()
        file.close()


def test_sizes_and_trims(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.presize()
    assert (tmp_path / "index").stat().st_size == 96
    assert (tmp_path / "index").stat().st_blocks == 0
    file.extend(pack(1, 2))
    assert file.entry(1) == (2, -2)
    file.trim()
    assert (tmp_path / "index").read_bytes() == pack(1, 2)
    assert file.entry(1) == (2, -2)
    file.presize()
    file.extend(pack(3))
    assert file.data() == pack(1, 2, 3)
    file.close()
    file = opened(tmp_path)
    assert file.count == 12  # it was not trimmed
    file.close()


def test_more_than_its_size_fits(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.presize()
    file.extend(pack(*range(20)))
    assert file.count == 20
    assert file.entry(19) == (19, -19)
    file.presize()
    assert file.data() == pack(*range(20))
    file.trim()
    assert (tmp_path / "index").stat().st_size == 160
    file.close()


def test_truncation_leaves_nothing_behind(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.presize()
    file.extend(pack(1, 2, 3))
    file.truncate_to(1)
    assert (tmp_path / "index").read_bytes() == pack(1).ljust(96, b"\0")
    file.extend(pack(7))
    assert file.data() == pack(1, 7)
    file.trim()
    file.truncate_to(1)
    assert (tmp_path / "index").read_bytes() == pack(1)
    assert file.data() == pack(1)
    file.truncate_to(0)
    assert file.data() == b""
    assert (tmp_path / "index").stat().st_size == 0
    file.close()


def test_an_old_map_is_not_used_for_new_entries(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for number in range(2000):
        file.extend(pack(number))
        assert file.entry(number) == (number, -number)
    file.truncate_to(3)
    assert file.data() == pack(0, 1, 2)
    file.extend(pack(9))
    assert file.entry(3) == (9, -9)
    file.close()


@pytest.mark.parametrize("mapped", [True, False])
@given(data=st.data())
def test_search_finds_the_last_that_is_not_above(
    tmp_path_factory: pytest.TempPathFactory, mapped: bool, data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from([0, 1, 2, 10, 1023, 1024, 1025, MANY]))
    step = data.draw(st.integers(1, 3))
    keys = [number // 2 * step for number in range(count)]
    file = opened(tmp_path_factory.mktemp("i"), mapped=mapped)
    file.extend(pack(*keys))
    for target in data.draw(st.lists(st.integers(-2, count * step + 2), max_size=20)):
        expected = max((n for n, key in enumerate(keys) if key <= target), default=-1)
        assert file.search(FIRST, 0, target) == expected
    file.close()


def test_odd_bytes(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(pack(1) + b"xyz")
    file = opened(tmp_path)
    assert (file.count, file.odd_bytes) == (1, 3)
    assert file.data() == pack(1)
    file.close()


@pytest.mark.parametrize("used", [0, 1, 7, 12])
def test_a_zero_tail_is_ignored(tmp_path: Path, used: int) -> None:
    (tmp_path / "index").write_bytes(pack(*range(1, used + 1)).ljust(96, b"\0"))
    file = opened(tmp_path, writable=False, mapped=False, ignore_zero_tail=True)
    assert file.data() == pack(*range(1, used + 1))
    file.close()


def test_following_another_processs_file(tmp_path: Path) -> None:
    follower = opened(tmp_path, writable=False, mapped=False, ignore_zero_tail=True)
    assert (follower.count, follower.data()) == (0, b"")
    follower.sync()
    follower.refresh()
    writer = opened(tmp_path)
    follower.refresh()
    assert follower.count == 0
    writer.presize()
    writer.extend(pack(1, 2))
    assert follower.count == 0
    follower.refresh()
    assert follower.data() == pack(1, 2)
    writer.extend(pack(3))
    writer.trim()
    follower.refresh()
    assert follower.data() == pack(1, 2, 3)
    writer.truncate_to(1)
    with pytest.raises(SegmentGone, match="cut by another process"):
        follower.entry(2)
    # It was told once.
    assert follower.data() == pack(1)
    follower.close()
    writer.close()


@pytest.mark.parametrize("left", [0, 1, 5, 3000])
def test_what_another_process_has_left_of_a_file_is_searched(tmp_path: Path, left: int) -> None:
    count = 4000
    (tmp_path / "index").write_bytes(pack(*range(count)))
    for target in (-1, 0, 2, 2000, count - 1):
        file = opened(tmp_path, writable=False, mapped=False)
        os.truncate(tmp_path / "index", left * PAIR.size)
        found = file.search(FIRST, 0, target)
        assert found == min(target, left - 1)
        file.close()
        (tmp_path / "index").write_bytes(pack(*range(count)))


def test_a_missing_file_cannot_be_made_without_its_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "none")


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    file = Pairs(disk, str(tmp_path / "index"), 0, 100, writable=True, mapped=True)
    file.presize()
    file.extend(pack(1))
    disk.fail_next("pwrite", errno.ENOSPC, partial=4)
    with pytest.raises(OSError, match="No space"):
        file.extend(pack(2, 3))
    assert file.data() == pack(1)
    file.extend(pack(4))
    assert file.data() == pack(1, 4)
    disk.fail_next("ftruncate", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.trim()
    assert file.data() == pack(1, 4)
    file.trim()
    file.close()
    assert (tmp_path / "index").read_bytes() == pack(1, 4)


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = opened(tmp_path)
    file.extend(pack(1))
    assert file.entry(0) == (1, -1)
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_map_that_is_made_while_the_file_is_trimmed(tmp_path: Path) -> None:
    """By another thread, which was about to map the pre-sized file."""
    trim: list[Callable[[], None]] = []

    class Trimmed(Files):
        def map(self, fd: int, length: int) -> mmap.mmap:
            while trim:
                trim.pop()()
            return super().map(fd, length)

    file = Pairs(Trimmed(), str(tmp_path / "f"), 0, 1 << 20, writable=True, mapped=True)
    file.presize()
    file.extend(pack(*range(10)))
    trim.append(file.trim)
    assert file.entry(9) == (9, -9)
    assert not trim
    file.close()
