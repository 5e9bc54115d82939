"""The source as Spark calls it, but in this process: for tests that need no session."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.source import rows, task
from kafkafs.spark.source.offsets import Offsets, Reached, TopicPartition, nested
from kafkafs.spark.source.options import parse
from kafkafs.spark.source.reader import BatchReader
from kafkafs.spark.source.stream_plan import StreamPlan

SCHEMA = rows.chosen(rows.spark_schema(["topic", "partition", "offset", "value"]))


class Seen(NamedTuple):
    """The columns of a row that tests compare."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


def read(parts: Iterable[InputPartition]) -> list[Seen]:
    """Return the rows that the tasks read. Check that the offsets of a partition ascend."""
    found = [
        Seen(*row.values())
        for part in parts
        for batch in task.read(part, SCHEMA)
        for row in batch.to_pylist()
    ]
    for _, group in itertools.groupby(found, lambda row: row[:2]):
        offsets = [row.offset for row in group]
        assert offsets == sorted(offsets)
    return found


def batch_parts(data: Path, **options: object) -> list[InputPartition]:
    """Return the partitions that a batch query plans, by default of all topics."""
    return batch_reader(data, **options).partitions()


def batch_reader(data: Path, **options: object) -> BatchReader:
    return BatchReader(given(data, options), rows.full_schema(True))


def batch(data: Path, **options: object) -> list[Seen]:
    """Return the rows that a batch query reads."""
    return read(batch_parts(data, **options))


def given(data: Path, options: dict[str, object]) -> dict[str, str]:
    texts = {name: str(value) for name, value in options.items()}
    if not {"subscribe", "subscribePattern", "assign"} & texts.keys():
        texts["subscribePattern"] = ".*"
    return {"path": str(data), **texts}


class Stream:
    """A streaming query, which calls `StreamPlan` as Spark does, batch by batch.

    `log`: the content of its checkpoint, the ends of all batches so far.
    """

    def __init__(self, data: Path, log: list[Reached] | None = None, /, **options: object) -> None:
        self.now_ms = 1_000_000
        self.plan = StreamPlan(parse(given(data, options), "stream"), lambda: self.now_ms)
        self.log: list[Reached] = [] if log is None else log

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.plan.close()

    def start(self, number: int) -> Reached:
        return self.log[number - 1] if number else self.plan.initial()

    def next(self, *, is_limited: bool = True) -> list[Seen] | None:
        """The next batch's rows; None where there is no batch."""
        number = len(self.log)
        start = self.start(number)
        end = self.plan.next_end(start, is_limited=is_limited)
        if number and nested(*end) == nested(*start):
            return None
        self.log.append(end)
        return self.run(number)

    def run(self, number: int) -> list[Seen]:
        """A batch, perhaps once more."""
        return read(self.plan.partitions(self.start(number), self.log[number]))

    def rest(self) -> list[Seen]:
        """All batches until there are no more."""
        return [row for each in iter(self.next, None) for row in each]

    def end(self, topic: str = "t", partition: int = 0) -> int:
        return self.ends[-1][TopicPartition(topic, partition)]

    @property
    def ends(self) -> list[Offsets]:
        return [each.offsets for each in self.log]


def values(found: Iterable[Seen]) -> list[bytes | None]:
    return [row.value for row in found]
