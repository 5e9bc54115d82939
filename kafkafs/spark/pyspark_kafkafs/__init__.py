"""Makes `format("kafkafs")` known: Spark registers `DefaultSource` of each package `pyspark_…`.

setup.py installs this as the top-level package `pyspark_kafkafs`, on drivers and executors alike.
"""

from kafkafs.spark.data_source import KafkafsDataSource as DefaultSource

__all__ = ["DefaultSource"]
