"""`df.write` and `df.writeStream` to `format("kafkafs")`, in Spark itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storage import LogManager, Record
from storage.adopt.adoptions import Adoptions
from storage.files import Files
from tests.mount.mounting import check_data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    with LogManager.open(str(directory)) as manager:
        manager.create_topic("orders", 3)
        manager.create_topic("payments", 1)
    return directory


def records(data: Path, topic: str) -> list[list[Record]]:
    with LogManager.open(str(data), read_only=True) as manager:
        logs = manager.topic(topic).partitions
        return [list(logs[number].records()) for number in sorted(logs)]


def values(data: Path, topic: str) -> list[bytes | None]:
    return [record.value for each in records(data, topic) for record in each]


def listing(data: Path) -> dict[str, int]:
    """Every file and its size."""
    return {str(path): path.stat().st_size for path in data.rglob("*")}


def write(frame: DataFrame, data: Path, **options: Any) -> None:
    frame.write.format("kafkafs").mode("append").options(**options).save(str(data))


def lines(directory: Path, name: str, text: str) -> None:
    """Add a file to a stream's input, at once."""
    directory.mkdir(exist_ok=True)
    (directory.parent / name).write_text(text)
    # Spark takes files in the order of their times.
    at = 1_700_000_000 + len(list(directory.iterdir()))
    os.utime(directory.parent / name, (at, at))
    (directory.parent / name).rename(directory / name)


def stream(spark: SparkSession, base: Path, data: Path, checkpoint: str = "checkpoint") -> None:
    """All input files that are new, one a batch; has ended when it returns."""
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(base / "in"))
    query = (
        frame.where("value != 'none'")
        .writeStream.format("kafkafs")
        .option("checkpointLocation", str(base / checkpoint))
        .option("topic", "payments")
        .trigger(availableNow=True)
        .start(str(data))
    )
    query.awaitTermination()


def test_every_column(spark: SparkSession, data: Path) -> None:
    """Two topics in one write are one transaction; the tasks' records come in their order."""
    at = "timestamp'2024-05-06 07:08:09.123456'"
    headers = (
        "array(named_struct('key', 'h', 'value', x'31'), named_struct('key', 'g', 'value', null))"
    )
    frame = spark.sql(
        f"""select /*+ coalesce(1) */ * from values
        ('orders', 2, 'k', x'76', {headers}, {at}),
        ('orders', 2, null, x'', null, {at}),
        ('payments', null, '', null, array(), {at}),
        ('orders', 2, 'k', x'77', null, {at})
        as rows(topic, partition, key, value, headers, timestamp)"""
    )
    write(frame, data)
    at_ms = 1_714_979_289_123
    assert [row[1:] for row in records(data, "orders")[2]] == [
        (at_ms, 0, b"k", b"v", (("h", b"1"), ("g", None))),
        (at_ms, 0, None, b"", ()),
        (at_ms, 0, b"k", b"w", ()),
    ]
    assert [row[1:] for row in records(data, "payments")[0]] == [(at_ms, 0, b"", None, ())]
    with LogManager.open(str(data), read_only=True) as manager:
        producers = [
            dict(manager.log(topic, number).producers.by_id)
            for topic, number in (("orders", 2), ("payments", 0))
        ]
        assert manager.log("orders", 2).last_stable_offset == 4  # behind the marker
    assert len(producers[0]) == 1
    assert producers[0].keys() == producers[1].keys()
    check_data(data)


def test_a_bad_row_changes_nothing(spark: SparkSession, data: Path) -> None:
    from pyspark.errors import PySparkException

    before = listing(data)
    frame = spark.range(0, 1000, 1, 1).selectExpr(
        "'payments' topic", "cast(id as string) value", "cast(if(id = 700, 1, 0) as int) partition"
    )
    with pytest.raises(PySparkException, match=r"row 701 of task 0 .*partition 1\): there is no"):
        write(frame, data)
    assert listing(data) == before


def test_a_named_write_is_done_once(spark: SparkSession, data: Path) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) value")
    write(frame, data, topic="orders", txnId="daily-2024-05-06")
    before = values(data, "orders")
    assert len(before) == 10
    write(frame, data, topic="orders", txnId="daily-2024-05-06")
    assert values(data, "orders") == before
    assert list(data.rglob("*.staged")) == []
    write(frame, data, topic="orders", txnId="daily-2024-05-07")
    write(frame, data, topic="orders")
    assert len(values(data, "orders")) == 30


def test_a_replayed_batch_is_written_once(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """A driver that died before it wrote down what it had committed; an empty batch in between."""
    for number, text in enumerate(("a\nb\n", "none\n", "c\n")):
        lines(tmp_path / "in", f"{number}.txt", text)
    stream(spark, tmp_path, data)
    assert values(data, "payments") == [b"a", b"b", b"c"]
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()
    lines(tmp_path / "in", "3.txt", "d\n")
    stream(spark, tmp_path, data)
    assert values(data, "payments") == [b"a", b"b", b"c", b"d"]
    (query,) = Adoptions.load(Files(), str(data)).queries.values()
    assert query.batch == 3
    assert list(data.rglob("*.staged")) == []
    check_data(data)


def test_each_batch_of_a_foreach_batch_is_written_once(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    """A replayed batch is a duplicate, with topics of its own too; the run is the query's."""

    def each(frame: DataFrame, number: int) -> None:
        topics = frame.selectExpr("value", "explode(array('orders', 'payments')) topic")
        write(topics, data, txnAppId="my-app", txnVersion=number)
        frame.sparkSession.createDataFrame([(b"audit",)], "value binary").write.format(
            "kafkafs"
        ).mode("append").options(topic="audit", txnAppId="my-audit", txnVersion=number).save(
            str(data)
        )

    def run() -> str:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            frame.load(str(tmp_path / "in"))
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.runId)

    with LogManager.open(str(data)) as manager:
        manager.create_topic("audit", 1)
    for number, text in enumerate(("a\n", "", "b\n")):
        lines(tmp_path / "in", f"{number}.txt", text)
    first = run()
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    lines(tmp_path / "in", "3.txt", "c\n")
    last = run()
    for topic in ("orders", "payments"):
        assert sorted(values(data, topic), key=str) == [b"a", b"b", b"c"]
    assert values(data, "audit") == [b"audit"] * 4
    app = Adoptions.load(Files(), str(data)).queries["my-app"]
    assert (app.batch, app.run, app.fenced) == (3, last, (first,))
    check_data(data)


def test_versions_of_a_batch_query(spark: SparkSession, data: Path) -> None:
    frame = spark.sql("select 'x' value")
    for version, count in ((5, 1), (5, 1), (9, 2), (7, 2), (10, 3)):
        write(frame, data, topic="orders", txnAppId="loader", txnVersion=version)
        assert len(values(data, "orders")) == count
    write(frame, data, topic="orders", txnAppId="another", txnVersion=0)
    assert len(values(data, "orders")) == 4
