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
from tests.storage.logs import NOW_MS, NOW_NS

BASE = 100
COUNT = 12
FOLLOWING = BASE + COUNT
CONFIG = LogConfig(index_interval_bytes=200, segment_index_bytes=4096)


class Counted(Files):
    """How many bytes of logs are read."""

    def __init__(self) -> None:
        self.read = 0

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        count = super().preadv(fd, buffer, position)
        self.read += count
        return count


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """A sealed one of so many batches of a record each, closed."""
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
    files = Counted()
    found = loaded(tmp_path, files=files)
    assert_whole(found, segment)
    assert (found.scan, files.read) == (None, 0)


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


@pytest.mark.parametrize("suffix", [paths.INDEX, paths.TIMEINDEX])
@pytest.mark.parametrize("new", [None, b"", b"\xff" * 24, b"\0" * 24, b"odd"])
def test_an_index_that_cannot_be_is_made_anew(
    segment: Segment, tmp_path: Path, suffix: str, new: bytes | None
) -> None:
    before = content(tmp_path)
    path = tmp_path / f"{BASE:020}{suffix}"
    path.unlink()
    if new is not None:
        path.write_bytes(new)
    found = loaded(tmp_path)
    assert_whole(found, segment)
    if (suffix, new) != (paths.INDEX, b""):  # which may have no entry
        assert content(tmp_path) == before


def test_a_cut_time_index_that_is_only_read_hides_no_timestamp(
    segment: Segment, tmp_path: Path
) -> None:
    path = tmp_path / f"{BASE:020}{paths.TIMEINDEX}"
    good = path.read_bytes()
    files = Counted()
    assert_whole(loaded(tmp_path, writable=False, files=files), segment)
    assert files.read < segment.size // 2, "the end says that the index is whole"
    for size in range(0, len(good), 12):
        path.write_bytes(good[:size])
        assert_whole(loaded(tmp_path, writable=False), segment)
        assert path.read_bytes() == good[:size]


def test_what_is_not_ours_to_change_stays(segment: Segment, tmp_path: Path) -> None:
    (tmp_path / f"{BASE:020}{paths.INDEX}").unlink()
    os.truncate(segment.log_path, segment.size - 1)
    before = content(tmp_path)
    found = loaded(tmp_path, following=None, clean=False, writable=False)
    assert found.damaged
    assert found.segment.next_offset == FOLLOWING - 1
    assert content(tmp_path) == before


def test_an_unflushed_one_ends_at_its_first_damaged_batch(segment: Segment, tmp_path: Path) -> None:
    at = starts(segment)[5]
    log = Path(segment.log_path)
    data = bytearray(log.read_bytes())
    data[at + 70] ^= 1
    log.write_bytes(data)
    found = loaded(tmp_path, following=None, clean=False)
    assert (found.damaged, found.torn) == (True, False)
    assert (found.segment.size, found.segment.next_offset) == (at, BASE + 5)
    (cut,) = found.cuts
    assert cut.kept_as is not None
    assert log.read_bytes() + Path(cut.kept_as).read_bytes() == data


def test_a_torn_last_batch_is_told_from_damage(segment: Segment, tmp_path: Path) -> None:
    last = starts(segment)[-1]
    os.truncate(segment.log_path, last + 70)
    found = loaded(tmp_path, following=None, clean=False)
    assert (found.damaged, found.torn) == (True, True)
    assert (found.segment.size, found.segment.next_offset) == (last, FOLLOWING - 1)


def test_zeros_at_the_end_are_no_damage(segment: Segment, tmp_path: Path) -> None:
    os.truncate(segment.log_path, segment.size + 10_000)
    found = loaded(tmp_path, following=None, clean=False)
    assert_whole(found, segment)
    assert os.path.getsize(segment.log_path) == segment.size


def test_a_flushed_one_is_never_cut(segment: Segment, tmp_path: Path) -> None:
    log = Path(segment.log_path)
    data = bytearray(log.read_bytes())
    data[starts(segment)[5] + 70] ^= 1
    log.write_bytes(data)
    (tmp_path / f"{BASE:020}{paths.INDEX}").unlink()
    found = loaded(tmp_path)
    assert not found.damaged
    assert len(found.faults) == 1
    assert found.segment.next_offset == FOLLOWING
    assert log.read_bytes() == data


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
