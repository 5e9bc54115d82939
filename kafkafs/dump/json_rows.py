"""A log's batches and records as JSON objects.

Keys, values and header values are strings if they are UTF-8; other bytes are a field whose name has
`Base64` at its end.
"""

from __future__ import annotations

import base64
from typing import Any

from kafkafs.dump.control import control_fields
from kafkafs.dump.options import Options
from kafkafs.dump.output import Output, Value


def show_rows(rows: list[dict[str, Any]], options: Options, output: Output) -> None:
    """Print the rows of whole batches, as `Walk` makes them."""
    is_control = False
    for row in rows:
        if "headers" in row:
            output.event("record", **_record(row, is_control, options))
        else:
            is_control = row.get("isControl", False)
            output.event("batch", **row)


def _record(row: dict[str, Any], is_control: bool, options: Options) -> dict[str, Value]:
    key, value, headers = row.pop("key"), row.pop("value"), row.pop("headers")
    if not options.metadata:
        row = {"offset": row["offset"]}
    elif "sequence" in row:
        row["headers"] = [
            {"key": name.decode("utf-8", "replace"), **_content("value", data)}
            for name, data in headers
        ]
    if is_control:
        row["control"] = control_fields(key, value)
    elif options.contents:
        if options.decode is not None:
            key, value = options.decode(row["offset"], key, value)
        row.update(_content("key", key))
        row.update(_content("value", value))
    return row


def _content(name: str, data: bytes | None) -> dict[str, Value]:
    """Return bytes as a field of a JSON object."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}
