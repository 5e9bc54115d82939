"""Processes that open only the topics they need in a data directory, against a model.

Without a mount, processes adopt batches of a query and commit offsets of a group, one after the
other. They do not open the other topics. Between them, daemons write to all topics, move log
starts, apply retention, clean logs, and delete a topic and create it again. Each process closes the
directory, is killed or loses power, at any operation.

After each step, a start that opens all topics finds each batch once or not at all, every record of
the other topics, and the last committed offset.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from storage import LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.retain import delete_records, retain
from storage.owner.group_positions import GroupPositions
from storage.owner.request_kinds import ADOPT, POSITIONS, RequestKind
from storage.task import Task
from tests.crash.disk import Crashed, SimulatedDisk
from tests.in_memory import PLACE
from tests.log_check import check
from tests.storage.logs import NOW_MS, NOW_NS, append, values, write_settings
from tests.storage.staging import staged

pytestmark = pytest.mark.filterwarnings(
    # A thread of a process that stops, too.
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)

#: The query's topics, and one beside whose partition has the name of a topic's.
WRITTEN = (("a", 0), ("b", 0), ("b", 1))
BESIDE = "a-0"
COMPACTED = "c"

#: At which operation a process stops, and what of an unsynced disk is left then: all of it, or by a
#: seed.
some_stops = st.tuples(st.integers(1, 60), st.none() | st.integers(0, 20))
stops = st.one_of(st.none(), st.none(), some_stops)


class NeededTopicsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="kafkafs-needed-", dir=PLACE))
        self.data = self.base / "data"
        self.data.mkdir()
        self.now_ms = NOW_MS
        self.number = 0
        self.batch = -1
        self.run = 0
        self.expected: dict[tuple[str, int], list[bytes | None]] = {each: [] for each in WRITTEN}
        self.beside: list[bytes] = []
        self.start = 0
        #: The newest values by key.
        self.latest: dict[bytes, bytes] = {}
        #: Where the group may be in the topic beside.
        self.positions: set[int | None] = {None}

    @initialize()
    def begin(self) -> None:
        write_settings(self.data, log_index_size_max_bytes=240, offsets_topic_num_partitions=1)
        self.disk = SimulatedDisk(str(self.data))
        with self.opened() as manager:
            for topic, count in (("a", 1), ("b", 2), (BESIDE, 1), (COMPACTED, 1)):
                manager.create_topic(topic, count)
                manager.change_topic_settings(topic, {"internal.segment.bytes": "300"})
            manager.change_topic_settings(COMPACTED, {"cleanup.policy": "compact"})
            manager.create_offsets_topic()
            for _ in range(3):
                self.do_append(manager)
            self.do_delete(manager)
        self.adopts(set(WRITTEN), False, False, None)

    def teardown(self) -> None:
        shutil.rmtree(self.base)

    def opened(self, **options: Any) -> LogManager:
        return LogManager.open(
            str(self.data), files=self.disk, clock_ms=lambda: self.now_ms, **options
        )

    def ask(
        self, kind: RequestKind[Any, Any], request: object, stop: tuple[int, int | None] | None
    ) -> bool:
        """Ask as the client does where there is no mount; whether that ended before it stopped."""
        if stop is not None:
            self.disk.crash_after(stop[0])
        try:
            self.carry_out(kind, request)
        except Crashed:
            assert stop is not None
            self.disk = self.disk.after_stop(stop[1])
            return False
        self.disk = self.disk.after_stop()
        return True

    def carry_out(self, kind: RequestKind[Any, Any], request: object) -> None:
        needs = lambda adoptions: kind.topics(adoptions, request)  # noqa: E731
        manager = self.opened(needs=needs)
        kind.carry_out(manager, request, Task(), lambda: NOW_NS)
        manager.close()

    # -- without a mount -----------------------------------------------------------------------

    @rule(
        parts=st.sets(st.sampled_from(WRITTEN)),
        again=st.booleans(),
        new_run=st.sampled_from([False] * 5 + [True]),
        stop=stops,
    )
    def adopts(
        self,
        parts: set[tuple[str, int]],
        again: bool,
        new_run: bool,
        stop: tuple[int, int | None] | None,
    ) -> None:
        self.run += new_run
        batch = self.batch if again and self.batch >= 0 else self.batch + 1
        self.number += 1
        rows = {part: [[b"%d" % self.number * 3] * 3] for part in sorted(parts)}
        request = staged(
            self.disk,
            *(str(self.data), "q", batch, rows),
            run=f"run {self.run}",
        )
        ended = self.ask(ADOPT, request, stop)
        if batch > self.batch and (ended or self.adopted_batch() == batch):
            self.batch = batch
            for part, tasks in rows.items():
                self.expected[part] += tasks[0]

    def adopted_batch(self) -> int:
        """By what a start that opens all would say."""
        with self.copy() as manager:
            query = manager.adopter.adoptions.queries.get("q")
        return -1 if query is None else query.batch

    @rule(stop=stops)
    def commits(self, stop: tuple[int, int | None] | None) -> None:
        position = self.start + len(self.beside)
        request = GroupPositions("g", {BESIDE: {0: position}})
        ended = self.ask(POSITIONS, request, stop)
        self.positions = {position} if ended else self.positions | {position}

    # -- daemons -------------------------------------------------------------------------------

    @rule(
        deeds=st.lists(
            st.sampled_from(
                ["append", "append", "delete", "retain", "clean", "anew", "checkpoint"]
            ),
            min_size=2,
            max_size=8,
        ),
        end=st.sampled_from(["close", "close", "kill", "cut"]),
        seed=st.integers(0, 20),
    )
    def daemon(self, deeds: list[str], end: str, seed: int) -> None:
        manager = self.opened()
        self.now_ms += 1000
        for deed in deeds:
            getattr(self, f"do_{deed}")(manager)
        if end == "close":
            manager.close()
        self.disk = self.disk.after_stop(seed if end == "cut" else None)

    def do_append(self, manager: LogManager) -> None:
        self.number += 1
        self.beside.append(b"beside %d" % self.number)
        append(manager.log(BESIDE, 0), self.beside[-1])
        key, value = b"%d" % (self.number % 3), b"%d" % self.number * 20
        batch = bytearray(encode([Record(0, NOW_MS, 0, key, value)]))
        manager.log(COMPACTED, 0).append(batch, now_ns=NOW_NS)
        self.latest[key] = value
        for log in manager.logs():
            log.flush()

    def do_delete(self, manager: LogManager) -> None:
        if self.beside:
            log = manager.log(BESIDE, 0)
            self.start += (len(self.beside) + 1) // 2
            del self.beside[: (len(self.beside) + 1) // 2]
            assert delete_records(manager, log, self.start, Task()) == self.start

    def do_retain(self, manager: LogManager) -> None:
        assert retain(manager, [manager.log(BESIDE, 0)], Task()).notes == []

    def do_clean(self, manager: LogManager) -> None:
        log = manager.log(COMPACTED, 0)
        log.roll(self.now_ms)
        LogCleaner(manager).clean(log, Task())

    def do_anew(self, manager: LogManager) -> None:
        manager.delete_topic(BESIDE)
        manager.create_topic(BESIDE, 1)
        manager.change_topic_settings(BESIDE, {"internal.segment.bytes": "300"})
        self.beside, self.start, self.positions = [], 0, {None}

    def do_checkpoint(self, manager: LogManager) -> None:
        manager.checkpoint()

    # -- what a start finds --------------------------------------------------------------------

    def copy(self) -> LogManager:
        """A start that opens all of a copy."""
        copied = self.base / "copy"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(self.data, copied)
        return LogManager.open(str(copied), clock_ms=lambda: self.now_ms)

    @invariant()
    def all_is_there_once(self) -> None:
        with self.copy() as manager:
            for part in WRITTEN:
                log = manager.log(*part)
                assert values(log) == self.expected[part]
                assert log.last_stable_offset == log.log_end_offset
            beside = manager.log(BESIDE, 0)
            assert (beside.log_start_offset, values(beside)) == (self.start, self.beside)
            found = {record.key: record.value for record in manager.log(COMPACTED, 0).records()}
            assert found == self.latest
            group = manager.groups.find("g")
            position = None if group is None else group.committed.get((BESIDE, 0))
            assert (None if position is None else position.position) in self.positions
            assert manager.faults == []
            assert check(manager) == []


NeededTopicsMachine.TestCase.settings = settings(max_examples=settings().max_examples // 5)
TestNeededTopicsMachine = NeededTopicsMachine.TestCase
