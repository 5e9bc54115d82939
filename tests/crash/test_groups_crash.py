"""A crash at every file operation of commits, of the topic's making, and of flushes between them.

After a kill every acknowledged commit is there, or a later one; after a power cut at least the last
one that was flushed.  No position is one that nobody has asked for, and none lies beyond what is
left of its log.
"""

from __future__ import annotations

from pathlib import Path

from storage import LogManager
from storage.files import Files
from storage.groups.offset_records import Committed
from tests.crash import moments
from tests.crash.moments import Found, Unsynced, during_opening
from tests.storage.groups.records import positions
from tests.storage.logs import append, clock_ms, opened, write_settings

OFFSETS = "__consumer_offsets"
COMMITS = 4


class Life(moments.Life):
    """The run, and the last position that was requested, acknowledged and flushed."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.asked = self.acknowledged = self.flushed = -1

    def expected(self) -> tuple[object, ...]:
        return self.asked, self.acknowledged, self.flushed

    def build(self) -> None:
        self.data.mkdir()
        write_settings(self.data, offsets_topic_num_partitions=2, log_index_size_max_bytes=240)
        with LogManager.open(str(self.data), clock_ms=clock_ms) as manager:
            manager.create_topic("orders")

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, clock_ms=clock_ms)
        log = manager.log("orders", 0)
        for number in range(COMMITS):
            append(log, b"%d" % number * 50)
            self.asked = number + 1
            manager.groups.commit("g", "orders", {0: Committed(number + 1)})
            self.acknowledged = number + 1
            if number % 2:
                for offsets in manager.groups.logs:
                    offsets.flush()
                self.flushed = number + 1
        manager.close()
        self.flushed = self.acknowledged


def check(path: Path, stopped: Found) -> None:
    asked, acknowledged, flushed = stopped.expected
    with opened(path, Unsynced()) as manager:
        end = manager.log("orders", 0).log_end_offset
        found = positions(manager, "g").get(("orders", 0), -1)
        assert found <= end
        assert found <= asked
        assert found >= (flushed if stopped.lost else acknowledged)
        append(manager.log("orders", 0), b"more")
        manager.groups.commit("g", "orders", {0: Committed(end + 1)})
        assert positions(manager, "g") == {("orders", 0): end + 1}
    with opened(path, Unsynced()) as manager:
        assert positions(manager, "g") == {("orders", 0): end + 1}


def test_a_stop_at_every_operation(tmp_path: Path) -> None:
    Life(tmp_path / "data").stops((0, 2, 3)).judge(check, tmp_path / "found")


def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path) -> None:
    again = during_opening(check, seeds=(0, 2), clock_ms=clock_ms)
    Life(tmp_path / "data").stops((2, 3)).judge(again, tmp_path / "found", one_of=40)
