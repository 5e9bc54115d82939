"""Records as rows of Spark: the schema, and Arrow record batches.

The columns are those of Spark's Kafka source. A query may select columns, in any order, and the
task decodes only these. Arrow uses the decoder's buffers without a copy:

    column         Arrow                            from
    key, value     binary, or string                validity, positions, bytes
    topic          string                           the split
    partition      int32                            the split
    offset         int64                            i64
    timestamp      timestamp[us, UTC]               i64
    timestampType  int32                            i32: -1 none, 0 of the record, 1 of its append
    headers        list<struct<key: string,         positions; of both parts of the struct validity,
                   value: binary>>                  positions, bytes

A record without timestamp has -1 ms, as in Kafka's clients. A key or a value that is read as a
string keeps its bytes, even if they are not UTF-8. Spark's cast gives the same bytes.

Only tasks that read import Arrow: without it, a process that plans or writes starts a fifth of a
second earlier. `storage.split.split` reads and decodes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkafs.spark.option_values import InvalidOption
from storage.errors import StorageError
from storage.split.split_finder import Split
from storage.split.split_reader import CHUNK_BYTES, Wanted, read_split

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.files import Files
    from storage.record.columns._columns import Columns, VariableColumn
    from storage.record.columns._predicate import Predicate

HEADERS = "headers"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
}
_BYTES = ("key", "value")
_ENOUGH_ROWS = 8192
_ENOUGH_BYTES = 1 << 20
_NAMES = {name.lower(): name for name in TYPES}


# -- schemas -----------------------------------------------------------------------------------


def full_schema(headers: bool) -> StructType:
    """Return the schema of `load()` without `.schema(…)`."""
    return spark_schema(name for name in TYPES if headers or name != HEADERS)


def spark_schema(names: Iterable[str]) -> StructType:
    """Return a schema with these columns."""
    return StructType([StructField(name, TYPES[name]) for name in names])


def chosen(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the user's columns, whose names may have any case, as in Spark.

    InvalidOption for an unknown column, or a column of another type.
    """
    if not schema.fields:
        raise InvalidOption(f"the schema has no columns; there are: {', '.join(TYPES)}")
    seen = set()
    for field in schema.fields:
        name = _NAMES.get(field.name.lower())
        if name is None:
            raise InvalidOption(f"there is no column {field.name!r}; there are: {', '.join(TYPES)}")
        is_text = name in _BYTES and field.dataType == StringType()
        if not is_text and not _is_alike(field.dataType, TYPES[name]):
            raise InvalidOption(
                f"column {field.name!r} has type {TYPES[name].simpleString()}, not "
                f"{field.dataType.simpleString()}; select it with that type and cast it afterwards"
            )
        if name in seen:
            raise InvalidOption(f"column {field.name!r} is given twice")
        seen.add(name)
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _is_alike(one: DataType, other: DataType) -> bool:
    """Return whether two types differ at most in the parts that may be null."""
    return one.simpleString() == other.simpleString()


# -- rows --------------------------------------------------------------------------------------


class Figures:
    """The number of decoded records of a split, and of those that meet a condition."""

    def __init__(self) -> None:
        self.decoded = self.kept = 0


def record_batches(
    files: Files,
    split: Split,
    schema: pa.Schema,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    predicate: Predicate | None = None,
    figures: Figures | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a split that meet `predicate`, in the order of offsets.

    Errors: those of `read_split`.
    """
    import pyarrow as pa

    names = [_NAMES[name.lower()] for name in schema.names]
    needed = {_DECODED[name][0] for name in names if name in _DECODED}
    wanted = Wanted(**{field: field in needed for field in Wanted._fields})
    topic = split.topic.encode()
    # The columns that are the same in all rows, as long as the longest batch so far.
    same = {
        "topic": _single(pa.string(), struct.pack("=2i", 0, len(topic)), topic),
        "partition": _single(pa.int32(), struct.pack("=i", split.partition)),
    }

    def repeated(name: str, rows: int) -> pa.Array:
        if len(same[name]) < rows:
            same[name] = pa.repeat(same[name][0], rows)
        return same[name][:rows]

    for columns in read_split(files, split, wanted, chunk_bytes=chunk_bytes, predicate=predicate):
        if figures is not None:
            figures.decoded += columns.judged
            figures.kept += columns.rows
        if not columns.rows:
            continue
        arrays = [
            repeated(name, columns.rows) if name in same else _DECODED[name][1](columns, type_)
            for name, type_ in zip(names, schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: each batch costs as much as thousands of rows.

    The first row is yielded at once. After an error, the rows before it are yielded first.
    """
    import pyarrow as pa

    def together() -> Iterator[pa.RecordBatch]:
        if len(held) == 1:
            yield held[0]
        else:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()

    held: list[pa.RecordBatch] = []
    rows = size = 0
    enough = 1
    try:
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= enough or size >= _ENOUGH_BYTES:
                yield from together()
                held, rows, size = [], 0, 0
                enough = min(2 * enough, _ENOUGH_ROWS)
    except (StorageError, OSError):
        if held:
            yield from together()
        raise
    if held:
        yield from together()


def _single(type_: pa.DataType, *buffers: bytes) -> pa.Array:
    """Return an array of one value. `pa.array` would import pandas, which takes longer."""
    import pyarrow as pa

    return pa.Array.from_buffers(type_, 1, [None, *map(pa.py_buffer, buffers)])


def _fixed(buffer: bytearray | None, rows: int, type_: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(buffer)], null_count=0)


def bytes_array(type_: pa.DataType, rows: int, column: VariableColumn | None) -> pa.Array:
    """Return a decoded column of bytes as an array of Arrow."""
    import pyarrow as pa

    assert column is not None
    validity = pa.py_buffer(column.validity) if column.nulls else None
    buffers = [validity, pa.py_buffer(column.positions), pa.py_buffer(column.block)]
    return pa.Array.from_buffers(type_, rows, buffers, null_count=column.nulls)


def _headers(columns: Columns, type_: pa.DataType) -> pa.Array:
    import pyarrow as pa

    lists, count, struct = columns.headers, columns.header_count, type_.value_type
    assert lists is not None
    parts = [
        bytes_array(struct.field(0).type, count, columns.header_names),
        bytes_array(struct.field(1).type, count, columns.header_values),
    ]
    pairs = pa.Array.from_buffers(struct, count, [None], null_count=0, children=parts)
    buffers = [pa.py_buffer(lists.validity) if lists.nulls else None, pa.py_buffer(lists.positions)]
    return pa.Array.from_buffers(
        type_, columns.rows, buffers, null_count=lists.nulls, children=[pairs]
    )


# For each column of Spark: the decoder's column, and the function that makes an array of it.
_DECODED: dict[str, tuple[str, Callable[[Columns, Any], pa.Array]]] = {
    "key": ("keys", lambda c, type_: bytes_array(type_, c.rows, c.keys)),
    "value": ("values", lambda c, type_: bytes_array(type_, c.rows, c.values)),
    "offset": ("offsets", lambda c, type_: _fixed(c.offsets, c.rows, type_)),
    "timestamp": ("timestamps", lambda c, type_: _fixed(c.timestamps, c.rows, type_)),
    "timestampType": (
        "timestamp_types",
        lambda c, type_: _fixed(c.timestamp_types, c.rows, type_),
    ),
    HEADERS: ("headers", _headers),
}
