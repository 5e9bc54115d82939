"""`spark.readStream.format("kafkafs")`: a streaming query.

The driver plans a query with one reader, in a process of its own. Tasks have pickled readers, which
keep no state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from kafkafs.spark.one_line import one_line_errors
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import offsets, options, rows, task
from kafkafs.spark.source.group_commits import GroupCommits
from kafkafs.spark.source.offsets import Nested
from kafkafs.spark.source.stream_plan import StreamPlan
from kafkafs.spark.worker import SentWithTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

# The names of the methods are Spark's.
# ruff: noqa: N802


def stream_reader(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a streaming query, or one that raises the error of its options.

    Spark 4.3 replaces an exception here by an UnboundLocalError of its own.
    """
    try:
        return StreamReader(given, schema)
    except (InvalidOption, OSError) as error:
        return RefusedReader(error)


class RefusedReader(DataSourceStreamReader):
    """Raises `error` in the first call of a query that starts or continues."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @one_line_errors
    def initialOffset(self) -> Nested:
        raise self._error

    @one_line_errors
    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:
        raise self._error

    @one_line_errors
    def partitions(self, start: Nested, end: Nested) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class StreamReader(SentWithTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options.parse(given, "stream")
        self._schema = rows.chosen(schema)
        self._plan = StreamPlan(self._options)
        self._remarks = self._options.remarks
        self._commits: GroupCommits | None = None
        self._stops = False
        self.tunes_worker = self._options.tune_workers

    def __getstate__(self) -> dict[str, Any]:
        """Return only the attributes that tasks need."""
        return {"_schema": self._schema, "tunes_worker": self.tunes_worker}

    @one_line_errors
    def initialOffset(self) -> Nested:
        return offsets.nested(*self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes to `latestOffset` if its trigger has none."""
        chosen = self._options
        if chosen.max_offsets is not None:
            return ReadMaxRows(chosen.max_offsets)
        if chosen.min_offsets is not None:
            return ReadMinRows(chosen.min_offsets)
        return ReadAllAvailable()

    @one_line_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._stops = True
        self._plan.stop_at_latest()

    @one_line_errors
    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:
        for remark in self._remarks:
            _log.warning("%s", remark)
        self._remarks = ()
        if self._options.group is not None and self._commits is None:
            self._commits = GroupCommits(self._plan.path, self._options.group)
            self._commits.check()
        is_limited = not isinstance(limit, ReadAllAvailable)
        begins = offsets.from_nested(start)
        end = offsets.nested(*self._plan.next_end(begins, is_limited=is_limited))
        if self._commits is not None:
            self._commits.commit(self._plan.done(begins), waits=self._stops and end == start)
        return end

    def reportLatestOffset(self) -> Nested | None:
        return offsets.nested(self._plan.latest) if self._plan.latest else None

    @one_line_errors
    def partitions(self, start: Nested, end: Nested) -> list[InputPartition]:
        return self._plan.partitions(offsets.from_nested(start), offsets.from_nested(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line_errors:
            yield from task.read(partition, self._schema)
        self.end_task()

    def commit(self, end: Nested) -> None:
        """Do nothing: readers keep no state, and retention follows the topic's settings.

        `latestOffset` commits the offsets of the option `group`, also after the last batch.
        """

    def stop(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._plan.close()
