"""Index files are judged by what a reader relies on, whoever wrote them."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.record._batch import Rebuild
from storage.record.header import BatchHeader, parse_header
from storage.segment.walk import sealed_times
from storage.verify.verify_index import (
    offset_index_faults,
    rebuilt_times,
    time_index_faults,
    without_zero_tail,
)

BASE = 100
OFFSETS = Struct(">ii")
TIMES = Struct(">qi")

# (records, timestamp) of each batch
BATCHES = st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 9)), min_size=1, max_size=12)


class Log:
    """A segment in memory, and the indexes that a rebuild makes of it."""

    def __init__(self, batches: list[tuple[int, int]], interval: int = 150) -> None:
        self.headers: list[tuple[int, BatchHeader]] = []
        data = b""
        offset = BASE
        for count, timestamp in batches:
            records = [Record(offset + n, timestamp, 0, None, b"x" * 20) for n in range(count)]
            batch = encode(records)
            self.headers.append((len(data), parse_header(batch)))
            data += batch
            offset += count
        self.end = offset
        self.rebuild = Rebuild(BASE, interval)
        assert self.rebuild.feed(data, len(data), 0) == len(data)

    def offset_faults(self, entries: list[tuple[int, int]]) -> list[str]:
        data = b"".join(OFFSETS.pack(offset - BASE, position) for offset, position in entries)
        found = offset_index_faults(data, b"none", BASE, self.end, lambda: self.headers)
        return [reason for reason, _, _ in found]

    def time_faults(self, entries: list[tuple[int, int]], largest: int | None = None) -> list[str]:
        data = b"".join(TIMES.pack(timestamp, offset - BASE) for timestamp, offset in entries)
        found = time_index_faults(data, (b"none",), BASE, largest, lambda: self.headers)
        return [reason for reason, _, _ in found]


@given(BATCHES, st.integers(0, 400))
def test_what_a_rebuild_makes_is_right_without_a_look_at_the_log(
    batches: list[tuple[int, int]], interval: int
) -> None:
    rebuild = Log(batches, interval).rebuild
    entries = bytes(rebuild.offset_entries)
    # The log is None: reading it would fail.
    assert not [*offset_index_faults(entries, entries, BASE, 0, None)]  # type: ignore[arg-type]
    times = rebuilt_times(rebuild, True)
    assert times == (sealed_times(rebuild), bytes(rebuild.time_entries))
    assert rebuilt_times(rebuild, False) == times[:1]
    for data in times:
        assert not [*time_index_faults(data, times, BASE, 0, None)]  # type: ignore[arg-type]


@given(BATCHES, st.integers(0, 400), st.data())
def test_any_way_to_index_that_a_reader_can_use_is_right(
    batches: list[tuple[int, int]], interval: int, data: st.DataObject
) -> None:
    log = Log(batches)
    offsets: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    newest = -1
    for position, header in log.headers:
        newest = max(newest, header.max_timestamp)
        if data.draw(st.booleans()):
            # By any of its offsets, and the largest timestamp up to there.
            named = data.draw(st.integers(header.base_offset, header.last_offset))
            offsets.append((named, position))
            if newest > (times[-1][0] if times else -1):
                times.append((newest, named))
    assert log.offset_faults(offsets) == []
    assert log.time_faults(times) == []
    largest = max(timestamp for _, timestamp in batches)
    told = log.time_faults(times, largest if largest >= 0 else None)
    complete = largest < 0 or (bool(times) and times[-1][0] == largest)
    assert bool(told) == (not complete)


LOG = Log([(2, 5), (2, 3), (2, 7), (2, 7)])
STARTS = [position for position, _ in LOG.headers]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([(103, STARTS[1]), (103, STARTS[2])], "the entry follows one of offset 103"),
        ([(103, STARTS[1]), (104, STARTS[1])], "the entry follows one of offset 103"),
        ([(99, STARTS[1])], "the entry follows one of offset 99"),
        ([(103, STARTS[1] + 1)], "the entry does not point to the start of a batch"),
        ([(103, STARTS[-1] + 1000)], "the entry does not point to the start of a batch"),
        ([(101, STARTS[1])], "the previous batch ends at offset 101"),
        ([(108, STARTS[3])], "the log ends at offset 108"),
    ],
)
def test_an_offset_entry_that_misleads(entries: list[tuple[int, int]], reason: str) -> None:
    assert LOG.offset_faults(entries) == [reason]


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([(5, 101), (5, 103)], "timestamp 5 follows 5 of offset 101"),
        ([(5, 103), (7, 101)], "timestamp 7 follows 5 of offset 103"),
        ([(4, 101)], "timestamp 4, but the largest is 5"),
        ([(5, 105)], "timestamp 5, but the largest is 7"),
        ([(9, 108)], "the log ends before the offset of the entry"),
    ],
)
def test_a_time_entry_that_misleads(entries: list[tuple[int, int]], reason: str) -> None:
    assert LOG.time_faults(entries) == [reason]


def test_what_a_broker_of_v0_indexes_no_record_has() -> None:
    assert Log([(2, -1), (2, -1)]).time_faults([(5, 101)]) == []


@given(st.binary(max_size=40), st.integers(0, 40), st.sampled_from([8, 12]))
def test_zeros_behind_the_entries_are_none(data: bytes, zeros: int, size: int) -> None:
    used = data.rstrip(b"\0")
    found = without_zero_tail(data + bytes(zeros), size)
    assert (data + bytes(zeros)).startswith(found)
    assert found.startswith(used)
    assert len(found) - len(used) < size
