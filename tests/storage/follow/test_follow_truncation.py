"""A reader follows a log that its writer truncates, or lets begin elsewhere, at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage import LogManager
from storage.follow.follow_directory import DirectoryFollower
from storage.log.append import append_as_follower
from storage.log.truncate import start_at
from tests.crash.moments import Moments
from tests.crash.test_truncate_crash import OLD, put, sent
from tests.storage.follow.test_follow import NEVER_FRESH, Told
from tests.storage.log.test_follower import at, facts, stored
from tests.storage.logs import NOW_MS, NOW_NS, batch, opened, values
from tests.storage.transactions import new_log


class Watched(Moments):
    """A disk whose changes a reader watches."""

    def __init__(self, data: Path) -> None:
        self.look: Callable[[], object] = tuple
        super().__init__(str(data), self.visit)

    def visit(self, operation: str) -> None:
        self.look()


class Reader:
    """A read-only opening of the directory. `always`: it looks before each change of a file."""

    def __init__(self, data: Path, always: bool, disk: Watched) -> None:
        self.manager = LogManager.open(str(data), read_only=True)
        self.told = Told()
        self.manager.log_group.listeners.append(self.told)
        self.log = self.manager.log("t", 0)
        self.told.segments = list(self.log.segments)
        self.follower = DirectoryFollower(self.manager, clock_ns=lambda: NEVER_FRESH)
        if always:
            disk.look = self.look

    def look(self) -> None:
        self.follower.look(self.log)
        self.follower.look_at_log_starts()


@pytest.mark.parametrize("count", [5, 20])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(
    ("offset", "log_start"), [(26, 0), (13, 0), (0, 0), (26, 9), (11, 9), (9, 9), (6, 9), (0, 9)]
)
def test_the_writer_truncates(
    tmp_path: Path, offset: int, log_start: int, always: bool, count: int
) -> None:
    """`count`: the new batches. With 20, the log has more segments than before."""
    disk = Watched(tmp_path)
    with opened(tmp_path, disk) as manager:
        log = new_log(manager, internal_segment_bytes=400, index_interval_bytes=100)
        put(log, OLD)
        if log_start:
            log.raise_log_start(log_start)
            manager.checkpoint()
        log.flush()
        reader = Reader(tmp_path, always, disk)
        manager.truncate(log, offset)
        put(log, sent(log.log_end_offset, 20, count))
        disk.look = tuple
        reader.look()
        assert stored(reader.log) == stored(log)
        assert facts(reader.log)[:2] == facts(log)[:2]
        assert values(reader.log) == values(log)
        assert reader.log.log_start_offset == log.log_start_offset == min(offset, log_start)
        assert reader.log.losses == []
        reader.manager.close()


@pytest.mark.parametrize("always", [False, True])
def test_the_first_batch_begins_below_the_log_start(tmp_path: Path, always: bool) -> None:
    disk = Watched(tmp_path)
    with opened(tmp_path, disk) as manager:
        log = new_log(manager)
        reader = Reader(tmp_path, always, disk)
        manager.start_at(log, 7)
        reader.look()
        assert (reader.log.log_start_offset, reader.log.log_end_offset) == (7, 7)
        append_as_follower(log, at(batch([b"a", b"b", b"c"]), 5), NOW_NS)
        disk.look = tuple
        reader.look()
        assert (reader.log.log_start_offset, reader.log.log_end_offset) == (7, 8)
        assert (values(reader.log), reader.log.losses) == ([b"c"], [])
        assert stored(reader.log) == stored(log)
        reader.manager.close()


@pytest.mark.parametrize("always", [False, True])
def test_batches_jump_and_segments_roll(tmp_path: Path, always: bool) -> None:
    """As in the mirror of a compacted topic. One jump is too far for a segment."""
    disk, offsets = Watched(tmp_path), [5, 9, 30, 31, 200, 2**31 + 300, 2**31 + 301, 2**31 + 900]
    with opened(tmp_path, disk) as manager:
        log = new_log(manager, internal_segment_bytes=150)
        reader = Reader(tmp_path, always, disk)
        for number, offset in enumerate(offsets):
            append_as_follower(log, at(batch([b"%d" % offset * 9]), offset), NOW_NS)
            if number == 4:
                log.roll(NOW_MS)
        disk.look = tuple
        reader.look()
        assert [record.offset for record in reader.log.records()] == offsets
        assert reader.log.losses == []
        assert facts(reader.log)[:2] == facts(log)[:2]
        reader.manager.close()


def test_a_reader_opens_the_log_before_its_first_batch(tmp_path: Path) -> None:
    """The first segment begins below the log start, and is empty."""
    disk = Watched(tmp_path)
    with opened(tmp_path, disk) as manager:
        log = new_log(manager)
        manager.start_at(log, 7)
        start_at(log, 5, NOW_MS)
        reader = Reader(tmp_path, False, disk)
        assert (reader.log.log_start_offset, reader.log.log_end_offset) == (7, 7)
        reader.follower.look(reader.log)
        assert values(reader.log) == []
        append_as_follower(log, at(batch([b"a", b"b", b"c"]), 5), NOW_NS)
        reader.follower.look(reader.log)
        assert (reader.log.log_start_offset, reader.log.log_end_offset) == (7, 8)
        assert (values(reader.log), reader.log.losses) == ([b"c"], [])
        reader.manager.close()
