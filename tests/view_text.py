"""Render records as each view does, in plain Python.

`oracle` has the twins that render one record of a stored batch. This module renders whole
partitions, for tests that have decoded records.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable

from storage import Record

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

Text = Callable[[Iterable[Record]], bytes]


def values(records: Iterable[Record]) -> bytes:
    return b"".join((record.value or b"") + b"\n" for record in records)


def key_values(records: Iterable[Record]) -> bytes:
    return b"".join(
        (b"" if record.key is None else _field(record.key) + b"\t") + _field(record.value) + b"\n"
        for record in records
    )


def _field(data: bytes | None) -> bytes:
    if data is None:
        return rb"\N"
    return data.replace(b"\\", rb"\\").replace(b"\t", rb"\t").replace(b"\n", rb"\n")


def json_lines(records: Iterable[Record]) -> bytes:
    return b"".join(
        json.dumps(json_object(record), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        for record in records
    )


def json_object(record: Record) -> dict[str, object]:
    """The record as `.jsonl` has it."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": TIMESTAMP_TYPES[record.timestamp_type],
        "key": _json_bytes(record.key),
        "value": _json_bytes(record.value),
        "headers": [[name, _json_bytes(value)] for name, value in record.headers],
    }


def _json_bytes(data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


TEXTS: dict[str, Text] = {"": values, ".kv": key_values, ".jsonl": json_lines}
"""By the directory in a topic that has the view's files."""
