"""`spark.read.format("kafkafs")`: a batch query over the records that exist when Spark plans it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkafs.spark.one_line import one_line_errors
from kafkafs.spark.source import options, rows, task
from kafkafs.spark.worker import SentWithTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchReader(SentWithTask, DataSourceReader):
    """Plans in one process. Spark pickles it to others, which read. It keeps no state."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options.parse(given, "batch")
        self._schema = rows.chosen(schema)
        self.tunes_worker = self._options.tune_workers

    @one_line_errors
    def partitions(self) -> list[InputPartition]:
        # Tasks do not need the modules that plan.
        from kafkafs.spark.source.planning import plan_batch

        return plan_batch(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_line_errors:
            yield from task.read(partition, self._schema)
        self.end_task()
