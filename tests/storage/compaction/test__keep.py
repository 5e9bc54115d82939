"""storage.compaction._keep: the map's keys and what stays, against the plain twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.compaction._keep import map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.errors import CorruptRecord
from storage.record.batch import Record, decode, encode
from storage.record.header import parse_header
from storage.record.plain import plain
from tests import oracle
from tests.guard_page import before_guard_page
from tests.made_logs import cuts
from tests.storage.compaction.keep_twin import (
    APPEND_TIME,
    HORIZON,
    KEYS,
    LARGE,
    NEW_HORIZON,
    TRANSACTIONAL,
    Figures,
    Twin,
    TwinMap,
    entries_of,
    figures,
    keeper_of,
    logs,
    one_batch,
    taken,
)
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    EMPTY_BATCH,
    V1_ENTRY,
    T,
)


def assert_same(made: OffsetMap, twin: TwinMap) -> None:
    assert {key: made.get(key) for key in twin.offsets} == twin.offsets
    assert len(made) == len(twin.offsets)
    assert made.latest_offset == twin.latest_offset
    for key in KEYS:
        if key is not None:
            assert made.get(key) == twin.offsets.get(key, -1)


@st.composite
def maps(draw: st.DrawFn, log: bytes) -> TwinMap:
    """A map of this log, or of a part of it, or of other keys: what a round may have."""
    twin = TwinMap(draw(st.sampled_from([LARGE, LARGE, 1, 3])))
    batches = list(oracle.walk(log))
    first = batches[draw(st.integers(0, len(batches) - 1))].base_offset if batches else 0
    twin.add_log(log, first)
    for key in draw(st.lists(st.sampled_from(KEYS[1:]), max_size=2)):
        assert key is not None
        twin.offsets[key] = max(twin.latest_offset, 0) + draw(st.integers(0, 5))
    return twin


# -- the map -------------------------------------------------------------------------------------


@given(log=logs(), data=st.data())
def test_the_map_is_the_twins(log: bytes, data: st.DataObject) -> None:
    """From any offset on, with room for any number of keys, in any windows."""
    slots = data.draw(st.integers(2, 12) | st.just(1000))
    made = OffsetMap(slots * 24, 1.0)
    twin = TwinMap(made.usable)
    edges = [batch.base_offset for batch in oracle.walk(log)]
    first = data.draw(st.sampled_from([0, *edges])) + data.draw(st.integers(0, 2))
    at, full = 0, False
    for end in data.draw(cuts(len(log))):
        with before_guard_page(log[:end]) as view:
            at, full = map_batches(made, view, at, end, first)
        if full:
            break
    assert (at, full) == twin.add_log(log, first)
    assert_same(made, twin)


@given(data=st.data(), attributes=st.sampled_from([0, TRANSACTIONAL]))
def test_one_batch_goes_into_the_map(data: st.DataObject, attributes: int) -> None:
    batch = data.draw(one_batch(5, attributes))
    made = OffsetMap(data.draw(st.integers(2, 300)) * 24)
    twin = TwinMap(made.usable)
    first = data.draw(st.integers(0, 70))
    with before_guard_page(plain_of(batch)) as view:
        full = map_batch(made, view, first)
    assert full == twin.add_batch(batch, next(oracle.walk(batch)), first)
    assert_same(made, twin)


def plain_of(batch: bytes) -> bytearray:
    made, size = plain(batch, 0, len(batch))
    assert size == len(batch)
    return made


# -- what stays ----------------------------------------------------------------------------------


@given(log=logs(), data=st.data())
def test_what_stays_is_what_the_twin_keeps(log: bytes, data: st.DataObject) -> None:
    """To the byte; in any windows, fetched at any time."""
    twin = Twin(data.draw(maps(log)))
    keeper = keeper_of(twin)
    out, entries = b"", []
    at = 0
    for end in data.draw(cuts(len(log))):
        with before_guard_page(log[:end]) as view:
            at = keeper.keep_batches(view, at, end)
        if data.draw(st.booleans()):
            some, told = taken(keeper)
            entries += [(position + len(out), *rest) for position, *rest in told]
            out += some
    some, told = taken(keeper)
    entries += [(position + len(out), *rest) for position, *rest in told]
    out += some
    assert at == len(log)
    expected = b""
    for batch in oracle.walk(log):
        kept = twin.keep(log, batch)
        expected += log[batch.position : batch.end] if kept is None else kept
    assert out == expected
    assert entries == entries_of(expected)
    assert figures(keeper) == twin.figures


@given(log=logs(), data=st.data())
def test_it_stops_before_special_batches(log: bytes, data: st.DataObject) -> None:
    batches = list(oracle.walk(log))
    lasts = [batch.last_offset for batch in batches]
    near = data.draw(st.lists(st.sampled_from([0, *lasts]), max_size=3))
    special = {max(offset + data.draw(st.integers(-1, 1)), 0) for offset in near}
    keeper = keeper_of(Twin(data.draw(maps(log))), special)
    stops = [batch.position for batch in batches if batch.last_offset in special]
    assert keeper.keep_batches(log, 0, len(log)) == min(stops, default=len(log))
    for stop in stops:
        assert keeper.keep_batches(log, stop, len(log)) == stop


@given(data=st.data(), attributes=st.sampled_from([0, TRANSACTIONAL]), legacy=st.booleans())
def test_what_stays_of_one_batch(data: st.DataObject, attributes: int, legacy: bool) -> None:
    batch = data.draw(one_batch(5, attributes))
    facts = next(oracle.walk(batch))
    if legacy and facts.attributes & HORIZON:
        return
    mapped = TwinMap(LARGE)
    mapped.add_batch(batch, facts, data.draw(st.integers(0, 70)))
    if data.draw(st.booleans()):
        mapped.latest_offset = data.draw(st.integers(-1, 70))
    twin = Twin(mapped, legacy_tombstones=data.draw(st.booleans()))
    keeper = keeper_of(twin)
    with before_guard_page(plain_of(batch)) as view:
        read, kept, made = keeper.keep_one(view, legacy=legacy)
    expected = twin.keep(batch, facts, legacy=legacy)
    assert (made or b"") == (expected or b"")
    assert (read, kept) == (twin.figures.read, twin.figures.kept)
    assert figures(keeper) == twin.figures
    assert keeper.pending == 0
    if made is not None:
        assert len(decode(made)) == kept


def test_old_messages_begin_where_the_first_that_stays_does() -> None:
    """And end with the last; their timestamps are often the same, which changes no record."""
    log = b"".join(
        oracle.put_message(oracle.Message(offset, key, b"v", T), 1)
        for offset, key in [(5, b"a"), (7, b"b"), (8, b"c"), (90, b"a"), (91, b"b")]
    )
    keeper = keeper_of(Twin(TwinMap(LARGE, {b"a": 90, b"b": 100, b"c": 8}, 100)))
    read, kept, batch = keeper.keep_one(plain_of(log), legacy=True)
    assert (read, kept) == (5, 2)
    assert batch is not None
    assert decode(batch) == [Record(8, T, 0, b"c", b"v"), Record(90, T, 0, b"a", b"v")]
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset) == (8, 90)


@pytest.mark.parametrize(("now", "stays"), [(T - 1, True), (T, False)])
def test_append_time_and_a_horizon_do_not_mix(now: int, stays: bool) -> None:
    """The base timestamp is the horizon, and the largest one the time of every record."""
    batch = oracle.put_batch(
        oracle.put_row(oracle.Row(-9, 0, b"a", None)),
        1,
        attributes=APPEND_TIME | HORIZON,
        base_timestamp=T,
        max_timestamp=T - 5,
    )
    keeper = keeper_of(Twin(TwinMap(LARGE, {b"a": 0}, 0), now_ms=now))
    keeper.keep_batches(batch, 0, len(batch))
    assert taken(keeper)[0] == (batch if stays else b"")


def test_a_record_can_grow() -> None:
    """All of them by as much as there is: the longest timestamp delta instead of the shortest, and
    with it a longer length.
    """
    rows = [oracle.Row(0, n, b"k" * 50, None) for n in range(50)]
    batch = oracle.put_batch(
        b"".join(map(oracle.put_row, rows)), 50, base_timestamp=-(2**63) + NEW_HORIZON + 5
    )
    twin = Twin(TwinMap(LARGE))
    expected = twin.keep(batch, next(oracle.walk(batch)))
    keeper = keeper_of(twin)
    with before_guard_page(batch) as view:
        assert keeper.keep_batches(view, 0, len(view)) == len(batch)
        assert keeper.keep_one(view) == (50, 50, expected)
    out, _ = taken(keeper)
    assert out == expected
    assert len(out) == len(batch) + 50 * 10
    assert decode(out) == decode(batch)


# -- the output ----------------------------------------------------------------------------------


def test_ready_batches_go_between_others() -> None:
    keeper = keeper_of(Twin(TwinMap(LARGE)))
    keeper.append(EMPTY_BATCH)
    changed = encode([Record(200, T, 0, b"a", b"b")])
    keeper.keep_batches(changed, 0, len(changed))
    keeper.append(memoryview(ABORT_MARKER))
    log = EMPTY_BATCH + changed + ABORT_MARKER
    assert keeper.pending == len(log)
    assert taken(keeper) == (log, entries_of(log))
    assert figures(keeper) == Figures(1, 1, 0, 0)
    assert taken(keeper) == (b"", [])


@pytest.mark.parametrize("wrong", [b"", V1_ENTRY, V1_ENTRY + bytes(61), EMPTY_BATCH + b"\0"])
def test_what_is_no_batch_is_not_appended(wrong: bytes) -> None:
    keeper = keeper_of(Twin(TwinMap(LARGE)))
    with pytest.raises(CorruptRecord):
        keeper.append(wrong)
    assert taken(keeper) == (b"", [])


def test_output_that_somebody_still_looks_at() -> None:
    """It may change with the next call, but its memory is not gone."""
    keeper = keeper_of(Twin(TwinMap(LARGE)))
    large = encode([Record(0, T, 0, b"k", bytes(3 << 20))])
    views = []
    for _ in range(3):
        for _ in range(3):
            keeper.append(large)
        views.append(keeper.take()[0])
    assert [bytes(view) for view in views] == [large * 3] * 3


def test_much_at_once() -> None:
    """Output, entries and the records of a batch need room several times."""
    batches = [
        encode([Record(n * 5000 + i, T + i, 0, b"%d" % i, b"v" * 20) for i in range(count)])
        for n, count in enumerate([1, 5000, 3] * 20)
    ]
    log = b"".join(batches)
    keeper = keeper_of(Twin(TwinMap(LARGE)))
    assert keeper.keep_batches(log, 0, len(log)) == len(log)
    assert taken(keeper) == (log, entries_of(log))
