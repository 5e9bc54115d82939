"""Makes `format("kafkafs")` known: Spark registers `DefaultSource` of each package `pyspark_…`.

setup.py installs this as the top-level package `pyspark_kafkafs`, on drivers and executors.
Spark skips a package that cannot be imported, and then does not find the format. So if kafkafs
cannot be imported, `DefaultSource` is a source whose error gives the reason.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

try:
    from kafkafs.spark.data_source import KafkafsDataSource as DefaultSource
except ImportError as error:
    _reason = str(error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """See the module."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(_reason)

        @classmethod
        def name(cls) -> str:
            return "kafkafs"


__all__ = ["DefaultSource"]
