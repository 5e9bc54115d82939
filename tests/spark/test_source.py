"""The source in a Spark session: DataFrames, streaming queries, their checkpoints and errors.

`test_source_batch` and `test_source_stream_plan` test planning and reading without a session. The
tests here need Spark.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkafs.spark.data_source import KafkafsDataSource
from kafkafs.spark.pyspark_version import LEAST
from kafkafs.spark.sink.sink import BatchWriter, StreamWriter
from kafkafs.spark.source.reader import BatchReader
from kafkafs.spark.source.stream_reader import StreamReader
from storage import Log, LogManager, Record, encode
from tests.storage.compaction import cleaned
from tests.storage.logs import NOW_MS, append, opened, remove_head
from tests.storage.segmented import segmented
from tests.storage.transactions import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HIDE_TRACEBACK = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
NOW = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC).replace(tzinfo=None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def manager(data: Path) -> Iterator[LogManager]:
    with opened(data) as manager:
        yield manager


def topic(manager: LogManager, partitions: int = 1, name: str = "t") -> list[Log]:
    return list(manager.create_topic(name, partitions).partitions.values())


def load(spark: SparkSession, data: Path, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("kafkafs").options(**{"subscribe": "t", **options})
    return (reader if schema is None else reader.schema(schema)).load(str(data))


def error_of(exception: BaseException) -> str:
    """The message that the user reads."""
    return str(exception)


# -- batch -----------------------------------------------------------------------------------------


def test_a_data_frame(spark: SparkSession, data: Path, manager: LogManager) -> None:
    first, second = topic(manager, 2)
    headers = (("h", b"1"), ("h", None))
    record = Record(0, NOW_MS, 0, b"k", b"v", headers)
    first.append(bytearray(encode([record])), now_ns=NOW_MS * 1_000_000)
    append(second, None, timestamp_ms=NOW_MS + 1)
    frame = load(spark, data, includeHeaders="true")
    assert [tuple(row) for row in frame.orderBy("partition").collect()] == [
        (b"k", b"v", "t", 0, 0, NOW, 0, [("h", b"1"), ("h", None)]),
        (None, None, "t", 1, 0, NOW + datetime.timedelta(milliseconds=1), 0, None),
    ]
    assert load(spark, data).columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
    ]


def test_a_log_of_many_kinds(spark: SparkSession, data: Path) -> None:
    """Codecs, compaction, an aborted transaction, and more tasks than partitions."""
    with cleaned.compacted(data) as (manager, log):
        for codec in range(5):
            cleaned.put(log, (b"k", b"%d" % codec), (b"k%d" % codec, b"x" * 500), codec=codec)
            cleaned.roll(log)
        cleaned.clean(manager, log)
        client = Client(log, 7)
        client.send(b"lost")
        client.abort()
        frame = load(spark, data, "offset bigint, value binary", minPartitions=4)
        assert frame.rdd.getNumPartitions() == 4
        assert [tuple(row) for row in frame.collect()] == [
            (record.offset, record.value) for record in log.records()
        ]


def test_errors_say_what_is_wrong(spark: SparkSession, data: Path, manager: LogManager) -> None:
    log = segmented(manager)
    remove_head(log, 1, NOW_MS)
    manager.checkpoint()
    for options, schema, message in (
        ({"subscribeTo": "t"}, None, "Unknown option 'subscribeto'"),
        ({"assign": '{"t":[0]}'}, None, "Only one of the following options can be specified"),
        ({}, "ofset bigint", "there is no column 'ofset'"),
        ({"startingOffsets": '{"t":{"0":1}}'}, None, "[1, 2) for topic partition t-0"),
        ({"subscribe": "other"}, None, "there is no topic 'other'"),
    ):
        with pytest.raises(Exception) as error:  # noqa: PT011 - of several kinds
            load(spark, data, schema, **options).collect()
        assert message in error_of(error.value)
        assert "/kafkafs/spark/" not in error_of(error.value)
    spark.conf.set(HIDE_TRACEBACK, "true")
    try:
        with pytest.raises(Exception, match="did you mean 'subscribe'") as error:
            load(spark, data, subscribeTo="t")
    finally:
        spark.conf.unset(HIDE_TRACEBACK)
    assert "Traceback" not in error_of(error.value)


def test_options_of_a_stream_are_refused_in_one_line(spark: SparkSession, data: Path) -> None:
    """Spark's own error would hide that of a method that creates a reader."""
    with pytest.raises(Exception, match="ending offset not valid in streaming queries") as error:
        Query(spark, data, endingOffsets="latest").run()
    text = error_of(error.value)
    assert ("/kafkafs/spark/" in text, "UnboundLocalError" in text) == (False, False)


# -- streaming -------------------------------------------------------------------------------------


def test_the_extra_asks_for_the_pyspark_that_the_code_needs() -> None:
    """PySpark's docstrings state the version that added each method that our classes override."""
    needed = {(4, 0)}
    for ours in (KafkafsDataSource, BatchReader, StreamReader, BatchWriter, StreamWriter):
        for theirs in (each for each in ours.__mro__ if each.__module__.startswith("pyspark.")):
            there = (getattr(theirs, name, None) for name in {*vars(ours), "__init__"})
            for text in (each.__doc__ or "" for each in (theirs, *there) if each is not None):
                found = re.findall(r"versionadded:: (\d+)\.(\d+)", text)
                needed |= {(int(major), int(minor)) for major, minor in found}
    version = ".".join(map(str, max(needed)))
    assert version == LEAST
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert f"pyspark>={version},<5" in extras["optional-dependencies"]["spark-local"]
    page = (root / "docs/spark.md").read_text()
    assert re.findall(r"PySpark (\S+) or later", page) == [version]


class Query:
    """A streaming query that collects its batches' values in this process, in order."""

    def __init__(self, spark: SparkSession, data: Path, **options: Any) -> None:
        self._spark = spark
        self._data = data
        self._options: dict[str, Any] = {"subscribe": "t", **options}
        self.batches: dict[int, list[bytes | None]] = {}
        self.fails = False

    def _collect(self, frame: DataFrame, number: int) -> None:
        if self.fails:
            raise RuntimeError("as the test wants it")
        rows = frame.select("topic", "partition", "offset", "value").collect()
        self.batches[number] = [row.value for row in sorted(rows)]

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("kafkafs").options(**self._options)
        writer = frame.load(str(self._data)).writeStream.foreachBatch(self._collect)
        writer = writer.option("checkpointLocation", str(self._data.parent / "checkpoint"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self) -> list[list[bytes | None]]:
        """All that is there now, batch by batch; then it is over."""
        before = set(self.batches)
        query = self.start(availableNow=True)
        query.awaitTermination()
        return [self.batches[each] for each in sorted(self.batches.keys() - before)]


def test_goes_on_where_it_was(spark: SparkSession, data: Path, manager: LogManager) -> None:
    (log,) = topic(manager)
    append(log, b"before")
    query = Query(spark, data)
    assert query.run() == [[]]
    append(log, b"a", b"b", b"c")
    log.roll(NOW_MS)
    append(log, b"d")
    append(manager.create_partition("t", 1), b"new")
    assert query.run() == [[b"a", b"b", b"c", b"d", b"new"]]
    assert query.run() == []


def test_a_first_batch_that_failed_begins_where_it_did(
    spark: SparkSession, data: Path, manager: LogManager
) -> None:
    (log,) = topic(manager)
    append(log, b"before")
    query = Query(spark, data)
    query.fails = True
    with pytest.raises(Exception, match="as the test wants it"):
        query.run()
    append(log, b"a")
    query.fails = False
    assert query.run() == [[], [b"a"]]


def test_limits_and_progress(spark: SparkSession, data: Path, manager: LogManager) -> None:
    (log,) = topic(manager)
    append(log, b"a", b"b", b"c")
    query = Query(spark, data, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    running = query.start()
    try:
        running.processAllAvailable()
        assert query.batches == {0: [b"a", b"b"], 1: [b"c"]}
        append(log, b"d")
        running.processAllAvailable()
        assert query.batches[2] == [b"d"]
        (source,) = next(
            each for each in reversed(running.recentProgress) if each.batchId == 2
        ).sources
        known = manager.topics["t"].id
        assert source.endOffset == f'{{"t": {{"0": 4, "id": "{known}"}}}}'
        assert source.latestOffset == '{"t": {"0": 4}}'
    finally:
        running.stop()
