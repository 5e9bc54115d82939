"""Texts with words in them, segments of these, and which of their records a condition takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from storage.condition.condition import Condition, Part
from storage.files import Files
from storage.record._batch import Rebuild
from storage.record.batch import Record, decode_plain
from storage.record.columns._predicate import kept
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.settings.config import LogConfig

PIECES = [
    *(b"a", b"B", b"_", b"7", b"42", b"192", b".", b"..", b" ", b"\n", b"\0", b"-", b"{", b"`"),
    *(
        b"word",
        b"Words",
        b"10.0.0.1",
        b"1.2.3.4.5.6",
        b"1234.1.1.1",
        b"abcdefgh",
        b"0123456789abcdef",
    ),
    *("é".encode(), "€".encode(), "😀".encode(), b"\xc3", b"\xa9", b"\xe2\x82", b"\xed\xa0\x80"),
    *(
        b"0123456789abcdef",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
        b"\xff",
        b"@",
        b"[",
        b"/",
        b":",
        b"x" * 63,
        b"y" * 64,
    ),
]

texts = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)
nullable = st.none() | texts
headers = st.lists(st.tuples(st.sampled_from(["h", "name 1", "é"]), nullable), max_size=2).map(
    tuple
)


def random_text(draw: random.Random, most: int = 30) -> bytes:
    return b"".join(draw.choices(PIECES, k=draw.randrange(most)))


def random_record(draw: random.Random, offset: int) -> Record:
    some = (None, *(random_text(draw) for _ in range(3)))
    names = draw.sample(["h", "name 1", "é"], draw.randrange(3))
    key = draw.choice((None, b"", b"key", random_text(draw, 3)))
    held = tuple((name, draw.choice(some)) for name in names)
    return Record(offset, draw.randrange(1000), 0, key, draw.choice(some), held)


def segment_of(directory: Path, data: bytes, base_offset: int = 0) -> Segment:
    """A sealed segment with this log."""
    (directory / f"{base_offset:020}.log").write_bytes(data)
    made = Segment(Files(), str(directory), base_offset, LogConfig(), writable=False, sealed=True)
    rebuild = Rebuild(base_offset, 4096)
    assert rebuild.feed(data, len(data), 0) == len(data)
    made.restore(SegmentSummary.of(rebuild, len(data), 0), sealed=True)
    return made


def taken(segment: Segment, part: Part) -> list[int]:
    """The offsets of the records for which a condition holds."""
    predicate = Condition(part, "").predicate()
    data = Path(segment.log_path).read_bytes()
    at, found = 0, list[int]()
    while at < len(data):
        plain, size = segment.expand(data, at, len(data), at)
        if not plain[22] & 0x20:
            some = kept(plain, predicate, 0, 1 << 62)
            found += [] if some is None else [record.offset for record in decode_plain(some)]
        at += size
    return found


def lie_in(offsets: Sequence[int], ranges: Sequence[tuple[int, int]]) -> bool:
    return all(any(first <= each < last for first, last in ranges) for each in offsets)
