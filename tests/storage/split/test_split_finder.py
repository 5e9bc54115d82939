"""split_finder: segments are found, whatever their owner does to the files meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from storage import Log
from storage.errors import OffsetOutOfRange, SegmentGone, UnknownTopicOrPartition
from storage.files import Files, Kind
from storage.segment.reader import SegmentReader
from storage.split.split_reader import read_split
from tests.storage.logs import NOW_MS, remove_head
from tests.storage.splitting import (
    a_log,
    lines,
    plan,
    read,
    read_all,
    records,
    segmented_log,
)


def rewritten(log: Log) -> list[tuple[str, str]]:
    """The renamings by which a cleaner replaces the sealed segments of a log with equal ones."""
    directory = Path(log.directory)
    old = sorted(str(path) for path in directory.iterdir() if path.suffix in (".log", ".index"))
    old = [path for path in old if f"{log.segments[-1].base_offset:020}" not in path]
    for path in old:
        shutil.copy(path, path + ".cleaned")
    return (
        [(path + ".cleaned", path + ".swap") for path in reversed(old)]
        + [(path, path + ".deleted") for path in old]
        + [(path + ".swap", path) for path in old]
    )


class ChangingFiles(Files):
    """A change to the directory comes before each look at it, each opening, each read."""

    def __init__(self, changes: list[tuple[str, str]], skip: int) -> None:
        self.changes = changes
        self.skip = skip

    def _change(self) -> None:
        self.skip -= 1
        if self.skip < 0 and self.changes:
            os.rename(*self.changes.pop(0))

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        self._change()
        return super().listing(path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._change()
        return super().open(path, flags, mode)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._change()
        return super().preadv(fd, buffer, position)


@pytest.mark.parametrize("skip", range(0, 24, 2))
def test_read_while_a_cleaner_swaps(tmp_path: Path, skip: int) -> None:
    with a_log(tmp_path) as log:
        segmented_log(log)
        expected = records(log, 0, 120)
        (split,) = plan(log, 35)
        changes = rewritten(log)
    assert read(split, ChangingFiles(changes, skip), 1000) == expected[35:]


class ReplacingFiles(Files):
    """Segments are replaced between being listed and being opened; None: one is removed.

    `late`: only once the first one is read.
    """

    def __init__(self, path: Path, made: dict[Path, bytes | None], *, late: bool = False) -> None:
        self.path = path
        self.made = made
        self.late = late
        self.reads = 0

    def _replace(self) -> None:
        for name, data in self.made.items():
            name.unlink(missing_ok=True)
            if data is not None:
                name.write_bytes(data)
        self.made = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if path == str(self.path) and not self.late:
            self._replace()
        return super().open(path, flags, mode)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.reads += 1
        self._replace()
        return super().preadv(fd, buffer, position)


def test_a_segment_that_becomes_two_before_it_is_opened(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        segmented_log(log)
        expected = records(log, 0, 120)
        (split,) = plan(log)
        (_, _), (second, _), (third, _) = SegmentReader(log.segments[1]).batches()
    path = Path(split.directory) / f"{30:020}.log"
    stored = path.read_bytes()
    path.with_suffix(".index").unlink()
    for cut, base in ((second, 40), (third, 50)):
        extra = path.with_name(f"{base:020}.log")
        files = ReplacingFiles(path, {path: stored[:cut], extra: stored[cut:]})
        assert read(split, files) == expected
        assert files.made == {}
        extra.unlink()
        path.write_bytes(stored)


def test_segments_that_become_one_before_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The list has the next segment, whose records are in the file now: they are no damage."""
    with a_log(tmp_path) as log:
        lines(log, 3)
        log.roll(NOW_MS)
        lines(log, 1000)
        log.roll(NOW_MS)
        lines(log, 1)
        (split,) = plan(log)
    first, second = (Path(split.directory) / f"{base:020}.log" for base in (0, 30))
    merged = first.read_bytes() + second.read_bytes()
    files = ReplacingFiles(first, {second: None, first: merged})
    found = read(split._replace(segments=()), files)
    assert [row.offset for row in found] == list(range(10040))
    assert files.made == {}
    assert not caplog.records
    # One for each file.
    assert files.reads == 2


def test_segments_that_become_one_while_the_first_is_read(tmp_path: Path) -> None:
    """The new file has the records of the next segment."""
    with a_log(tmp_path) as log:
        segmented_log(log)
        (split,) = plan(log)
        (*_, (last, _)) = SegmentReader(log.segments[0]).batches()
    first, second = (Path(split.directory) / f"{base:020}.log" for base in (0, 30))
    # A cleaner has removed the last records.
    first.write_bytes(first.read_bytes()[:last])
    merged = first.read_bytes() + second.read_bytes()
    files = ReplacingFiles(first, {second: None, first: merged}, late=True)
    found = read(split._replace(segments=()), files)
    assert [row.offset for row in found] == [*range(20), *range(30, 120)]
    assert files.made == {}


def test_a_next_segment_that_is_missing_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.split.split_finder.PATIENCE_S", 0.02)

    class Missing(Files):
        def exists(self, path: str) -> bool:
            return not path.endswith(f"{30:020}.log") and super().exists(path)

    with a_log(tmp_path) as log:
        segmented_log(log)
        (split,) = plan(log)
    with pytest.raises(SegmentGone, match="next segment"):
        read(split, Missing())


def test_a_cleaner_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.split.split_finder.PATIENCE_S", 0.02)
    with a_log(tmp_path) as log:
        segmented_log(log)
        (split,) = plan(log)
        (behind,) = plan(log, 90)
        changes = rewritten(log)
    for old, new in changes[:14]:
        os.rename(old, new)
    with pytest.raises(SegmentGone, match="for writing"):
        read(split)
    # The cleaning does not include the last segment.
    assert [row.offset for row in read(behind)] == list(range(90, 120))


def test_a_log_that_has_gone(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 1)
        (split,) = plan(log)
    (Path(split.directory) / f"{0:020}.log").unlink()
    with pytest.raises(UnknownTopicOrPartition):
        read(split)
    shutil.rmtree(split.directory)
    with pytest.raises(UnknownTopicOrPartition):
        read(split)


def test_another_topic_of_the_same_name(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 1)
        (split,) = plan(log)
        assert len(read(split)) == 10
    metadata = Path(split.directory) / "partition.metadata"
    text = metadata.read_text()
    assert split.topic_id in text
    metadata.write_text(text.replace(split.topic_id, "AAAAAAAAAAAAAAAAAAAAAQ"))
    with pytest.raises(UnknownTopicOrPartition, match="another topic"):
        read(split)
    metadata.unlink()
    assert len(read(split)) == 10


def test_a_segment_that_somebody_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.split.split_finder.PATIENCE_S", 0.02)
    with a_log(tmp_path) as log:
        segmented_log(log)
        (split,) = plan(log)
        (behind,) = plan(log, 65)
    (Path(split.directory) / f"{30:020}.log").unlink()
    with pytest.raises(SegmentGone, match="missing"):
        read(split)
    assert len(read(behind)) == 55
    # A cleaner may have put it together with others.
    assert len(read(split._replace(segments=()))) == 90


def test_retention_takes_what_was_planned(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        segmented_log(log)
        splits = plan(log, target=1)
        (whole,) = plan(log)
        reading = read_split(Files(), whole, chunk_bytes=1)
        next(reading)
        remove_head(log, 2, NOW_MS)
        for path in log.release_retired(NOW_MS * 2):
            os.unlink(path)
        with pytest.raises(OffsetOutOfRange) as caught:
            read(splits[0])
        assert (caught.value.offset, caught.value.log_start) == (0, 60)
        with pytest.raises(OffsetOutOfRange, match="60"):
            read(whole)
        # The file that is open goes on to its end.
        with pytest.raises(OffsetOutOfRange) as caught:
            list(reading)
        assert (caught.value.offset, caught.value.log_start) == (30, 60)
        left = [split for split in splits if split.from_offset >= 60]
        assert [row.offset for row in read_all(left)] == list(range(60, 120))


def test_a_log_that_was_cut(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 3)
        (split,) = plan(log)
        path = Path(log.directory) / f"{0:020}.log"
    for size, end in ((0, 0), (path.stat().st_size * 2 // 3, 20)):
        stored = path.read_bytes()
        path.write_bytes(stored[:size])
        with pytest.raises(OffsetOutOfRange, match=f"runs from 0 to {end}"):
            read(split)
        path.write_bytes(stored)
