"""A crash at every file operation of two cleanings of a log, and of what lies between them.

What is cleaned has several groups of several segments, transactions that were committed, aborted
and are open, tombstones, a producer whose last batch is superseded, and a tail that is not flushed.
The second cleaning replaces segments that the first one has made, when tombstones are over.

Wherever it stops, the log has either every batch from before a cleaning or exactly those that the
model says are left; what is known of producers and of transactions is the same in both; the
checkpoint of the cleaner never goes beyond what is clean; no file of a cleaning is left behind.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import Log, LogManager, Record, encode
from storage.checkpoint import read_offsets
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.record.batch import TRANSACTIONAL_BIT
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.plain import recompress
from storage.task import Task
from tests.compaction_model import ModelBatch, clean, cleanable
from tests.crash.histories import check_producers, content, known
from tests.crash.moments import Found, Stops, Unsynced, during_opening
from tests.observed import batches_of, observe, rules_of
from tests.storage.logs import NOW_MS, opened, write_settings

RETENTION_MS = 1000
LATER_MS = NOW_MS + 2 * RETENTION_MS


class Stage(NamedTuple):
    """What must be found: one of ``contents``; the first is that from before a cleaning."""

    contents: tuple[tuple[ModelBatch, ...], ...]
    acknowledged: int
    flushed: int
    checkpoint: int


class Life:
    """What is run, and what was to be known at each of its stages."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.now_ms = NOW_MS
        self.history: list[ModelBatch] = []
        self.stages: list[Stage] = [Stage(((),), 0, 0, 0)]
        self.sequences = {7: 0, 8: 0, 9: 0}
        self.manager: LogManager

    @property
    def log(self) -> Log:
        return self.manager.log("t", 0)

    def expected(self) -> tuple[object, ...]:
        return (len(self.stages) - 1,)

    def enter(self, **changes: object) -> None:
        self.stages.append(self.stages[-1]._replace(**changes))  # type: ignore[arg-type]

    def open(self, files: Files) -> None:
        self.manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: self.now_ms)

    # -- appending -----------------------------------------------------------------------------

    def put(self, batch: bytes | bytearray) -> None:
        self.log.append_batches(batch, now_ns=self.now_ms * 1_000_000)
        last = batches_of(self.log.active)[-1]
        self.history.append(last)
        before = self.stages[-1].contents[0]
        self.enter(contents=((*before, last),), acknowledged=last.last_offset + 1)

    def send(
        self,
        *pairs: tuple[bytes, bytes | None],
        producer: int = -1,
        transactional: bool = False,
        codec: int = 0,
    ) -> None:
        sequence = self.sequences.get(producer, -1)
        batch = encode(
            [Record(n, self.now_ms + n, 0, k, v) for n, (k, v) in enumerate(pairs)],
            attributes=TRANSACTIONAL_BIT if transactional else 0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        if producer >= 0:
            self.sequences[producer] += len(pairs)
        self.put(recompress(batch, codec))

    def end(self, producer: int, kind: int) -> None:
        self.put(encode_marker(kind, producer, 0, 0, 0, self.now_ms, 0))

    def flush(self) -> None:
        self.log.flush()
        self.enter(flushed=self.log.log_end_offset)

    # -- cleaning ------------------------------------------------------------------------------

    def clean(self) -> None:
        facts, before = observe(self.log), self.stages[-1]
        where = cleanable(facts, before.checkpoint, rules_of(self.log.config), self.now_ms)
        outcome = clean(facts, where, rules_of(self.log.config), self.now_ms)
        assert len(outcome.segments) > 1
        assert outcome.replaced > len(outcome.segments)
        left = [batch for _, batches, _ in outcome.segments for batch in batches]
        left += [b for segment in facts.segments[outcome.replaced :] for b in segment.batches]
        after = tuple(left)
        self.enter(contents=(before.contents[0], after))
        cleaner = LogCleaner(self.manager)
        assert cleaner.clean(self.log, Task()) is not None
        assert content(self.log) == after
        self.enter(contents=(after,), checkpoint=outcome.first_dirty)

    def sweep(self) -> None:
        remove = self.manager.sweep(self.now_ms)
        assert remove is not None
        remove()

    def build(self) -> None:
        """What is there when the run begins."""
        self.data.mkdir()
        write_settings(self.data, log_index_size_max_bytes=240)
        self.open(Unsynced())
        self.manager.create_topic("t", 1)
        for name, value in (
            ("cleanup.policy", "compact"),
            ("internal.segment.bytes", "330"),
            ("index.interval.bytes", "150"),
            ("file.delete.delay.ms", "500"),
            ("delete.retention.ms", str(RETENTION_MS)),
        ):
            self.manager.set_topic_setting("t", name, value)
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
        self.enter(flushed=self.stages[-1].acknowledged)
        self.open(files)
        self.send((b"d", b"d2"), (b"h", b"h2"), producer=7, transactional=True)
        self.send((b"b", b"b3"), (b"i", b"i1"), codec=1)
        self.send((b"g", b"g2"), producer=8)
        self.flush()
        self.log.roll(self.now_ms)
        # What has come so far is superseded or decided by what is not flushed.
        self.end(7, COMMIT)
        self.send((b"a", b"a9"), producer=8, transactional=True)
        self.manager.set_topic_setting("t", "internal.segment.bytes", "800")
        self.clean()
        self.send((b"f", b"f2"), (b"i", None))
        self.now_ms += 600
        self.sweep()
        self.end(8, ABORT)
        self.send((b"c", b"c3"), (b"j", b"j1"))
        self.flush()
        self.log.roll(self.now_ms)
        self.send((b"j", b"j2"))
        self.now_ms = LATER_MS
        self.clean()
        self.send((b"k", b"k1"))
        self.now_ms += 600
        self.sweep()
        self.manager.close()
        self.enter(flushed=self.stages[-1].acknowledged)
        self.enter()


# -- what must be found --------------------------------------------------------------------------


def holds(content: Sequence[ModelBatch], got: Sequence[ModelBatch], end: int) -> bool:
    """Whether a log that ends at ``end`` has got this content, as far as it goes."""
    return list(got) == [batch for batch in content if batch.base_offset < end]


def check(life: Life, path: Path, found: Found) -> None:
    (number,) = found.expected
    assert isinstance(number, int)
    stage = life.stages[number]
    checkpoint = read_offsets(Files(), str(path / "cleaner-offset-checkpoint")).get(("t", 0), 0)
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        log = manager.log("t", 0)
        end = log.log_end_offset
        assert end >= (stage.flushed if found.lost else stage.acknowledged)
        got = content(log)
        before, *after = (holds(each, got, end) for each in stage.contents)
        following = life.stages[number + 1]
        if following.acknowledged > stage.acknowledged:
            # Of an append that was under way all may be there.
            before = before or holds(following.contents[0], got, end)
        assert before or any(after), (got, stage.contents)
        assert log.log_start_offset == 0
        if not before:
            # What is left may be so only because of what came later.
            assert end >= stage.acknowledged
        assert checkpoint <= stage.checkpoint or any(after)
        check_readers(life, log)
        remove = manager.sweep(life.now_ms)
        if remove is not None:
            remove()
        names = [each.name for each in (path / "t-0").iterdir()]
        assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))]


def check_readers(life: Life, log: Log) -> None:
    facts = known(life.history, log.log_end_offset)
    check_producers(facts, log)
    records = [r for batch in content(log) if not batch.control for r in batch.records]
    assert [(r.offset, r.value) for r in log.records(isolation="read_uncommitted")] == [
        (record.offset, record.value) for record in records
    ]
    assert [(r.offset, r.key, r.value) for r in log.records()] == [
        (r.offset, r.key, r.value)
        for r in records
        if r.offset < facts.stable and r.offset not in facts.aborted
    ]


def check_that_it_goes_on(life: Life, path: Path, found: Found) -> None:
    """What was found is cleaned once more, appended to, and opened again."""
    check(life, path, found)
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        log = manager.log("t", 0)
        facts = observe(log)
        cleaner = LogCleaner(manager)
        where = cleanable(facts, cleaner.first_dirty(log), rules_of(log.config), life.now_ms)
        outcome = clean(facts, where, rules_of(log.config), life.now_ms)
        done = cleaner.clean(log, Task())
        if done is not None:
            left = [batch for _, batches, _ in outcome.segments for batch in batches]
            left += [b for segment in facts.segments[outcome.replaced :] for b in segment.batches]
            assert content(log) == tuple(left)
            assert cleaner.first_dirty(log) == outcome.first_dirty == done.end_offset
        check_readers(life, log)


def stops_of(tmp_path: Path, seeds: Iterable[int]) -> tuple[Life, Stops]:
    life = Life(tmp_path / "data")
    life.build()
    stops = Stops(life.data, seeds=seeds, expected=life.expected)
    life.run(stops.disk)
    stops.end()
    for kind in (".cleaned", ".swap", ".deleted"):
        assert any(kind in moment for moment in stops.moments)
    return life, stops


def test_a_kill_at_every_operation(tmp_path: Path) -> None:
    life, stops = stops_of(tmp_path, seeds=())
    stops.judge(functools.partial(check, life), tmp_path / "found")


def test_a_power_cut_at_every_operation(tmp_path: Path) -> None:
    life, stops = stops_of(tmp_path, seeds=(0, 2))
    stops.found = [found for found in stops.found if found.lost]
    stops.judge(functools.partial(check, life), tmp_path / "found")


def test_cleaning_once_more_after_a_kill(tmp_path: Path) -> None:
    life, stops = stops_of(tmp_path, seeds=())
    stops.found = stops.found[::8]
    stops.judge(functools.partial(check_that_it_goes_on, life), tmp_path / "found")


def swapping(found: Found) -> bool:
    """Whether the names of files are being changed."""
    return "rename" in found.where


def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path) -> None:
    life, stops = stops_of(tmp_path, seeds=())
    stops.found = list(filter(swapping, stops.found))[::10]
    again = during_opening(functools.partial(check, life), seeds=(0,), clock_ms=lambda: life.now_ms)
    stops.judge(again, tmp_path / "found")


@pytest.mark.soak
def test_many_power_cuts_and_openings_stopped_too(tmp_path: Path) -> None:
    life, stops = stops_of(tmp_path, seeds=range(30))
    stops.judge(functools.partial(check_that_it_goes_on, life), tmp_path / "found")
    again = during_opening(
        functools.partial(check, life), seeds=(0, 2), clock_ms=lambda: life.now_ms
    )
    stops.judge(again, tmp_path / "found")
