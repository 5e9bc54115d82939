"""Topics, sessions and readers for `spark.py`; a topic is created when it is needed.

All readers give the same rows, each in another way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mount import say
from spark_data import Topic, warm, write_topic
from spark_floor import ALONE, Floor

sys.path.append(str(Path(__file__).resolve().parents[2]))

from kafkafs.spark.data_source import KafkafsDataSource
from kafkafs.spark.load import load
from kafkafs.spark.source import rows as spark_rows
from tests.interop.kafka_tools import SPARK_POM, jars
from tests.spark.processes import command_of, tree_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).resolve().parent
ALL = [name for name in spark_rows.TYPES if name != spark_rows.HEADERS]
KEY_SHARE = 10


@dataclass
class Bench:
    """The amounts to measure, the directory, and the topics that exist so far."""

    directory: Path
    rows: int
    tiny: bool
    made: dict[str, Topic] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    scratch: int = 0

    def topic(self, name: str, rows: int, *, policy: str = "delete", partitions: int = 1) -> Topic:
        """Return a topic; a tenth of its rows are different keys."""
        if name not in self.made:
            started = time.perf_counter()
            made = write_topic(
                self.directory / name,
                rows,
                max(rows // KEY_SHARE, 1),
                policy=policy,
                partitions=partitions,
            )
            self.made[name] = made
            seconds = time.perf_counter() - started
            say(f"{name}: {rows:,} rows, {made.size >> 20} MiB, made in {seconds:.1f} s")
            warm(made)
        return self.made[name]

    @property
    def all_rows(self) -> Topic:
        return self.topic("all", self.rows)

    def fresh(self) -> Path:
        """Return a name for a new directory."""
        self.scratch += 1
        return self.directory / f"scratch-{self.scratch}"


# -- sessions ------------------------------------------------------------------------------------


@contextmanager
def session_of(
    master: str, bench: Bench, *, kafka: bool = False, unix_sockets: bool = False
) -> Iterator[SparkSession]:
    """Enter a session with Spark's default settings; the JVM stays for the next session.

    `master`: with the number of threads. `unix_sockets`: the setting of our jobs.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "1g" if bench.tiny else "4g",
        **ALONE,
        "spark.python.unix.domain.socket.enabled": str(unix_sockets).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.warehouse.dir": str(bench.directory / "warehouse"),
        "spark.local.dir": str(bench.directory / "local"),
    }
    builder = SparkSession.builder.master(master).appName("kafkafs bench")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(KafkafsDataSource)
    session.dataSource.register(Floor)
    if kafka:
        for jar in jars(SPARK_POM).iterdir():
            session.sql(f"ADD JAR '{jar}'")
    try:
        yield session
    finally:
        session.stop()


def python_mib(session: SparkSession) -> float:
    """Return the largest memory of the session's Python processes."""
    jvm = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    peaks = [0.0]
    for pid in tree_of(jvm):
        if "pyspark" in command_of(pid) and "java" not in command_of(pid):
            try:
                status = Path("/proc", str(pid), "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            peaks += [
                int(line.split()[1]) / 1024
                for line in status.splitlines()
                if line.startswith("VmHWM")
            ]
    return max(peaks)


# -- the same rows from each ---------------------------------------------------------------------


def from_source(session: SparkSession, topic: Topic, names: list[str], **options: str) -> DataFrame:
    reader = session.read.format("kafkafs").schema(spark_rows.spark_schema(names))
    return (
        reader.options(**options)
        .option("tuneWorkers", True)
        .option("path", str(topic.data))
        .option("subscribe", topic.name)
        .load()
    )


def from_floor(session: SparkSession, rows: int) -> DataFrame:
    """Return rows of a Python source without any work."""
    return session.read.format(Floor.name()).option("rows", rows).load()


def from_load(session: SparkSession, topic: Topic, names: list[str]) -> DataFrame:
    schema = spark_rows.spark_schema(names)
    data = str(topic.data)
    return load(session, data, schema=schema, subscribe=topic.name, tuneWorkers=True)


def parquet_of(bench: Bench, session: SparkSession, topic: Topic) -> Path:
    """Write the same rows as uncompressed Parquet, in a file for each of Spark's splits."""
    path = topic.data.with_name(f"{topic.data.name}.parquet")
    if not path.exists():
        frame = from_load(session, topic, ALL)
        frame.write.option("compression", "none").parquet(str(path))
        count = session.read.parquet(str(path)).count()
        if count != topic.rows:
            raise RuntimeError(f"{count:,} rows of {topic.rows:,} in Parquet")
        size = sum(file.stat().st_size for file in path.iterdir())
        bench.notes.append(f"Parquet: {size >> 20} MiB where the log has {topic.size >> 20}")
    return path


def from_parquet(bench: Bench, session: SparkSession, topic: Topic, names: list[str]) -> DataFrame:
    return session.read.parquet(str(parquet_of(bench, session, topic))).select(*names)
