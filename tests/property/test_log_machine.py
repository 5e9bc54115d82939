"""A log against a list: appends, transactions, duplicates, rolls, flushes, removals, restarts,
kills, torn tails, lookups.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage import Appended, Log, LogManager
from storage.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from storage.index.txn_index import TxnEntry
from storage.log.append import abort_transaction, append_batches
from storage.record.control import ABORT, COMMIT
from storage.segment.reader import SegmentReader
from storage.state.producer_state import BATCHES_KEPT, MAX_SEQUENCE
from tests.in_memory import PLACE
from tests.log_check import check
from tests.storage.logs import NOW_MS, append, remove_head, sweep
from tests.storage.transactions import marker, produced

values = st.one_of(st.none(), st.binary(max_size=60), st.binary(min_size=300, max_size=600))
producer_ids = st.integers(0, 2)


class Slot(NamedTuple):
    """An offset's record or marker. `producer`: of its transaction."""

    value: bytes | None
    producer: int = -1
    marker: bool = False


class Writer:
    """A producer as the log should know it."""

    def __init__(self, sequence: int) -> None:
        self.epoch = 1
        self.sequence = sequence
        self.sent: list[tuple[bytearray, Appended]] = []
        self.transaction: int | None = None


class LogMachine(RuleBasedStateMachine):
    """`model` is what was appended, by offset; `start` the log start."""

    def __init__(self) -> None:
        super().__init__()
        self.data = Path(tempfile.mkdtemp(dir=PLACE))
        self.model: list[Slot] = []
        self.writers: dict[int, Writer] = {}
        self.aborted: list[TxnEntry] = []
        self.start = 0
        self.now_ms = NOW_MS
        self.manager = self.open()
        self.manager.create_topic("t", 1)
        for name, value in (
            ("internal.segment.bytes", "2000"),
            ("index.interval.bytes", "300"),
            ("segment.index.bytes", "60"),
            ("file.delete.delay.ms", "0"),
        ):
            self.manager.change_topic_settings("t", {name: value})

    def open(self) -> LogManager:
        return LogManager.open(str(self.data), clock_ms=lambda: NOW_MS)

    @property
    def log(self) -> Log:
        return self.manager.log("t", 0)

    def put(self, batch: bytearray) -> Appended:
        (appended,) = append_batches(self.log, batch, now_ns=self.now_ms * 1_000_000)
        return appended

    # -- appending -----------------------------------------------------------------------------

    @rule(block=st.lists(values, min_size=1, max_size=5), later_ms=st.integers(-50, 50))
    def append(self, block: list[bytes | None], later_ms: int) -> None:
        self.now_ms += later_ms
        assert append(self.log, *block, timestamp_ms=self.now_ms) == len(self.model)
        self.model += map(Slot, block)

    @rule(
        producer=producer_ids,
        block=st.lists(values, min_size=1, max_size=3),
        transactional=st.booleans(),
        new_epoch=st.booleans(),
    )
    def send(
        self, producer: int, block: list[bytes | None], transactional: bool, new_epoch: bool
    ) -> None:
        writer = self.writers.get(producer) or Writer(MAX_SEQUENCE - 3 if producer else 0)
        if writer.transaction is not None:
            transactional = True
        elif new_epoch and producer in self.writers:
            writer.epoch, writer.sequence, writer.sent = writer.epoch + 1, 0, []
        batch = produced(
            block,
            producer,
            writer.sequence,
            epoch=writer.epoch,
            transactional=transactional,
            timestamp_ms=self.now_ms,
        )
        appended = self.put(batch)
        at = len(self.model)
        assert appended == Appended(at, at + len(block) - 1, False)
        self.writers[producer] = writer
        writer.sequence = (writer.sequence + len(block)) & MAX_SEQUENCE
        writer.sent = [*writer.sent, (batch, appended)][-BATCHES_KEPT:]
        if transactional and writer.transaction is None:
            writer.transaction = at
        self.model += [Slot(value, producer if transactional else -1) for value in block]

    @rule(producer=producer_ids, which=st.integers(0, BATCHES_KEPT - 1))
    def send_again(self, producer: int, which: int) -> None:
        writer = self.writers.get(producer)
        if writer is not None and which < len(writer.sent):
            batch, appended = writer.sent[which]
            assert self.put(batch) == appended._replace(duplicate=True)

    @rule(producer=producer_ids, gap=st.integers(1, 3))
    def send_what_is_refused(self, producer: int, gap: int) -> None:
        writer = self.writers.get(producer)
        if writer is None:
            with pytest.raises(InvalidTxnState):
                abort_transaction(self.log, producer, NOW_MS)
            return
        inside = writer.transaction is not None
        sequence = (writer.sequence + gap) & MAX_SEQUENCE
        with pytest.raises(OutOfOrderSequence):
            self.put(produced([b"x"], producer, sequence, epoch=writer.epoch, transactional=inside))
        with pytest.raises(InvalidProducerEpoch):
            self.put(marker(producer, COMMIT, epoch=writer.epoch - 1))
        if inside:
            with pytest.raises(InvalidTxnState):
                self.put(produced([b"x"], producer, writer.sequence, epoch=writer.epoch))

    @rule(producer=producer_ids, kind=st.sampled_from((ABORT, COMMIT)), by_hand=st.booleans())
    def end_transaction(self, producer: int, kind: int, by_hand: bool) -> None:
        writer = self.writers.get(producer)
        if writer is None:
            return
        first, at = writer.transaction, len(self.model)
        if first is not None and by_hand:
            kind = ABORT
            assert abort_transaction(self.log, producer, self.now_ms * 1_000_000) == at
        else:
            batch = marker(producer, kind, epoch=writer.epoch)
            assert self.put(batch) == Appended(at, at, False)
        self.model.append(Slot(None, producer, marker=True))
        writer.transaction = None
        if first is not None and kind == ABORT:
            others = [w.transaction for w in self.writers.values() if w.transaction is not None]
            self.aborted.append(TxnEntry(producer, first, at, min(others, default=at + 1)))

    # -- everything else -----------------------------------------------------------------------

    @rule()
    def roll(self) -> None:
        empty = self.log.active.base_offset == len(self.model)
        assert self.log.roll(self.now_ms) != empty

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.durability.recovery_point == len(self.model)
        self.manager.checkpoint()

    @rule()
    def checkpoint(self) -> None:
        self.manager.checkpoint()

    @rule(count=st.integers(1, 3))
    def remove_head(self, count: int) -> None:
        count = min(count, len(self.log.segments) - 1)
        if count:
            remove_head(self.log, count, self.now_ms)
            self.start = self.log.segments[0].base_offset
            sweep(self.manager, self.now_ms)

    @rule()
    def age(self) -> None:
        self.log.age_descriptors()

    def reopen(self) -> None:
        self.manager = self.open()
        for number, writer in self.writers.items():
            # All batches after the newest snapshot are known, and the last one before it.
            known = self.log.producers.by_id.get(number)
            assert known is not None
            assert len(known.batches) >= min(len(writer.sent), 1)
            writer.sent = writer.sent[len(writer.sent) - len(known.batches) :]

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.reopen()
        assert self.manager.clean

    @rule()
    def kill(self) -> None:
        self.manager.abandon()
        self.reopen()
        assert self.manager.cuts == []

    @rule(torn=st.binary(min_size=1, max_size=100))
    def kill_with_a_torn_tail(self, torn: bytes) -> None:
        path = self.log.active.log_path
        size = self.log.active.size
        self.manager.abandon()
        os.truncate(path, size)
        with open(path, "ab") as file:
            file.write(torn)
        self.reopen()
        # Zeros alone may be what a log is pre-allocated with, and say nothing.
        assert [cut.size for cut in self.manager.cuts] == ([len(torn)] if any(torn) else [])

    @precondition(lambda self: self.start == 0)
    @rule(data=st.data(), clean=st.booleans())
    def lose_derived_files(self, data: st.DataObject, clean: bool) -> None:
        """Snapshots always; transaction indexes where recovery reads their segments."""
        log = self.log
        base, read_from = log.active.base_offset, 0 if clean else log.durability.recovery_point
        if clean:
            self.manager.close()
        else:
            self.manager.abandon()
        snapshots = sorted((self.data / "t-0").glob("*.snapshot"))
        for path in data.draw(
            st.lists(st.sampled_from(snapshots), unique=True) if snapshots else st.just([])
        ):
            path.unlink()
        lost = self.data / "t-0" / f"{base:020d}.txnindex"
        if not clean and read_from <= base:
            lost.unlink(missing_ok=True)
        self.reopen()

    # -- what must hold ------------------------------------------------------------------------

    @property
    def stable(self) -> int:
        opened = [w.transaction for w in self.writers.values() if w.transaction is not None]
        return max(min(opened, default=len(self.model)), self.start)

    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(self.start, len(self.model)))
        slots = [(offset, slot) for offset, slot in enumerate(self.model) if not slot.marker]
        found = [(r.offset, r.value) for r in self.log.records(at, "read_uncommitted")]
        assert found == [(offset, slot.value) for offset, slot in slots if offset >= at]
        hidden = {
            offset
            for entry in self.aborted
            for offset in range(entry.first_offset, entry.last_offset)
            if self.model[offset].producer == entry.producer_id
        }
        assert [(r.offset, r.value) for r in self.log.records(at)] == [
            (offset, slot.value)
            for offset, slot in slots
            if at <= offset < self.stable and offset not in hidden
        ]

    @rule()
    def sizes_of_what_is_stable(self) -> None:
        for segment in self.log.segments:
            stable = [
                h.size for _, h in SegmentReader(segment).batches() if h.last_offset < self.stable
            ]
            assert segment.stable_size == sum(stable)
            first = segment.base_offset
            assert len(self.log.read(first, 1 << 20)) == sum(stable)
            assert len(self.log.read(first, 1 << 20, isolation="read_uncommitted")) == segment.size

    @invariant()
    def bounds_hold(self) -> None:
        log = self.log
        assert log.log_start_offset == self.start
        assert log.log_end_offset == log.high_watermark == len(self.model)
        assert log.last_stable_offset == self.stable
        assert log.durability.recovery_point <= log.log_end_offset
        kept = [entry for entry in self.aborted if entry.last_offset >= self.start]
        assert log.transactions.aborted() == kept

    def teardown(self) -> None:
        assert check(self.manager) == []
        self.manager.close()
        shutil.rmtree(self.data)


TestLogMachine = LogMachine.TestCase


def test_a_transaction_ends_that_is_older_than_the_log() -> None:
    """After a restart, the log begins with a younger one, which stays open."""
    machine = LogMachine()
    for producer in 1, 0:
        machine.send(producer, [None], transactional=True, new_epoch=False)
        if producer:
            machine.roll()
            machine.remove_head(1)
    machine.kill()
    machine.end_transaction(1, COMMIT, by_hand=False)
    machine.bounds_hold()
    machine.sizes_of_what_is_stable()
    machine.teardown()
