"""Views of whole records over any mixture of batches: measured, found, rendered from anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.line_index import LineStore, SegmentLines, reader_at
from kafkafs.line_index.records import text_before
from kafkafs.views import TextView, json_lines_view, key_value_view
from storage import Record, encode
from storage.files import Files
from storage.record.header import APPEND_TIME_BIT, TRANSACTIONAL_BIT
from storage.record.plain import recompress
from storage.segment.segment import Segment
from storage.waiting import at_once
from tests.kafkafs.test_encoded_batches import ABORTED, is_aborted, segment_of
from tests.storage.logs import NOW_MS
from tests.view_text import Text, json_lines, key_values

FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = st.binary(max_size=40) | st.text(max_size=12).map(str.encode)
NAMES = st.text(st.characters(codec="utf-8"), max_size=5)
HEADERS = st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=3).map(tuple)
FIELDS = st.tuples(st.none() | BYTES, st.none() | BYTES, HEADERS, st.integers(-1, 5000))


class Kind(NamedTuple):
    """How a batch is stored."""

    codec: int
    producer: int
    append_time: bool


KINDS = st.builds(
    Kind, st.sampled_from([0, 0, 1, 4]), st.sampled_from([0, 0, 1, ABORTED]), st.booleans()
)
LOGS = st.lists(st.tuples(KINDS, st.lists(FIELDS, min_size=1, max_size=5)), max_size=5)


View = tuple[Callable[[bool], TextView], Text]
VIEWS: list[View] = [(key_value_view, key_values), (json_lines_view, json_lines)]


class Shown(NamedTuple):
    """A log, the lines that a view has of it, and per offset where they begin: text, records."""

    log: bytes
    lines: list[bytes]
    before: list[tuple[int, int]]


Batches = Sequence[tuple[Kind, Sequence[tuple[bytes | None, bytes | None, object, int]]]]


def shown(batches: Batches, text_of: Text, committed: bool) -> Shown:
    log, lines, before = b"", [], [(0, 0)]
    for kind, fields in batches:
        first = len(before) - 1
        records = [
            Record(first + n, NOW_MS + delta if delta >= 0 else -1, 0, key, value, headers)  # type: ignore[arg-type]
            for n, (key, value, headers, delta) in enumerate(fields)
        ]
        attributes = TRANSACTIONAL_BIT if kind.producer else 0
        if kind.append_time:
            attributes |= APPEND_TIME_BIT
            largest = max(record.timestamp for record in records)
            records = [record._replace(timestamp=largest, timestamp_type=1) for record in records]
        batch = encode(
            records,
            attributes=attributes,
            producer_id=kind.producer or -1,
            producer_epoch=0 if kind.producer else -1,
            base_sequence=first if kind.producer else -1,
        )
        log += recompress(batch, kind.codec)
        for record in records:
            text, count = before[-1]
            if kind.producer != ABORTED or not committed:
                lines.append(text_of([record]))
                text, count = text + len(lines[-1]), count + 1
            before.append((text, count))
    return Shown(log, lines, before)


def lines_of(view: TextView, segment: Segment, granularity: int = 16) -> SegmentLines:
    lines = SegmentLines(
        LineStore(Files(), granularity=granularity),
        segment,
        view,
        is_aborted if view.committed else None,
    )
    lines.measure()
    return lines


def check(lines: SegmentLines, text: bytes, records: int, step: int) -> None:
    """Totals, and the text from every `step`-th position on, in pieces of any size."""
    assert (lines.complete, lines.text_length, lines.records) == (True, len(text), records)
    for position in range(0, len(text), step):
        out = bytearray(min(150, len(text) - position))
        assert reader_at(lines, position).fill(out, 0) == len(out)
        assert out == text[position : position + len(out)]
    for size in (5, 64, 4096):
        place = reader_at(lines, 0)
        whole = b""
        while len(whole) < len(text):
            place = place.copy()
            out = bytearray(min(size, len(text) - len(whole)))
            assert place.fill(out, 0) == len(out)
            whole += out
        assert whole == text
        assert place.fill(bytearray(1), 0) == 0


@pytest.mark.parametrize("view", VIEWS, ids=["kv", "jsonl"])
@FEW
@given(batches=LOGS, committed=st.booleans())
def test_any_position_of_any_mixture(
    tmp_path: Path, view: View, batches: Batches, committed: bool
) -> None:
    make, text_of = view
    log, expected, before = shown(batches, text_of, committed)
    text = b"".join(expected)
    segment = segment_of(tmp_path, log, len(before) - 1)
    lines = lines_of(make(committed), segment)
    check(lines, text, len(expected), step=3)
    # Once more from the saved entries, which point into batches.
    again = lines_of(make(committed), segment)
    check(again, text, len(expected), step=7)
    if committed:
        assert [text_before(again, offset) for offset in range(len(before))] == before
    segment.close()


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("view", VIEWS, ids=["kv", "jsonl"])
def test_a_record_larger_than_any_window(tmp_path: Path, view: View, codec: int) -> None:
    """It is read whole by who may wait, and its line is written once, whatever is read of it."""
    make, text_of = view
    rough = random.Random(1).randbytes(3 << 20)
    fields = [
        (b"small", b"before", (), 0),
        (b"k" * 10, rough, (("h", rough[:100]),), 1),
        (None, b"\t\n\\" * (1 << 20), (), 2),
        (b"small", b"after", (), 3),
    ]
    log, expected, _ = shown([(Kind(codec, 0, False), fields)], text_of, True)
    text = b"".join(expected)
    segment = segment_of(tmp_path, log, 4)
    lines = lines_of(make(True), segment, granularity=4096)
    assert (lines.text_length, lines.records) == (len(text), 4)
    place = reader_at(lines, len(expected[0]) + 5)
    out = bytearray(100)
    with pytest.raises(BlockingIOError):
        at_once(place.copy().fill, out, 0)
    assert place.fill(out, 0) == 100
    at = len(expected[0]) + 105
    while at < len(text):
        out = bytearray(min(128 << 10, len(text) - at))
        assert place.fill(out, 0) == len(out)
        assert out == text[at : at + len(out)]
        at += len(out)
    segment.close()
