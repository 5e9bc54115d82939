"""Writes messages by their schemas, the counterpart of `storage.settings.messages`. Pure.

A message is a dict by the names of its fields. A field that it lacks has its default value, and
fields that a version does not have are not written. A string is a `str` or bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any, Final, cast

from kafka_client.message_schemas import REQUESTS
from storage.settings.messages import (
    NUMBERS,
    Field,
    Message,
    MessageError,
    Reader,
    Struct,
    parse_schemas,
)

#: The largest number of elements in all arrays of an answer. Each costs up to 500 bytes in memory.
MOST_ELEMENTS: Final = 2_000_000

_HEADER: Final = struct.Struct(">ihhih")


@functools.cache
def schemas() -> dict[str, Message]:
    """The messages by name, such as `FetchRequest`."""
    return parse_schemas(REQUESTS)


def request_frame(
    message: Message, version: int, correlation_id: int, client_id: str, data: Mapping[str, Any]
) -> bytearray:
    """Return a whole request: its size, its header and the message."""
    name = client_id.encode()
    out = bytearray(_HEADER.pack(0, message.id, version, correlation_id, len(name)))
    out += name
    if version >= message.flexible:
        out += b"\0"
    encode(out, message, version, data)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return out


def read_answer(message: Message, version: int, body: bytes | memoryview) -> Struct:
    """Read an answer that follows its correlation id. Of a memoryview the result has views.

    Errors: MessageError.
    """
    reader = Reader(cast("bytes", body), MOST_ELEMENTS)
    # A client that does not know the broker's versions yet can read the header of this answer.
    if version >= message.flexible and message.name != "ApiVersionsResponse":
        Message("header", 0, 0, 0, 0, []).read(reader, 0)
    found = message.read(reader, version)
    if reader.remaining:
        raise MessageError(f"{reader.remaining} bytes follow it")
    return found


def encode(out: bytearray, message: Message, version: int, data: Mapping[str, Any]) -> None:
    """Append a message to `out`."""
    _put_struct(out, message.fields, version, version >= message.flexible, data)


def _put_struct(
    out: bytearray, fields: list[Field], version: int, flexible: bool, data: Mapping[str, Any]
) -> None:
    unknown = data.keys() - {each.name for each in fields}
    assert not unknown, f"no such fields: {unknown}"
    tagged: list[tuple[int, bytearray]] = []
    for each in fields:
        if not each.is_in(version):
            continue
        value = data[each.name] if each.name in data else each.default_value()
        if each.tag is None:
            _put_field(out, each, version, flexible, value)
        elif flexible and value != each.default_value():
            part = bytearray()
            _put_field(part, each, version, flexible, value)
            tagged.append((each.tag, part))
    if flexible:
        put_varint(out, len(tagged))
        for tag, part in sorted(tagged):
            put_varint(out, tag)
            put_varint(out, len(part))
            out += part


def _put_field(out: bytearray, each: Field, version: int, flexible: bool, value: Any) -> None:
    if value is None:
        assert each.is_nullable, each.name
        assert each.is_array or each.type != "struct", "no request has such a field"
    if each.is_array:
        _put_size(out, ">i", flexible, value)
        for item in value or ():
            _put_value(out, each, version, flexible, item)
    else:
        _put_value(out, each, version, flexible, value)


def _put_value(out: bytearray, each: Field, version: int, flexible: bool, value: Any) -> None:
    if each.type == "struct":
        _put_struct(out, each.fields, version, flexible, value)
    elif each.type in NUMBERS:
        out += struct.pack(NUMBERS[each.type], value)
    elif each.type == "uuid":
        assert len(value) == 16, each.name
        out += value
    else:
        data = value.encode() if isinstance(value, str) else value
        _put_size(out, ">i" if each.type == "bytes" else ">h", flexible, data)
        out += data or b""


def _put_size(out: bytearray, layout: str, flexible: bool, value: Any) -> None:
    size = -1 if value is None else len(value)
    if flexible:
        put_varint(out, size + 1)
    else:
        out += struct.pack(layout, size)


def put_varint(out: bytearray, number: int) -> None:
    """Append an unsigned varint."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
