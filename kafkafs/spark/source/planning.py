"""Makes tasks of ranges of offsets, and reads the split of a task.

The option `where` leaves out partitions, and the offsets that the indexes rule out; the rest of it
goes with each task, which decodes no other records. `conditions` says more.

`minPartitions` and `maxRecordsPerPartition` divide ranges first, then the size of splits does.
Offsets that are gone are data loss: planning sees it, or the task if retention deletes them later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.location.followed_directory import Location
from kafkafs.spark.source import offsets, rows
from kafkafs.spark.source.assigned import Assigned
from kafkafs.spark.source.conditions import Where, ZoneCheck, inform, report
from kafkafs.spark.source.data_loss import LossPolicy
from kafkafs.spark.source.offsets import OffsetRange, TopicPartition
from kafkafs.spark.source.options import SourceOptions
from kafkafs.spark.worker import spare_collector
from storage.errors import OffsetOutOfRange, UnknownTopicOrPartition
from storage.log.log import Log
from storage.split.narrow import narrowed
from storage.split.split import Split, plan_splits

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.record.columns._predicate import Predicate


# `df.limit(n)` is never passed to a source; Spark runs the first task alone then.
_FIRST_BYTES = 1 << 20


class SplitPartition(InputPartition):
    """The input of a task: one split."""

    def __init__(
        self,
        location: Location,
        split: Split,
        fail_on_data_loss: bool,
        where: Where | None = None,
    ) -> None:
        super().__init__(split)
        self.location = location
        self.split = split
        self.fail_on_data_loss = fail_on_data_loss
        self.where = where


def plan(
    options: SourceOptions,
    assigned: Assigned,
    ranges: Iterable[OffsetRange],
    policy: LossPolicy,
    *,
    informs: bool = True,
    starts_small: bool = False,
) -> list[InputPartition]:
    """The tasks for these ranges, by partition and offset. DataLoss.

    `informs`: what `where` has left out goes to the driver's log. `starts_small`: the first tasks
    read little, for queries that want only the first rows.
    """
    logs = assigned.logs()
    readable = [
        _readable(each, logs.get(each.partition), assigned, policy) for each in sorted(ranges)
    ]
    whole = readable
    if options.where is not None:
        readable = [
            OffsetRange(name, first, behind)
            for name, start, end in whole
            if start < end
            for first, behind in narrowed(logs[name], start, end, options.where.of_partition(*name))
        ]
    where = None
    if options.where is not None:
        where = Where(options.where, is_checked=not options.has_zone)
    parts: list[InputPartition] = [
        SplitPartition(assigned.location, split, options.fail_on_data_loss, where)
        for split in _splits(options, logs, readable, _FIRST_BYTES if starts_small else None)
    ]
    if where is not None:
        if informs:
            inform(where, logs, readable, whole, len(parts), options.partition_bytes)
        if not parts and where.needs_check:
            parts.append(ZoneCheck(where))
    return parts


def _splits(
    options: SourceOptions,
    logs: Mapping[TopicPartition, Log],
    ranges: Iterable[OffsetRange],
    first_bytes: int | None,
) -> list[Split]:
    """`first_bytes`: of the first split of all."""
    splits: list[Split] = []
    for name, start, end in offsets.divided(
        ranges, at_least=options.min_partitions, most_records=options.max_records
    ):
        splits += plan_splits(
            logs[name],
            start,
            end,
            target_bytes=options.partition_bytes,
            isolation=options.isolation,
            first_bytes=None if splits else first_bytes,
        )
    return splits


def _readable(
    wanted: OffsetRange, log: Log | None, assigned: Assigned, policy: LossPolicy
) -> OffsetRange:
    """The readable part of a range; reports the rest as lost."""
    name, start, end = wanted
    if wanted.size <= 0:
        return wanted
    if log is None:
        policy.report_offsets(name, start, end, "the partition is gone")
        return OffsetRange(name, end, end)
    if start < log.log_start_offset:
        first = min(log.log_start_offset, end)
        policy.report_offsets(name, start, first, f"the log starts at {log.log_start_offset}")
        start = first
    last = assigned.end(log)
    if end > last:
        first = max(last, start)
        policy.report_offsets(name, first, end, f"the log ends at {last}")
        end = first
    return OffsetRange(name, start, end)


def read(part: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task. DataLoss, InvalidOption, StorageError, OSError."""
    try:
        if isinstance(part, ZoneCheck):
            part.where.check_zone()
        elif isinstance(part, SplitPartition):
            yield from _read_split(part, schema)
        # Else there are no partitions at all: Spark calls this once then.
    finally:
        spare_collector()


def _read_split(part: SplitPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if part.where is None:
        yield from _read(part, schema)
        return
    part.where.check_zone()
    split, figures = part.split, rows.Figures()
    left = part.where.condition.of_partition(split.topic, split.partition)
    if left.is_certain:
        yield from _read(part, schema)
        return
    yield from rows.joined(_read(part, schema, left.predicate(), figures))
    report(split, figures.kept, figures.decoded)


def _read(
    part: SplitPartition,
    schema: pa.Schema,
    predicate: Predicate | None = None,
    figures: rows.Figures | None = None,
) -> Iterator[pa.RecordBatch]:
    files, split = part.location.files(), part.split
    name = TopicPartition(split.topic, split.partition)
    policy = LossPolicy(part.fail_on_data_loss)
    while split.from_offset < split.to_offset:
        try:
            yield from rows.record_batches(
                files, split, schema, predicate=predicate, figures=figures
            )
        except UnknownTopicOrPartition as error:
            policy.report_offsets(name, split.from_offset, split.to_offset, error.message)
        except OffsetOutOfRange as error:
            start, end, why = _gap(error, split)
            policy.report_offsets(name, start, end, why)
            split = split._replace(from_offset=end)
            continue
        return


def _gap(error: OffsetOutOfRange, split: Split) -> tuple[int, int, str]:
    """The offsets of a split that are gone, and why; the task has read all before them."""
    assert error.offset is not None
    if error.offset >= split.to_offset:
        return error.log_end, split.to_offset, f"the log ends at {error.log_end}"
    end = min(error.log_start, split.to_offset)
    return error.offset, end, f"the log starts at {error.log_start}"
