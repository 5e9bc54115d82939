"""A log file is read at any place, by its frames, and whole, whatever is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafs.dump._dump import Walk
from kafkafs.dump.log_file import dump_log
from kafkafs.dump.log_reader import LogReader
from kafkafs.dump.options import Options
from kafkafs.dump.output import DumpError
from storage import Record, encode
from storage.record.compression import decompress
from storage.record.plain import recompress
from tests.kafkafs.dump.printed import Printed

T = 1_700_000_000_000
NAME = f"{0:020}.log"


def batch(offset: int, size: int = 20, count: int = 1, codec: int = 0) -> bytes:
    records = [Record(offset + n, T, 0, None, b"x" * size) for n in range(count)]
    return recompress(encode(records), codec)


def write(path: Path, data: bytes) -> str:
    (path / NAME).write_bytes(data)
    return str(path / NAME)


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 70_000)), max_size=20))
@settings(deadline=None)
def test_any_part_is_what_the_file_has(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]]
) -> None:
    data = bytes(range(251)) * 1000
    with LogReader(write(tmp_path_factory.mktemp("d"), data)) as log:
        for position, size in parts:
            assert log.read(position, size) == data[position : position + size]


def test_frames(tmp_path: Path) -> None:
    batches = [batch(0, count=3), batch(3, size=100_000), batch(7)]
    with LogReader(write(tmp_path, b"".join(batches))) as log:
        position = 0
        for data, last in zip(batches, (2, 3, 7), strict=True):
            assert log.frame(position, log.size) == (position, len(data), last)
            end = position + len(data)
            assert log.frame(position, end - 1) is None, "less than a whole one is there"
            position = end
        assert log.frame(position, log.size) is None
        for outside in (-1, log.size + 1):
            with pytest.raises(DumpError, match="is outside"):
                log.slice_end(outside, 10)
        assert log.slice_end(log.size, 10) == log.size
        assert log.slice_end(0, 10) == 10


def test_no_segment_is_so_large(tmp_path: Path) -> None:
    path = write(tmp_path, b"")
    os.truncate(path, 1 << 31)
    with pytest.raises(DumpError, match="larger than the largest segment"):
        LogReader(path)


SIZES = st.sampled_from([0, 100, 100_000, 1 << 18, 1 << 20])


@given(st.lists(st.tuples(SIZES, st.sampled_from([0, 4])), max_size=8), st.integers(0, 100))
def test_all_batches_are_printed_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]], missing: int
) -> None:
    data = b"".join(batch(n, size, codec=codec) for n, (size, codec) in enumerate(batches))
    whole = len(batches) - 1 if missing and batches else len(batches)
    missing = min(missing, 60) if batches else 0
    printed = Printed()
    dump_log(write(tmp_path_factory.mktemp("d"), data[: len(data) - missing]), Options(), printed)
    offsets = [int(line.split()[1]) for line in printed.lines if line.startswith(b"baseOffset:")]
    assert offsets == list(range(whole))
    tail = [fields for kind, fields in printed.events if kind == "invalidBytes"]
    assert bool(tail) == (whole < len(batches))


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    path = write(tmp_path, batch(0) + batch(1, size=1 << 20))
    walk = Walk(decompress, deep=True)
    with LogReader(path) as log:
        os.truncate(path, 200)
        with pytest.raises(DumpError, match="the file was truncated while"):
            log.walk(walk, log.size, lambda: None)
