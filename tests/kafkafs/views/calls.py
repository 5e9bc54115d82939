"""Calls of a view: render and measure a log, and parse lines."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from kafkafs.views import TextView
from kafkafs.views._measure import Cursor, Measure
from storage.errors import InvalidRecord, RecordTooLarge
from storage.record.batch import Record, decode
from storage.record.header import Buffer, parse_header
from tests.guard_page import before_guard_page

F = TypeVar("F")

T = 1_700_000_000_000
UNLIMITED = 2**31 - 1


def text_of(view: TextView, log: Buffer) -> bytes:
    """Render a log in one call, into a buffer with room to spare."""
    out = bytearray(b"\xee" * (40 * len(log) + 500))
    end, left = view.render(log, 0, len(log), Cursor(0), out, 0, len(out), 0)
    assert left == 0
    return bytes(out[:end])


def length_of(view: TextView, log: Buffer) -> int:
    state = Measure()
    view.measure(log, 0, len(log), state)
    return state.text_length


def parsed(view: TextView, text: Buffer, limit: int = UNLIMITED) -> tuple[bytes, int]:
    batches, lines = view.parse(text, 0, len(text), T, limit)
    return bytes(batches), lines


def records_in(batches: bytes) -> list[Record]:
    found: list[Record] = []
    at = 0
    while at < len(batches):
        found += decode(batches, at)
        at += parse_header(batches, at).size
    return found


def check_lines(
    view: TextView,
    lines: list[bytes],
    before: bytes,
    after: bytes,
    timestamp: int,
    limit: int,
    fields: Callable[[bytes], F],
    encode: Callable[[list[F], int, int], bytes | int],
    reason: str = "",
) -> None:
    """Lines between other bytes become what the plain twins `fields` and `encode` make of them."""
    data = before + b"".join(line + b"\n" for line in lines) + after
    start, end = len(before), len(data) - len(after)
    wrong = None
    found: list[F] = []
    for line in lines:
        try:
            found.append(fields(line))
        except ValueError:
            wrong = len(found) + 1
            break
    expected = encode(found, timestamp, limit)
    with before_guard_page(data[:end]) as text:
        if isinstance(expected, int):
            with pytest.raises(RecordTooLarge) as too_large:
                view.parse(text, start, end, timestamp, limit)
            assert too_large.value.line == expected
            assert too_large.value.size > too_large.value.limit == min(limit, UNLIMITED)
        elif wrong is not None:
            with pytest.raises(InvalidRecord, match=rf"^line {wrong}: {reason}"):
                view.parse(text, start, end, timestamp, limit)
        else:
            batches, count = view.parse(text, start, end, timestamp, limit)
            assert (bytes(batches), count) == (expected, len(lines))


@contextmanager
def meanwhile(change: Callable[[int], None], places: range) -> Iterator[None]:
    """Another thread changes one of the places after the other, again and again."""
    stop = threading.Event()

    def work() -> None:
        for place in itertools.cycle(places):
            if stop.is_set():
                break
            change(place)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
