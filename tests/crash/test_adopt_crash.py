"""A crash at every file operation of adoptions, of restarts between them, of other appends.

A query adopts batches in two topics, restarts, and requests a batch twice. Meanwhile others append
and run transactions. After a crash at any operation, every record of the adopted batches is there
once, in order. The batch whose adoption was running is there in all partitions or in none. If the
query requests it again, all of it is there, once. No transaction stays open, so readers see all
records.

Staged files are not flushed. If the query repeats its request with the staged files that a power
cut has left, the whole batch is adopted, or none of it; then the query stages the batch again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

import storage.adopt.early_flush
import storage.log.staged_batches
from storage import LogManager
from storage.adopt.staged import AdoptRequest
from storage.errors import CorruptRecord, InvalidRecord
from storage.files import Files
from storage.log.append import abort_transaction
from storage.task import Task
from tests.crash import moments
from tests.crash.moments import Found, Unsynced, during_opening
from tests.storage.logs import NOW_MS, append, opened, values
from tests.storage.staging import left, staged
from tests.storage.transactions import Client

A, B0, B1 = ("a", 0), ("b", 0), ("b", 1)
Rows = dict[tuple[str, int], list[list[bytes | None]]]


def rows_of(batch: int) -> Rows:
    """Return the values of a batch of the query, for each partition and task."""
    rows: Rows = {
        A: [[b"a%d-%d" % (batch, n) for n in range(3)], [b"a%d-x" % batch, None]],
        B1: [[b"b%d-%d" % (batch, n) for n in range(2)]],
    }
    if batch % 2:
        rows[B0] = [[b"c%d" % batch * 20]]
    return rows if batch != 2 else {}


class Stage(NamedTuple):
    """Batches below ``adopted`` were; ``asking``: the request for the next one.

    ``others``: how many records of others were acknowledged, ``flushed``: of those, synced.
    """

    adopted: int = 0
    asking: AdoptRequest | None = None
    others: int = 0
    flushed: int = 0


class Life(moments.Life):
    """The run, and the facts that must hold at each of its stages."""

    kinds = ("kafkafs.adopted",)

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.stages = [Stage()]
        self.run_id = "first"
        self.manager: LogManager
        # How often a batch was adopted, and refused, with what a stop had left staged.
        self.adopted = self.refused = 0

    def expected(self) -> tuple[object, ...]:
        return (len(self.stages) - 1,)

    def enter(self, **changes: object) -> None:
        self.stages.append(self.stages[-1]._replace(**changes))  # type: ignore[arg-type]

    def open(self, files: Files, asked: AdoptRequest | None = None) -> None:
        self.manager = LogManager.open(
            str(self.data),
            files=files,
            clock_ms=lambda: NOW_MS,
            needs=None if asked is None else lambda adoptions: adoptions.topics_of(asked),
        )

    def build(self) -> None:
        super().build()
        self.open(Unsynced())
        for name, count in (("a", 1), ("b", 2)):
            self.manager.create_topic(name, count)
            self.manager.change_topic_settings(name, {"internal.segment.bytes": "700"})
        beside = self.manager.create_topic("beside", 1).partitions[0]
        append(beside, b"0", b"1", b"2")
        beside.raise_log_start(1)
        self.manager.close()

    def other(self) -> None:
        """Somebody else appends to a partition."""
        append(self.manager.log("a", 0), b"other%d" % self.stages[-1].others)
        self.enter(others=self.stages[-1].others + 1)

    def request(self, batch: int) -> AdoptRequest:
        return staged(
            self.manager.files, str(self.data), "q", batch, rows_of(batch), run=self.run_id
        )

    def adopt(self, batch: int) -> None:
        request = self.request(batch)
        self.enter(asking=request)
        outcome = self.manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)
        assert not outcome.duplicate
        # Its flush took what others had appended along.
        flushed = self.stages[-1].others if A in rows_of(batch) else self.stages[-1].flushed
        self.enter(adopted=batch + 1, asking=None, flushed=flushed)

    def run(self, files: Files) -> None:
        self.open(files)
        client = Client(self.manager.log("b", 0), 7)
        self.other()
        self.adopt(0)
        client.send(b"never")
        self.other()
        self.adopt(1)
        client.abort()
        self.adopt(2)
        self.manager.checkpoint()
        self.adopt(3)
        # A restart, clean, and a new run that asks for what was adopted.
        self.manager.close()
        self.enter(flushed=self.stages[-1].others)
        self.open(files)
        self.run_id = "second"
        again = self.manager.adopter.adopt(self.request(3), Task(), lambda: NOW_MS * 1_000_000)
        assert again.duplicate
        self.other()
        self.adopt(4)
        self.adopt(5)
        self.manager.log("a", 0).flush()
        self.enter(flushed=self.stages[-1].others)
        self.manager.close()
        self.enter()
        # The next batch of that run needs only its topics.
        self.open(files, self.request(6))
        assert sorted(self.manager.topics) == ["a", "b"]
        self.adopt(6)
        self.manager.close()
        self.enter()


def expected_values(batches: int, partition: tuple[str, int]) -> list[bytes | None]:
    """Return the values that the batches below this one have put into a partition."""
    return [
        value
        for batch in range(batches)
        for task in rows_of(batch).get(partition, [])
        for value in task
    ]


def ours(manager: LogManager, partition: tuple[str, int]) -> list[bytes | None]:
    return [
        value for value in values(manager.log(*partition)) if not (value or b"").startswith(b"o")
    ]


def check_all(manager: LogManager, counts: Iterable[int]) -> int:
    """All partitions have the same batches, a count of these; returns it."""
    for count in counts:
        if all(ours(manager, each) == expected_values(count, each) for each in (A, B0, B1)):
            return count
    raise AssertionError([ours(manager, each) for each in (A, B0, B1)])


def ask_again(
    life: Life, manager: LogManager, request: AdoptRequest, count: int, *, lost: bool
) -> int:
    """Ask with what the stop has left of the staged files; returns the count of batches then.

    ``lost``: whether some of them may be lost.
    """
    is_there = request.batch < count
    try:
        outcome = manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)
    except (FileNotFoundError, InvalidRecord, CorruptRecord):
        life.refused += 1
        assert lost
        assert not is_there
        return check_all(manager, [count])
    life.adopted += not is_there
    assert outcome.duplicate == is_there or not request.files
    return check_all(manager, [request.batch + 1])


def check(life: Life, path: Path, found: Found) -> None:
    (number,) = found.expected
    stage = life.stages[number]
    with opened(path, Unsynced(), clock_ms=lambda: NOW_MS) as manager:
        for partition in (A, B1):
            log = manager.log(*partition)
            assert log.last_stable_offset == log.log_end_offset
        assert values(manager.log("beside", 0)) == [b"1", b"2"]
        producer = manager.log("b", 0).producers.by_id.get(7)
        if producer is not None and producer.in_transaction:
            abort_transaction(manager.log("b", 0), 7, NOW_MS * 1_000_000)
        count = check_all(manager, (stage.adopted, stage.adopted + (stage.asking is not None)))
        others = [v for v in values(manager.log("a", 0)) if (v or b"").startswith(b"o")]
        least = stage.flushed if found.lost else stage.others
        assert others == [b"other%d" % n for n in range(len(others))]
        assert least <= len(others) <= stage.others + 1
        if stage.asking is not None:
            count = ask_again(life, manager, stage.asking, count, lost=found.lost)
        # The query is started again, and asks for the batch whose outcome it does not know.
        for batch in (stage.adopted, stage.adopted + 1):
            request = staged(Unsynced(), str(path), "q", batch, rows_of(batch), run="third")
            outcome = manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)
            assert outcome.duplicate == (batch < count) or not rows_of(batch)
            names = [file.name for file in request.files]
            assert not set(names) & set(left(str(path)))
        check_all(manager, [stage.adopted + 2])


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    monkeypatch.setattr(storage.log.staged_batches, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(storage.adopt.early_flush, "EARLY_BYTES", 200)
    return Life(tmp_path / "data")


def test_a_kill_and_a_power_cut_at_every_operation(tmp_path: Path, life: Life) -> None:
    life.stops((0, 2)).judge(functools.partial(check, life), tmp_path / "found")
    assert life.adopted
    assert life.refused


@pytest.mark.soak
def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path, life: Life) -> None:
    whole = functools.partial(check, life)
    again = during_opening(whole, seeds=(0, 2), clock_ms=lambda: NOW_MS)
    life.stops((2,)).judge(again, tmp_path / "found", one_of=150)
