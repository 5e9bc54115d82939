"""What a task of ``spark.py`` does where it reads as jobs do. Processes of Python import this."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kafkafs.spark.location.location import Location
from kafkafs.spark.source.rows import chosen, record_batches, spark_schema
from storage.split.split_finder import Split


def read_splits(
    where: Location, splits: list[Split], names: list[str], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of the splits with these numbers."""
    files, schema = where.files(), chosen(spark_schema(names))
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from record_batches(files, splits[number], schema)
