"""A log against a list: appends, rolls, flushes, removals, restarts, kills, torn tails, lookups."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage import Log, LogManager
from tests.storage.logs import NOW_MS, append

values = st.one_of(st.none(), st.binary(max_size=60), st.binary(min_size=300, max_size=600))


class LogMachine(RuleBasedStateMachine):
    """`model` is what was appended, by offset; `start` the log start."""

    def __init__(self) -> None:
        super().__init__()
        self.data = Path(tempfile.mkdtemp())
        self.model: list[bytes | None] = []
        self.start = 0
        self.now_ms = NOW_MS
        self.manager = LogManager.open(str(self.data))
        self.manager.create_topic("t", 1)
        for name, value in (
            ("internal.segment.bytes", "2000"),
            ("index.interval.bytes", "300"),
            ("segment.index.bytes", "60"),
            ("file.delete.delay.ms", "0"),
        ):
            self.manager.set_topic_setting("t", name, value)

    @property
    def log(self) -> Log:
        return self.manager.log("t", 0)

    @rule(block=st.lists(values, min_size=1, max_size=5), later_ms=st.integers(-50, 50))
    def append(self, block: list[bytes | None], later_ms: int) -> None:
        self.now_ms += later_ms
        assert append(self.log, *block, timestamp_ms=self.now_ms) == len(self.model)
        self.model += block

    @rule()
    def roll(self) -> None:
        empty = self.log.active.base_offset == len(self.model)
        assert self.log.roll(self.now_ms) != empty

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == len(self.model)
        self.manager.checkpoint()

    @rule(count=st.integers(1, 3))
    def remove_head(self, count: int) -> None:
        count = min(count, len(self.log.segments) - 1)
        if count:
            self.log.remove_head(count, self.now_ms)
            self.start = self.log.segments[0].base_offset
            remove = self.manager.sweep(self.now_ms)
            if remove is not None:
                remove()

    @rule()
    def age(self) -> None:
        self.log.age_descriptors()

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.manager = LogManager.open(str(self.data))
        assert self.manager.clean

    @rule()
    def kill(self) -> None:
        self.manager.abandon()
        self.manager = LogManager.open(str(self.data))
        assert self.manager.cuts == []

    @rule(torn=st.binary(min_size=1, max_size=100))
    def kill_with_a_torn_tail(self, torn: bytes) -> None:
        path = self.log.active.log_path
        size = self.log.active.size
        self.manager.abandon()
        os.truncate(path, size)
        with open(path, "ab") as file:
            file.write(torn)
        self.manager = LogManager.open(str(self.data))
        assert [cut.size for cut in self.manager.cuts] == [len(torn)]

    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(self.start, len(self.model)))
        found = [(record.offset, record.value) for record in self.log.records(at)]
        assert found == list(enumerate(self.model))[at:]

    @invariant()
    def bounds_hold(self) -> None:
        log = self.log
        assert log.log_start_offset == self.start
        assert log.log_end_offset == len(self.model)
        assert log.recovery_point <= log.log_end_offset

    def teardown(self) -> None:
        assert self.manager.check() == []
        self.manager.close()
        shutil.rmtree(self.data)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogMachine = LogMachine.TestCase
