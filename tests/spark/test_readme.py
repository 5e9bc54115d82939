"""The examples of docs/spark.md, as a new user pastes them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from storage import LogManager, Record, encode
from tests.storage.compaction import cleaned
from tests.storage.logs import append

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/spark.md"
BIN = Path(sys.executable).parent


def blocks(title: str, language: str) -> list[str]:
    """The blocks of a chapter, or of a part of one."""
    chapters = re.split(r"^###? ", PAGE.read_text(), flags=re.M)
    (chapter,) = (each for each in chapters if each.startswith(f"{title}\n"))
    return re.findall(rf"^```{language}\n(.*?)^```$", chapter, flags=re.M | re.S)


def records(*each: tuple[bytes | None, bytes | None, int]) -> bytearray:
    """Keys, values and times in ms."""
    made = [Record(n, time_ms, 0, key, value) for n, (key, value, time_ms) in enumerate(each)]
    return bytearray(encode(made))


def at(scratch: Path, block: str) -> str:
    """A block whose data and results lie there."""
    return block.replace('"data"', repr(str(scratch / "data"))).replace('"lake', f'"{scratch}/lake')


def test_json_values_to_columns(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = blocks("JSON values to columns", "python")
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        (log,) = manager.create_topic("orders", 1).partitions.values()
        append(log, b'{"id": 7, "item": "pears", "price": 12.5}', b"no JSON", b'{"price": 9}')
    names: dict[str, Any] = {"spark": spark}
    exec(at(tmp_path, block), names)
    table = spark.read.parquet(str(tmp_path / "lake/large-orders")).collect()
    assert [tuple(row) for row in table] == [(7, "pears", 12.5, 0, 0)]
    assert [tuple(row) for row in names["orders"].where("price is null").collect()] == [
        (None, None, None, 0, 1)
    ]


def test_the_figures_of_a_condition(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, block = blocks("Conditions", "python")
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        log.append(records((b"alice", b"1", 0), (b"bob", b"2", 0)), now_ns=0)
    exec(at(tmp_path, block), {"spark": spark})
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    shown = capsys.readouterr().out
    assert "|INFO |where key = 'alice': 1 of 1 partitions in 1 of about 1 tasks;" in shown
    assert "|INFO |orders-0 from offset 0 to 2: the condition holds for 1 of 2 " in shown


def test_a_compacted_topic_to_a_table(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = blocks("A compacted topic to a table of latest values", "python")
    (tmp_path / "data").mkdir()
    with cleaned.compacted(tmp_path / "data") as (manager, _):
        log = manager.create_topic("users", 1).partitions[0]
        for each in ((b"ann", b"1"), (b"bob", b"1")), ((b"ann", b"2"), (b"eve", b"1")):
            cleaned.put(log, *each)
            cleaned.roll(log)
        cleaned.clean(manager, log)
        cleaned.put(log, (b"bob", None), (b"ann", b"3"), (b"fay", b""))
    exec(at(tmp_path, block), {"spark": spark})
    table = spark.read.parquet(str(tmp_path / "lake/users")).orderBy("key").collect()
    assert [tuple(row) for row in table] == [("ann", "3"), ("eve", "1"), ("fay", "")]


def test_replaying_an_hour_into_another_topic(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = blocks("Replaying an hour into another topic", "python")
    eight_ms = 1_795_334_400_000
    hour_ms = 3_600_000
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        logs = list(manager.create_topic("orders", 2).partitions.values())
        manager.create_topic("orders-again", 2)
        for number, log in enumerate(logs):
            made = records(
                (b"k", b"before %d" % number, eight_ms - 1),
                (b"k", b"first %d" % number, eight_ms),
                (None, b"last %d" % number, eight_ms + hour_ms - 1),
                (b"k", b"behind %d" % number, eight_ms + hour_ms),
            )
            log.append(made, now_ns=eight_ms * 1_000_000)
    for _ in range(2):
        exec(at(tmp_path, block), {"spark": spark})
    with LogManager.open(str(tmp_path / "data"), read_only=True) as manager:
        for number in range(2):
            assert [
                (record.key, record.value, record.timestamp)
                for record in manager.log("orders-again", number).records()
            ] == [
                (b"k", b"first %d" % number, eight_ms),
                (None, b"last %d" % number, eight_ms + hour_ms - 1),
            ]


def test_the_lag_of_a_query(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks("Lag", "python")
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        append(manager.create_topic("sales", 2).partitions[0], b"3", b"4", b"5")
        options = {"subscribe": "sales", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
        rows = spark.readStream.format("kafkafs").options(**options).load(str(data))
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        first = next(each for each in query.recentProgress if each.batchId == 0)
        exec(block.replace("query.lastProgress", "first"), {"first": first})
        assert capsys.readouterr().out == "{('sales', '0'): 1, ('sales', '1'): 0}\n"
        exec(block, {"query": query})
        assert capsys.readouterr().out == "{('sales', '0'): 0, ('sales', '1'): 0}\n"
