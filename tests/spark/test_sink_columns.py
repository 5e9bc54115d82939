"""kafkafs.spark.sink: which columns and options it takes, without a session."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.sink import batch_writer, parse, stream_writer

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
NAMED = StructType([StructField("name", StringType()), StructField("value", BinaryType())])
TEXTS = StructType([StructField("key", StringType()), StructField("value", StringType())])
ALL: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "key": StringType(),
    "value": BinaryType(),
    "headers": ArrayType(HEADER),
    "timestamp": TimestampType(),
}
LEAST: dict[str, DataType] = {"topic": StringType(), "value": StringType()}


def schema(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "columns",
    [
        ALL,
        {**ALL, "offset": LongType(), "timestampType": IntegerType()},
        LEAST,
        {"value": BinaryType(), "topic": StringType(), "key": BinaryType()},
        {**LEAST, "headers": ArrayType(HEADER, containsNull=False)},
    ],
)
def test_columns_that_are_taken(tmp_path: Path, columns: dict[str, DataType]) -> None:
    assert parse({"path": str(tmp_path)}, schema(columns)).topic is None
    parsed = parse({"PATH": f"file://{tmp_path}", "Topic": "t"}, schema({"value": StringType()}))
    assert (parsed.path, parsed.topic) == (str(tmp_path), "t")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            {"value": StringType()},
            "topic option required when no 'topic' attribute is present",
        ),
        ({"topic": StringType()}, "Required attribute 'value' not found"),
        ({**LEAST, "value": IntegerType()}, "value attribute unsupported type int"),
        ({**LEAST, "topic": BinaryType()}, "topic attribute unsupported type binary"),
        ({**LEAST, "key": LongType()}, "key attribute unsupported type bigint"),
        ({**LEAST, "partition": LongType()}, "partition attribute unsupported type bigint"),
        ({**LEAST, "timestamp": LongType()}, "timestamp attribute unsupported type bigint"),
        ({**LEAST, "timestamp": TimestampNTZType()}, "timestamp attribute .* timestamp_ntz"),
        (
            {**LEAST, "headers": MapType(StringType(), BinaryType())},
            "headers attribute unsupported type map<string,binary>",
        ),
        (
            {**LEAST, "headers": ArrayType(TEXTS)},
            "headers attribute unsupported type array<struct<key:string,value:string>>",
        ),
        ({**LEAST, "headers": ArrayType(NAMED)}, "headers attribute unsupported type"),
        ({**LEAST, "headers": ArrayType(StringType())}, "headers attribute unsupported type"),
        ({**LEAST, "user": StringType()}, "Attribute 'user' is none of a record's"),
        ({"topic": StringType(), "Value": StringType()}, "Attribute 'Value' is none"),
    ],
)
def test_columns_that_are_refused(
    tmp_path: Path, columns: dict[str, DataType], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        parse({"path": str(tmp_path)}, schema(columns))


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    fields = [StructField(name, StringType()) for name in ("topic", "value", "value")]
    with pytest.raises(ValueError, match="'value' is there twice"):
        parse({"path": str(tmp_path)}, StructType(fields))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": ""}, "'path' must be specified"),
        ({"path": "s3://bucket/logs"}, "executors share; what is in s3://.* only be read"),
        ({"topik": "t"}, "Unknown option 'topik'"),
        ({"topic": "a/b"}, "'a/b' is no topic's name"),
        ({"txnId": "a b"}, "Option 'txnId': 'a b' is no name"),
        ({"txnId": "x" * 129}, "at most 128"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    given = {"path": str(tmp_path), **options}
    with pytest.raises(InvalidOption, match=reason):
        parse(given, schema(ALL))


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError, match="no such data directory"):
            parse({"path": str(path)}, schema(ALL))


def test_what_spark_and_kafka_say_besides(tmp_path: Path) -> None:
    more = {"kafka.bootstrap.servers": "b:9092", "checkpointLocation": "/c", "queryName": "q"}
    assert parse({"path": str(tmp_path), **more}, schema(ALL)).path == str(tmp_path)


def test_modes(tmp_path: Path) -> None:
    options = {"path": str(tmp_path)}
    with pytest.raises(InvalidOption, match="overwrite is not supported"):
        batch_writer(options, schema(ALL), True)
    with pytest.raises(InvalidOption, match="complete is not supported"):
        stream_writer(options, schema(ALL), True)
    with pytest.raises(InvalidOption, match="'txnId' not valid in streaming"):
        stream_writer({**options, "txnId": "x"}, schema(ALL), False)


def test_writers_are_sent_to_other_processes(tmp_path: Path) -> None:
    """The tasks' writer and the one that commits write the same batch."""
    writer = batch_writer({"path": str(tmp_path)}, schema(ALL), False)
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
    other = batch_writer({"path": str(tmp_path)}, schema(ALL), False)
    assert vars(other) != vars(writer)
    pickle.loads(pickle.dumps(stream_writer({"path": str(tmp_path)}, schema(ALL), False)))
