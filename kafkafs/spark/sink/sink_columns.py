"""Checks the sink's columns, and passes them from Arrow to the encoder.

The columns are those of Spark's Kafka sink: `topic` (string), `partition` (int), `key` and `value`
(string or binary), `headers`. Only `value` is required. The sink also accepts `timestamp`, the
record's time; null is the same as no column. It ignores the source's columns `offset` and
`timestampType`. It refuses any other column, because a record has no field for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from kafkafs.spark.option_values import InvalidOption
from storage.record.columns._rows import BytesColumn, HeadersColumn, NumbersColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_BYTES = (StringType, BinaryType)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "partition": (IntegerType,),
    "key": _BYTES,
    "value": _BYTES,
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
}
_LEFT_OUT = frozenset({"offset", "timestampType"})


def check_columns(schema: StructType, *, has_topic_option: bool) -> None:
    """Raise InvalidOption if the sink does not take these columns."""
    names = schema.fieldNames()
    for name in names:
        if name not in _TYPES and name not in _LEFT_OUT:
            raise InvalidOption(
                f"Attribute '{name}' is not a field of a record ({', '.join(_TYPES)}). Select the "
                "columns to write."
            )
        if names.count(name) > 1:
            raise InvalidOption(f"Attribute '{name}' is given twice.")
    if "topic" not in names and not has_topic_option:
        raise InvalidOption(
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic."
        )
    if "value" not in names:
        raise InvalidOption("Required attribute 'value' not found.")
    for field in schema:
        if field.name in _TYPES and not _is_taken(field.name, field.dataType):
            raise InvalidOption(
                f"{field.name} attribute unsupported type {field.dataType.simpleString()}"
            )


def _is_taken(name: str, kind: DataType) -> bool:
    if name != "headers":
        return isinstance(kind, _TYPES[name])
    item = kind.elementType if isinstance(kind, ArrayType) else None
    return (
        isinstance(item, StructType)
        and item.fieldNames() == ["key", "value"]
        and isinstance(item["key"].dataType, StringType)
        and isinstance(item["value"].dataType, BinaryType)
    )


class EncoderColumns(NamedTuple):
    """A batch of rows in the encoder's form."""

    keys: BytesColumn | None
    values: BytesColumn
    headers: HeadersColumn | None
    timestamps: NumbersColumn | None
    partitions: NumbersColumn | None


def columns_of(batch: pa.RecordBatch) -> EncoderColumns:
    """Return the columns of a batch, without a copy."""
    found = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys, headers = found.get("key"), found.get("headers")
    timestamps, partitions = found.get("timestamp"), found.get("partition")
    return EncoderColumns(
        None if keys is None else _bytes_column(keys),
        _bytes_column(found["value"]),
        None if headers is None else _headers_column(headers),
        None if timestamps is None else _numbers_column(_in_microseconds(timestamps)),
        None if partitions is None else _numbers_column(partitions),
    )


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.Buffer | None]]:
    """Yield each topic in a batch with the numbers of its rows as i64; None: all rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    topics = batch.column(batch.schema.get_field_index("topic"))
    encoded = pc.dictionary_encode(topics, null_encoding="encode")
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], None
        return
    for number, name in enumerate(names):
        rows = pc.indices_nonzero(pc.equal(encoded.indices, number))
        yield name, pc.cast(rows, pa.int64()).buffers()[1]


def _in_microseconds(column: pa.Array) -> pa.Array:
    """Return timestamps as microseconds, which Spark's Arrow form already has."""
    if column.type.unit == "us":
        return column
    import pyarrow as pa

    return column.cast(pa.timestamp("us", column.type.tz))


def _numbers_column(column: pa.Array) -> NumbersColumn:
    validity, data = column.buffers()
    wide = column.type.bit_width == 64
    return NumbersColumn(len(column), _given(data), validity, first=column.offset, wide=wide)


def _bytes_column(column: pa.Array) -> BytesColumn:
    validity, positions, block = column.buffers()
    wide = str(column.type).startswith("large_")
    return BytesColumn(
        len(column),
        _positions(positions),
        _given(block),
        validity,
        first=column.offset,
        wide=wide,
    )


def _headers_column(column: pa.Array) -> HeadersColumn:
    validity, positions = column.buffers()[:2]
    headers = column.values
    names, values = headers.field(0), headers.field(1)
    if headers.null_count:
        import pyarrow.compute as pc

        # A null header has no name.
        names = pc.if_else(headers.is_valid(), names, None)
    return HeadersColumn(
        len(column),
        _positions(positions),
        _bytes_column(names),
        _bytes_column(values),
        validity,
        first=column.offset,
        wide=str(column.type).startswith("large_"),
    )


def _given(buffer: pa.Buffer | None) -> pa.Buffer | bytes:
    return b"" if buffer is None else buffer


def _positions(buffer: pa.Buffer | None) -> pa.Buffer | bytes:
    """Return the positions. Arrow may omit them for no rows, but the encoder needs the first."""
    return bytes(8) if buffer is None or not buffer.size else buffer
