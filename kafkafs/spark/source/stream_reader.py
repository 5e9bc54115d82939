"""`spark.readStream.format("kafkafs")`: a query that goes on from offset to offset.

The driver has one reader for the planning of a query, in a process of its own, and pickles of
others for the tasks, which keep nothing.

Not here: options (`options`), how far a batch goes (`stream_plan`), tasks (`planning`).
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

from kafkafs.spark.source import offsets, options, planning, rows
from kafkafs.spark.source.offsets import Nested
from kafkafs.spark.source.stream_plan import StreamPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Its names are Spark's."""

    # ruff: noqa: N802

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options.parse(given, "stream")
        self._schema = rows.chosen(schema)
        self._plan = StreamPlan(self._options)
        self._has_remarked = False

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need."""
        return {"_schema": self._schema}

    def initialOffset(self) -> Nested:
        return offsets.nested(self._plan.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark hands it back to `latestOffset`, or another one where its trigger says so."""
        chosen = self._options
        if chosen.max_offsets is not None:
            return ReadMaxRows(chosen.max_offsets)
        if chosen.min_offsets is not None:
            return ReadMinRows(chosen.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.stop_at_latest()

    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:
        self._remark()
        is_limited = not isinstance(limit, ReadAllAvailable)
        end = self._plan.next_end(offsets.from_nested(start), is_limited=is_limited)
        return offsets.nested(end)

    def _remark(self) -> None:
        """Say once what is without effect, also of a query that goes on."""
        if not self._has_remarked:
            self._has_remarked = True
            for remark in self._options.remarks:
                _log.warning("%s", remark)

    def reportLatestOffset(self) -> Nested | None:
        return offsets.nested(self._plan.latest) if self._plan.latest else None

    def partitions(self, start: Nested, end: Nested) -> list[planning.SplitPartition]:
        return self._plan.partitions(offsets.from_nested(start), offsets.from_nested(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return planning.read(partition, self._schema)

    def commit(self, end: Nested) -> None:
        """Nothing is kept for who has read: retention goes by the topic's settings."""

    def stop(self) -> None:
        self._plan.close()
