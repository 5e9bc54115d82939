"""kafkafs.views._whole, and what each view of lines does: the same text in any windows."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.views import TextView, json_lines_view, key_value_view, values_view
from kafkafs.views._measure import Cursor, Measure
from storage.errors import CorruptRecord, RecordTooLarge, StorageError
from storage.record.batch import Record, encode
from storage.record.header import HEADER_SIZE, parse_header
from tests import oracle
from tests.guard_page import before_guard_page
from tests.kafkafs.views.calls import UNLIMITED, T, length_of, parsed, records_in, text_of
from tests.kafkafs.views.test_json_lines import json_logs
from tests.kafkafs.views.test_key_value import key_value_logs
from tests.made_logs import cuts, damaged, logs
from tests.storage.record.test_batch import REJECTED

KEY_VALUE, JSON_LINES = key_value_view(), json_lines_view()
each_view = pytest.mark.parametrize("view", [KEY_VALUE, JSON_LINES], ids=["kv", "jsonl"])
Line = Callable[[oracle.Batch, oracle.Row], bytes]


def key_value_line(_batch: oracle.Batch, row: oracle.Row) -> bytes:
    return oracle.key_value_line(row)


each_log = pytest.mark.parametrize(
    ("view", "logs_of", "line"),
    [
        pytest.param(
            values_view(), logs().map(lambda log: log.data), oracle.value_line, id="values"
        ),
        pytest.param(KEY_VALUE, key_value_logs(), key_value_line, id="kv"),
        pytest.param(JSON_LINES, json_logs(), oracle.json_line, id="jsonl"),
    ],
)


@pytest.mark.parametrize(
    ("view", "name"), [(key_value_view, "kv"), (json_lines_view, "jsonl")], ids=["kv", "jsonl"]
)
def test_the_name_says_the_isolation(view: Callable[[bool], TextView], name: str) -> None:
    one, other = view(True), view(False)
    assert (one.name, one.committed, one.whole_records) == (name, True, True)
    assert (other.name, other.committed) == (f"{name}-uncommitted", False)


@each_log
@given(data=st.data(), granularity=st.sampled_from([1, 50, 4096]))
def test_any_windows_and_buffers_give_the_same_text(
    view: TextView,
    logs_of: st.SearchStrategy[bytes],
    line: Line,
    data: st.DataObject,
    granularity: int,
) -> None:
    """Input comes in pieces, output leaves in others, and neither is touched outside."""
    log = data.draw(logs_of)
    text = oracle.render(log, line)
    skip = data.draw(st.integers(0, len(text)) | st.just(0))
    given_text = bytearray()
    cursor, state = Cursor(0), Measure(granularity)
    for end in data.draw(cuts(len(log))):
        start = max(0, min(cursor.position, end) - data.draw(st.integers(0, 5)))
        with before_guard_page(log[start:end]) as window:
            while True:
                room = data.draw(st.sampled_from([1, 2, 30, 100, 400, 70000]))
                out = bytearray(b"\xee" * (room + 10))
                at, skip = view.render(window, start, len(window), cursor, out, 5, 5 + room, skip)
                assert out[:5] == out[5 + room :] == b"\xee" * 5
                given_text += out[5:at]
                cursor = cursor.copy()
                if at < 5 + room:
                    break
        start = min(state.position, end)
        with before_guard_page(log[start:end]) as window:
            view.measure(window, start, end - start, state)
    assert given_text == text[len(text) - len(given_text) :]
    assert (skip, cursor.position) == (0, len(log))
    assert (state.position, state.batch_end) == (len(log), 0)
    assert (state.text_length, state.records) == (len(text), len(list(oracle.shown(log))))
    entries = list(struct.iter_unpack("<QIIII", bytes(state.entries)))
    assert entries == oracle.measure(log, granularity, line)


@each_log
@given(data=st.data(), room=st.integers(0, 300) | st.integers(0, 2000))
def test_nothing_is_written_beyond_the_buffer(
    view: TextView, logs_of: st.SearchStrategy[bytes], line: Line, data: st.DataObject, room: int
) -> None:
    log = data.draw(logs_of)
    with before_guard_page(bytes(room)) as out:
        end, _ = view.render(log, 0, len(log), Cursor(0), out, 0, room, 0)
        assert out[:end] == oracle.render(log, line)[:room]


@each_view
@given(data=damaged())
def test_damage_ends_in_an_error_or_in_text(view: TextView, data: bytes) -> None:
    with before_guard_page(data) as log:
        with contextlib.suppress(StorageError):
            text_of(view, log)
        with contextlib.suppress(StorageError):
            length_of(view, log)


@each_view
def test_damaged_fields_are_an_error(view: TextView) -> None:
    row = bytearray(oracle.put_row(oracle.Row(0, 0, b"key", b"value")))
    row[8] = 40
    with pytest.raises(CorruptRecord):
        text_of(view, oracle.put_batch(bytes(row), 1))


@each_view
@pytest.mark.parametrize("reason", [reason for reason in REJECTED if "header" in reason])
def test_headers_that_do_not_fill_their_record_are_an_error(view: TextView, reason: str) -> None:
    with pytest.raises(CorruptRecord):
        length_of(view, REJECTED[reason])


@pytest.mark.parametrize(
    ("view", "record"),
    [
        (KEY_VALUE, Record(0, T, 0, b"k" * 50, b"\t" * 1000)),
        (JSON_LINES, Record(0, T, 0, b"k", b"\x01" * 1000)),
    ],
)
def test_the_limit_is_that_of_the_record_not_of_the_line(view: TextView, record: Record) -> None:
    size = len(encode([record]))
    line = text_of(view, encode([record]))
    assert len(line) > size + 900
    for count in (1, 3):
        found = records_in(parsed(view, line * count, size)[0])
        assert [(each.key, each.value) for each in found] == [(record.key, record.value)] * count
    with pytest.raises(RecordTooLarge) as caught:
        parsed(view, text_of(view, encode([Record(0, T, 0, None, b"")])) + line, size - 1)
    assert (caught.value.line, caught.value.size, caught.value.limit) == (2, size, size - 1)


@each_view
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((b"k", b"v" * size) for size in (0, 100, 3000, 100_000)),
        *((None, b""), (b"k", b"\\" * 50_000)),
    ],
)
def test_large_blocks(view: TextView, key: bytes | None, value: bytes) -> None:
    """The GIL is released from 256 KiB on. The first guess at the output is too small or large."""
    line = text_of(view, encode([Record(0, T, 0, key, value)]))
    lines = [line] * (1 + 300_000 // len(line))
    lines[7::50] = [text_of(view, encode([Record(0, T, 0, b"other", None)]))] * len(lines[7::50])
    text = b"".join(lines)
    for limit in (1_000_012, UNLIMITED):
        batches, count = parsed(view, text, limit)
        assert count == len(lines)
        shown = text_of(view, batches)
        assert re.sub(rb'"offset":\d+', b'"offset":0', shown) == text
        assert length_of(view, batches) == len(shown)
        at = 0
        while at < len(batches):
            assert parse_header(batches, at).size <= limit
            at += parse_header(batches, at).size


@pytest.mark.parametrize(("view", "line"), [(KEY_VALUE, b"\n"), (JSON_LINES, b"{}\n")])
@pytest.mark.parametrize("limit", [0, -1, HEADER_SIZE])
def test_limits_that_nothing_meets(view: TextView, line: bytes, limit: int) -> None:
    with pytest.raises(RecordTooLarge):
        parsed(view, line, limit)


@pytest.mark.parametrize(("view", "line"), [(KEY_VALUE, b"hello\n"), (JSON_LINES, b"{}\n")])
@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, 1), (4, -3), (0, -1)])
def test_wrong_calls(view: TextView, line: bytes, start: int, end: int) -> None:
    """`end` counts from the line's end."""
    with pytest.raises(ValueError, match="line"):
        view.parse(line, start, len(line) + end, T, 1000)


MIXED = [
    b'\x00\x01"\\\t\n' * 900_000,
    "aß€😀".encode() * 500_000,
    bytes(range(256)) * 20_000,
]


@each_view
@pytest.mark.parametrize("value", MIXED, ids=["escapes", "characters", "bytes"])
def test_a_long_line_in_pieces_is_the_line(view: TextView, value: bytes) -> None:
    """Answers and windows of odd sizes, and a beginning anywhere in the line."""
    headers = ("large", value[:70_000]), ("", None), ("\udcff", b""), ("last", b"\xff")
    rows = [
        Record(0, T, 0, b"first", b""),
        Record(1, T, 0, value[:100_001], value, headers),
        Record(2, -1, 0, None, b"last"),
    ]
    log = encode(rows)
    whole = bytearray(length_of(view, log) + 1000)
    end, _ = view.render(log, 0, len(log), Cursor(0), whole, 0, len(whole), 0)
    text = bytes(whole[:end])
    assert len(text) == len(whole) - 1000

    cursor, at, skip = Cursor(0), 0, 0
    out = bytearray(100_003)
    while at < len(text):
        wanted, done = min(len(out), len(text) - at), 0
        while done < wanted:
            start = cursor.position
            window = log[start : start + max(cursor.needed, 5000)]
            done, skip = view.render(window, start, len(window), cursor, out, done, wanted, skip)
        assert out[:wanted] == text[at : at + wanted]
        at += wanted
        cursor = cursor.copy()

    for first in (len(text) // 2, len(text) - 20):
        cursor, wanted = Cursor(0), min(len(out), len(text) - first)
        done, skip = view.render(log, 0, len(log), cursor, out, 0, wanted, first)
        assert out[:done] == text[first : first + wanted]
        assert skip == 0


@pytest.mark.parametrize("view", [KEY_VALUE, JSON_LINES])
def test_a_long_line_whose_bytes_change_is_an_error(view: TextView) -> None:
    """No byte outside of the record is read."""
    headers = (("name", b"x" * 100), ("name", b"x" * 100))
    log = bytearray(encode([Record(0, T, 0, None, "ß".encode() * 3_000_000, headers)]))
    cursor, out = Cursor(0), bytearray(100_000)
    assert view.render(log, 0, len(log), cursor, out, 0, len(out), 0) == (len(out), 0)
    log[100:] = b"\xbf" * (len(log) - 100)
    with contextlib.suppress(CorruptRecord):
        while start := cursor.long_line and cursor.position:
            window = log[start : start + max(cursor.needed, 5000)]
            with before_guard_page(window) as guarded:
                view.render(guarded, start, len(window), cursor, out, 0, len(out), 0)


@each_view
def test_a_long_record_is_not_rendered_at_once(view: TextView) -> None:
    log = encode([Record(0, T, 0, None, b"x" * 5_000_000)])
    cursor, out = Cursor(0), bytearray(1000)
    cursor.at_once = True
    assert view.render(log, 0, len(log), cursor, out, 0, 1000, 0) == (0, 0)
    assert cursor.takes_long
    cursor.at_once = False
    assert view.render(log, 0, len(log), cursor, out, 0, 1000, 0) == (1000, 0)
    # A line that is begun takes no longer than its pieces.
    cursor.at_once = True
    assert view.render(log, 0, len(log), cursor, out, 0, 1000, 0) == (1000, 0)
