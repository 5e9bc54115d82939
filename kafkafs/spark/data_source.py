"""`format("kafkafs")`: the source and the sink that Spark knows by that name.

They have the schema and options of Spark's own Kafka source and sink (`options`, `rows`): to move a
pipeline over, change its format and give the data directory as `path`.

Spark makes one object per `load()` and sends it to other processes by pickle; it opens nothing.
Each session imports this module to find the name of the format. So its methods import the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafs.spark.pyspark_version import check_pyspark

check_pyspark()

from pyspark.sql.datasource import DataSource  # noqa: E402

from kafkafs.spark.one_line import one_line_errors  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from kafkafs.spark.source.reader import BatchReader


class KafkafsDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "kafkafs"

    @one_line_errors
    def schema(self) -> StructType:
        """Return all columns. Spark calls this in `load()`, which so refuses invalid options."""
        from kafkafs.spark.source import options, rows

        return rows.full_schema(options.parse(self.options, "any").include_headers)

    @one_line_errors
    def reader(self, schema: StructType) -> BatchReader:
        from kafkafs.spark.source.reader import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from kafkafs.spark.source.stream_reader import stream_reader

        return stream_reader(self.options, schema)

    @one_line_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kafkafs.spark.sink.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @one_line_errors
    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from kafkafs.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
