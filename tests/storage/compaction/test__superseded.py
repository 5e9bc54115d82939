"""storage.compaction._superseded: what several find out together is what a dict tells."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.compaction._keep import Keeper
from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import KeyMerge, KeyScan, Superseded
from storage.errors import CorruptRecord
from storage.record._batch import assign_offsets
from tests.storage.logs import NOW_MS

SECRET = bytes(range(16))

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"a longer key"]) | st.binary(max_size=2)
batches = st.lists(st.lists(keys, min_size=1, max_size=5), min_size=1, max_size=12)


def new_map() -> OffsetMap:
    return OffsetMap(1 << 30, secret=SECRET)


def batch(some: list[bytes | None], first: int) -> bytearray:
    made = bytearray(encode([Record(n, NOW_MS, 0, key, b"v") for n, key in enumerate(some)]))
    assign_offsets(made, first, 0)
    return made


def decoded(found: list[tuple[int, bytes]], bounds: list[int]) -> set[int]:
    """All offsets that were told, group by group."""
    offsets = [
        bounds[group] + relative
        for group, data in found
        for relative in memoryview(data).cast("I").tolist()
    ]
    assert len(offsets) == len(set(offsets))
    return set(offsets)


@given(log=batches, draw=st.data(), buckets=st.integers(1, 5))
def test_all_that_is_superseded_is_told_once(
    log: list[list[bytes | None]], draw: st.DataObject, buckets: int
) -> None:
    end = sum(map(len, log))
    cuts = sorted(draw.draw(st.sets(st.integers(1, len(log)), max_size=3)) | {len(log)})
    bounds = sorted(draw.draw(st.sets(st.integers(0, end), max_size=3)) | {0, end})
    first_dirty = draw.draw(st.integers(0, end))
    scans: list[KeyScan] = []
    offset, told, offsets_of = 0, 0, dict[bytes, list[int]]()
    for first, cut in itertools.pairwise([0, *cuts]):
        scans.append(KeyScan(new_map(), first_dirty))
        for some in log[first:cut]:
            data = batch(some, offset)
            if draw.draw(st.booleans()):
                scans[-1].take_batch(data)
            else:
                assert scans[-1].take_batches(data, 0, len(data)) == len(data)
            for number, key in enumerate(some, offset):
                if key is not None:
                    offsets_of.setdefault(key, []).append(number)
            offset += len(some)
    expected = {
        each
        for offsets in offsets_of.values()
        for each in offsets
        if each < offsets[-1] >= first_dirty
    }
    found: list[tuple[int, bytes]] = []
    for scan in scans:
        found += scan.superseded_by_group(bounds)
    for bucket in range(buckets):
        merge = KeyMerge(new_map(), buckets)
        order = draw.draw(st.permutations(scans))
        for scan in order:
            merge.add_dirty(scan.dirty_keys(buckets)[bucket])
        for scan in order:
            merge.add_clean(scan.clean_keys(buckets)[bucket])
        told += merge.keys
        found += merge.superseded_by_group(bounds)
    assert decoded(found, bounds) == expected
    assert told == sum(offsets[-1] >= first_dirty for offsets in offsets_of.values())


@given(log=batches, draw=st.data())
def test_a_keeper_drops_what_it_is_told(log: list[list[bytes | None]], draw: st.DataObject) -> None:
    first = draw.draw(st.integers(0, 1 << 40))
    end = first + sum(map(len, log))
    gone = draw.draw(st.sets(st.integers(first, end - 1)))
    superseded = Superseded(first, end - first)
    for offset in gone:
        superseded.add((offset - first).to_bytes(4, "little"))
    known = OffsetMap(1 << 20, most=1)
    known.latest_offset = end - 1
    keeper = Keeper(known, now_ms=NOW_MS, horizon_ms=NOW_MS, superseded=superseded)
    offset = first
    expected = 0
    for some in log:
        data = batch(some, offset)
        assert keeper.keep_batches(data, 0, len(data)) == len(data)
        expected += sum(
            key is not None and number not in gone for number, key in enumerate(some, offset)
        )
        offset += len(some)
    assert keeper.records_kept == expected


def test_offsets_of_no_group() -> None:
    scan = KeyScan(new_map(), 0)
    scan.take_batch(batch([b"a", b"a"], 10))
    for bounds in ([0, 10], [11, 20]):
        with pytest.raises(CorruptRecord, match="outside its log"):
            scan.superseded_by_group(bounds)
    assert scan.superseded_by_group([10, 11, 12]) == [(0, b"\0\0\0\0")]


def test_a_damaged_batch_is_not_taken() -> None:
    scan = KeyScan(new_map(), 0)
    data = batch([b"a"], 0)
    data[-1] ^= 1
    assert scan.take_batches(data, 0, len(data)) == 0
    assert scan.dirty_keys(1) == [b""]
    with pytest.raises(CorruptRecord):
        scan.take_batch(data[:-1])


def test_bytes_that_are_none_of_these() -> None:
    with pytest.raises(ValueError, match="23 bytes"):
        KeyMerge(new_map(), 1).add_dirty(bytes(23))
    with pytest.raises(ValueError, match="3 bytes"):
        Superseded(0, 10).add(bytes(3))
    with pytest.raises(ValueError, match="not of the group"):
        Superseded(0, 10).add((10).to_bytes(4, "little"))
    with pytest.raises(ValueError, match="offsets"):
        Superseded(0, 1 << 33)
    with pytest.raises(ValueError, match="0 buckets"):
        KeyScan(new_map(), 0).dirty_keys(0)
    with pytest.raises(ValueError, match="0 buckets"):
        KeyMerge(new_map(), 0)
