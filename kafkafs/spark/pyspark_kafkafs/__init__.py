"""What Spark finds by itself: of each installed package `pyspark_…` it registers `DefaultSource`.

Installed as the top-level package `pyspark_kafkafs` (setup.py), which makes `format("kafkafs")`
known wherever kafkafs is installed, drivers and executors alike.
"""

from kafkafs.spark.data_source import KafkafsDataSource as DefaultSource

__all__ = ["DefaultSource"]
