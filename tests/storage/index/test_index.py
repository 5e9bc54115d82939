"""The offset index and the time index against plain lists; no read leaves the file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from struct import pack as packed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.descriptors import Descriptor
from storage.errors import SegmentGone
from storage.files import Files
from storage.index.index import OFFSET, TIME, Index, Layout
from storage.waiting import at_once
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import CountedReads, entries_of

BASE = 1000
PAIR = Struct(">ii")
MANY = 6000  # more than two pages


def pack(*numbers: int) -> bytes:
    """Entries whose position is their offset."""
    return b"".join(PAIR.pack(number, number) for number in numbers)


def opened(
    directory: Path,
    layout: Layout = OFFSET,
    *,
    files: Files | None = None,
    base: int = 0,
    max_bytes: int = 100,
    is_active: bool = False,
    rebuild: Callable[[], bool] | None = None,
) -> Index:
    disk = files or Files()

    def open_file(suffix: str, flags: int) -> Descriptor:
        return Descriptor(disk, str(directory / f"x{suffix}"), flags)

    return Index(
        *(disk, layout, base, open_file),
        max_bytes=max_bytes,
        is_active=is_active,
        rebuild=rebuild,
    )


def is_cold(index: Index, target: int) -> bool:
    """Whether a search has to open the file."""
    try:
        at_once(index.lookup, target)
    except BlockingIOError:
        return True
    return False


def test_sizes_and_trims(tmp_path: Path) -> None:
    index, path = opened(tmp_path), tmp_path / "x.index"
    index.presize()
    assert (path.stat().st_size, path.stat().st_blocks) == (96, 0)
    index.extend(pack(1, 2))
    assert index.entry(1) == (2, 2)
    index.trim()
    assert path.read_bytes() == pack(1, 2)
    assert index.entry(1) == (2, 2)
    index.presize()
    index.extend(pack(3))
    assert index.data() == pack(1, 2, 3)
    index.close()
    assert opened(tmp_path).count == 12, "it was not trimmed"


def test_truncation_leaves_nothing_behind(tmp_path: Path) -> None:
    index, path = opened(tmp_path), tmp_path / "x.index"
    index.presize()
    index.extend(pack(1, 2, 3))
    index.truncate_to(1)
    assert path.read_bytes() == pack(1).ljust(96, b"\0")
    index.extend(pack(7))
    assert index.data() == pack(1, 7)
    index.trim()
    index.truncate_to(1)
    assert path.read_bytes() == pack(1)
    assert index.data() == pack(1)
    index.truncate_to(0)
    assert index.data() == b""
    assert path.stat().st_size == 0


@given(data=st.data())
def test_search_finds_the_last_that_is_not_above(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Positions as in a file of another process: some are equal."""
    count = data.draw(st.sampled_from([0, 1, 2, 10, 2047, 2048, 2049, 4097, MANY]))
    step = data.draw(st.integers(1, 3))
    keys = [number // 2 * step for number in range(count)]
    directory = tmp_path_factory.mktemp("i")
    (directory / "x.index").write_bytes(b"".join(PAIR.pack(n, key) for n, key in enumerate(keys)))
    index = opened(directory)
    for target in data.draw(st.lists(st.integers(-2, count * step + 2), max_size=20)):
        found = [(n, key) for n, key in enumerate(keys) if key <= target]
        assert index.at_or_before(target) == (found[-1] if found else None)
        after = (len(found), keys[len(found)]) if len(found) < count else None
        assert index.after(target) == after
        assert index.position_after(target) == (None if after is None else after[1])
    index.close()


@pytest.mark.parametrize("used", [0, 1, 7, 12])
def test_a_zero_tail_is_ignored(tmp_path: Path, used: int) -> None:
    (tmp_path / "x.index").write_bytes(pack(*range(1, used + 1)).ljust(96, b"\0"))
    index = opened(tmp_path, is_active=True)
    assert index.data() == pack(*range(1, used + 1))
    assert Index.of_file(Files(), OFFSET, str(tmp_path / "x.index"), 0).count == 12


def test_a_missing_file_cannot_be_made_without_its_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "none").presize()


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    index = opened(tmp_path, files=disk)
    index.presize()
    index.extend(pack(1))
    disk.fail_next("pwrite", errno.ENOSPC, partial=4)
    with pytest.raises(OSError, match="No space"):
        index.extend(pack(2, 3))
    assert index.data() == pack(1)
    index.extend(pack(4))
    assert index.data() == pack(1, 4)
    disk.fail_next("ftruncate", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        index.trim()
    assert index.data() == pack(1, 4)
    index.trim()
    assert (tmp_path / "x.index").read_bytes() == pack(1, 4)


def test_only_a_written_file_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    index = opened(tmp_path)
    index.extend(pack(*range(MANY)))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    for _ in range(2):
        index.close()
        assert index.lookup(5) == (5, 5)
        assert len(os.listdir("/proc/self/fd")) == before


# -- another process has truncated the file --------------------------------------------------------


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("left", [0, 1, 5, 2000, None])
def test_what_is_left_is_searched(tmp_path: Path, left: int | None, searched: bool) -> None:
    count, path = 4000, tmp_path / "x.index"
    for target in (-1, 0, 2, 2000, 2047 if searched else count - 1):
        path.write_bytes(pack(*range(count)))
        index = opened(tmp_path)
        assert index.last_entry == (count - 1, count - 1)
        if searched:  # the last page is in memory
            assert index.lookup(count - 1) == (count - 1, count - 1)
        if left is None:
            path.unlink()
        else:
            os.truncate(path, left * PAIR.size)
        last = min(target, (left or 0) - 1)
        assert index.at_or_before(target) == ((last, last) if last >= 0 else None)
        assert index.lookup(target) == (max(last, 0), max(last, 0))
        index.close()
        assert index.last_entry is None


@pytest.mark.parametrize("left", [0, 1, 2000])
def test_it_is_rebuilt_before_it_is_searched(tmp_path: Path, left: int) -> None:
    whole, rebuilt = pack(*range(1, MANY + 1)), 0

    def rebuild() -> bool:
        nonlocal rebuilt
        rebuilt += 1
        index.load(whole)
        return True

    (tmp_path / "x.index").write_bytes(whole)
    index = opened(tmp_path, rebuild=rebuild)
    os.truncate(tmp_path / "x.index", left * PAIR.size)
    for target in (MANY, 1, 1500):
        assert index.lookup(target) == (target, target)
    assert rebuilt == 1


def test_an_index_that_the_segment_has_replaced_ends_its_search(tmp_path: Path) -> None:
    """The segment then rebuilds another index."""
    (tmp_path / "x.index").write_bytes(pack(*range(MANY)))
    index = opened(tmp_path, rebuild=lambda: True)
    os.truncate(tmp_path / "x.index", 5 * PAIR.size)
    assert index.lookup(MANY) == (4, 4)


@pytest.mark.parametrize("left", [0, 1, 5, 2000])
@pytest.mark.parametrize("hole", [False, True])
def test_of_an_active_segment_the_rest_is_searched_until_it_is_sealed(
    tmp_path: Path, left: int, hole: bool
) -> None:
    count, asked = 3000, 0

    def rebuild() -> bool:
        nonlocal asked
        asked += 1
        return False

    index, path = opened(tmp_path, max_bytes=40_000, rebuild=rebuild), tmp_path / "x.index"
    index.presize()
    index.extend(pack(*range(1, count + 1)))
    os.truncate(path, left * PAIR.size)
    if hole:
        index.extend(pack(count + 1))
    for target in (-1, 0, 2, 1999, count, count + 1):
        # Entries of zeros lead to the start.
        assert index.lookup(target)[0] <= max(target, 0)
    assert hole or asked
    index.trim()
    assert path.stat().st_size == 1, "no sound index has such a length"
    assert not opened(tmp_path).is_sound
    # It is used again, after it was closed: the segment rolls, and the file stays unsound.
    index.presize()
    assert index.is_full
    index.extend(pack(count + 2))
    index.trim()
    assert path.stat().st_size == 1
    index.close()


# -- memory ----------------------------------------------------------------------------------------


def test_what_is_asked_for_often_is_read_once(tmp_path: Path) -> None:
    files, count = CountedReads(), 5000
    index = opened(tmp_path, files=files)
    index.extend(pack(*range(count)))
    for target in range(0, count, 50):
        assert index.lookup(target) == (target, target)
    before = files.operations
    for target in range(0, count, 7):
        assert index.lookup(target) == (target, target)
        assert index.entry(target) == (target, target)
    # Entries that are added later are in memory, too.
    index.extend(pack(*range(count, 3 * count)))
    for target in range(0, 3 * count, 50):
        assert index.lookup(target) == (target, target)
    assert files.operations == before
    # Entries that replace others are found.
    for kept in (2 * count, 100, 0):
        index.truncate_to(kept)
        index.extend(pack(*range(4 * count, 7 * count - kept)))
        assert index.count == 3 * count
        assert index.lookup(4 * count - 1) == ((kept - 1, kept - 1) if kept else (0, 0))
        for target in range(4 * count, 7 * count - kept, 50):
            assert index.lookup(target) == (target, target)
    index.close()
    assert is_cold(index, 0)


@pytest.mark.parametrize("left", [None, 0])
def test_an_index_that_is_gone_is_named(tmp_path: Path, left: int | None) -> None:
    index, path = opened(tmp_path), tmp_path / "x.index"
    index.extend(pack(1, 5))
    index.close()
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    with pytest.raises(SegmentGone) as caught:
        index.data()
    assert caught.value.path == str(path)


@pytest.mark.parametrize("layout", [OFFSET, TIME])
def test_a_thread_that_may_not_wait_opens_no_file(tmp_path: Path, layout: Layout) -> None:
    index = opened(tmp_path, layout)
    size = layout.entry.size
    index.extend(b"".join(layout.entry.pack(number, number) for number in range(MANY)))
    index.close()
    assert is_cold(index, MANY)
    # The search reads the last page only.
    assert index.lookup(MANY) == (MANY - 1, MANY - 1)
    index.release()
    assert not is_cold(index, MANY)
    assert is_cold(index, 1)
    assert index.count == MANY > (1 << 14) // size


def test_loaded_entries_leave_the_memory_unless_their_file_is_deleted(tmp_path: Path) -> None:
    indexes = [opened(tmp_path) for _ in range(12)]
    indexes[0].load(bytes(8 << 20))
    indexes[0].pin()
    for index in indexes[1:]:
        index.load(bytes(8 << 20))
    assert [is_cold(indexes[number], 0) for number in (0, 1, 11)] == [False, True, False]
    for index in indexes:
        index.close()


# -- offsets -> positions --------------------------------------------------------------------------


# Steps from one entry to the next: offsets and positions strictly rise.
steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=40)


def fill_offsets(index: Index, steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Append all; what must be there afterwards."""
    offset, position, entries = BASE - 1, 0, []
    for more_offset, more_position in steps:
        offset, position = offset + more_offset, position + more_position
        index.append(offset, position)
        entries.append((offset, position))
    return entries


def test_the_bytes_of_offsets(tmp_path: Path) -> None:
    index = opened(tmp_path, base=BASE, max_bytes=1024)
    index.presize()
    assert (tmp_path / "x.index").stat().st_size == 1024
    index.append(1005, 4200)
    index.append(1000 + 2**31 - 1, 2**31 - 1)
    index.trim()
    expected = packed(">iiii", 5, 4200, 2**31 - 1, 2**31 - 1)
    assert (tmp_path / "x.index").read_bytes() == expected


@given(steps=steps, queries=st.lists(st.integers(BASE - 5, BASE + 2100), max_size=10))
def test_lookups_of_offsets(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], queries: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("i")
    index = opened(directory, base=BASE, max_bytes=1024)
    index.presize()
    entries = fill_offsets(index, steps)
    assert entries_of(index) == entries
    assert index.last_entry == (entries[-1] if entries else None)
    index.trim()
    assert opened(directory, base=BASE).is_sound
    for offset in [*queries, *(offset for offset, _ in entries)]:
        expected = max((e for e in entries if e[0] <= offset), default=(BASE, 0))
        assert index.lookup(offset) == expected
        count = index.count_to(offset)
        assert opened_with(index.data(count)) == [e for e in entries if e[0] <= offset]
    for position in range(0, 40_000, 4000):
        assert index.after(position) == next((e for e in entries if e[1] > position), None)
    index.close()


def opened_with(data: bytes) -> list[tuple[int, int]]:
    return [(offset + BASE, position) for offset, position in PAIR.iter_unpack(data)]


def test_offsets_and_positions_rise(tmp_path: Path) -> None:
    index = opened(tmp_path, base=BASE)
    index.append(1005, 100)
    for offset, position in ((1005, 200), (1004, 200), (1006, 100)):
        with pytest.raises(AssertionError):
            index.append(offset, position)
    with pytest.raises(AssertionError):
        index.extend(packed(">ii", 5, 200))
    index.extend(packed(">iiii", 6, 200, 9, 300))
    assert index.last_entry == (1009, 300)


def test_an_append_while_another_thread_reads_the_last_entry(tmp_path: Path) -> None:
    class Appending(Files):
        appends = False

        def pread(self, fd: int, size: int, position: int) -> bytes:
            data = super().pread(fd, size, position)
            if self.appends:
                self.appends = False
                index.append(1007, 200)
            return data

    (tmp_path / "x.index").write_bytes(packed(">ii", 5, 100))
    disk = Appending()
    index = opened(tmp_path, base=BASE, files=disk)
    index.truncate_to(1)
    disk.appends = True
    assert index.last_entry == (1005, 100)
    assert index.last_entry == (1007, 200)


# -- timestamps -> offsets -------------------------------------------------------------------------


# Steps from one call to the next: neither timestamp nor offset ever falls.
time_steps = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=40)


def fill_times(index: Index, steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Append all; what must be there afterwards."""
    timestamp, offset = -1, BASE
    entries: list[tuple[int, int]] = []
    for later, further in steps:
        timestamp, offset = timestamp + later, offset + further
        index.append(timestamp, offset)
        if timestamp > (entries[-1][0] if entries else -1):
            entries.append((timestamp, offset))
    return entries


def test_the_bytes_of_times(tmp_path: Path) -> None:
    index = opened(tmp_path, TIME, base=BASE, max_bytes=1200)
    index.presize()
    assert (tmp_path / "x.timeindex").stat().st_size == 1200
    index.append(1_700_000_000_000, 1005)
    index.append(2**63 - 1, BASE + 2**31 - 1)
    index.trim()
    expected = packed(">qiqi", 1_700_000_000_000, 5, 2**63 - 1, 2**31 - 1)
    assert (tmp_path / "x.timeindex").read_bytes() == expected


@given(steps=time_steps)
def test_lookups_of_times(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("i")
    index = opened(directory, TIME, base=BASE, max_bytes=1200)
    index.presize()
    entries = fill_times(index, steps)
    assert entries_of(index) == entries
    assert index.last_entry == (entries[-1] if entries else None)
    index.trim()
    assert opened(directory, TIME, base=BASE).is_sound
    for timestamp in range(-2, 40):
        expected = max((e for e in entries if e[0] <= timestamp), default=(-1, BASE))
        assert index.lookup(timestamp) == expected
    for offset in range(BASE - 2, BASE + 60):
        assert index.count_to(offset) == len([e for e in entries if e[1] <= offset])
    index.close()


@pytest.mark.parametrize(
    ("layout", "fill", "steps"), [(OFFSET, fill_offsets, steps), (TIME, fill_times, time_steps)]
)
@given(data=st.data(), offset=st.integers(BASE - 5, BASE + 2100), presized=st.booleans())
def test_truncation(
    tmp_path_factory: pytest.TempPathFactory,
    layout: Layout,
    fill: Callable[[Index, list[tuple[int, int]]], list[tuple[int, int]]],
    steps: st.SearchStrategy[list[tuple[int, int]]],
    data: st.DataObject,
    offset: int,
    presized: bool,
) -> None:
    """Everything from the offset on goes, also an entry at the base offset."""
    index = opened(tmp_path_factory.mktemp("i"), layout, base=BASE, max_bytes=1200)
    if presized:
        index.presize()
    kept = [entry for entry in fill(index, data.draw(steps)) if entry[layout is TIME] < offset]
    index.truncate_to_offset(offset)
    assert entries_of(index) == kept
    assert index.last_entry == (kept[-1] if kept else None)
    later = (BASE + 9000, 10**6) if layout is OFFSET else (10**6, BASE + 9000)
    index.append(*later)
    assert index.last_entry == later
    index.close()


def test_records_without_timestamps_have_no_entries(tmp_path: Path) -> None:
    index = opened(tmp_path, TIME, base=BASE)
    index.append(-1, 1005)
    assert index.count == 0
    index.append(0, 1006)
    assert index.last_entry == (0, 1006)


@pytest.mark.parametrize(("layout", "max_bytes"), [(OFFSET, 23), (TIME, 40)])
def test_fullness(tmp_path: Path, layout: Layout, max_bytes: int) -> None:
    """An index of times keeps a slot for the roll's entry. One append may end beyond the edge."""
    index = opened(tmp_path, layout, base=BASE, max_bytes=max_bytes)
    full = [index.is_full]
    for number in (1, 2, 3, 4):
        index.append(BASE + number, BASE + number)
        full.append(index.is_full)
    assert full == [False, False, True, True, True]
    assert index.lookup(BASE + 9) == (1004, 1004)


def test_timestamps_and_offsets_do_not_fall(tmp_path: Path) -> None:
    index = opened(tmp_path, TIME, base=BASE)
    index.append(10, 1005)
    for timestamp, offset in ((9, 1006), (11, 1004), (10, 1004)):
        with pytest.raises(AssertionError):
            index.append(timestamp, offset)
    index.append(10, 1009)
    index.append(11, 1005)
    assert entries_of(index) == [(10, 1005), (11, 1005)]
    with pytest.raises(AssertionError):
        index.extend(packed(">qi", 11, 9))
    index.extend(packed(">qi", 12, 9))
    assert index.last_entry == (12, 1009)


@pytest.mark.parametrize(
    ("layout", "data", "sound"),
    [
        (OFFSET, b"", True),
        (OFFSET, packed(">ii", 5, 1), True),
        (OFFSET, packed(">iii", 5, 1, 0), False),
        (OFFSET, packed(">ii", -1, 1), False),
        (OFFSET, packed(">ii", 5, 1) + bytes(80), False),
        (OFFSET, bytes(80), False),
        (OFFSET, packed(">iiii", 5, 10, 6, 10), False),
        (OFFSET, packed(">ii", -(2**31), -(2**31)) * 100, False),
        (TIME, b"", True),
        (TIME, packed(">qi", 5, 1), True),
        (TIME, packed(">qi", 0, 0), True),
        (TIME, packed(">qi", 5, 1) + b"x", False),
        (TIME, packed(">qi", 5, -1), False),
        (TIME, packed(">qi", 5, 1) + bytes(120), False),
    ],
)
def test_soundness(tmp_path: Path, layout: Layout, data: bytes, sound: bool) -> None:
    (tmp_path / ("x.index" if layout is OFFSET else "x.timeindex")).write_bytes(data)
    index = opened(tmp_path, layout, base=BASE)
    assert index.is_sound == sound
    index.truncate_to_offset(-1)
    assert (index.data(), index.last_entry) == (b"", None)
