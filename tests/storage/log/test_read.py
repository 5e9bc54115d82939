"""Reading a log: by offset, by time, batch by batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Log, LogManager, Record, encode
from storage.errors import CorruptRecord, OffsetOutOfRange
from storage.log.append import append_batches
from storage.log.read import plain_batches
from storage.record.batch import decode, decode_plain
from storage.record.header import parse_header
from storage.record.plain import recompress
from storage.segment.reader import SegmentReader
from tests.storage.logs import NOW_MS, NOW_NS, CountedReads, append, batch, opened_log, overwrite
from tests.storage.transactions import new_log


def test_read_returns_whole_segment_bytes_from_the_batch_of_the_offset(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        for n in range(10):
            append(log, b"%d" % n, b"x" * 50)
        data = log.read(7, 1)
        assert parse_header(data).base_offset == 6
        assert len(data) == parse_header(data).size, "the first batch comes whole"
        assert [record.offset for record in decode(data)] == [6, 7]
        both = log.read(7, 2 * len(data))
        assert both[: len(data)] == data
        assert parse_header(both, len(data)).base_offset == 8
        assert len(log.read(0, 1 << 20)) == log.size
        assert len(log.read(0, len(data) + 5)) == len(data) + 5, "the last batch may be cut"


def test_read_outside_of_the_log(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"a", b"b")
        assert log.read(2, 100) == b""
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRange) as caught:
                log.read(offset, 100)
            assert (caught.value.log_start, caught.value.log_end) == (0, 2)


def test_batches_are_checked_in_the_bytes_that_are_read(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        for _ in range(200):
            append(log, b"x" * 10_000)
        log.roll(NOW_MS)
        size = log.size
    files = CountedReads()
    with LogManager.open(str(tmp_path), read_only=True, files=files) as manager:
        log = manager.log("t", 0)
        files.bytes_read = 0
        assert sum(1 for _ in log.reader.batches(100, 101)) == 1
        # A window, and what the look-up has read before.
        assert files.bytes_read < 120_000
        files.bytes_read = 0
        assert sum(1 for _ in log.records()) == 200
        # The start is checked when it is looked up, and a window may end inside a batch.
        assert size < files.bytes_read < 1.3 * size


def test_no_read_crosses_a_segment(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"a")
        assert log.roll(NOW_MS)
        append(log, b"b")
        assert [record.value for record in decode(log.read(0, 1 << 20))] == [b"a"]
        assert [record.value for record in decode(log.read(1, 1 << 20))] == [b"b"]


TIMESTAMPS = st.lists(
    st.lists(st.one_of(st.just(-1), st.integers(NOW_MS, NOW_MS + 20)), min_size=1, max_size=3),
    min_size=1,
    max_size=25,
)


@given(TIMESTAMPS, st.integers(0, 500), st.integers(100, 2000))
def test_lookup_by_time_finds_the_first_record_of_that_time_or_later(
    tmp_path_factory: pytest.TempPathFactory,
    blocks: list[list[int]],
    interval: int,
    segment_bytes: int,
) -> None:
    with opened_log(
        tmp_path_factory.mktemp("d"),
        index_interval_bytes=interval,
        internal_segment_bytes=segment_bytes,
    ) as log:
        for block in blocks:
            records = [Record(n, ts, 0, None, b"v" * 20) for n, ts in enumerate(block)]
            log.append(bytearray(encode(records)), now_ns=NOW_MS * 1_000_000)
        everything = list(log.records())
        for wanted in range(NOW_MS - 1, NOW_MS + 22):
            later = [(r.timestamp, r.offset) for r in everything if r.timestamp >= wanted]
            found = log.reader.offset_for_timestamp(wanted)
            assert found == (later[0] if later else None)


# -- batch by batch -------------------------------------------------------------------------------


def read(log: Log, position: int = 0, end: int | None = None) -> list[bytes | None]:
    """The values of the active segment's batches."""
    segment = log.active
    found = plain_batches(segment, position, segment.size if end is None else end)
    return [record.value for made, _ in found for record in decode_plain(made)]


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 4)), min_size=1, max_size=8))
def test_batches_of_any_size_and_codec(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]]
) -> None:
    """Larger ones than what is read at a time, too."""
    with opened_log(tmp_path_factory.mktemp("d")) as log:
        written = [os.urandom(size) for size, _ in batches]
        for value, (_, codec) in zip(written, batches, strict=True):
            data = recompress(batch([value]), codec)
            append_batches(log, data, now_ns=NOW_NS)
        assert read(log) == written
        second = next((at for at, _ in SegmentReader(log.active).batches() if at), log.active.size)
        assert read(log, second) == written[1:]
        assert read(log, 0, second) == written[:1]


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_batch_that_is_not_whole_before_the_end_is_left_out(tmp_path: Path, size: int) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"whole")
        append(log, b"x" * size)
        assert read(log, 0, log.active.size - 1) == [b"whole"]


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    manager = LogManager.open(str(tmp_path))
    log = new_log(manager)
    append(log, b"sound")
    second = log.active.size
    append(log, b"damaged")
    path = log.active.log_path
    manager.abandon()
    overwrite(path, second + 70, b"?")
    with LogManager.open(str(tmp_path), read_only=True) as again:
        segment = again.log("t", 0).active
        segment.size = os.path.getsize(path)
        found = plain_batches(segment, 0, segment.size)
        with pytest.raises(CorruptRecord) as caught:
            list(found)
        assert (caught.value.path, caught.value.position) == (path, second)
