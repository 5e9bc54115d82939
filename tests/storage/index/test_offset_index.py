"""The offset index against a plain list of (offset, position)."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files import Files
from storage.index.offset_index import OffsetIndex

BASE = 1000

# Steps from one entry to the next: offsets and positions strictly rise.
steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=40)


def opened(directory: Path, *, max_bytes: int = 1024, base: int = BASE) -> OffsetIndex:
    return OffsetIndex(Files(), str(directory / "x.index"), base, max_bytes, writable=True)


def entries_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    offset, position, entries = BASE - 1, 0, []
    for more_offset, more_position in steps:
        offset, position = offset + more_offset, position + more_position
        entries.append((offset, position))
    return entries


def fill(index: OffsetIndex, entries: list[tuple[int, int]]) -> None:
    for offset, position in entries:
        index.append(offset, position)


def test_the_bytes(tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert index.path == str(tmp_path / "x.index")
    index.presize()
    assert (tmp_path / "x.index").stat().st_size == 1024
    index.append(1005, 4200)
    index.append(1000 + 2**31 - 1, 2**31 - 1)
    index.trim()
    index.sync()
    index.close()
    expected = pack(">iiii", 5, 4200, 2**31 - 1, 2**31 - 1)
    assert (tmp_path / "x.index").read_bytes() == expected


@given(steps=steps, queries=st.lists(st.integers(BASE - 5, BASE + 2100), max_size=10))
def test_lookups(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    queries: list[int],
) -> None:
    entries = entries_of(steps)
    index = opened(tmp_path_factory.mktemp("i"))
    index.presize()
    fill(index, entries)
    assert list(index.entries()) == entries
    assert index.count == len(entries)
    assert index.last_entry == (entries[-1] if entries else None)
    assert index.sanity() is None
    for offset in [*queries, *(offset for offset, _ in entries)]:
        expected = max((e for e in entries if e[0] <= offset), default=(BASE, 0))
        assert index.lookup(offset) == expected
    for position, fetch_size in zip(range(0, 40_000, 4000), range(1, 9000, 900), strict=True):
        bound = next((o for o, p in entries if p >= position + fetch_size), None)
        assert index.upper_bound(position, fetch_size) == bound
    index.close()


@given(steps=steps, offset=st.integers(BASE - 5, BASE + 2100), presized=st.booleans())
def test_truncation(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    offset: int,
    presized: bool,
) -> None:
    entries = entries_of(steps)
    index = opened(tmp_path_factory.mktemp("i"))
    if presized:
        index.presize()
    fill(index, entries)
    index.truncate_to_offset(offset)
    kept = [e for e in entries if e[0] < offset]
    assert list(index.entries()) == kept
    assert index.last_entry == (kept[-1] if kept else None)
    index.append(offset + 5000, 10**6)
    assert index.last_entry == (offset + 5000, 10**6)
    index.close()


def test_fullness(tmp_path: Path) -> None:
    index = opened(tmp_path, max_bytes=23)
    full = [index.is_full]
    for number in (1, 2, 3):  # one append may end beyond the edge
        index.append(BASE + number, number * 10)
        full.append(index.is_full)
    assert full == [False, False, True, True]
    assert index.lookup(1003) == (1003, 30)
    index.close()


def test_offsets_and_positions_rise(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.append(1005, 100)
    for offset, position in ((1005, 200), (1004, 200), (1006, 100)):
        with pytest.raises(AssertionError):
            index.append(offset, position)
    with pytest.raises(AssertionError):
        index.extend(pack(">ii", 5, 200))
    index.extend(b"")
    index.extend(pack(">iiii", 6, 200, 9, 300))
    assert index.last_entry == (1009, 300)
    index.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", None),
        (pack(">ii", 5, 1), None),
        (pack(">iii", 5, 1, 0), "multiple of 8"),
        (pack(">ii", -1, 1), "last offset 999 is below"),
        (pack(">ii", 5, 1) + bytes(80), "not beyond its first"),
        (bytes(80), "not beyond its first"),
        (pack(">iiii", 5, 10, 6, 10), "not beyond its first"),
    ],
)
def test_sanity(tmp_path: Path, data: bytes, reason: str | None) -> None:
    (tmp_path / "x.index").write_bytes(data)
    index = opened(tmp_path)
    found = index.sanity()
    assert found is None if reason is None else found is not None and reason in found
    index.truncate_to_offset(-1)
    assert index.data() == b""
    index.close()


def test_whatever_a_file_holds_can_be_emptied(tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(pack(">ii", -(2**31), -(2**31)) * 100)
    index = opened(tmp_path)
    index.truncate_to_offset(BASE)
    assert (index.count, index.last_entry) == (0, None)
    index.close()


def test_refreshing(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.presize()
    reader = OffsetIndex(
        Files(),
        str(tmp_path / "x.index"),
        BASE,
        1024,
        writable=False,
        ignore_zero_tail=True,
    )
    assert reader.count == 0
    for number in range(1, 30):
        writer.append(BASE + number, number * 10)
        reader.refresh()
        assert reader.last_entry == (BASE + number, number * 10)
        assert reader.sanity() is None
    writer.trim()
    reader.refresh()
    assert reader.data() == writer.data()
    reader.close()
    writer.close()
