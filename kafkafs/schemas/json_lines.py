"""Reads lines of the `jsonl` view, and the bytes in them."""

from __future__ import annotations

import binascii
from typing import Final

import msgspec


class Line(msgspec.Struct, gc=False):
    """The fields of a line that are decoded, as JSON."""

    key: msgspec.Raw
    value: msgspec.Raw
    headers: msgspec.Raw


parse_line: Final = msgspec.json.Decoder(Line).decode
_parse_headers: Final = msgspec.json.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]]).decode
_parse_string: Final = msgspec.json.Decoder(str).decode
_BASE64: Final = len(b'{"base64":"')


def bytes_of(field: bytes | msgspec.Raw) -> bytes | None:
    """Return the bytes that a key, a value or a part of a header stands for."""
    raw = bytes(field)
    if raw[0] == ord('"'):
        return _parse_string(raw).encode()
    if raw[0] == ord("{"):
        return binascii.a2b_base64(raw[_BASE64:-2])
    return None


def headers_of(line: Line) -> dict[bytes | None, bytes | None]:
    """Return the last header of each name: serializers append theirs."""
    raw = bytes(line.headers)
    if raw == b"[]":
        return {}
    return {bytes_of(name): bytes_of(value) for name, value in _parse_headers(raw)}


class LineBuffer:
    """Divides text that arrives in pieces into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """Add a piece, and return the lines that are complete, without their newlines."""
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += last
        return lines
