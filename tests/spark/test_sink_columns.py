"""kafkafs.spark.sink.sink: which columns and options it takes, without a session."""

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
from kafkafs.spark.sink.sink import batch_writer, stream_writer
from kafkafs.spark.sink.sink_columns import check_columns
from kafkafs.spark.sink.sink_options import parse

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
def test_columns_that_are_taken(columns: dict[str, DataType]) -> None:
    check_columns(schema(columns), has_topic_option=False)
    check_columns(schema({"value": StringType()}), has_topic_option=True)


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
        ({**LEAST, "user": StringType()}, "Attribute 'user' is not a field of a record"),
        ({"topic": StringType(), "Value": StringType()}, "Attribute 'Value' is not a field"),
    ],
)
def test_columns_that_are_refused(columns: dict[str, DataType], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        check_columns(schema(columns), has_topic_option=False)


def test_a_column_that_is_there_twice() -> None:
    fields = [StructField(name, StringType()) for name in ("topic", "value", "value")]
    with pytest.raises(InvalidOption, match="'value' is given twice"):
        check_columns(StructType(fields), has_topic_option=True)


def test_options_of_any_case(tmp_path: Path) -> None:
    parsed = parse({"PATH": f"file://{tmp_path}", "Topic": "t", "txnid": "x"})
    assert (parsed.path, parsed.topic, parsed.transaction) == (str(tmp_path), "t", "x")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": ""}, "'path' must be specified"),
        ({"path": "s3://bucket/logs"}, "executors share; data directories in s3://.* only be read"),
        ({"topik": "t"}, r"Unknown option 'topik': did you mean 'topic'\?"),
        ({"tuneWorkers": "1"}, "'tuneWorkers' must be 'true' or 'false'"),
        ({"topic": "a/b"}, "'a/b' is not a valid topic name"),
        ({"txnId": "a b"}, "Option 'txnId': invalid query name 'a b'"),
        ({"txnId": "x" * 129}, "at most 128"),
        ({"txnAppId": "a b", "txnVersion": "1"}, "Option 'txnAppId': invalid query name 'a b'"),
        ({"topicPartitions": "0"}, "topicPartitions must be positive"),
        ({"txnAppId": "a"}, "'txnAppId' and 'txnVersion' require each other"),
        ({"txnVersion": "1"}, "'txnAppId' and 'txnVersion' require each other"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "'txnVersion' must not be negative"),
        ({"txnAppId": "a", "txnVersion": "1.0"}, "'txnVersion' must be a whole number"),
        ({"txnAppId": "a", "txnVersion": "1", "txnId": "b"}, "cannot be used with 'txnAppId'"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    given = {"path": str(tmp_path), **options}
    with pytest.raises(InvalidOption, match=reason):
        parse(given)


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileNotFoundError, match=r"no such data directory: .*/none"):
        parse({"path": str(tmp_path / "none")})
    with pytest.raises(NotADirectoryError, match=r"a file, not a data directory: .*/file"):
        parse({"path": str(file)})


def test_what_spark_and_kafka_say_besides(tmp_path: Path) -> None:
    more = {"kafka.bootstrap.servers": "b:9092", "checkpointLocation": "/c", "queryName": "q"}
    assert parse({"path": str(tmp_path), **more}).path == str(tmp_path)


def test_modes(tmp_path: Path) -> None:
    options = {"path": str(tmp_path)}
    with pytest.raises(InvalidOption, match="overwrite is not supported"):
        batch_writer(options, schema(ALL), True)
    with pytest.raises(InvalidOption, match="complete is not supported"):
        stream_writer(options, schema(ALL), True)
    for name in ("txnId", "txnAppId", "txnVersion"):
        with pytest.raises(InvalidOption, match=f"'{name}' not valid in streaming"):
            stream_writer({**options, name: "1"}, schema(ALL), False)


def test_writers_are_sent_to_other_processes(tmp_path: Path) -> None:
    """The tasks' writer and the one that commits write the same batch."""
    writer = batch_writer({"path": str(tmp_path)}, schema(ALL), False)
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
    other = batch_writer({"path": str(tmp_path)}, schema(ALL), False)
    assert vars(other) != vars(writer)
    pickle.loads(pickle.dumps(stream_writer({"path": str(tmp_path)}, schema(ALL), False)))
