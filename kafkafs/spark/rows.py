"""Columns of a log as rows of Spark: its schema, and the Arrow form of the same.

The columns are those of Spark's Kafka source. Whoever reads may choose some of them, in any order;
only these are decoded.
"""

from __future__ import annotations

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

HEADERS = "headers"
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(_HEADER),
}


def full_schema(headers: bool) -> StructType:
    """What `load()` gives where no schema is named."""
    names = (name for name in _TYPES if headers or name != HEADERS)
    return StructType([StructField(name, _TYPES[name]) for name in names])
