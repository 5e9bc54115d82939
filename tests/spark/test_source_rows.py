"""Schemas, and the Arrow form of rows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StructField,
    StructType,
)

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import rows
from storage import LogManager, Record, encode
from storage.files import Files
from storage.record.header import APPEND_TIME_BIT
from storage.split.split import plan_splits
from tests.storage import old_logs
from tests.storage.logs import NOW_MS, append, opened

NOW = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC)


def read(data: Path, names: list[str], **options: Any) -> list[dict[str, object]]:
    """All rows of t-0, every batch of them sound."""
    schema = rows.chosen(rows.spark_schema(names))
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        splits = plan_splits(
            *(log, log.log_start_offset, log.log_end_offset),
            target_bytes=1 << 30,
            isolation="read_committed",
        )
    found = []
    for split in splits:
        for batch in rows.record_batches(Files(), split, schema, **options):
            batch.validate(full=True)
            assert batch.schema.equals(schema)
            found += batch.to_pylist()
    return found


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    assert rows.full_schema(False).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    assert (
        rows.full_schema(True)
        .simpleString()
        .endswith(",headers:array<struct<key:string,value:binary>>>")
    )


def test_all_columns(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        headers = (("a", b"1"), ("a", None), ("ä", b""))
        records = [
            Record(0, NOW_MS, 0, b"k", b"v", headers),
            Record(1, NOW_MS + 1, 0, None, None),
            Record(2, NOW_MS - 5, 0, b"", b"", (("b", b"2"),)),
        ]
        log.append(bytearray(encode(records)), now_ns=NOW_MS * 1_000_000)
        manager.change_topic_settings("t", {"message.timestamp.type": "LogAppendTime"})
        appended = bytearray(encode([Record(0, 5, 0, b"k", b"v")], attributes=APPEND_TIME_BIT))
        log.append(appended, now_ns=(NOW_MS + 7) * 1_000_000)
    millisecond = datetime.timedelta(milliseconds=1)
    same = {"topic": "t", "partition": 0}
    header_rows = [{"key": key, "value": value} for key, value in headers]
    assert read(tmp_path, list(rows.TYPES)) == [
        {"key": b"k", "value": b"v", **same, "offset": 0}
        | {"timestamp": NOW, "timestampType": 0, "headers": header_rows},
        {"key": None, "value": None, **same, "offset": 1}
        | {"timestamp": NOW + millisecond, "timestampType": 0, "headers": None},
        {"key": b"", "value": b"", **same, "offset": 2}
        | {"timestamp": NOW - 5 * millisecond, "timestampType": 0}
        | {"headers": [{"key": "b", "value": b"2"}]},
        {"key": b"k", "value": b"v", **same, "offset": 3}
        | {"timestamp": NOW + 7 * millisecond, "timestampType": 1, "headers": None},
    ]


@pytest.mark.parametrize(
    "names", [["offset", "value"], ["topic"], ["partition", "topic"], ["timestampType"]]
)
def test_some_columns(tmp_path: Path, names: list[str]) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for number in range(40):
            append(log, *[b"%d" % number] * (number + 1))
    whole = read(tmp_path, list(rows.TYPES), chunk_bytes=500)
    assert len(whole) == 820
    assert read(tmp_path, names, chunk_bytes=500) == [
        {name: row[name] for name in names} for row in whole
    ]


def test_messages_without_times(tmp_path: Path) -> None:
    old_logs.write_legacy(tmp_path, "t", 0)
    found = read(tmp_path, ["timestamp", "timestampType"])
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    assert found[0] == {
        "timestamp": epoch - datetime.timedelta(milliseconds=1),
        "timestampType": -1,
    }


# -- a user's schema -------------------------------------------------------------------------------


def test_a_schema_chooses_and_orders() -> None:
    found = rows.chosen(StructType([rows.full_schema(True)[name] for name in ("offset", "value")]))
    assert found.equals(pa.schema([("offset", pa.int64()), ("value", pa.binary())]))
    assert rows.chosen(rows.full_schema(True)).equals(
        to_arrow_schema(rows.full_schema(True), timezone="UTC")
    )


def test_names_may_be_in_any_case(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v")
    field = rows.full_schema(False)["offset"]
    field.name = "OFFSET"
    found = rows.chosen(StructType([field]))
    assert found.names == ["OFFSET"]
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        splits = plan_splits(manager.log("t", 0), 0, 1, target_bytes=1, isolation="read_committed")
    (batch,) = rows.record_batches(Files(), splits[0], found)
    assert batch.to_pylist() == [{"OFFSET": 0}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "the schema has no columns; there are: key, value, topic"),
        ([("ofset", LongType())], "there is no column 'ofset'; there are: key, value, topic"),
        (
            [("offset", IntegerType())],
            "'offset' has type bigint, not int; select it with that type",
        ),
        ([("topic", BinaryType())], "'topic' has type string, not binary"),
        ([("offset", LongType()), ("Offset", LongType())], "'Offset' is given twice"),
    ],
)
def test_a_schema_is_refused(fields: list[tuple[str, DataType]], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        rows.chosen(StructType([StructField(*field) for field in fields]))
