"""The time index against a plain list of (timestamp, offset)."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files import Files
from storage.index.time_index import TimeIndex

BASE = 1000
EMPTY = (-1, BASE)

# Steps from one call to the next: neither timestamp nor offset ever falls.
steps = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=40)


def opened(directory: Path, *, max_bytes: int = 1200) -> TimeIndex:
    return TimeIndex(Files(), str(directory / "x.timeindex"), BASE, max_bytes, writable=True)


def calls_of(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    timestamp, offset, calls = -1, BASE, []
    for later, further in steps:
        timestamp, offset = timestamp + later, offset + further
        calls.append((timestamp, offset))
    return calls


def fill(index: TimeIndex, calls: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Append all; what must be there afterwards."""
    entries: list[tuple[int, int]] = []
    for timestamp, offset in calls:
        index.maybe_append(timestamp, offset)
        if timestamp > (entries[-1][0] if entries else -1):
            entries.append((timestamp, offset))
    return entries


def test_the_bytes(tmp_path: Path) -> None:
    index = opened(tmp_path)
    assert index.path == str(tmp_path / "x.timeindex")
    index.presize()
    assert (tmp_path / "x.timeindex").stat().st_size == 1200
    index.maybe_append(1_700_000_000_000, 1005)
    index.maybe_append(2**63 - 1, BASE + 2**31 - 1)
    index.trim()
    index.sync()
    index.close()
    expected = pack(">qiqi", 1_700_000_000_000, 5, 2**63 - 1, 2**31 - 1)
    assert (tmp_path / "x.timeindex").read_bytes() == expected


@given(steps=steps)
def test_lookups(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]) -> None:
    index = opened(tmp_path_factory.mktemp("i"))
    index.presize()
    entries = fill(index, calls_of(steps))
    assert list(index.entries()) == entries
    assert index.count == len(entries)
    assert index.last_entry == (entries[-1] if entries else None)
    assert index.sanity() is None
    for timestamp in range(-2, 40):
        expected = max((e for e in entries if e[0] <= timestamp), default=EMPTY)
        assert index.lookup(timestamp) == expected
    for offset in range(BASE - 2, BASE + 60):
        expected = max((e for e in entries if e[1] <= offset), default=EMPTY)
        assert index.last_entry_at_or_before_offset(offset) == expected
    index.close()


@given(steps=steps, offset=st.integers(BASE - 5, BASE + 1300), presized=st.booleans())
def test_truncation(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int]],
    offset: int,
    presized: bool,
) -> None:
    index = opened(tmp_path_factory.mktemp("i"))
    if presized:
        index.presize()
    entries = fill(index, calls_of(steps))
    index.truncate_to_offset(offset)
    # An entry at the base offset goes with "everything from the base offset on".
    kept = [e for e in entries if e[1] < offset]
    assert list(index.entries()) == kept
    assert index.last_entry == (kept[-1] if kept else None)
    index.maybe_append(10**6, BASE + 5000)
    assert index.last_entry == (10**6, BASE + 5000)
    index.close()


def test_records_without_timestamps_have_no_entries(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.maybe_append(-1, 1005)
    assert index.count == 0
    index.maybe_append(0, 1006)
    assert index.last_entry == (0, 1006)
    index.close()


def test_fullness_keeps_a_slot_for_the_roll(tmp_path: Path) -> None:
    index = opened(tmp_path, max_bytes=40)
    full = [index.is_full]
    for number in (1, 2, 3, 4):  # the roll's entry, and one append may end beyond the edge
        index.maybe_append(number, BASE + number)
        full.append(index.is_full)
    assert full == [False, False, True, True, True]
    assert index.lookup(9) == (4, 1004)
    index.close()


def test_timestamps_and_offsets_do_not_fall(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.maybe_append(10, 1005)
    for timestamp, offset in ((9, 1006), (11, 1004), (10, 1004)):
        with pytest.raises(AssertionError):
            index.maybe_append(timestamp, offset)
    index.maybe_append(10, 1009)
    index.maybe_append(11, 1005)
    assert list(index.entries()) == [(10, 1005), (11, 1005)]
    with pytest.raises(AssertionError):
        index.extend(pack(">qi", 11, 9))
    index.extend(pack(">qi", 12, 9))
    assert index.last_entry == (12, 1009)
    index.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", None),
        (pack(">qi", 5, 1), None),
        (pack(">qi", 0, 0), None),
        (pack(">qi", 5, 1) + b"x", "multiple of 12"),
        (pack(">qi", 5, -1), "last offset 999 is below"),
        (pack(">qi", 5, 1) + bytes(120), "last timestamp 0 is below its first 5"),
    ],
)
def test_sanity(tmp_path: Path, data: bytes, reason: str | None) -> None:
    (tmp_path / "x.timeindex").write_bytes(data)
    index = opened(tmp_path)
    found = index.sanity()
    assert found is None if reason is None else found is not None and reason in found
    index.truncate_to_offset(-1)
    assert index.data() == b""
    index.close()


def test_refreshing(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.presize()
    reader = TimeIndex(
        Files(),
        str(tmp_path / "x.timeindex"),
        BASE,
        1200,
        writable=False,
        ignore_zero_tail=True,
    )
    assert reader.count == 0
    for number in range(1, 30):
        writer.maybe_append(number, BASE + number)
        reader.refresh()
        assert reader.last_entry == (number, BASE + number)
    writer.trim()
    reader.refresh()
    assert reader.data() == writer.data()
    reader.close()
    writer.close()
