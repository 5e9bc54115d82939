"""A streaming query over a log that lives: every record is read once and in order, whatever else
happens, and a batch that is read again is the same.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kafkafs.spark.source.data_loss import DataLoss
from kafkafs.spark.source.offsets import Reached
from storage import Log, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.log.append import append_batches
from storage.record.header import TRANSACTIONAL_BIT
from storage.task import Task
from tests.in_memory import PLACE
from tests.spark.reading import Seen, Stream
from tests.storage.compaction import cleaned
from tests.storage.logs import NOW_MS, NOW_NS
from tests.storage.transactions import Client


class Life(RuleBasedStateMachine):
    """`written`: what a query has to see of each partition; `batches`: what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.data = Path(tempfile.mkdtemp(prefix="kafkafs-", dir=PLACE))
        self.stack = ExitStack()
        self.stack.callback(shutil.rmtree, self.data)
        self.manager, _ = self.stack.enter_context(cleaned.compacted(self.data))
        self.written: dict[int, list[bytes]] = {0: []}
        self.batches: list[list[Seen]] = []
        self.log: list[Reached] = []
        self.count = 0
        self.options: dict[str, object] = {}
        self.stream = Stream(self.data, self.log)

    def teardown(self) -> None:
        with self.stack:
            self.read_all()
            self.stream.plan.close()

    @initialize(most=st.none() | st.integers(1, 20), size=st.integers(1, 10_000))
    def begin(self, most: int | None, size: int) -> None:
        self.options = {"startingOffsets": "earliest", "maxPartitionBytes": size}
        if most is not None:
            self.options["maxOffsetsPerTrigger"] = most
        self.restart(False)

    def partition(self, number: int) -> tuple[int, Log]:
        number %= len(self.written)
        return number, self.manager.log("t", number)

    def values(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d" % number for number in range(self.count - count, self.count)]

    @rule(number=st.integers(0, 9), count=st.integers(1, 9), codec=st.integers(0, 4))
    def append(self, number: int, count: int, codec: int) -> None:
        number, log = self.partition(number)
        values = self.values(count)
        cleaned.put(log, *[(value, value) for value in values], codec=codec)
        self.written[number] += values

    @rule(number=st.integers(0, 9), commits=st.booleans(), count=st.integers(1, 3))
    def transact(self, number: int, commits: bool, count: int) -> None:
        number, log = self.partition(number)
        values = self.values(count)
        client = Client(log, producer_id=self.count)
        records = [Record(n, NOW_MS, 0, value, value) for n, value in enumerate(values)]
        batch = encode(
            records,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        )
        append_batches(log, bytearray(batch), now_ns=NOW_NS)
        if commits:
            client.commit()
            self.written[number] += values
        else:
            client.abort()

    @rule(number=st.integers(0, 9))
    def roll(self, number: int) -> None:
        self.partition(number)[1].roll(NOW_MS)

    @rule(number=st.integers(0, 9))
    def clean(self, number: int) -> None:
        LogCleaner(self.manager).clean(self.partition(number)[1], Task())

    @rule()
    def grow(self) -> None:
        number = len(self.written)
        if number < 4:
            self.manager.create_partition("t", number)
            self.written[number] = []

    @rule(asks=st.booleans())
    def delete_for_a_while(self, asks: bool) -> None:
        self.manager.delete_topic("t")
        if asks and self.log and self.log[-1].offsets:
            with pytest.raises(DataLoss, match="have been deleted"):
                self.stream.next()
        self.manager.undelete_topic("t")

    @rule()
    def read(self) -> None:
        found = self.stream.next()
        if found is not None:
            self.batches.append(found)

    @rule()
    def read_all(self) -> None:
        while (found := self.stream.next()) is not None:
            self.batches.append(found)
        seen: dict[int, list[bytes | None]] = {number: [] for number in self.written}
        for row in itertools.chain.from_iterable(self.batches):
            seen[row.partition].append(row.value)
        assert seen == self.written

    @rule(again=st.booleans())
    def restart(self, again: bool) -> None:
        """Another process goes on, perhaps with the last batch once more."""
        self.stream.plan.close()
        self.stream = Stream(self.data, self.log, **self.options)
        if again and self.batches:
            assert self.stream.run(len(self.batches) - 1) == self.batches[-1]


Life.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestLife = Life.TestCase
