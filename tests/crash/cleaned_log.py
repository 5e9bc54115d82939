"""A log that is cleaned twice, for tests of everything that may come in between.

It has several groups of several segments, transactions that were committed, aborted and are open,
tombstones, a producer whose last batch is superseded, and a tail that is not flushed.  The second
cleaning replaces segments that the first one has made, when tombstones are over.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from storage import Record
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.record.control import ABORT, COMMIT
from storage.task import Task
from tests.compaction_model import ModelBatch, clean, cleanable
from tests.crash.histories import LogLife, content
from tests.crash.moments import Unsynced
from tests.observed import observe, rules_of
from tests.storage.logs import NOW_MS

RETENTION_MS = 1000
LATER_MS = NOW_MS + 2 * RETENTION_MS


class Stage(NamedTuple):
    """The state that a start must find: one of `contents`, the first is that before a cleaning."""

    contents: tuple[tuple[ModelBatch, ...], ...]
    acknowledged: int
    flushed: int
    checkpoint: int


class Life(LogLife[Stage]):
    """The run, and the facts that must hold at each of its stages."""

    kinds: tuple[str, ...] = (".cleaned", ".swap", ".deleted")

    def __init__(self, data: Path) -> None:
        super().__init__(data, Stage(((),), 0, 0, 0))

    # -- appending -----------------------------------------------------------------------------

    def put(self, batch: bytes | bytearray) -> None:
        if self.log.active.size + len(batch) > self.log.config.segment_bytes:
            # If a power cut removes the end of a sealed segment, this looks like a cleaner's gap.
            self.flush()
        super().put(batch)

    def enter_appended(self) -> None:
        before, last = self.stages[-1].contents[0], self.history[-1]
        self.enter(contents=((*before, last),), acknowledged=last.last_offset + 1)

    def send(
        self,
        *pairs: tuple[bytes, bytes | None],
        producer: int = -1,
        transactional: bool = False,
        codec: int = 0,
    ) -> None:
        records = [Record(n, self.now_ms + n, 0, k, v) for n, (k, v) in enumerate(pairs)]
        self.put_records(records, producer, transactional=transactional, codec=codec)

    # -- cleaning ------------------------------------------------------------------------------

    def clean(self) -> None:
        facts, before = observe(self.log), self.stages[-1]
        where = cleanable(facts, before.checkpoint, rules_of(self.log.config), self.now_ms)
        outcome = clean(facts, where, rules_of(self.log.config), self.now_ms)
        assert len(outcome.segments) > 1
        assert outcome.replaced > len(outcome.segments)
        after = outcome.content(facts)
        self.enter(contents=(before.contents[0], after))
        cleaner = LogCleaner(self.manager)
        assert cleaner.clean(self.log, Task()) is not None
        assert content(self.log) == after
        self.enter(contents=(after,), checkpoint=outcome.first_dirty)

    def build(self) -> None:
        """Write the log with which the run begins."""
        super().build()
        self.open(Unsynced())
        self.manager.create_topic("t", 1)
        for name, value in (
            ("cleanup.policy", "compact"),
            ("internal.segment.bytes", "330"),
            ("index.interval.bytes", "150"),
            ("file.delete.delay.ms", "500"),
            ("delete.retention.ms", str(RETENTION_MS)),
        ):
            self.manager.change_topic_settings("t", {name: value})
        self.send((b"a", b"1" * 30), (b"b", b"1" * 30), producer=9)
        self.send((b"c", b"c1"), (b"a", b"a1"), codec=4)
        self.send((b"a", b"a2"), (b"x", b"aborted"), producer=7, transactional=True)
        self.send((b"d", b"d1"), (b"b", None))
        self.end(7, ABORT)
        self.send((b"c", b"c2"), (b"e", b"e1"), producer=8, transactional=True)
        self.send((b"e", b"e2"), (b"f", None))
        self.end(8, COMMIT)
        self.send((b"g", b"g1"), (b"h", b"h1" * 20))
        self.manager.close()

    def run(self, files: Files) -> None:
        """All of it."""
        self.begin(files)
        self.clean()
        self.go_on()
        self.clean()
        self.send((b"k", b"k1"))
        self.now_ms += 600
        self.sweep()
        self.close()

    def begin(self, files: Files) -> None:
        """Do the steps before the first cleaning."""
        self.enter(flushed=self.stages[-1].acknowledged)
        self.open(files)
        self.send((b"d", b"d2"), (b"h", b"h2"), producer=7, transactional=True)
        self.send((b"b", b"b3"), (b"i", b"i1"), codec=1)
        self.send((b"g", b"g2"), producer=8)
        self.flush()
        self.log.roll(self.now_ms)
        # The next batches are not flushed. They end a transaction and supersede earlier records.
        self.end(7, COMMIT)
        self.send((b"a", b"a9"), producer=8, transactional=True)
        self.manager.change_topic_settings("t", {"internal.segment.bytes": "800"})

    def go_on(self) -> None:
        """Do the steps between the two cleanings."""
        self.send((b"f", b"f2"), (b"i", None))
        self.now_ms += 600
        self.sweep()
        self.end(8, ABORT)
        self.send((b"c", b"c3"), (b"j", b"j1"))
        self.flush()
        self.log.roll(self.now_ms)
        self.send((b"j", b"j2"))
        self.now_ms = LATER_MS
