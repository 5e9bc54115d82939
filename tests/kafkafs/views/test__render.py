"""kafkafs.views._render: the same text in any windows, and no damage that it does not survive."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.views._measure import ENTRY_SIZE, Cursor, Measure, find_entry
from kafkafs.views._parse import encode_lines
from kafkafs.views._render import LOOPS
from storage.errors import CorruptRecord, StorageError
from storage.record.header import Buffer
from tests import oracle
from tests.guard_page import before_guard_page
from tests.made_logs import MadeLog, damaged, logs
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    EMPTY_BATCH,
    REJECTED,
    THREE_RECORDS,
    V0_ENTRY,
)

render, measure = LOOPS.render, LOOPS.measure

SMALLEST_WINDOW = 64
"""Bytes that are always enough to get on."""


def place(cursor: Cursor) -> tuple[int, int, int, int]:
    return cursor.position, cursor.batch_end, cursor.record_end, cursor.value_left


def text_of(log: Buffer, cursor: Cursor | None = None) -> bytes:
    """Render a log in one call, into a buffer with room to spare."""
    out = bytearray(b"\xee" * (len(log) + 100))
    end, left = render(log, 0, len(log), cursor or Cursor(0), out, 0, len(out), 0)
    assert left == 0
    return bytes(out[:end])


def entries_of(state: Measure) -> list[tuple[int, int, int, int, int]]:
    return list(struct.iter_unpack("<QIIII", bytes(state.entries)))


@given(log=logs())
def test_text(log: MadeLog) -> None:
    cursor = Cursor(0)
    assert text_of(log.data, cursor=cursor) == oracle.render(log.data)
    assert place(cursor) == (len(log.data), 0, 0, -1)


@given(log=logs(), skip=st.integers(0, 40000))
def test_skipped_text_is_dropped(log: MadeLog, skip: int) -> None:
    text = oracle.render(log.data)
    out = bytearray(len(text) + 1)
    end, left = render(log.data, 0, len(log.data), Cursor(0), out, 0, len(out), skip)
    assert out[:end] == text[skip:]
    assert left == max(skip - len(text), 0)


@given(log=logs())
def test_it_always_makes_progress(log: MadeLog) -> None:
    """A window of SMALLEST_WINDOW bytes at the cursor is enough, whatever lies there."""
    out = bytearray(len(log.data))
    cursor, state, end = Cursor(0), Measure(), 0
    while cursor.position < len(log.data):
        window = log.data[cursor.position : cursor.position + SMALLEST_WINDOW]
        before = cursor.position
        end, _ = render(window, before, len(window), cursor, out, end, len(out), 0)
        assert cursor.position > before
    while state.position < len(log.data):
        window = log.data[state.position : state.position + SMALLEST_WINDOW]
        before = state.position
        measure(window, before, len(window), state)
        assert state.position > before
    assert out[:end] == oracle.render(log.data)
    assert state.text_length == end


def test_skipping_needs_no_bytes_of_what_is_skipped() -> None:
    log = oracle.put_batch(oracle.put_row(oracle.Row(0, 0, None, b"x" * 5000 + b"end")), 1)
    out = bytearray(100)
    cursor = Cursor(0)
    assert render(log[:80], 0, 80, cursor, out, 0, 100, 5000) == (0, 0)
    assert 5000 < cursor.position == len(log) - 4
    rest = log[cursor.position :]
    assert render(rest, cursor.position, len(rest), cursor, out, 0, 100, 0) == (4, 0)
    assert out[:4] == b"end\n"


def test_keys_and_headers_are_jumped_over() -> None:
    row = oracle.Row(0, 0, b"k" * 3000, b"value", [(b"h", b"x" * 3000)])
    log = oracle.put_batch(oracle.put_row(row), 1) + THREE_RECORDS
    out = bytearray(100)
    cursor, end, read = Cursor(0), 0, 0
    while cursor.position < len(log):
        window = log[cursor.position : cursor.position + SMALLEST_WINDOW]
        read += len(window)
        end, _ = render(window, cursor.position, len(window), cursor, out, end, 100, 0)
    assert out[:end] == b"value\nv1\n\n\n"
    assert read < 1000


def test_what_shows_nothing() -> None:
    control = bytearray(THREE_RECORDS)
    control[22] = 0x20
    assert text_of(EMPTY_BATCH) == b""
    assert text_of(EMPTY_BATCH * 2 + control + THREE_RECORDS + EMPTY_BATCH) == b"v1\n\n\n"


def test_a_control_batchs_records_need_not_be_there() -> None:
    control = bytearray(THREE_RECORDS)
    control[22] = 0x20
    cursor = Cursor(0)
    assert render(control, 0, 61, cursor, bytearray(10), 0, 10, 0) == (0, 0)
    assert place(cursor) == (95, 0, 0, -1)


def test_large_window() -> None:
    # Beyond the size from which the GIL is released; one-record batches among large ones.
    lines = b"".join(b"%d " % n + b"x" * (n % 300) + b"\n" for n in range(5000))
    many, _ = encode_lines(lines, 0, len(lines), 0, 1 << 20)
    one, _ = encode_lines(b"hello\n", 0, 6, 0, 1 << 20)
    log = bytes(one * 50 + many + one * 50)
    text = b"hello\n" * 50 + lines + b"hello\n" * 50
    assert text_of(log) == text
    state = Measure(64)
    measure(log, 0, len(log), state)
    assert (state.text_length, state.records) == (len(text), 5100)
    assert entries_of(state) == oracle.measure(log, 64)


# -- damage --------------------------------------------------------------------------------------

# Damage that the values view does not find: it reads neither counts nor the end of a record.
NOT_SEEN = {
    "negative count",
    "fewer records than the count",
    "more records than the count",
    "no bytes but a count",
    "negative header count",
    "header count with no headers",
    "largest header count",
    "null header name",
    "header name not UTF-8",
    "header value length -2",
    "record longer than its fields",
    "record shorter than its fields",
    "value longer than its record",
}


@pytest.mark.parametrize("reason", sorted(REJECTED.keys() - NOT_SEEN))
def test_reader_rejects(reason: str) -> None:
    log = THREE_RECORDS + REJECTED[reason]
    out = bytearray(100)
    cursor = Cursor(0)
    # The first call returns the text before the damage. Each later call raises the error.
    end, _ = render(log, 0, len(log), cursor, out, 0, 100, 0)
    assert out[:6] == b"v1\n\n\n" + out[5:6]
    for _ in range(2):
        with pytest.raises(CorruptRecord) as caught:
            render(log, 0, len(log), cursor, out, end, 100, 0)
        assert caught.value.position == cursor.position >= len(THREE_RECORDS)
    state = Measure()
    for _ in range(2):
        with pytest.raises(CorruptRecord) as caught:
            measure(log, 0, len(log), state)
        assert caught.value.position == state.position == cursor.position
    assert state.text_length == end


def test_value_that_does_not_fit_its_record() -> None:
    body = b"\0\0\0\1" + oracle.put_varint(2) + b"aa"
    for wrong in (body, b"\0\0\0\1" + oracle.put_varint(2**31 - 1) + b"aa\0"):
        batch = oracle.put_batch(oracle.put_varint(len(wrong)) + wrong, 1)
        with pytest.raises(CorruptRecord, match="value's length"):
            text_of(batch)


ENCODED = {
    "transactions": THREE_RECORDS[:22] + b"\x10" + THREE_RECORDS[23:],
    "gzip": THREE_RECORDS[:22] + b"\1" + THREE_RECORDS[23:],
    "no codec": THREE_RECORDS[:22] + b"\7" + THREE_RECORDS[23:],
    "v0": V0_ENTRY * 3,
}


@pytest.mark.parametrize("name", ENCODED)
def test_it_stops_before_what_has_to_be_judged_or_decoded(name: str) -> None:
    log = THREE_RECORDS + EMPTY_BATCH + ABORT_MARKER + ENCODED[name]
    stop = len(log) - len(ENCODED[name])
    cursor = Cursor(0)
    assert text_of(log, cursor) == oracle.render(THREE_RECORDS)
    assert cursor.encoded
    assert cursor.copy().encoded
    assert place(cursor) == (stop, 0, 0, -1)
    # Again, with nothing before it: it is no fault.
    assert text_of(log, cursor) == b""
    assert cursor.encoded
    state = Measure()
    measure(log, 0, len(log), state)
    assert (state.encoded, state.position, state.batch_end) == (True, stop, 0)
    assert state.records == 3


@given(data=st.data(), log=logs(), granularity=st.sampled_from([1, 50, 4096]))
def test_a_batch_is_stepped_over_into_or_added(
    data: st.DataObject, log: MadeLog, granularity: int
) -> None:
    """A log some of whose batches are marked, against the same log without the marks."""
    marked = bytearray(log.data)
    shown = b""
    expected_entries = [(0, 0, 0, 0, 0)]
    text = last = ordinal = 0
    ways: dict[int, str] = {}
    for batch in oracle.walk(log.data):
        way = data.draw(st.sampled_from(["as it is", "over", "into", "add"]))
        if batch.attributes & 0x20:
            way = "as it is"
        if way != "as it is":
            marked[batch.position + 22] |= 0x10
            ways[batch.position] = way
        if way == "over" or batch.attributes & 0x20:
            continue
        stored = log.data[batch.position : batch.end]
        if way == "add" and text - last >= granularity and batch.count:
            expected_entries.append((text, batch.position, batch.position, 0, ordinal))
            last = text
        for position, row in oracle.rows(log.data, batch):
            if way != "add" and text - last >= granularity:
                entry = (text, batch.position, position, batch.end, ordinal)
                expected_entries.append(entry)
                last = text
            text += len(row.value or b"") + 1
            ordinal += 1
        shown += oracle.render(stored)
    state = Measure(granularity)
    measure(marked, 0, len(marked), state)
    while state.encoded:
        position = state.position
        size = 12 + int.from_bytes(marked[position + 8 : position + 12], "big")
        way = ways.pop(position)
        if way == "over":
            state.step_over(size)
        elif way == "into":
            state.step_into(size, marked[position:])
        else:
            state.add(measure, log.data[position : position + size], size)
        measure(marked, 0, len(marked), state)
    assert not ways
    assert state.position == len(marked)
    assert (state.text_length, state.records) == (len(shown), ordinal)
    assert entries_of(state) == expected_entries


def test_a_batch_is_added_at_a_batchs_start_only() -> None:
    state = Measure()
    measure(THREE_RECORDS, 0, 70, state)
    with pytest.raises(ValueError, match="no batch begins"):
        state.step_over(10)
    with pytest.raises(ValueError, match="no batch begins"):
        state.step_into(100, THREE_RECORDS)
    with pytest.raises(ValueError, match="no batch begins"):
        state.add(measure, THREE_RECORDS, 100)
    with pytest.raises(ValueError, match="bytes of log"):
        Measure().step_over(0)
    with pytest.raises(ValueError, match="a batch of 20 bytes"):
        Measure().add(measure, bytes(20), 20)
    with pytest.raises(CorruptRecord):
        Measure().add(measure, THREE_RECORDS[:-1], 95)


def measured_position(log: bytes) -> int:
    state = Measure()
    measure(log, 0, len(log), state)
    return state.position


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (bytes(61), "length 0"),
        (THREE_RECORDS[:16] + b"\3" + THREE_RECORDS[17:], "magic 3"),
        (THREE_RECORDS[:8] + struct.pack(">i", -20) + THREE_RECORDS[12:], "length -20"),
        (THREE_RECORDS[:8] + struct.pack(">i", 48) + THREE_RECORDS[12:], "length 48"),
    ],
)
def test_headers_that_cannot_be(wrong: bytes, reason: str) -> None:
    for read in (text_of, measured_position):
        with pytest.raises(CorruptRecord, match=reason) as caught:
            read(EMPTY_BATCH + wrong)
        assert caught.value.position == 61


def test_a_log_that_ends_inside_a_batch_waits() -> None:
    for size in range(len(THREE_RECORDS)):
        cursor = Cursor(0)
        render(THREE_RECORDS, 0, size, cursor, bytearray(10), 0, 10, 0)
        before = place(cursor)
        assert render(THREE_RECORDS, 0, size, cursor, bytearray(10), 0, 10, 0) == (0, 0)
        assert place(cursor) == before
        assert size < len(THREE_RECORDS) or cursor.position == size


def positions(data: memoryview) -> Iterator[int]:
    """Where reading arrives, window by window; ends at the end, at damage, or where it waits."""
    cursor, state = Cursor(0), Measure(1)
    out = bytearray(50)
    with contextlib.suppress(StorageError):
        while cursor.position < len(data):
            before = place(cursor)
            window = data[cursor.position : cursor.position + 100]
            end, _ = render(window, cursor.position, len(window), cursor, out, 0, 50, 0)
            if end == 0 and place(cursor) == before:
                break
            yield cursor.position
    with contextlib.suppress(StorageError):
        measure(data, 0, len(data), state)
    yield state.position


@given(data=damaged())
def test_damage_ends_in_an_error_or_in_text(data: bytes) -> None:
    with before_guard_page(data) as view:
        steps = list(positions(view))
        assert len(steps) <= 2 * len(data) + 2
        with contextlib.suppress(StorageError):
            text_of(view)


@given(data=damaged(), position=st.integers(-5, 200), batch_end=st.integers(-5, 300))
def test_a_cursor_from_elsewhere(data: bytes, position: int, batch_end: int) -> None:
    out = bytearray(100)
    with before_guard_page(data) as view, contextlib.suppress(StorageError):
        end, _ = render(view, -5, len(data), Cursor(position, batch_end), out, 0, 100, 0)
        assert 0 <= end <= 100


def test_a_cursor_beyond_its_batch() -> None:
    with pytest.raises(CorruptRecord, match="not inside its batch"):
        text_of(THREE_RECORDS, cursor=Cursor(80, 70))
    assert text_of(THREE_RECORDS, cursor=Cursor(95, 95)) == b""


def test_wrong_calls() -> None:
    out = bytearray(10)
    calls = [
        (95, Cursor(0), 1, 10, 0, 0),  # the cursor lies before the window
        (96, Cursor(0), 0, 10, 0, 0),
        (-1, Cursor(0), 0, 10, 0, 0),
        (95, Cursor(0), 0, 11, 0, 0),
        (95, Cursor(0), 0, 10, -1, 0),
        (95, Cursor(0), 0, 4, 5, 0),
        (95, Cursor(0), 0, 10, 0, -1),
    ]
    for size, cursor, at, out_end, out_start, skip in calls:
        with pytest.raises(ValueError, match=r"bytes|position|text"):
            render(THREE_RECORDS, at, size, cursor, out, out_start, out_end, skip)
    with pytest.raises((TypeError, BufferError)):
        render(THREE_RECORDS, 0, 95, Cursor(0), b"read-only", 0, 5, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="position"):
        measure(THREE_RECORDS, 1, 95, Measure())
    with pytest.raises(ValueError, match="segment"):
        measure(THREE_RECORDS, 2**31 - 95, 95, measured_far())
    with pytest.raises(ValueError, match="granularity"):
        Measure(0)
    with pytest.raises(ValueError, match="position -1"):
        Measure(1, -1)


def measured_far() -> Measure:
    """A measure that a control batch, whose length is damage, has taken to the last positions."""
    header = bytearray(EMPTY_BATCH)
    header[8:12] = struct.pack(">i", 2**31 - 1)
    header[22] = 0x20
    state = Measure()
    measure(header, 0, 61, state)
    assert state.position == 2**31 + 11
    return state


# -- measure and find_entry ----------------------------------------------------------------------


@given(first=logs(), log=logs(max_batches=8), granularity=st.sampled_from([1, 20, 300]))
def test_a_measure_goes_on_after_another(first: MadeLog, log: MadeLog, granularity: int) -> None:
    """As after a save: what it has are entries of the whole file."""
    before, alone = Measure(granularity), Measure(granularity)
    measure(first.data, 0, len(first.data), before)
    measure(log.data, 0, len(log.data), alone)
    state = Measure(granularity, before.position, before.text_length, before.records)
    measure(first.data + log.data, 0, len(first.data + log.data), state)
    at, text, records = before.position, before.text_length, before.records
    assert (state.position, state.text_length, state.records) == (
        *(at + alone.position, text + alone.text_length, records + alone.records),
    )
    assert entries_of(state) == [
        (
            text + entry[0],
            at + entry[1],
            at + entry[2],
            entry[3] and at + entry[3],
            records + entry[4],
        )
        for entry in entries_of(alone)
    ]


@given(log=logs(max_batches=8), granularity=st.sampled_from([1, 20, 300]))
def test_an_entry_is_where_its_text_begins(log: MadeLog, granularity: int) -> None:
    text = oracle.render(log.data)
    state = Measure(granularity)
    measure(log.data, 0, len(log.data), state)
    for before, batch_position, position, batch_end, ordinal in entries_of(state):
        assert batch_position <= position
        assert text_of(log.data, cursor=Cursor(position, batch_end)) == text[before:]
        assert ordinal <= before


@given(texts=st.lists(st.integers(1, 2**63), unique=True, max_size=20), text=st.integers(0, 2**63))
def test_find_entry(texts: list[int], text: int) -> None:
    made = [(at, n, n + 1, n + 2, n + 3) for n, at in enumerate(sorted([0, *texts]))]
    entries = bytearray(b"".join(struct.pack("<QIIII", *entry) for entry in made))
    assert len(entries) == ENTRY_SIZE * len(made)
    text = min(text, 2**63 - 1)
    for count in range(1, len(made) + 1):
        expected = [entry for entry in made[:count] if entry[0] <= text][-1]
        assert find_entry(entries, count, text) == expected
    for wrong in (0, -1, len(made) + 1):
        with pytest.raises(ValueError, match="entries"):
            find_entry(entries, wrong, text)
    with pytest.raises(ValueError, match="text -1"):
        find_entry(entries, 1, -1)
