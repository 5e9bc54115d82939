"""Makes key, value, timestamp, headers and partition of the columns of imported rows.

Structures become JSON. Other values that are not bytes become the text that Spark makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A value of `ImportOptions.value`: all columns without another use, as a JSON object.
ALL = "*"
_HEADERS = "array<struct<key:string,value:binary>>"


class ImportOptions(NamedTuple):
    """The options of an import.

    `format`: text, parquet, json or csv; None: by the files' names. `key`, `value`, `timestamp`
    and `order_by` are names of columns. `partition`: for all records. `by_key`: ignore the column
    `partition`. `partitions`: the number of a new topic. `name`: the import id.
    """

    topic: str
    inputs: tuple[str, ...]
    format: str | None = None
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    order_by: str | None = None
    partition: int | None = None
    by_key: bool = False
    partitions: int | None = None
    name: str | None = None


def records(
    rows: DataFrame, options: ImportOptions, kind: str, *, is_one_file: bool = False
) -> DataFrame:
    """Return the rows with the sink's columns. `kind`: their format.

    InvalidConfig if a column is missing.
    """
    from pyspark.sql import functions as sql

    names = rows.columns
    columns: list[Column] = []
    key = _chosen(names, options.key, "key")
    if key is not None:
        columns.append(_as_bytes(rows, key).alias("key"))
    timestamp = _chosen(names, options.timestamp, "timestamp")
    if timestamp is not None:
        columns.append(_as_time(rows, timestamp).alias("timestamp"))
    used = {key, timestamp}
    if options.partition is not None:
        columns.append(sql.lit(options.partition).cast("int").alias("partition"))
    elif "partition" in names and not options.by_key:
        used.add("partition")
        columns.append(sql.col("partition").cast("int").alias("partition"))
    if "headers" in names:
        used.add("headers")
        columns.append(_as_headers(rows).alias("headers"))
    if options.value == ALL:
        rest = [sql.col(_quoted(name)) for name in names if name not in used]
        columns.append(sql.to_json(sql.struct(*rest)).alias("value"))
    else:
        value = _chosen(names, options.value, "value")
        if value is None:
            raise InvalidConfig(
                f"there is no column value (columns: {', '.join(names)}). To choose one: --value "
                f"NAME; all of them as JSON: --value '{ALL}'"
            )
        columns.append(_as_bytes(rows, value).alias("value"))
    order = _chosen(names, options.order_by, "offset" if kind != "text" else None)
    if order is not None:
        rows = rows.orderBy(_quoted(order))
    elif kind != "text" and not is_one_file:
        # Spark reads the largest file first.
        rows = rows.orderBy(sql.input_file_name(), sql.monotonically_increasing_id())
    return rows.select(columns)


def _chosen(names: Sequence[str], wanted: str | None, usual: str | None) -> str | None:
    """Return the wanted column, else the usual one if there is such a column."""
    if wanted is None:
        return usual if usual in names else None
    if wanted not in names:
        raise InvalidConfig(f"there is no column {wanted!r}; there are {', '.join(names)}")
    return wanted


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _as_bytes(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    kind = rows.schema[name].dataType
    column = sql.col(_quoted(name))
    if isinstance(kind, (ArrayType, MapType, StructType)):
        return sql.to_json(column)
    return column if isinstance(kind, BinaryType) else column.cast("string")


def _as_time(rows: DataFrame, name: str) -> Column:
    """Return a column as a time; numbers are milliseconds."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import IntegralType

    column = sql.col(_quoted(name))
    if isinstance(rows.schema[name].dataType, IntegralType):
        return sql.timestamp_millis(column)
    return column.cast("timestamp")


def _as_headers(rows: DataFrame) -> Column:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import MapType

    column = sql.col("headers")
    if isinstance(rows.schema["headers"].dataType, MapType):
        column = sql.map_entries(column)
    return column.cast(_HEADERS)
