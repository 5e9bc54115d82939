"""The works of `spark.py`: each gives figures of one run, by name.

All peers of a work have the same rows, which are in the page cache, and read the same columns. The
results are counted afterwards, if possible.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clean_peers import Fast, Kafka
from pyspark.sql import functions as sql
from spark_data import Topic, count_written, empty_topic, warm
from spark_peers import (
    ALL,
    Bench,
    from_floor,
    from_load,
    from_parquet,
    from_source,
    parquet_of,
    python_mib,
)

from kafkafs.spark.jobs import compact
from storage import LogManager
from tests.interop.brokers import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE, LOAD, PARQUET, KAFKA, SINK = "source", "load()", "Parquet", "Kafka source", "sink"
FLOOR, GREP = "a source with nothing to do", "grep"
FLUSHED = "Parquet, flushed"
MEMORY = "of Python"
GROWTH = (1, 10, 30)  # in tenths of the rows
#: A part that one value in seven hundred has; values are a hundred letters out of sixteen.
PART = "abcd"
GROUPED = ("key", "value", "offset")

Found = dict[str, float]


# -- queries over rows ---------------------------------------------------------------------------


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def grouped(frame: DataFrame) -> int:
    """Group the rows into a hundred groups by their keys; return the number of rows."""
    groups = frame.groupBy((sql.hash("key") % 100).alias("group")).agg(
        *(sql.count("*").alias("rows"), sql.sum(sql.length("value"))),
        sql.max("offset"),
    )
    return sum(row.rows for row in groups.collect())


def speed(rows: int, work: Callable[[], object]) -> float:
    """Return million rows a second."""
    started = time.perf_counter()
    work()
    return rows / (time.perf_counter() - started) / 1e6


def flush(file: Path) -> None:
    """Flush a file to the disk."""
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def readers(bench: Bench, session: SparkSession, names: list[str]) -> dict[str, DataFrame]:
    topic = bench.all_rows
    return {
        SOURCE: from_source(session, topic, names),
        LOAD: from_load(session, topic, names),
        PARQUET: from_parquet(bench, session, topic, names),
    }


# -- works ---------------------------------------------------------------------------------------


def scan(bench: Bench, session: SparkSession) -> Found:
    """Read all columns to `noop`."""
    frames = {**readers(bench, session, ALL), FLOOR: from_floor(session, bench.rows)}
    found = {name: speed(bench.rows, partial(to_noop, frame)) for name, frame in frames.items()}
    return {**found, MEMORY: python_mib(session)}


def group(bench: Bench, session: SparkSession) -> Found:
    def work(frame: DataFrame) -> None:
        check(grouped(frame), bench.rows)

    frames = readers(bench, session, list(GROUPED))
    return {name: speed(bench.rows, partial(work, frame)) for name, frame in frames.items()}


def write_parquet(bench: Bench, session: SparkSession) -> Found:
    def work(frame: DataFrame, out: Path) -> None:
        frame.write.option("compression", "none").parquet(str(out))

    found = {}
    for name, frame in readers(bench, session, ALL).items():
        out = bench.fresh()
        found[name] = speed(bench.rows, partial(work, frame, out))
        check(session.read.parquet(str(out)).count(), bench.rows)
        shutil.rmtree(out)
    return found


def hour_of(topic: Topic) -> tuple[tuple[int, int], dict[str, str]]:
    """Return the offsets of the twelfth hour of 24, and conditions by what they compare."""
    with LogManager.open(str(topic.data), read_only=True) as manager:
        reader = manager.log(topic.name, 0).reader
        hours = [next(reader.records(topic.rows * hour // 24)) for hour in (11, 12)]
        times = [datetime.fromtimestamp(each.timestamp / 1000, UTC) for each in hours]
        ends = [reader.offset_for_timestamp(each.timestamp) for each in hours]
    first, behind = (0 if end is None else end[1] for end in ends)
    start, stop = (each.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for each in times)
    return (first, behind), {
        "by time": f"timestamp >= '{start}' and timestamp < '{stop}'",
        "by offset": f"offset >= {first} and offset < {behind}",
        "by key": "key < '0041'",
        "by value": f"value like '%{PART}%'",
    }


def where(bench: Bench, session: SparkSession) -> Found:
    """Read some of the rows, by conditions of each kind."""
    topic = bench.all_rows
    (first, behind), conditions = hour_of(topic)
    only = {
        "startingOffsets": json.dumps({topic.name: {"0": first}}),
        "endingOffsets": json.dumps({topic.name: {"0": behind}}),
    }
    parquet = from_parquet(bench, session, topic, ALL)
    found = {
        "only those": speed(topic.rows, partial(to_noop, from_source(session, topic, ALL, **only)))
    }
    for name, words in conditions.items():
        frames = {
            name: from_source(session, topic, ALL, where=words),
            f"{name}, {PARQUET}": parquet.where(words),
        }
        for key, frame in frames.items():
            found[key] = speed(topic.rows, partial(to_noop, frame))
        counts = [frame.count() for frame in frames.values()]
        check(*counts)
    logs = sorted(topic.data.glob("*/*.log"))
    # GNU grep would stop at the first match if its output was /dev/null.
    count = ["grep", "-ac", PART, *map(str, logs)]
    found[GREP] = speed(topic.rows, lambda: subprocess.run(count, stdout=subprocess.PIPE))
    return found


def first(bench: Bench, session: SparkSession) -> Found:
    """Measure the time to the first row of the first query, each in a process of its own."""
    topic = bench.all_rows
    options = {
        SOURCE: ("kafkafs", f"path={topic.data}", f"subscribe={topic.name}"),
        LOAD: ("load", f"path={topic.data}", f"subscribe={topic.name}"),
        PARQUET: ("parquet", f"path={parquet_of(bench, session, topic)}"),
        FLOOR: ("floor", "rows=1000"),
    }
    script = Path(__file__).with_name("spark_first.py")
    found = {}
    for name, words in options.items():
        command = [sys.executable, str(script), *words]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[name] = float(printed)
    return found


def sink(bench: Bench, session: SparkSession) -> Found:
    """Write keys and values from Parquet into two partitions, durably, and into Parquet."""
    frame = from_parquet(bench, session, bench.all_rows, ["key", "value"])
    out = empty_topic(bench.fresh(), 2)
    options = {"path": str(out.data), "topic": out.name, "tuneWorkers": "true"}
    ours = frame.write.format("kafkafs").mode("append").options(**options)
    found = {SINK: speed(bench.rows, ours.save)}
    check(count_written(out), bench.rows)
    shutil.rmtree(out.data)
    theirs = bench.fresh()
    writer = frame.write.option("compression", "none")
    started = time.perf_counter()
    found[PARQUET] = speed(bench.rows, lambda: writer.parquet(str(theirs)))
    for file in theirs.iterdir():
        flush(file)
    found[FLUSHED] = bench.rows / (time.perf_counter() - started) / 1e6
    shutil.rmtree(theirs)
    return {**found, MEMORY: python_mib(session)}


def compaction(bench: Bench, session: SparkSession) -> Found:
    """Keep the latest row of each key by our job, and find it by a plain group-by."""
    topic = keyed(bench, session, 10)
    seconds, kept = compacted(bench, session, topic)

    def plain() -> None:
        frame = from_source(session, topic, [*GROUPED, "timestamp"])
        latest = sql.max(sql.struct("offset", "timestamp", "value")).alias("latest")
        to_noop(frame.groupBy("key").agg(latest))

    found = {"compact": topic.rows / seconds / 1e6, "group-by": speed(topic.rows, plain)}
    frame = from_source(session, topic, ["key"])
    check(kept, frame.select("key").distinct().count())
    return {**found, MEMORY: python_mib(session)}


def keyed(bench: Bench, session: SparkSession, tenths: int) -> Topic:
    """Return a topic to compact, with tenths of the rows and a partition for each core."""
    cores = session.sparkContext.defaultParallelism
    rows = bench.rows * tenths // 10
    return bench.topic(f"keyed-{tenths}", rows, policy="compact", partitions=cores)


def compacted(bench: Bench, session: SparkSession, topic: Topic) -> tuple[float, int]:
    """Return the seconds of the job on a copy, and the number of records that are left."""
    copy = topic.copy(bench.fresh())
    started = time.perf_counter()
    report = compact.run(session, str(copy.data))
    seconds = time.perf_counter() - started
    if report.faults:
        raise RuntimeError(f"compaction: {report.faults}")
    check(int(report.figures["records_read"] or 0), topic.rows)
    shutil.rmtree(copy.data)
    return seconds, int(report.figures["records_kept"] or 0)


def growth(bench: Bench, session: SparkSession) -> Found:
    """Compact logs of several sizes; a tenth of the rows are different keys."""
    found = {}
    for tenths in GROWTH:
        topic = keyed(bench, session, tenths)
        warm(topic)
        seconds, _ = compacted(bench, session, topic)
        found[f"{tenths / 10:g} ×"] = seconds / topic.rows * 1e6
    return {**found, MEMORY: python_mib(session)}


def kafka(bench: Bench, session: SparkSession, broker: str, topic: Topic) -> Found:
    """Read the same segments from a broker by Spark's Kafka source, in as many tasks."""
    options = {
        "kafka.bootstrap.servers": broker,
        "subscribe": topic.name,
        "minPartitions": str(2 * session.sparkContext.defaultParallelism),
    }
    theirs = session.read.format("kafka").options(**options).load()
    found = {}
    frames = {
        SOURCE: from_source(session, topic, ALL),
        LOAD: from_load(session, topic, ALL),
        KAFKA: theirs,
    }
    for name, frame in frames.items():
        found[name] = speed(topic.rows, partial(to_noop, frame.select(*ALL)))
        count = frame.count()
        check(count, topic.rows)
    for name, words in hour_of(topic)[1].items():
        ours = from_source(session, topic, ALL, where=words)
        found[name] = speed(topic.rows, partial(to_noop, ours))
        found[f"{name}, {KAFKA}"] = speed(
            topic.rows, partial(to_noop, theirs.select(*ALL).where(words))
        )
    frames = {
        SOURCE: from_source(session, topic, list(GROUPED)),
        LOAD: from_load(session, topic, list(GROUPED)),
        KAFKA: theirs.select(*GROUPED),
    }
    for name, frame in frames.items():
        found[f"{name}, grouped"] = speed(topic.rows, partial(grouped, frame))
    return found


@contextmanager
def with_broker(bench: Bench) -> Iterator[tuple[str, Topic]]:
    """Run a broker; yield its address, and the topic that it shares with a directory of ours."""
    topic = bench.all_rows
    kind: type[Broker] = Broker if bench.tiny else Fast
    partitions = {topic.name: topic.data / f"{topic.name}-0"}
    with Kafka(bench.directory / "broker", partitions, kind) as running:
        yield running.address, topic


def check(found: int, wanted: int) -> None:
    """Fail if a result is wrong: a wrong result has no speed."""
    if found != wanted:
        raise RuntimeError(f"{found:,} rows where there are {wanted:,}")


def describe(found: Found) -> str:
    return json.dumps({name: float(f"{figure:.3g}") for name, figure in found.items()})
