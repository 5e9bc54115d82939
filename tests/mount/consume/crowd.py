"""Consumers of one group that are killed, and the judge of what they have handled."""

from __future__ import annotations

import os
import random
import shlex
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from tests.mount.consume.conftest import Topic
from tests.mount.programs import Running
from tests.waits import until

#: Notes a batch when its handler begins.
HANDLER = (
    'echo "{name} $KAFKAFS_PARTITION $KAFKAFS_FIRST_OFFSET $KAFKAFS_LAST_OFFSET" >> {notes}; '
    "cat > /dev/null"
)


class Handled(NamedTuple):
    """A batch that a consumer's command has begun with."""

    consumer: int
    partition: int
    first: int
    last: int


class Crowd:
    """A context manager, which ends all of them."""

    def __init__(self, topic: Topic, notes: Path, *, batch: int) -> None:
        self._topic = topic
        self._notes = notes
        self._batch = batch
        self._chance = random.Random(0)
        self._stack = ExitStack()
        self._running: list[Running] = []
        self._started = 0
        self.kills = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """One more consumer."""
        script = HANDLER.format(name=self._started, notes=shlex.quote(str(self._notes)))
        options = ("--follow", "--batch-records", self._batch, "--exec", script)
        self._running.append(self._stack.enter_context(self._topic.running(*options)))
        self._started += 1

    def kill_one(self) -> None:
        """kill -9 of one of them, and another one in its place."""
        victim = self._running.pop(self._chance.randrange(len(self._running)))
        os.kill(victim.pid, signal.SIGKILL)
        self.kills += 1
        self.start()

    def handled(self) -> list[Handled]:
        """All batches so far, in the order in which they were begun."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [Handled(*map(int, line.split())) for line in lines]

    def has_noted(self, count: int) -> bool:
        return len(self.handled()) >= count

    def wait_until_done(self, partitions: int) -> None:
        """Until all is committed; nobody must have complained."""
        table = self._topic.mount / ".groups" / self._topic.group / ".lag"
        done = f"# lag 0, partitions {partitions}\n"
        until(lambda: table.exists() and done in table.read_text())
        assert [consumer.errors() for consumer in self._running] == [""] * len(self._running)

    def check(self, records: Mapping[int, int]) -> None:
        """Of each partition every record was handled at least once, by each consumer in order, and
        for each kill one batch again.
        """
        reached = dict.fromkeys(records, -1)
        last_of: dict[tuple[int, int], int] = {}
        repeated = 0
        for consumer, partition, first, last in self.handled():
            assert first <= reached[partition] + 1, f"{partition}: records were left out"
            repeated += first <= reached[partition]
            reached[partition] = max(reached[partition], last)
            assert last_of.get((consumer, partition), -1) < first, "a consumer went back"
            last_of[consumer, partition] = last
        assert reached == {partition: count - 1 for partition, count in records.items()}
        assert repeated <= self.kills
