"""New segments: where one ends and another begins, at which pace they are written."""

from __future__ import annotations

from pathlib import Path

from storage.task import Task
from tests.storage.compaction.cleaned import clean, compacted, contents, put, roll


def test_indexes_that_have_room_for_one_entry_only(tmp_path: Path) -> None:
    with compacted(tmp_path, log_index_size_max_bytes=12) as (manager, log):
        for n in range(5):
            put(log, (b"%d" % (n % 3), b"%d" % n))
        roll(log)
        clean(manager, log)
        assert [record[0] for record in contents(log)] == [2, 3, 4]
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2, 3, 4, 5]


class PacedTask(Task):
    """Adds up the sizes passed to `pace`."""

    def __init__(self) -> None:
        super().__init__()
        self.paced = 0

    def pace(self, size: int) -> None:
        super().pace(size)
        self.paced += size


def test_what_is_written_is_throttled_too(tmp_path: Path) -> None:
    with compacted(tmp_path) as (manager, log):
        for n in range(30):
            put(log, (b"%d" % (n % 20), b"v" * 100))
        roll(log)
        task = PacedTask()
        cleaned = clean(manager, log, task)
        # All bytes are read for the map and read again; the result is written.
        assert task.paced == 2 * cleaned.bytes_before + cleaned.bytes_after
