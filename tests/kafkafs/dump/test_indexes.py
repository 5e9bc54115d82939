"""An index is searched as a broker does it, and held against its log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.dump.offset_index import OffsetEntries, base_offset, dump_offset_index
from kafkafs.dump.options import Options
from kafkafs.dump.output import DumpError
from storage import Record, encode
from tests.kafkafs.dump.printed import Printed

T = 1_700_000_000_000
BASE = 50
Entry = tuple[int, int]
OFFSETS = Struct(">ii")
TIMES = Struct(">qi")


def files(path: Path, offsets: Sequence[Entry], times: Sequence[Entry] = ()) -> str:
    """A log of four batches of two records each, a second apart, and these indexes; its path."""
    batches = [
        encode([Record(BASE + 2 * n + m, T + 1000 * n, 0, None, b"x" * 20) for m in range(2)])
        for n in range(4)
    ]
    stem = str(path / f"{BASE:020}")
    Path(stem + ".log").write_bytes(b"".join(batches))
    Path(stem + ".index").write_bytes(b"".join(OFFSETS.pack(*entry) for entry in offsets))
    Path(stem + ".timeindex").write_bytes(b"".join(TIMES.pack(*entry) for entry in times))
    return stem


SIZE = len(encode([Record(m, T, 0, None, b"x" * 20) for m in range(2)]))


@given(st.sets(st.integers(0, 5000), max_size=3000), st.lists(st.integers(BASE - 5, BASE + 5010)))
def test_a_lookup_finds_the_last_entry_at_or_below(
    tmp_path_factory: pytest.TempPathFactory, offsets: set[int], wanted: list[int]
) -> None:
    """Also among more entries than a broker looks at first."""
    rising = sorted(offsets)
    stem = files(tmp_path_factory.mktemp("d"), [(each, 10 * each) for each in rising])
    entries = OffsetEntries(stem + ".index", BASE)
    assert entries.count == len(rising)
    for offset in wanted:
        number = bisect_right(rising, offset - BASE)
        found = rising[number - 1] if number else None
        assert entries.lookup(offset) == (
            (BASE, 0) if found is None else (BASE + found, 10 * found)
        )


def test_a_position_where_no_batch_is(tmp_path: Path) -> None:
    stem = files(tmp_path, [(3, 4 * SIZE)])
    with pytest.raises(DumpError, match=f"there is no batch for offset {BASE + 3}"):
        dump_offset_index(stem + ".index", Options(), Printed())


@pytest.mark.parametrize(
    ("offsets", "more", "fault"),
    [
        ([(3, SIZE)], b"", None),
        ([(3, SIZE), (-1, SIZE)], b"", "the last offset is 49 which is less"),
        ([(3, SIZE)], b"odd", "found 11 bytes which is neither"),
    ],
)
def test_the_sanity_check(
    tmp_path: Path, offsets: list[tuple[int, int]], more: bytes, fault: str | None
) -> None:
    path = files(tmp_path, offsets) + ".index"
    with open(path, "ab") as file:
        file.write(more)
    options, printed = Options(index_sanity_check=True), Printed()
    if fault is None:
        dump_offset_index(path, options, printed)
        assert printed.events == [("saneIndex", {"file": path})]
    else:
        with pytest.raises(DumpError, match=fault):
            dump_offset_index(path, options, printed)


def test_an_index_is_named_by_an_offset() -> None:
    assert base_offset(f"/some/where/{BASE:020}.index") == BASE
    with pytest.raises(DumpError, match="the file name is not an offset"):
        base_offset("/some/where/name.index")
