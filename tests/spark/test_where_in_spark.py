"""The option `where` in Spark: it leaves what Spark itself leaves, in batches, streams and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkafs.spark.jobs import export, stats
from kafkafs.spark.source import task
from storage.errors import InvalidConfig
from tests.spark.reading import batch, batch_parts
from tests.spark.test_where import EPOCH_MS, ODD_TEXTS, every_codec, parse_condition
from tests.storage.logs import append, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak

WORDS = [
    "key = 'a'",
    "key <> 'a' or value is null",
    "not (key = 'a' and value < 'b')",
    "key in ('a', X'ff', 'b') and value not in ('ab')",
    "key like '%a%'",
    "value like 'a_b'",
    "value like '_'",
    "value not like 'a%' and key between 'a' and 'b'",
    "value like '%\\\\%'",
    "key > X'61' and key <= 'b'",
    "offset between 3 and 8 and partition = 1",
    "partition in (0, 5) and topic like 'ord%' and topic <> 'x'",
    "timestampType = 0 and timestamp >= '2023-11-14T22:13:20'",
    "timestamp < '2023-11-14 22:13:20.001Z' or timestamp = '2023-11-14 22:13:20.0020009Z'",
    "key is null and value is not null",
    "key = ('a') or value in ('it''s', ('ab'))",
    "timestamp >= '2023-11' and timestamp < '2023-11-14T22:13:20.002 UTC'",
    "timestamp > '2023-11-15T00:13:20UTC+2' or timestamp < '2023-11-15T07:13:20.001+09:00:00'",
    "timestamp between '2023-11-14T14:13:19 PST' and '2023-11-14T17:13:20.002 EST'",
    "value like 'ab%cd'",
    "value not like 'ab%cd'",
    "value like 'aa%aa' or value like 'ab%%cd'",
    "value like 'ab/%%cd' escape '/' or value like 'a%b' escape '/'",
    "value like 'ab\\\\_%cd'",
    "value like '😀%b'",
    "value = 'it\\'s' or key = X'61' or key = X\"62\"",
    "value is null or key < X'62'",
    "timestampType <> 0",
    "(((((key)) = (('a')))) or not (((((value)) not like ('%b')))))",
]
# Spark has no such function: it takes the last header of the name itself.
LAST_HEADER = "try_element_at(filter(coalesce(headers, array()), each -> each.key = 'h'), -1).value"
OF_HEADERS = ["= 'a'", "<> 'a'", "like '%a%'", "is null", "is not null"]


def test_spark_itself_leaves_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    every_codec(tmp_path)
    with opened(tmp_path) as manager:
        append(manager.log("orders", 0), *ODD_TEXTS, timestamp_ms=EPOCH_MS)

    def load(**options: str) -> Any:
        reader = spark.read.format("kafkafs").option("path", str(tmp_path))
        return reader.option("subscribe", "orders").options(**options).load()

    def found(frame: Any) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in frame.collect())

    plain = load(includeHeaders="true")
    # All at once: a query takes a while, however little it reads.
    ours = [*WORDS, *(f"header('h') {condition}" for condition in OF_HEADERS)]
    theirs = [*WORDS, *(f"{LAST_HEADER} {condition}" for condition in OF_HEADERS)]
    columns = [f"{words} as holds{number}" for number, words in enumerate(theirs)]
    judged = plain.selectExpr("partition", "offset", *columns).collect()
    for number, words in enumerate(ours):
        expected = sorted((row.partition, row.offset) for row in judged if row[f"holds{number}"])
        assert words == "timestampType <> 0" or expected, words
        assert found(load(where=words)) == expected, words
    # The columns of text, with bytes that are none.
    reader = spark.read.format("kafkafs").schema("offset long, partition int, key string")
    text = reader.option("path", str(tmp_path)).option("subscribe", "orders").load()
    cast = plain.selectExpr("partition", "offset", "hex(key) as key")
    assert sorted(text.selectExpr("partition", "offset", "hex(key) as key").collect()) == sorted(
        cast.collect()
    )
    assert load(where="value like '%a%'").limit(2).count() == 2


def test_times_are_in_the_sessions_zone(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v", timestamp_ms=EPOCH_MS)

    def load(**options: str) -> Any:
        reader = spark.read.format("kafkafs").option("path", str(tmp_path))
        return reader.option("subscribe", "t").options(**options).load()

    def count(**options: str) -> int:
        return int(load(**options).count())

    local = "timestamp >= '2023-11-14T22:13:20'"
    assert count(where=local) == 1
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for where in (local, "timestamp > '2033-11-14T22:13:20'"):
            with pytest.raises(Exception, match="Set the option 'timeZone' to America/New_York"):
                count(where=where)
        assert count(where=local, timeZone="America/New_York") == 0
        assert count(where=local.replace("22:", "17:"), timeZone="America/New_York") == 1
        assert count(where=local.replace("20'", "20Z'")) == 1
        # The error's advice works for every spelling of the zone.
        for zone_name, name in (("UTC+02:00", "UTC\\+02:00"), ("PST", "PST"), ("GMT+2", "GMT\\+2")):
            spark.conf.set("spark.sql.session.timeZone", zone_name)
            with pytest.raises(Exception, match=f"Set the option 'timeZone' to {name},"):
                count(where=local)
            expected = int(load().where(local).count())
            assert count(where=local, timeZone=zone_name) == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_the_tasks_of_an_rdd_are_not_told_the_zone(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v", timestamp_ms=EPOCH_MS)

    def count(where: str, **options: str) -> int:
        reader = spark.read.format("kafkafs").option("path", str(tmp_path))
        rows = reader.option("subscribe", "t").options(where=where, **options).load()
        return int(rows.rdd.count())

    local = "timestamp >= '2023-11-14T22:13:20'"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for where in (local, "timestamp > '2033-11-14T22:13:20'"):
            with pytest.raises(
                Exception,
                match=r"does not pass the time zone of the session to .*'timeZone'",
            ):
                count(where)
        assert count(local, timeZone="America/New_York") == 0
        assert count(local, timeZone="UTC") == count("value = 'v'") == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_jobs_take_the_same(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    every_codec(data)
    where = "partition = 1 and key like '%a%'"
    count = len(batch(data, where=where))
    assert count
    condition = parse_condition(where)
    report = stats.run(spark, str(data), stats.StatsOptions(where=condition, gap_ms=1))
    assert report.figures["records"] == count
    assert report.figures["partitions"] == 2
    assert not {"batches", "bytes", "offset_gaps"} & report.figures.keys()
    planned = stats.plan(str(data), stats.StatsOptions(where=condition))
    assert planned.figures["bytes"] == sum(
        part.split.size
        for part in batch_parts(data, where="partition = 1")
        if isinstance(part, task.SplitPartition)
    )
    out = str(tmp_path / "out")
    options = export.ExportOptions(source={"where": where})
    assert export.run(spark, str(data), out, options).figures["records"] == count
    assert export.run(spark, str(data), out, options).figures["records"] == 0
    with pytest.raises(InvalidConfig, match="of other data"):
        export.run(spark, str(data), out, export.ExportOptions(source={"where": "key = 'a'"}))
