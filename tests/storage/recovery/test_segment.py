"""One segment as it is found: what of its files is trusted, what is read, what ends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage import Record, encode, paths
from storage.files import Files
from storage.recovery.promises import PartitionFiles, Promises
from storage.recovery.segment import (
    Loaded,
    SegmentLoader,
    finish_index,
    is_empty,
    reaches,
)
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.writer import SegmentWriter
from storage.settings.config import LogConfig
from tests.storage.logs import NOW_MS, NOW_NS, CountedReads

BASE = 100
COUNT = 12
FOLLOWING = BASE + COUNT
CONFIG = LogConfig(index_interval_bytes=200, segment_index_bytes=4096)


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """A sealed and closed segment. Each batch has one record."""
    writer = SegmentWriter.begin(
        Segment.create(Files(), str(tmp_path), BASE, CONFIG, now_ms=NOW_MS)
    )
    for offset in range(BASE, FOLLOWING):
        data = encode([Record(offset, NOW_MS + offset, 0, None, b"x" * 50)])
        writer.append(data, [(0, len(data), offset, NOW_MS + offset)], NOW_NS)
    writer.seal()
    writer.segment.close()
    return writer.segment


def starts(segment: Segment) -> list[int]:
    found = [at for at, _ in SegmentReader(segment).batches()]
    segment.close_descriptors()
    return found


def content(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def loaded(
    path: Path,
    *,
    following: int | None = FOLLOWING,
    clean: bool = True,
    recovery_point: int = 0,
    writable: bool = True,
    files: Files | None = None,
) -> Loaded:
    files = files or Files()
    promises = Promises(clean, recovery_point)
    partition = PartitionFiles(files, str(path), CONFIG, promises, writable)
    found = SegmentLoader(partition, BASE, following, os.listdir(path)).load()
    finish_index(files, found)
    found.segment.close_descriptors()
    return found


def assert_whole(found: Loaded, segment: Segment) -> None:
    assert (found.damaged, found.cuts, found.faults) == (False, [], [])
    facts = ("size", "next_offset", "first_timestamp", "max_timestamp", "max_timestamp_offset")
    for name in facts:
        assert getattr(found.segment, name) == getattr(segment, name), name


def test_after_a_clean_stop_no_log_is_read(segment: Segment, tmp_path: Path) -> None:
    files = CountedReads()
    found = loaded(tmp_path, files=files)
    assert_whole(found, segment)
    assert (found.scan, files.log_bytes_read) == (None, 0)


def test_after_a_crash_what_lies_behind_the_recovery_point_is_read(
    segment: Segment, tmp_path: Path
) -> None:
    before = content(tmp_path)
    for point in range(BASE, FOLLOWING):
        found = loaded(tmp_path, clean=False, recovery_point=point)
        assert_whole(found, segment)
        assert found.scan is not None
        assert found.scan.offset <= max(point, BASE)
        assert content(tmp_path) == before
    assert found.scan is not None
    assert found.scan.position > 0, "an index entry vouches for the rest"


def test_a_cut_time_index_that_is_only_read_hides_no_timestamp(
    segment: Segment, tmp_path: Path
) -> None:
    path = tmp_path / f"{BASE:020}{paths.TIMEINDEX}"
    good = path.read_bytes()
    files = CountedReads()
    assert_whole(loaded(tmp_path, writable=False, files=files), segment)
    assert files.log_bytes_read < segment.size // 2, "the end says that the index is whole"
    for size in range(0, len(good), 12):
        path.write_bytes(good[:size])
        assert_whole(loaded(tmp_path, writable=False), segment)
        assert path.read_bytes() == good[:size]


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("index", [paths.INDEX, paths.TIMEINDEX])
def test_timestamps_after_damage_count(
    segment: Segment, tmp_path: Path, index: str, *, writable: bool
) -> None:
    """Otherwise retention deletes the segment early, and searches by time leave it out."""
    at = starts(segment)[3]
    path = Path(segment.log_path)
    data = bytearray(path.read_bytes())
    data[at + 70] ^= 1
    path.write_bytes(data)
    (tmp_path / f"{BASE:020}{index}").unlink()
    found = loaded(tmp_path, recovery_point=FOLLOWING, writable=writable)
    (fault,) = found.faults
    assert "CRC" in fault
    assert (found.segment.size, found.segment.next_offset) == (segment.size, FOLLOWING)
    assert found.segment.max_timestamp == segment.max_timestamp
    assert found.segment.max_timestamp_offset == segment.max_timestamp_offset


# -- what nobody has looked into -------------------------------------------------------------------


def unread(path: Path) -> Segment:
    return Segment(Files(), str(path), BASE, LogConfig(preallocate=True), writable=False)


def test_up_to_where_a_segment_reaches(segment: Segment, tmp_path: Path) -> None:
    assert not is_empty(unread(tmp_path))
    for index in ("as it is", "gone"):
        for offset in (BASE, BASE + 5, FOLLOWING - 1):
            assert reaches(unread(tmp_path), offset), index
        assert not reaches(unread(tmp_path), FOLLOWING), index
        (tmp_path / f"{BASE:020}{paths.INDEX}").unlink(missing_ok=True)


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_one_that_nothing_was_written_to_is_empty(tmp_path: Path, size: int) -> None:
    (tmp_path / f"{BASE:020}{paths.LOG}").write_bytes(bytes(size))
    assert is_empty(unread(tmp_path))
    assert not reaches(unread(tmp_path), BASE)
