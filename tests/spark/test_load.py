"""`load`: the rows of `format("kafkafs")`, as they were at the call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException

from kafkafs.spark.load import load
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source.data_loss import DataLoss
from storage.errors import UnknownTopicOrPartition
from tests.spark.test_where import EPOCH_MS, every_codec
from tests.storage.logs import append, opened, remove_head
from tests.storage.segmented import segmented

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def by_format(spark: SparkSession, data: Path, schema: str | None, options: Any) -> DataFrame:
    reader = spark.read.format("kafkafs").options(**options)
    return (reader if schema is None else reader.schema(schema)).load(str(data))


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (None, {"subscribe": "orders"}),
        (None, {"subscribePattern": ".*", "includeHeaders": True, "minPartitions": 5}),
        ("Key string, offset bigint, value binary", {"subscribe": "orders"}),
        (None, {"assign": '{"orders":[1]}', "startingOffsets": '{"orders":{"1":3}}'}),
        (None, {"subscribe": "orders", "isolationLevel": "read_uncommitted"}),
        (None, {"subscribe": "orders", "where": "key = 'a' or value like '%b%'"}),
        (None, {"subscribe": "orders", "where": "topic = 'none'"}),
    ],
)
def test_the_rows_are_those_of_the_format(
    spark: SparkSession, tmp_path: Path, schema: str | None, options: dict[str, Any]
) -> None:
    every_codec(tmp_path)
    found = load(spark, str(tmp_path), schema=schema, **options)
    wanted = by_format(spark, tmp_path, schema, options)
    assert found.schema == wanted.schema
    by_place = ["offset", "timestamp", "value"] if schema is None else ["offset", "value"]
    rows = found.sort(by_place).collect()
    assert rows == wanted.sort(by_place).collect()
    assert bool(rows) == ("none" not in str(options))


def test_each_query_reads_what_there_was(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        append(log, b"a", b"b")
        frame = load(spark, str(tmp_path), subscribe="t", schema="value string")
        append(log, b"c")
        assert [row.value for row in frame.collect()] == ["a", "b"]
        assert frame.count() == 2
        assert load(spark, str(tmp_path), subscribe="t").count() == 3


def test_a_topic_without_records_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
    frame = load(spark, str(tmp_path), subscribe="t")
    assert frame.columns == by_format(spark, tmp_path, None, {"subscribe": "t"}).columns
    assert frame.collect() == []


def test_a_limit_reads_little(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for _ in range(64):
            append(log, *[b"v" * 100_000] * 2)
    frame = load(spark, str(tmp_path), subscribe="t")
    assert frame.rdd.getNumPartitions() > 2
    context = spark.sparkContext
    context.setJobGroup("limited load", "one task")
    try:
        assert frame.select("offset").first() == (0,)
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("limited load")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert [stage.numTasks for stage in stages if stage] == [1]


def test_times_are_in_the_sessions_zone(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v", timestamp_ms=EPOCH_MS)

    def count(where: str, **options: str) -> int:
        return load(spark, str(tmp_path), subscribe="t", where=where, **options).count()

    local = "timestamp >= '2023-11-14T17:13:20' and timestamp < '2023-11-14T22:13:20'"
    assert count(local) == 0
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert count(local) == 1
        assert count(local, timeZone="UTC") == 0
        with pytest.raises(InvalidOption, match="'timeZone' requires option 'where'"):
            load(spark, str(tmp_path), subscribe="t", timeZone="UTC")
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_records_that_are_gone_when_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        count = log.high_watermark
        frames = [
            load(spark, str(tmp_path), subscribe=log.topic, failOnDataLoss=fails)
            for fails in (True, False)
        ]
        remove_head(log, 1, 0)
        with pytest.raises(PythonException, match=r"DataLoss: Some data .*Reason: Could not read"):
            frames[0].collect()
        assert frames[1].count() == count - log.log_start_offset


def test_what_cannot_be_read_is_an_error_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v")
    path = str(tmp_path)
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'none'"):
        load(spark, path, subscribe="none")
    with pytest.raises(InvalidOption, match="Unknown option 'subscripe'"):
        load(spark, path, subscripe="t")
    with pytest.raises(InvalidOption, match="there is no column 'nothing'"):
        load(spark, path, subscribe="t", schema="nothing string")
    with pytest.raises(InvalidOption, match="the schema must name columns"):
        load(spark, path, subscribe="t", schema="string")
    with pytest.raises(InvalidOption, match=re.escape("'path' must be specified")):
        load(spark, "", subscribe="t")
    with pytest.raises(FileNotFoundError, match="no such data directory"):
        load(spark, f"{path}/none", subscribe="t")
    ends = '{"t":{"0":9}}'
    with pytest.raises(DataLoss, match="the log ends at 1"):
        load(spark, path, subscribe="t", endingOffsets=ends)
    assert load(spark, path, subscribe="t", endingOffsets=ends, failOnDataLoss=False).count() == 1
