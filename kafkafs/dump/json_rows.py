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


class JsonRows:
    """Turns the rows of a walk into events."""

    def __init__(self, options: Options, output: Output) -> None:
        self._options = options
        self._event = output.event
        self._is_control = False

    def show(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if "headers" in row:
                self._event("record", **self._record(row))
            else:
                self._is_control = row.get("isControl", False)
                self._event("batch", **row)

    def _record(self, row: dict[str, Any]) -> dict[str, Value]:
        key, value, headers = row.pop("key"), row.pop("value"), row.pop("headers")
        if not self._options.metadata:
            row = {"offset": row["offset"]}
        elif "sequence" in row:
            row["headers"] = [
                {"key": name.decode("utf-8", "replace"), **content("value", data)}
                for name, data in headers
            ]
        if self._is_control:
            row["control"] = control_fields(key, value)
        elif self._options.contents:
            if self._options.decode is not None:
                key, value = self._options.decode(row["offset"], key, value)
            row.update(content("key", key))
            row.update(content("value", value))
        return row


def content(name: str, data: bytes | None) -> dict[str, Value]:
    """Bytes as a field of a JSON object."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode()}
