"""Adoptions of several queries against a plain model: the adopted records, by partition.

A run replaces another one, requests a batch again or out of order, or cancels an adoption halfway.
The process is killed, the power fails, or the directory is closed and opened again. Meanwhile other
producers append and run transactions.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

import storage.log.staged_batches
from storage import LogManager
from storage.errors import BatchGap, Fenced, TaskCancelled
from storage.log.append import abort_transaction
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.in_memory import PLACE
from tests.log_check import check
from tests.storage.logs import NOW_MS, NOW_NS, append, values, write_settings
from tests.storage.staging import staged
from tests.storage.transactions import Client

PARTITIONS = (("a", 0), ("b", 0), ("b", 1))
QUERIES = ("q", "r")

rows = st.dictionaries(
    st.sampled_from(PARTITIONS),
    st.lists(
        st.lists(st.sampled_from([b"x", b"y" * 50, None]), min_size=1, max_size=4), max_size=3
    ),
)


class GivenUp(Task):
    """It is cancelled after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def check(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise TaskCancelled("cancelled")


class Known:
    """The expected state of a query."""

    def __init__(self) -> None:
        self.batch = -1
        self.run = ""
        self.fenced: set[str] = set()
        self.runs = 0

    def take_over(self, run: str) -> None:
        if run != self.run:
            self.fenced |= {self.run}
            self.run = run


class AdoptingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="kafkafs-adopting-", dir=PLACE))
        self.data = self.base / "data"
        self.data.mkdir()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(storage.log.staged_batches, "_CHUNK_BYTES", 150)
        self.queries = {name: Known() for name in QUERIES}
        self.expected: dict[tuple[str, int], list[bytes | None]] = {each: [] for each in PARTITIONS}
        self.number = 0

    @initialize()
    def begin(self) -> None:
        write_settings(self.data, log_index_size_max_bytes=240)
        self.open(SimulatedDisk(str(self.data)))
        for topic, count in (("a", 1), ("b", 2)):
            self.manager.create_topic(topic, count)
            self.manager.change_topic_settings(topic, {"internal.segment.bytes": "600"})
        self.restart()

    def open(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.manager = LogManager.open(str(self.data), files=disk, clock_ms=lambda: NOW_MS)
        self.clients: dict[tuple[str, int], Client] = {}
        for log in self.manager.logs():
            known = log.producers.by_id.get(7)
            client = Client(log, 7)
            if known is not None:
                if known.in_transaction:
                    # The power cut has taken its marker.
                    abort_transaction(log, 7, NOW_NS)
                client.sequence = known.last_sequence + 1
            self.clients[log.topic, log.partition] = client

    def teardown(self) -> None:
        self.patch.undo()
        self.manager.abandon()
        shutil.rmtree(self.base)

    # -- adopting ------------------------------------------------------------------------------

    @rule(
        query=st.sampled_from(QUERIES),
        ahead=st.sampled_from([1, 1, 1, 1, 0, -1, 2]),
        back=st.sampled_from([0, 0, 0, 0, 1, 2]),
        new_run=st.booleans(),
        data=rows,
        steps=st.none() | st.integers(0, 30),
    )
    def ask(
        self,
        query: str,
        ahead: int,
        back: int,
        new_run: bool,
        data: dict[tuple[str, int], list[list[bytes | None]]],
        steps: int | None,
    ) -> None:
        known = self.queries[query]
        if new_run:
            known.runs += 1
        run = f"run {max(known.runs - back, 0)}"
        batch = max(known.batch + ahead, 0)
        self.number += 1
        filled = {
            partition: [[b"%d" % self.number + (value or b"") for value in task] for task in tasks]
            for partition, tasks in data.items()
        }
        request = staged(self.disk, str(self.data), query, batch, filled, run=run)
        older = batch < known.batch and run not in {known.run, *known.fenced}
        duplicate = batch <= known.batch and not older
        fenced = run in known.fenced and not duplicate
        gap = known.batch >= 0 and batch > known.batch + 1
        task = Task() if steps is None else GivenUp(steps)
        try:
            outcome = self.manager.adopter.adopt(request, task, lambda: NOW_NS)
        except Fenced:
            assert fenced
        except BatchGap:
            assert gap or older
            assert not fenced
        except TaskCancelled:
            assert steps is not None
        else:
            assert not fenced
            assert duplicate or not (gap or older)
            assert outcome.duplicate == duplicate
            if not duplicate:
                known.take_over(run)
                known.batch = batch
                for partition, tasks in filled.items():
                    self.expected[partition] += [value for each in tasks for value in each]
            for file in request.files:
                assert not (self.data / f"{file.topic}-{file.partition}" / file.name).exists()

    # -- others --------------------------------------------------------------------------------

    @rule(partition=st.sampled_from(PARTITIONS))
    def somebody_appends(self, partition: tuple[str, int]) -> None:
        append(self.manager.log(*partition), b"other")

    @rule(partition=st.sampled_from(PARTITIONS), commits=st.booleans())
    def somebody_has_a_transaction(self, partition: tuple[str, int], commits: bool) -> None:
        client = self.clients[partition]
        client.send(b"other")
        if commits:
            client.commit()
        else:
            client.abort()

    @rule(partition=st.sampled_from(PARTITIONS))
    def roll(self, partition: tuple[str, int]) -> None:
        self.manager.log(*partition).roll(NOW_MS)

    @rule()
    def checkpoint(self) -> None:
        self.manager.checkpoint()

    # -- ends ----------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.open(self.disk.after_stop())

    @rule(seed=st.none() | st.integers(0, 50))
    def crash(self, seed: int | None) -> None:
        self.open(self.disk.after_stop(seed))

    @invariant()
    def all_is_there_once(self) -> None:
        if not hasattr(self, "manager"):
            return
        for partition in PARTITIONS:
            log = self.manager.log(*partition)
            assert [v for v in values(log) if v != b"other"] == self.expected[partition]
            assert log.last_stable_offset == log.log_end_offset
        assert check(self.manager) == []


TestAdoptingMachine = AdoptingMachine.TestCase
