"""Prints the seconds of the first query of a session, in a process of its own.

    spark_first.py FORMAT [NAME=VALUE …]

They are the time from `load()` to the first row, in a new session. The query returns only this row.
FORMAT `load` is our function of that name.
"""

from __future__ import annotations

import os
import sys
import time

from pyspark.sql import SparkSession
from spark_floor import ALONE, Floor

from kafkafs.spark.data_source import KafkafsDataSource


def main() -> None:
    format_, *options = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("kafkafs bench")
    session = builder.config(map=ALONE).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(KafkafsDataSource)
    session.dataSource.register(Floor)
    started = time.perf_counter()
    given = dict(each.split("=", 1) for each in options)
    if format_ == "load":
        from kafkafs.spark.load import load

        frame = load(session, **given)
    else:
        frame = session.read.format(format_).options(**given).load()
    assert frame.first() is not None
    print(time.perf_counter() - started)
    session.stop()


if __name__ == "__main__":
    main()
