"""Compaction, retention, delete-records and topic deletion against plain-Python models.

All the while it is appended to, by producers, in transactions and in every codec; time goes on,
settings change, the process is killed, the power fails, or all is closed and opened again.  After
each step the whole directory is checked, and what readers get is what the models say.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from storage import Log, LogManager, Record, encode
from storage.compaction._offset_map import OffsetMap
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.staged_round import clean as clean_into_files
from storage.compaction.staged_round import plan
from storage.directory.retain import HIGH_WATERMARK, delete_records, retain
from storage.errors import InvalidRecord, OffsetOutOfRange, PolicyViolation, TaskCancelled
from storage.log.append import append_batches
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import TRANSACTIONAL_BIT
from storage.record.plain import recompress
from storage.task import Task
from tests.compaction_model import ModelBatch, ModelRecord, clean, cleanable
from tests.crash.disk import SimulatedDisk
from tests.crash.histories import check_producers, content, known
from tests.in_memory import PLACE
from tests.log_check import check
from tests.observed import batches_of, observe, rules_of
from tests.retention_model import doomed
from tests.storage.logs import NOW_MS, sweep, write_settings
from tests.storage.old_logs import write_legacy

T = TypeVar("T")
MINUTE_MS = 60_000

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"a longer key", b""])
values = st.none() | st.binary(max_size=20) | st.just(b"much the same " * 8)
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=4)
codecs = st.integers(0, 4)
producer_ids = st.integers(0, 2)
SETTINGS = (
    ("cleanup.policy", ("compact", "compact", "compact,delete", "delete")),
    ("internal.segment.bytes", ("200", "500", "1500")),
    ("min.compaction.lag.ms", ("0", "0", str(20 * MINUTE_MS))),
    ("delete.retention.ms", ("0", str(5 * MINUTE_MS), str(60 * MINUTE_MS))),
    ("retention.ms", ("-1", str(30 * MINUTE_MS))),
    ("retention.bytes", ("-1", "600", "0")),
    ("min.cleanable.dirty.ratio", ("0", "0.5", "1")),
    ("message.timestamp.type", ("CreateTime", "LogAppendTime")),
)


class Meanwhile(Task):
    """Between two turns of the owner somebody else has one, once the cleaner has its facts."""

    def __init__(self, others: Iterable[Callable[[], None]]) -> None:
        super().__init__(self.take_turns)
        self.others = iter(others)
        self.turns = 0

    def take_turns(self, function: Callable[[], T]) -> T:
        self.turns += 1
        if self.turns > 2 and (other := next(self.others, None)) is not None:
            other()
        return function()


class CleaningMachine(RuleBasedStateMachine):
    """``content``: every batch in the log, ``history``: every one that ever was, of this topic.

    What lies below ``legacy_end`` was there in an older format: cleaning it may put several
    messages into one batch, so that its records count and not its batches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.data = Path(tempfile.mkdtemp(dir=PLACE))
        write_settings(self.data, log_index_size_max_bytes=360, log_index_interval_bytes=120)
        self.now_ms = NOW_MS
        self.content: list[ModelBatch] = []
        self.history: list[ModelBatch] = []
        self.legacy_end = 0
        self.start = 0
        self.flushed = 0
        self.checkpoint: int | None = None
        self.map_bytes = 1 << 20

    @initialize(magic=st.sampled_from([None, None, None, 0, 1]))
    def begin(self, magic: int | None) -> None:
        if magic is not None:
            write_legacy(self.data, "t", magic)
        self.open(SimulatedDisk(str(self.data)))
        if magic is None:
            self.manager.create_topic("t", 1)
        else:
            self.content = list(content(self.log))
            self.start = self.log.log_start_offset
            self.legacy_end = self.flushed = self.log.log_end_offset
        self.configure()

    def configure(self) -> None:
        for name, value in (
            ("file.delete.delay.ms", str(MINUTE_MS)),
            *((name, values[0]) for name, values in SETTINGS),
        ):
            self.manager.change_topic_settings("t", {name: value})

    def open(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.manager = LogManager.open(str(self.data), files=disk, clock_ms=lambda: self.now_ms)
        self.limit_map(self.map_bytes)

    def limit_map(self, size: int) -> None:
        self.map_bytes = size
        self.manager.settings.broker = dataclasses.replace(
            self.manager.settings.broker, log_cleaner_dedupe_buffer_size=size
        )

    @property
    def log(self) -> Log:
        return self.manager.log("t", 0)

    # -- appending -----------------------------------------------------------------------------

    def put(self, batch: bytes | bytearray) -> ModelBatch:
        end, segments = self.log.log_end_offset, self.log.segments
        (appended,) = append_batches(self.log, batch, now_ns=self.now_ms * 1_000_000)
        made = batches_of(self.log.active)[-1]
        assert (made.base_offset, made.last_offset) == (end, appended.last_offset)
        self.content.append(made)
        self.history.append(made)
        if self.log.segments != segments:
            # Of a log that may be cleaned a hole in what was not flushed would not be noticed.
            self.flush()
        return made

    def send_batch(
        self,
        block: list[tuple[bytes | None, bytes | None]],
        codec: int,
        producer: int = -1,
        transactional: bool = False,
    ) -> ModelBatch:
        records = [Record(n, self.now_ms + n, 0, k, v) for n, (k, v) in enumerate(block)]
        sequence = self.sequence(producer)
        made = encode(
            records,
            attributes=TRANSACTIONAL_BIT if transactional else 0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        put = self.put(recompress(made, codec))
        late = put.append_time
        assert put.records == tuple(
            ModelRecord(put.base_offset + n, self.now_ms if late else self.now_ms + n, key, value)
            for n, (key, value) in enumerate(block)
        )
        return put

    def sequence(self, producer: int) -> int:
        if producer < 0:
            return -1
        facts = known(self.history, self.log.log_end_offset).producers
        return facts.get(producer, (-1, -1, -1))[1] + 1

    def in_transaction(self, producer: int) -> bool:
        facts = known(self.history, self.log.log_end_offset).producers
        return facts.get(producer, (-1, -1, -1))[2] >= 0

    @rule(block=pairs, codec=codecs)
    def append(self, block: list[tuple[bytes | None, bytes | None]], codec: int) -> None:
        self.send_batch(block, codec)

    @rule(block=pairs, codec=codecs, producer=producer_ids, transactional=st.booleans())
    def send(
        self,
        block: list[tuple[bytes | None, bytes | None]],
        codec: int,
        producer: int,
        transactional: bool,
    ) -> None:
        transactional = transactional or self.in_transaction(producer)
        self.send_batch(block, codec, producer, transactional)

    @rule(value=values)
    def append_without_a_key(self, value: bytes | None) -> None:
        if self.log.config.is_compacted:
            with pytest.raises(InvalidRecord, match="requires a key"):
                self.send_batch([(None, value)], 0)
        else:
            self.send_batch([(b"a", b"1"), (None, value)], 0)

    @rule(producer=producer_ids, kind=st.sampled_from((ABORT, ABORT, COMMIT)))
    def end_transaction(self, producer: int, kind: int) -> None:
        self.put(encode_marker(kind, producer, 0, 0, 0, self.now_ms, 0))

    # -- what cleaners do ----------------------------------------------------------------------

    @rule()
    def clean(self) -> None:
        self.clean_by(Task())

    @rule()
    def clean_staged(self) -> None:
        """Another process than the owner does it."""
        self.clean_by(Task(), self.swap_in)

    def swap_in(self, log: Log, task: Task) -> Cleaned | None:
        cleaner = LogCleaner(self.manager)
        broker = self.manager.settings.broker
        found = plan(log, cleaner.plan(log, self.now_ms), broker, self.now_ms)
        if found is None:
            return None
        _, request = clean_into_files(found, self.disk, task, job="compact.test", attempt=0)
        return cleaner.swap_in(request, task)

    @rule(
        others=st.lists(
            st.sampled_from(
                ["append", "append", "roll", "end", "retain", "start", "sweep", "gone"]
            ),
            min_size=1,
            max_size=5,
        )
    )
    def clean_while(self, others: list[str]) -> None:
        turns = {
            "append": lambda: self.append([(b"a", b"meanwhile")], 0),
            "roll": self.roll,
            "end": lambda: self.end_transaction(0, ABORT),
            "retain": self.retain_what_is_cleaned,
            "start": self.raise_the_start,
            "sweep": self.remove_what_is_due,
            "gone": self.delete_topic,
        }
        self.clean_by(Meanwhile(turns[other] for other in others))

    def retain_what_is_cleaned(self) -> None:
        """Retention leaves a log alone that a cleaner is at."""
        if self.log.cleaning:
            outcome = retain(self.manager, [self.log], Task())
            assert (outcome.cleaning, outcome.segments) == (1, 0)

    def raise_the_start(self) -> None:
        if self.log.config.cleanup_policy != ("compact",) and self.start < self.log.log_end_offset:
            delete_records(self.manager, self.log, self.start + 1, Task())
            self.moved(self.start + 1)

    def clean_by(self, task: Task, by: Callable[[Log, Task], Cleaned | None] | None = None) -> None:
        """``by``: the cleaner of the owner, without one."""
        log = self.log
        cleaner = LogCleaner(self.manager)
        facts, rules = observe(log), rules_of(log.config)
        where = cleanable(facts, self.checkpoint, rules, self.now_ms)
        plan = cleaner.plan(log, self.now_ms)
        assert plan.first_dirty_offset == where.first_dirty
        if where.first_uncleanable >= where.first_dirty:
            assert plan.first_uncleanable_offset == where.first_uncleanable
        assert (plan.clean_bytes, plan.cleanable_bytes) == (
            where.clean_bytes,
            where.cleanable_bytes,
        )
        due = log.config.is_compacted and where.is_due(rules)
        assert cleaner.filthiest(self.now_ms) is (log if due else None)
        span = max(where.first_uncleanable - where.first_dirty, 1)
        usable = OffsetMap(self.map_bytes, 0.9, most=span).usable
        outcome = clean(facts, where, rules, self.now_ms, usable)
        before = len(self.content)
        try:
            done = (by or cleaner.clean)(log, task)
        except TaskCancelled:
            assert log.closed
            return
        finally:
            assert cleaner.uncleanable == {}
        if log.closed:
            return  # only the checkpoint was not written
        if done is None:
            nothing = where.first_uncleanable <= log.segments[0].base_offset
            assert nothing or not log.config.is_compacted
            return
        self.checkpoint = outcome.first_dirty
        assert (done.end_offset, done.map_full) == (outcome.first_dirty, outcome.keys.full)
        self.adopt([*outcome.content(facts), *self.content[before:]])
        self.flushed = max(self.flushed, log.segments[0].base_offset)
        rest = facts.segments[outcome.replaced :]
        bases = [base for base, _, _ in outcome.segments] + [each.base_offset for each in rest]
        assert [segment.base_offset for segment in log.segments[: len(bases)]] == bases
        for segment, (_, _, aborted) in zip(log.segments, outcome.segments, strict=False):
            assert [tuple(entry[:3]) for entry in segment.aborted] == list(map(tuple, aborted))

    def adopt(self, expected: list[ModelBatch]) -> None:
        """The log has this content now."""
        got = list(content(self.log))
        end = self.legacy_end
        assert [r for batch in got if batch.base_offset < end for r in batch.records] == [
            r for batch in expected if batch.base_offset < end for r in batch.records
        ]
        assert [batch for batch in got if batch.base_offset >= end] == [
            batch for batch in expected if batch.base_offset >= end
        ]
        self.content = got

    @rule()
    def retain(self) -> None:
        log, config = self.log, self.log.config
        facts = observe(log)
        gone = doomed(
            facts,
            policy=config.cleanup_policy,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            now_ms=self.now_ms,
        )
        outcome = retain(self.manager, [log], Task())
        assert (outcome.segments, outcome.notes) == (gone, [])
        rest = facts.segments[gone:]
        first = rest[0].base_offset if rest else facts.log_end
        self.content = [batch for batch in self.content if batch.base_offset >= first]
        self.moved(max(self.start, first))

    def moved(self, start: int) -> None:
        assert self.log.log_start_offset == start
        self.start = start
        self.flushed = max(self.flushed, start)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        end = self.log.log_end_offset
        offset = data.draw(st.sampled_from([HIGH_WATERMARK, end + 1]) | st.integers(0, end))
        if self.log.config.cleanup_policy == ("compact",):
            with pytest.raises(PolicyViolation):
                delete_records(self.manager, self.log, offset, Task())
        elif offset > end:
            with pytest.raises(OffsetOutOfRange):
                delete_records(self.manager, self.log, offset, Task())
        else:
            start = max(self.start, end if offset == HIGH_WATERMARK else offset)
            assert delete_records(self.manager, self.log, offset, Task()) == start
            self.moved(start)

    def remove_what_is_due(self) -> None:
        sweep(self.manager, self.now_ms)

    @rule()
    def sweep(self) -> None:
        self.now_ms += 2 * MINUTE_MS
        self.remove_what_is_due()
        names = [path.name for path in self.data.rglob("*")]
        assert not [name for name in names if name.endswith((".deleted", "-delete", ".swap"))]

    @rule()
    def delete_topic(self) -> None:
        self.manager.delete_topic("t")
        self.manager.create_topic("t", 1)
        self.configure()
        self.content, self.history = [], []
        self.start = self.flushed = self.legacy_end = 0
        self.checkpoint = None

    # -- everything else -----------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        if self.log.roll(self.now_ms):
            self.flush()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.log.log_end_offset

    @rule()
    def write_checkpoint(self) -> None:
        self.manager.checkpoint()

    @rule(minutes=st.integers(1, 25))
    def wait(self, minutes: int) -> None:
        self.now_ms += minutes * MINUTE_MS

    @rule(setting=st.sampled_from(SETTINGS), number=st.integers(0, 3))
    def set(self, setting: tuple[str, tuple[str, ...]], number: int) -> None:
        name, choices = setting
        self.manager.change_topic_settings("t", {name: choices[number % len(choices)]})

    @rule(keys=st.sampled_from([2, 3, 5, 1000]))
    def give_memory(self, keys: int) -> None:
        # Where a full map ends among messages of an older format depends on what is read at once.
        if not self.legacy_end:
            self.limit_map(24 * keys + 24)

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.flushed = self.log.log_end_offset
        self.open(self.disk.after_stop())
        assert self.manager.clean

    @rule()
    def kill(self) -> None:
        self.open(self.disk.after_stop())
        assert self.manager.cuts == []
        self.crashed()

    @rule(seed=st.integers(0, 1000))
    def lose_power(self, seed: int) -> None:
        before = self.log.log_end_offset
        self.open(self.disk.after_stop(seed))
        end = self.log.log_end_offset
        assert self.flushed <= end <= before
        self.content = [batch for batch in self.content if batch.base_offset < end]
        self.history = [batch for batch in self.history if batch.base_offset < end]
        self.flushed = end
        self.crashed()

    def crashed(self) -> None:
        """Segments below the log start go: their deletion may have been half done."""
        first = self.log.segments[0].base_offset
        assert first <= self.start
        self.content = [batch for batch in self.content if batch.base_offset >= first]

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def all_is_as_the_models_say(self) -> None:
        if not hasattr(self, "manager"):
            return
        log = self.log
        end = log.log_end_offset
        assert log.log_start_offset == self.start
        assert LogCleaner(self.manager).first_dirty(log) == self.checkpoint
        assert list(content(log)) == self.content
        facts = known(self.history, end)
        check_producers(facts, log)
        assert [(r.offset, r.key, r.value) for r in log.records()] == [
            (r.offset, r.key, r.value)
            for batch in self.content
            if not batch.control
            for r in batch.records
            if self.start <= r.offset < max(facts.stable, self.start)
            and r.offset not in facts.aborted
        ]
        assert check(self.manager) == []

    @invariant()
    def a_reader_of_the_directory_finds_the_same(self) -> None:
        if not hasattr(self, "manager"):
            return
        with LogManager.open(str(self.data), read_only=True) as manager:
            log = manager.log("t", 0)
            assert list(content(log)) == self.content
            # Of old formats it is not looked at what only a writable opening puts in order.
            assert self.legacy_end or check(manager) == []

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()
            self.disk.kill()
        shutil.rmtree(self.data)


CleaningMachine.TestCase.settings = settings(max_examples=settings().max_examples // 2)
TestCleaningMachine = CleaningMachine.TestCase


def test_a_transaction_that_was_aborted_below_the_log_start() -> None:
    state = CleaningMachine()
    state.begin(magic=None)
    state.send(block=[(b"a", None), (b"a", None)], codec=0, producer=1, transactional=True)
    state.end_transaction(kind=ABORT, producer=1)
    state.append_without_a_key(value=b"more")
    state.set(number=3, setting=SETTINGS[0])
    end = state.log.log_end_offset
    assert delete_records(state.manager, state.log, end, Task()) == end
    state.moved(end)
    state.set(number=0, setting=SETTINGS[0])
    state.clean()
    state.all_is_as_the_models_say()
    state.teardown()
