"""A Python data source without any work: it shows Spark's own part of the time.

Each task yields the same Arrow batch repeatedly. The batch is as large as those of our source.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from spark_data import KEY_BYTES, VALUE_BYTES

from kafkafs.spark.worker import SentWithTask

if TYPE_CHECKING:
    import pyarrow as pa

#: The settings of a session on this machine alone.
ALONE: dict[str, bool | float | int | str | None] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
BATCH_ROWS = 8000
TASKS = 8


class Floor(DataSource):
    """The source. Option `rows`: the number of rows."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> StructType:
        from kafkafs.spark.source.rows import full_schema

        return full_schema(False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), schema)


class _Reader(SentWithTask, DataSourceReader):
    tunes_worker = True

    def __init__(self, rows: int, schema: StructType) -> None:
        self._rows = rows
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [
            InputPartition(self._rows * (task + 1) // TASKS - self._rows * task // TASKS)
            for task in range(TASKS)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        row = {
            "key": b"k" * KEY_BYTES,
            "value": b"v" * VALUE_BYTES,
            "topic": "rows",
            "partition": 0,
            "offset": 0,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            "timestampType": 0,
        }
        batch = pa.RecordBatch.from_pylist(
            [row] * BATCH_ROWS, schema=to_arrow_schema(self._schema, timezone="UTC")
        )
        for first in range(0, partition.value, BATCH_ROWS):
            yield batch[: partition.value - first]
        self.end_task()
