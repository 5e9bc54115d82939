"""A program that uses the sink in a session of Spark of its own: `python -m tests.spark.driver`.

Its argument is one object of JSON: `settings` of Spark, and what to do. `write`: one batch query,
whose tasks have rows `TASK:NUMBER` in partitions by NUMBER. `stream`: streaming queries, each of
which writes the lines of a directory's files, a file a batch, in partitions by what stands behind
a line's `:`; it ends when all is written.

Not here: tests (``drivers`` starts this).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafs.spark.data_source import KafkafsDataSource
from tests.spark.steered_sink import SteeredDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 2
Row = tuple[bytes, int]


def session(settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("kafkafs tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (KafkafsDataSource, SteeredDataSource):
        spark.dataSource.register(source)
    return spark


# -- batch ---------------------------------------------------------------------------------------


def rows(count: int, flags: str) -> Callable[[int, Iterable[int]], Iterator[Row]]:
    """Return the function that a task runs: it yields `count` rows.

    The first attempt of task 1 stops after half of its rows, for ever, and writes its process id to
    the file `blocked`.
    """

    def generate(task: int, _: Iterable[int]) -> Iterator[Row]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        is_first = task == 1 and not context.attemptNumber()
        for number in range(count):
            if is_first and number == count // 2:
                Path(flags, "blocked").write_text(str(os.getpid()))
                while True:
                    signal.pause()
            yield b"%d:%06d" % (task, number), number % PARTITIONS

    return generate


def write(spark: SparkSession, do: dict[str, Any]) -> None:
    context = spark.sparkContext
    tasks = context.parallelize(range(do["tasks"]), do["tasks"])
    made = tasks.mapPartitionsWithIndex(rows(do["rows"], do["flags"]))
    frame = spark.createDataFrame(made, "value binary, partition int")
    frame = frame.selectExpr("*", f"'{do['topic']}' topic")
    frame.write.format("kafkafs").mode("append").option("path", do["path"]).save()


# -- streaming -----------------------------------------------------------------------------------


def placed(spark: SparkSession, directory: str) -> DataFrame:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(directory)
    return lines.selectExpr("value", f"int(split_part(value, ':', -1)) % {PARTITIONS} partition")


def start(spark: SparkSession, do: dict[str, Any], query: dict[str, str]) -> StreamingQuery:
    frame = placed(spark, query["lines"])
    writer = frame.writeStream.format("steered").outputMode("append")
    writer = writer.option("checkpointLocation", query["checkpoint"])
    writer = writer.option("path", do["path"]).option("topic", do["topic"])
    writer = writer.option("steer", query.get("steer", ""))
    return writer.trigger(availableNow=True).start()


def stream(spark: SparkSession, do: dict[str, Any]) -> None:
    queries = [start(spark, do, query) for query in do["queries"]]
    for query in queries:
        query.awaitTermination()


def main() -> None:
    do = json.loads(sys.argv[1])
    spark = session(do["settings"])
    {"write": write, "stream": stream}[do["do"]](spark, do)
    spark.stop()


if __name__ == "__main__":
    main()
