"""Calls of a view: render and measure a log, and parse lines."""

from __future__ import annotations

from kafkafs.views import TextView
from kafkafs.views._measure import Cursor, Measure
from storage.record.batch import Record, decode
from storage.record.header import Buffer, parse_header

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
