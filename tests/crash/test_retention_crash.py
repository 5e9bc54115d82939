"""A crash at every file operation of retention, of delete-records, and of what lies between.

Segments go by their time, by a log start that was moved into the midst of one, and all at once; the
log start is moved to the log end; all the while transactions are open, and not all is flushed.

Wherever it stops the log starts where it did or where it was about to, and from when that was
acknowledged nowhere else: what was deleted does not come back.  Behind that there is every record.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from storage import Record
from storage.directory.retain import HIGH_WATERMARK, delete_records, retain
from storage.files import Files
from storage.record.control import ABORT, COMMIT
from storage.task import Task
from tests.crash.histories import LogLife, check_producers, content, known
from tests.crash.moments import Found, Unsynced, during_opening
from tests.storage.logs import opened

RETENTION_MS = 1000


class Stage(NamedTuple):
    """Where the log may start, and what is there: acknowledged, and flushed."""

    starts: tuple[int, ...] = (0,)
    acknowledged: int = 0
    flushed: int = 0


class Life(LogLife[Stage]):
    """The run, and the facts that must hold at each of its stages."""

    kinds = (".deleted", "log-start-offset-checkpoint")

    def __init__(self, data: Path) -> None:
        super().__init__(data, Stage())

    def send(self, producer: int = -1, *, transactional: bool = False) -> None:
        self.now_ms += 10
        records = [Record(n, self.now_ms, 0, None, b"%d" % self.now_ms * 5) for n in range(3)]
        self.put_records(records, producer, transactional=transactional)

    # -- deleting ------------------------------------------------------------------------------

    def move(self, start: int) -> None:
        """The log start is about to move there."""
        self.enter(starts=(self.stages[-1].starts[0], start))

    def moved(self, start: int) -> None:
        assert self.log.log_start_offset == start
        # Deleted records were flushed before, so that no offset comes twice.
        self.enter(starts=(start,), flushed=max(start, self.stages[-1].flushed))

    def retain(self, start: int) -> None:
        self.move(start)
        outcome = retain(self.manager, [self.log], Task())
        assert outcome.notes == []
        self.moved(start)

    def delete_records(self, offset: int, start: int) -> None:
        self.move(start)
        assert delete_records(self.manager, self.log, offset, Task()) == start
        self.moved(start)

    def build(self) -> None:
        """Write the files with which the run begins."""
        super().build()
        self.open(Unsynced())
        self.manager.create_topic("t", 1)
        for name, value in (
            ("internal.segment.bytes", "600"),
            ("index.interval.bytes", "150"),
            ("file.delete.delay.ms", "50"),
            ("retention.ms", str(RETENTION_MS)),
        ):
            self.manager.change_topic_settings("t", {name: value})
        for _ in range(3):
            self.send()
            self.send(7)
            self.send(8, transactional=True)
        self.end(8, ABORT)
        self.send(8, transactional=True)
        self.manager.close()

    def run(self, files: Files) -> None:
        self.enter(flushed=self.stages[-1].acknowledged)
        self.open(files)
        self.send(7)
        bases = [segment.base_offset for segment in self.log.segments]
        assert len(bases) > 4
        # Nothing of what is deleted first was flushed in this life, or only a part of it.
        first_gone = self.log.segments[1].largest_timestamp
        self.now_ms = first_gone + RETENTION_MS + 1
        self.retain(bases[2])
        # The names of what was deleted may still come back.
        self.manager.checkpoint()
        self.send(7, transactional=True)
        self.now_ms += 60
        self.sweep()
        self.delete_records(bases[3] + 2, bases[3] + 2)
        self.manager.change_topic_settings("t", {"retention.ms": "-1"})
        self.retain(bases[3] + 2)
        self.send()
        self.end(8, COMMIT)
        self.log.roll(self.now_ms)
        self.send(8, transactional=True)
        self.manager.checkpoint()
        self.delete_records(HIGH_WATERMARK, self.log.log_end_offset)
        self.end(7, ABORT)
        self.send()
        self.retain(self.stages[-1].starts[0])
        self.manager.change_topic_settings("t", {"retention.ms": "1"})
        self.now_ms += 1000
        self.retain(self.log.log_end_offset)
        assert self.log.size == 0
        self.send(7)
        self.now_ms += 60
        self.sweep()
        self.end(8, ABORT)
        self.flush()
        self.send(8)
        self.close()


def check(life: Life, path: Path, found: Found) -> None:
    (number,) = found.expected
    stage, following = life.stages[number : number + 2]
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        log = manager.log("t", 0)
        start, end = log.log_start_offset, log.log_end_offset
        assert start in stage.starts
        assert end >= (stage.flushed if found.lost else stage.acknowledged)
        assert end <= max(stage.acknowledged, following.acknowledged)
        # All batches lie at or after the start, except for the rest of its segment.
        assert [batch for batch in content(log) if batch.last_offset >= start] == [
            batch for batch in life.history if start <= batch.last_offset < end
        ]
        facts = known(life.history, end)
        check_producers(facts, log)
        assert [(r.offset, r.value) for r in log.records()] == [
            (r.offset, r.value)
            for batch in life.history
            if not batch.control
            for r in batch.records
            if start <= r.offset < min(end, facts.stable) and r.offset not in facts.aborted
        ]
        remove = manager.sweep(life.now_ms)
        if remove is not None:
            remove()
        assert not list((path / "t-0").glob("*.deleted"))


def test_a_kill_and_a_power_cut_at_every_operation(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    life.stops((0, 2)).judge(functools.partial(check, life), tmp_path / "found")


def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    stops = life.stops((0,))
    whole = functools.partial(check, life)
    again = during_opening(whole, seeds=(0,), clock_ms=lambda: life.now_ms)
    stops.judge(again, tmp_path / "found", one_of=25)
