"""Text of batches that are compressed, older or of a transaction: measured, found and rendered."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.line_index import LineStore, SegmentLines, reader_at
from kafkafs.line_index.records import text_before
from kafkafs.line_index.segment_batches import SegmentBatches
from kafkafs.views import values_view
from storage import Record, encode
from storage.errors import CorruptRecord
from storage.files import Files
from storage.plain_forms import plain_forms
from storage.record.compression import CODECS, compress
from storage.record.header import TRANSACTIONAL_BIT, pack, parse_header
from storage.record.plain import recompress
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.settings.config import LogConfig
from storage.waiting import at_once
from tests.storage.logs import NOW_MS

ABORTED = 77
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.lists(st.none() | st.binary(max_size=60), min_size=1, max_size=8)
KINDS = [
    *((f"v2 {codec}", 2, number, 0) for number, codec in enumerate(CODECS)),
    *((f"v1 {codec}", 1, number, 0) for number, codec in enumerate(CODECS[:4])),
    *((f"v0 {codec}", 0, number, 0) for number, codec in enumerate(CODECS[:3])),
    ("committed", 2, 0, 1),
    ("committed zstd", 2, 4, 1),
    ("aborted", 2, 0, ABORTED),
    ("aborted lz4", 2, 3, ABORTED),
]
LOGS = st.lists(st.tuples(st.sampled_from(KINDS), VALUES), min_size=1, max_size=10)


def message(magic: int, offset: int, value: bytes | None, codec: int = 0) -> bytes:
    """An entry of v0 or v1 without a key."""
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", NOW_MS) if magic else b"")
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def stored(magic: int, codec: int, producer: int, first: int, values: list[bytes | None]) -> bytes:
    """These values, from offset `first` on, as batches in the log."""
    if magic == 2:
        records = [Record(first + n, NOW_MS, 0, b"k", v) for n, v in enumerate(values)]
        batch = encode(
            records,
            attributes=TRANSACTIONAL_BIT if producer else 0,
            producer_id=producer or -1,
            producer_epoch=0 if producer else -1,
            base_sequence=first if producer else -1,
        )
        return recompress(batch, codec)
    if not codec:
        return b"".join(message(magic, first + n, value) for n, value in enumerate(values))
    inner = b"".join(
        message(magic, n if magic else first + n, value) for n, value in enumerate(values)
    )
    return message(magic, first + len(values) - 1, compress(codec, inner), codec)


def segment_of(path: Path, log: bytes, next_offset: int, stable: int | None = None) -> Segment:
    """A sealed segment with these bytes."""
    directory = path / f"{len(list(path.iterdir()))}"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(log)
    segment = Segment(Files(), str(directory), 0, LogConfig(), writable=False)
    segment.restore(SegmentSummary(len(log), next_offset, 0, NOW_MS, NOW_MS), sealed=True)
    if stable is not None:
        segment.stable_size = stable
    return segment


def is_aborted(producer_id: int, offset: int) -> bool:
    return producer_id == ABORTED


def lines_of(segment: Segment, *, committed: bool = True, granularity: int = 16) -> SegmentLines:
    lines = SegmentLines(
        LineStore(Files(), granularity=granularity),
        segment,
        values_view(committed),
        is_aborted if committed else None,
    )
    lines.measure()
    return lines


def check(lines: SegmentLines, text: bytes, records: int) -> None:
    """Totals, and the text from every position on, in one piece and byte by byte."""
    assert (lines.complete, lines.text_length, lines.records) == (True, len(text), records)
    for position in range(len(text)):
        out = bytearray(min(50, len(text) - position))
        assert reader_at(lines, position).fill(out, 0) == len(out)
        assert out == text[position : position + len(out)]
    place = reader_at(lines, 0)
    whole = b""
    for _ in range(len(text)):
        place = place.copy()
        out = bytearray(1)
        assert place.fill(out, 0) == 1
        whole += out
    assert whole == text
    assert place.fill(bytearray(1), 0) == 0


@FEW
@given(batches=LOGS, committed=st.booleans())
def test_every_position_of_any_mixture(
    tmp_path: Path,
    batches: list[tuple[tuple[str, int, int, int], list[bytes | None]]],
    committed: bool,
) -> None:
    log, text = b"", b""
    before = [(0, 0)]
    for (_, magic, codec, producer), values in batches:
        log += stored(magic, codec, producer, len(before) - 1, values)
        for value in values:
            shown = producer != ABORTED or not committed
            text += (value or b"") + b"\n" if shown else b""
            before.append((len(text), before[-1][1] + shown))
    segment = segment_of(tmp_path, log, len(before) - 1)
    lines = lines_of(segment, committed=committed)
    if committed:
        assert [text_before(lines, offset) for offset in range(len(before))] == before
    records = before[-1][1]
    check(lines, text, records)
    # Once more from the saved entries, and with their file gone.
    again = lines_of(segment, committed=committed)
    check(again, text, records)
    Path(again.path).unlink()
    again.evict()
    check(again, text, records)
    segment.close()


@pytest.mark.parametrize("sizes", [(10, 100), (100, 10)])
def test_readers_of_runs_that_end_at_different_messages(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """Each reads on in the run of uncompressed messages that it began with."""
    values = [b"%04d" % number for number in range(200)]
    text = b"".join(value + b"\n" for value in values)
    segment = segment_of(tmp_path, stored(1, 0, 0, 0, list(values)), len(values))
    lines = lines_of(segment)
    readers = [reader_at(lines, 0) for _ in sizes]
    for reader, size in zip(readers, sizes, strict=True):
        reader.fill(bytearray(size), 0)
    for reader, size in reversed(list(zip(readers, sizes, strict=True))):
        rest = bytearray(len(text) - size)
        assert reader.fill(rest, 0) == len(rest)
        assert rest == text[size:]
    segment.close()


def test_what_is_not_stable_is_no_text_yet(tmp_path: Path) -> None:
    first = stored(2, 0, 0, 0, [b"one", b"two"])
    log = first + stored(2, 0, 1, 2, [b"three"]) + stored(2, 4, 0, 3, [b"four"])
    segment = segment_of(tmp_path, log, 4, stable=len(first))
    lines = lines_of(segment)
    check(lines, b"one\ntwo\n", 2)
    lines.append(len(first), log[len(first) :])
    check(lines, b"one\ntwo\n", 2)
    segment.stable_size = len(log)
    assert not lines.complete
    lines.measure()
    check(lines, b"one\ntwo\nthree\nfour\n", 4)
    segment.close()


@FEW
@given(batches=LOGS, parts=st.sets(st.integers(0, 9)))
def test_saved_in_parts(
    tmp_path: Path,
    batches: list[tuple[tuple[str, int, int, int], list[bytes | None]]],
    parts: set[int],
) -> None:
    """The entries of a part are kept by where it begins, and a batch to be decoded has no end."""
    log, text, records, offset, ends = b"", b"", 0, 0, []
    for number, ((_, magic, codec, producer), values) in enumerate(batches):
        log += stored(magic, codec, producer, offset, values)
        offset += len(values)
        if producer != ABORTED:
            text += b"".join((value or b"") + b"\n" for value in values)
            records += len(values)
        if number in parts:
            ends.append(len(log))
    segment = segment_of(tmp_path, log, offset)
    lines = SegmentLines(LineStore(Files(), granularity=16), segment, values_view(True), is_aborted)
    for end in [*ends, len(log)]:
        segment.stable_size = end
        lines.measure()
        assert lines.save()
    check(lines, text, records)
    segment.close()


@pytest.mark.parametrize("committed", [False, True])
def test_a_log_may_end_with_an_empty_batch_of_a_transaction(
    tmp_path: Path, committed: bool
) -> None:
    """Cleaners leave those, for what they say of their producers."""
    batch = parse_header(stored(2, 0, 1, 1, [b"gone"]))
    empty = pack(batch._replace(records_count=0, base_timestamp=-1), b"")
    segment = segment_of(tmp_path, stored(2, 0, 0, 0, [b"one"]) + empty, 2)
    lines = lines_of(segment, committed=committed)
    check(lines, b"one\n", 1)
    assert lines.save()
    segment.close()


def test_a_batch_larger_than_any_window(tmp_path: Path) -> None:
    """Stored and decoded it is larger than what is read at a time."""
    values: list[bytes | None] = [random.Random(1).randbytes(1 << 20) for _ in range(4)]
    log = stored(2, 0, 0, 0, [b"before"]) + stored(2, 4, 0, 1, values) + stored(1, 0, 0, 5, [b"x"])
    text = b"before\n" + b"".join((value or b"") + b"\n" for value in values) + b"x\n"
    segment = segment_of(tmp_path, log, 6)
    lines = lines_of(segment, granularity=4096)
    assert (lines.text_length, lines.records) == (len(text), 6)
    place = reader_at(lines, 3 << 20)
    out = bytearray(len(text) - (3 << 20))
    plain_forms.clear()
    with pytest.raises(BlockingIOError):
        at_once(place.copy().fill, bytearray(out), 0)
    assert place.fill(out, 0) == len(out)
    assert out == text[3 << 20 :]
    segment.close()


@pytest.mark.parametrize("codec", [0, 1, 4])
@pytest.mark.parametrize("magic", [1, 2])
def test_damage_is_named_with_its_place(tmp_path: Path, magic: int, codec: int) -> None:
    good = stored(2, 0, 0, 0, [b"good"])
    bad = bytearray(stored(magic, codec, 1 if magic == 2 else 0, 1, [b"bad" * 10]))
    bad[-5] ^= 1
    segment = segment_of(tmp_path, good + bytes(bad), 2)
    check_lost(segment, len(good), b"good\n")
    segment.close()


def check_lost(segment: Segment, position: int, text: bytes) -> None:
    """All behind a position is damaged; what is before it can be read."""
    lines = lines_of(segment)
    (place,) = segment.damages
    assert (place.start, place.end) == (position, segment.size)
    out = bytearray(lines.text_length)
    with pytest.raises(CorruptRecord) as caught:
        reader_at(lines, 0).fill(out, 0)
    assert (caught.value.path, caught.value.position) == (segment.log_path, position)
    assert out.startswith(text)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_sealed_log_that_ends_inside_a_batch_is_damaged(tmp_path: Path, cut: int) -> None:
    """Also where its last record ends with the file, or its last value lies beyond the end."""
    good = stored(2, 0, 0, 0, [b"good"])
    for value in (b"v" * 30, b"v" * 5000):
        torn = stored(2, 0, 0, 1, [b"w", value])
        for size in (len(torn) - cut, len(torn) - len(stored(2, 0, 0, 1, [value])) + 61):
            segment = segment_of(tmp_path, good + torn[:size], 3)
            check_lost(segment, len(good), b"good\n")
            segment.close()


def test_stored_batches_are_shown_as_they_are(tmp_path: Path) -> None:
    parts = [
        stored(magic, codec, who, 3 * n, [b"a", None, b"c"])
        for n, (_, magic, codec, who) in enumerate(KINDS)
    ]
    log = b"".join(parts)
    segment = segment_of(tmp_path, log, 3 * len(KINDS), stable=0)
    extent = SegmentBatches(segment)
    assert (extent.text_length, extent.complete) == (len(log), True)
    for position in range(0, len(log), 7):
        out = bytearray(len(log) - position + 5)
        assert reader_at(extent, position).fill(out, 0) == len(log) - position
        assert out[:-5] == log[position:]
    segment.close()


@pytest.mark.parametrize("producer", [1, ABORTED])
def test_a_batch_that_says_it_is_longer_than_any_file(tmp_path: Path, producer: int) -> None:
    batch = bytearray(stored(2, 0, producer, 1, [b"two"]))
    struct.pack_into(">i", batch, 8, 2**31 - 1)
    first = stored(2, 0, 0, 0, [b"one"])
    segment = segment_of(tmp_path, first + batch, 2)
    check_lost(segment, len(first), b"one\n")
    segment.close()
