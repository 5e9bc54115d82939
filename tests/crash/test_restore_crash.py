"""A crash at every file operation while a new partition gets batches that keep their offsets.

Between them lie gaps, also such as no segment can have.  After a kill every batch is there that was
acknowledged, after a power cut every one that was flushed, and what follows are the next ones.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage import LogManager
from storage.files import Files
from storage.log.append import append_with_offsets
from tests.crash import moments
from tests.crash.disk import SimulatedDisk
from tests.crash.moments import Found, Unsynced
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened

FAR = 1 << 31
SENT = {
    "near": [
        [5, 60],
        # The second still fits into a segment that begins at the log's end, but not into the last.
        [61, FAR + 40, FAR + 90],
        [2 * FAR + 91, 2 * FAR + 93],
        [4 * FAR, 6 * FAR, 6 * FAR + 2],
    ],
    "far": [[3 * FAR, 3 * FAR + 5], [5 * FAR]],
    # One segment could have both batches of a write, but not one that begins at the log end.
    "near the first": [[5, FAR + 2], [FAR + 3]],
    "near the last": [[5, 60], [71, FAR + 65]],
}


def made(offset: int) -> bytearray:
    one = batch([b"%d" % offset * 10])
    one[:8] = offset.to_bytes(8, "big")
    return one


class Life(moments.Life):
    """Writes are restored, and one of them is flushed."""

    def __init__(self, data: Path, sent: list[list[int]]) -> None:
        super().__init__(data)
        self.sent = sent
        self.offsets = [offset for write in sent for offset in write]
        self.acknowledged = 0
        self.flushed = 0

    def build(self) -> None:
        super().build()
        with LogManager.open(str(self.data), files=Unsynced()) as manager:
            manager.create_topic("t", 1)
            manager.change_topic_settings("t", {"internal.segment.bytes": "250"})

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: NOW_MS)
        log = manager.log("t", 0)
        for number, write in enumerate(self.sent):
            append_with_offsets(log, b"".join(map(made, write)), now_ns=NOW_NS)
            self.acknowledged += len(write)
            if number == 1:
                log.flush()
                self.flushed = self.acknowledged
                manager.checkpoint()
        manager.close()
        self.flushed = self.acknowledged

    def expected(self) -> tuple[object, ...]:
        return (self.acknowledged, self.flushed)

    def check(self, data: Path, found: Found) -> None:
        acknowledged, flushed = found.expected
        at_least = flushed if found.lost else acknowledged
        with opened(data, Unsynced()) as manager:
            log = manager.log("t", 0)
            there = [record.offset for record in log.records()]
            assert there == self.offsets[: len(there)]
            assert len(there) >= at_least
            append(log, b"goes on")
        with opened(data, Unsynced()) as manager:
            after = [record.offset for record in manager.log("t", 0).records()]
            assert after[:-1] == there


@pytest.mark.parametrize("which", SENT)
def test_a_crash_at_every_operation(tmp_path: Path, which: str) -> None:
    life = Life(tmp_path / "data", SENT[which])
    life.stops((-1, 0, 2, 3, 14)).judge(life.check, tmp_path / "found")


def test_behind_a_gap_nothing_can_be_written(tmp_path: Path) -> None:
    """The append fails, but has made the segment after the gap. The next record goes there."""
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        append(log, b"before")
        disk.fail_next("pwrite", errno.ENOSPC, suffix=f"{2 * FAR:020}.log")
        with pytest.raises(OSError, match="No space"):
            append_with_offsets(log, made(2 * FAR), now_ns=NOW_NS)
        append(log, b"behind")
        append_with_offsets(log, made(4 * FAR), now_ns=NOW_NS)
    disk.kill()
    with opened(tmp_path) as manager:
        found = [record.offset for record in manager.log("t", 0).records()]
        assert found == [0, 2 * FAR, 4 * FAR]
