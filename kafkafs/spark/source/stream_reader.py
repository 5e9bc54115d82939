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

from kafkafs.spark.source import offsets, options, rows, task
from kafkafs.spark.source.group_commits import GroupCommits
from kafkafs.spark.source.offsets import Nested
from kafkafs.spark.source.stream_plan import StreamPlan
from kafkafs.spark.worker import SentWithTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


class StreamReader(SentWithTask, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Its names are Spark's."""

    # ruff: noqa: N802

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options.parse(given, "stream")
        self._schema = rows.chosen(schema)
        self._plan = StreamPlan(self._options)
        self._remarks = self._options.remarks
        self._commits: GroupCommits | None = None
        self._stops = False

    def __getstate__(self) -> dict[str, Any]:
        """Only what tasks need."""
        return {"_schema": self._schema}

    def initialOffset(self) -> Nested:
        return offsets.nested(*self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands this, or the limit of its trigger, to `latestOffset`."""
        chosen = self._options
        if chosen.max_offsets is not None:
            return ReadMaxRows(chosen.max_offsets)
        if chosen.min_offsets is not None:
            return ReadMinRows(chosen.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stops = True
        self._plan.stop_at_latest()

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

    def partitions(self, start: Nested, end: Nested) -> list[InputPartition]:
        return self._plan.partitions(offsets.from_nested(start), offsets.from_nested(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return task.read(partition, self._schema)

    def commit(self, end: Nested) -> None:
        """Nothing to do: readers keep no state, and retention follows the topic's settings.

        `latestOffset` hears of the last batch, too, and commits positions of the option `group`.
        """

    def stop(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._plan.close()
