"""Decodes the keys and values in lines of the `jsonl` view.

A line keeps its fields, and more fields follow:

    keySchema, valueSchema      the schema of a key or a value that is decoded
    keyRest, valueRest          bytes after a key or a value that the schema does not describe
    keyError, valueError        why a key or a value is not decoded

A line whose value does not decode is the line of the view with `valueError` alone: its key is not
decoded either.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from kafkafs.schemas.choice import Choice, FieldDecoder, Schemas
from kafkafs.schemas.errors import SchemaError
from kafkafs.schemas.json_lines import LineBuffer, bytes_of, headers_of, parse_line

# The text between the three fields of a line, and after the last one.
_BETWEEN: Final = len(',"value":') + len(',"headers":') + len("}")


class LineDecoder:
    """Decodes the lines of a topic. `failed` counts the records with an error."""

    def __init__(
        self,
        topic: str,
        key: Choice,
        value: Choice,
        schemas: Schemas,
        read_file: Callable[[str], str],
        *,
        value_only: bool = False,
    ) -> None:
        """Errors: SchemaError, OSError."""
        self.failed = 0
        self._schemas = schemas
        self._value_only = value_only
        self._lines = LineBuffer()
        self._key = FieldDecoder("key", topic, key, schemas, read_file)
        self._value = FieldDecoder("value", topic, value, schemas, read_file)

    def feed(self, data: bytes) -> bytes:
        """Decode a piece of the view's text. Return the lines that it completes."""
        self._schemas.forget_missing()
        return b"".join([self._decoded(line) for line in self._lines.take(data)])

    def _decoded(self, text: bytes) -> bytes:
        line = parse_line(text)
        headers = headers_of(line)
        value = _shown(self._value, b"value", line.value, headers)
        if self._value_only and value.is_complete:
            return value.text + b"\n"
        key = _Shown(bytes(line.key))
        if not value.failed:
            key = _shown(self._key, b"key", line.key, headers)
        self.failed += key.failed or value.failed
        before = text[: -(_BETWEEN + len(line.key) + len(line.value) + len(line.headers))]
        return b'%s%s,"value":%s,"headers":%s%s%s}\n' % (
            before, key.text, value.text, bytes(line.headers), key.behind, value.behind,
        )  # fmt: skip


class _Shown(NamedTuple):
    """The JSON of a key or a value, and its fields after the others."""

    text: bytes
    behind: bytes = b""
    failed: bool = False
    is_complete: bool = True
    """Whether the text says all that is known."""


def _shown(
    decoder: FieldDecoder,
    name: bytes,
    raw: msgspec.Raw,
    headers: Mapping[bytes | None, bytes | None],
) -> _Shown:
    data = bytes_of(raw)
    if data is None:
        return _Shown(b"null")
    try:
        found = decoder.decode(data, headers)
    except SchemaError as error:
        behind = b',"%sError":%s' % (name, msgspec.json.encode(str(error)))
        return _Shown(bytes(raw), behind, failed=True, is_complete=False)
    if found is None:
        return _Shown(bytes(raw))
    behind = b',"%sSchema":%s' % (name, msgspec.json.encode(found.schema))
    if found.end == len(data):
        return _Shown(found.text, behind)
    rest = base64.b64encode(data[found.end :])
    behind += b',"%sRest":{"base64":"%s"}' % (name, rest)
    return _Shown(found.text, behind, is_complete=False)
