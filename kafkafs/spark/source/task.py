"""Reads one split in a task, without the driver's half of the source.

Offsets that retention or compaction has removed since the query was planned are data loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.location.location import Location
from kafkafs.spark.source import rows
from kafkafs.spark.source.conditions import Where, ZoneCheck, log_task
from kafkafs.spark.source.data_loss import LossPolicy
from kafkafs.spark.source.offsets import TopicPartition
from storage.errors import OffsetOutOfRange, UnknownTopicOrPartition
from storage.split.split_finder import Split

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.record.columns._predicate import Predicate


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


def read(part: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. DataLoss, InvalidOption, StorageError, OSError."""
    if isinstance(part, ZoneCheck):
        part.where.check_zone()
    elif isinstance(part, SplitPartition):
        yield from _read_split(part, schema)
    # Otherwise the query has no partitions, and Spark calls this once.


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
    log_task(split, figures.kept, figures.decoded)


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
    """Return the first deleted offsets of a split, from and to, and the reason."""
    assert error.offset is not None
    if error.offset >= split.to_offset:
        return error.log_end, split.to_offset, f"the log ends at {error.log_end}"
    end = min(error.log_start, split.to_offset)
    return error.offset, end, f"the log starts at {error.log_start}"
