"""What both indexes do with their file: lengths, counts, and that no read ever leaves the file."""

from __future__ import annotations

import errno
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
    path: Path,
    *,
    writable: bool = True,
    ignore_zero_tail: bool = False,
    mend: Callable[[], bool] | None = None,
) -> Pairs:
    return Pairs(
        Files(),
        str(path / "index"),
        0,
        100,
        writable=writable,
        ignore_zero_tail=ignore_zero_tail,
        mend=mend,
    )


def test_append_read_and_reopen(tmp_path: Path) -> None:
    file = opened(tmp_path)
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
        file = opened(tmp_path, writable=writable)
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


def test_an_entry_is_read_at_once(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for number in range(2000):
        file.extend(pack(number))
        assert file.entry(number) == (number, -number)
    file.truncate_to(3)
    assert file.data() == pack(0, 1, 2)
    file.extend(pack(9))
    assert file.entry(3) == (9, -9)
    file.close()


@given(data=st.data())
def test_search_finds_the_last_that_is_not_above(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from([0, 1, 2, 10, 1023, 1024, 1025, MANY]))
    step = data.draw(st.integers(1, 3))
    keys = [number // 2 * step for number in range(count)]
    file = opened(tmp_path_factory.mktemp("i"))
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
    file = opened(tmp_path, writable=False, ignore_zero_tail=True)
    assert file.data() == pack(*range(1, used + 1))
    file.close()


def test_following_another_processs_file(tmp_path: Path) -> None:
    follower = opened(tmp_path, writable=False, ignore_zero_tail=True)
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
    with pytest.raises(SegmentGone, match="truncated an index"):
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
        file = opened(tmp_path, writable=False)
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
    file = Pairs(disk, str(tmp_path / "index"), 0, 100, writable=True)
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


@pytest.mark.parametrize("left", [0, 1, 5, 3000])
@pytest.mark.parametrize("hole", [False, True])
def test_of_ours_what_is_left_is_searched_until_it_is_mended(
    tmp_path: Path, left: int, hole: bool
) -> None:
    count, asked = 4000, 0

    def mend() -> bool:
        nonlocal asked
        asked += 1
        return False

    file = opened(tmp_path, mend=mend)
    file.presize()
    file.extend(pack(*range(1, count + 1)))
    os.truncate(tmp_path / "index", left * PAIR.size)
    if hole:
        file.extend(pack(count + 1))
    for target in (-1, 0, 2, 2000, count, count + 1):
        # Entries of zeros lead to the start.
        found = file.search(FIRST, 0, target)
        assert found < 0 or file.entry(found)[0] <= target
    assert hole or (asked and file.is_cut)
    file.sync()
    assert file.is_cut
    file.trim()
    # No sound index has such a length.
    assert (tmp_path / "index").stat().st_size == 1
    assert file.search(FIRST, 0, count) == -1
    file.close()


def test_what_was_cut_is_mended_before_it_is_searched(tmp_path: Path) -> None:
    whole = pack(*range(1, 3001))
    (tmp_path / "index").write_bytes(whole)

    def mend() -> bool:
        with Files().held_open(str(tmp_path / "index"), os.O_RDWR) as fd:
            file.rewrite(fd, whole)
        return True

    file = opened(tmp_path, writable=False, mend=mend)
    os.truncate(tmp_path / "index", 100)
    assert file.entry(2000) == (2001, -2001)
    assert (tmp_path / "index").read_bytes() == whole
    os.truncate(tmp_path / "index", 0)
    assert file.search(FIRST, 0, 2000) == 1999
    assert file.data() == whole
    file.close()


class Counted(Files):
    """Counts what is read."""

    reads = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, position)


def test_what_is_asked_for_often_is_read_once(tmp_path: Path) -> None:
    files, count = Counted(), 5000
    file = Pairs(files, str(tmp_path / "index"), 0, 100, writable=True)
    file.extend(pack(*range(count)))
    for target in range(0, count, 50):
        assert file.search(FIRST, 0, target) == target
    before = files.reads
    for target in range(0, count, 7):
        assert file.search(FIRST, 0, target) == target
        assert file.entry(target) == (target, -target)
    assert files.reads == before
    # Of what is added later only that is read.
    file.extend(pack(*range(count, 3 * count)))
    for target in range(0, 3 * count, 50):
        assert file.search(FIRST, 0, target) == target
    assert files.reads <= before + 3
    # What takes the place of other entries is found.
    for kept in (2 * count, 100, 0):
        file.truncate_to(kept)
        file.extend(pack(*range(4 * count, 7 * count - kept)))
        assert file.count == 3 * count
        assert file.search(FIRST, 0, 4 * count - 1) == kept - 1
        for target in range(4 * count, 7 * count - kept, 50):
            assert file.search(FIRST, 0, target) == target - 4 * count + kept
    file.close()
    assert file.search(FIRST, 0, 0) == -1
