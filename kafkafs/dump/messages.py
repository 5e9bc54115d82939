"""Reads Kafka's own messages by their schemas, and writes them as Kafka's JSON converters do.

Errors' texts are Kafka's (the classes that its generator makes of the message definitions), since
DumpLogSegments prints them.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kafkafs.dump._dump import java_text
from kafkafs.dump.java import double_text

Struct: TypeAlias = "dict[str, Any]"

_NUMBERS: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
}
_LONGEST_STRING: Final = 0x7FFF
_LAST_VERSION: Final = 0x7FFF
_UNKNOWN_TAGS: Final = ""
_CONTROL: Final = re.compile(r"\\u00[0-9a-f]{2}")


class MessageError(Exception):
    """Bytes that are no such message."""


class Reader:
    """What is left of a message's bytes (``ByteBufferAccessor``)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def number(self, layout: str) -> Any:
        size = struct.calcsize(layout)
        if self.remaining < size:
            raise MessageError("null")  # what a BufferUnderflowException says
        self._at += size
        return struct.unpack_from(layout, self._data, self._at - size)[0]

    def varint(self) -> int:
        bits = 0
        for shift in range(0, 35, 7):
            byte: int = self.number(">B")
            bits |= (byte & 0x7F) << shift
            if byte < 0x80:
                bits &= 0xFFFFFFFF
                return bits - (1 << 32) if bits >> 31 else bits
        raise MessageError("Varint is too long")

    def bytes(self, size: int) -> bytes:
        if size < 0:
            raise MessageError(f"{size}")  # what a NegativeArraySizeException says
        if size > self.remaining:
            raise MessageError(
                f"Error reading byte array of {size} byte(s):"
                f" only {self.remaining} byte(s) available"
            )
        self._at += size
        return self._data[self._at - size : self._at]


@dataclass
class Field:
    """``struct`` holds the fields of a struct, or of an array's structs."""

    name: str
    type: str
    first: int = -_LAST_VERSION
    last: int = _LAST_VERSION
    is_array: bool = False
    is_nullable: bool = False
    tag: int | None = None
    default: str | None = None
    fields: list[Field] = field(default_factory=list)

    def is_in(self, version: int) -> bool:
        return self.first <= version <= self.last

    def default_value(self) -> Any:
        if self.default == "null":
            return None
        if self.is_array:
            return []
        if self.type == "struct":
            return {each.name: each.default_value() for each in self.fields}
        if self.type == "bool":
            return self.default == "true"
        if self.type in _NUMBERS:
            return int(self.default or 0)
        return {"string": "", "bytes": b"", "uuid": bytes(16)}[self.type]


@dataclass
class Message:
    """One message's schema."""

    name: str
    first: int
    last: int
    flexible: int
    id: int
    fields: list[Field]

    def read(self, reader: Reader, version: int) -> Struct:
        """Raises MessageError."""
        return self._read_struct(reader, self.fields, version)

    def json(self, value: Struct, version: int) -> Struct:
        return _json_struct(self.fields, value, version)

    def _read_struct(self, reader: Reader, fields: list[Field], version: int) -> Struct:
        value = {each.name: each.default_value() for each in fields}
        is_flexible = version >= self.flexible
        for each in fields:
            if each.tag is None and each.is_in(version):
                value[each.name] = self._read_field(reader, each, version)
        if is_flexible:
            tagged = {each.tag: each for each in fields if each.is_in(version)}
            for _ in range(reader.varint()):
                tag, size = reader.varint(), reader.varint()
                known = tagged.get(tag)
                if known is None:
                    # Kept, since a struct that has one is not the default.
                    kept = value.get(_UNKNOWN_TAGS, ())
                    value[_UNKNOWN_TAGS] = (*kept, (tag, reader.bytes(size)))
                else:
                    value[known.name] = self._read_field(reader, known, version)
        return value

    def _read_field(self, reader: Reader, each: Field, version: int) -> Any:
        if each.is_array:
            size = self._size(reader, ">i", each, version)
            if size is None:
                return None
            if size > reader.remaining:
                raise MessageError(
                    f"Tried to allocate a collection of size {size}, but there are only"
                    f" {reader.remaining} bytes remaining."
                )
            return [self._read_value(reader, each, version) for _ in range(size)]
        if each.type == "struct" and each.is_nullable:
            present = reader.varint() if each.tag is not None else reader.number(">b") + 1
            if present <= 0:
                return None
        return self._read_value(reader, each, version)

    def _read_value(self, reader: Reader, each: Field, version: int) -> Any:
        if each.type == "struct":
            if version > self.last:
                raise MessageError(f"Can't read version {version} of {each.name}")
            return self._read_struct(reader, each.fields, version)
        if each.type in _NUMBERS:
            return reader.number(_NUMBERS[each.type])
        if each.type == "uuid":
            high, low = reader.number(">q"), reader.number(">q")
            return struct.pack(">qq", high, low)
        if each.type == "bytes":
            size = self._size(reader, ">i", each, version)
            return None if size is None else reader.bytes(size)
        assert each.type == "string", each.type
        size = self._size(reader, ">h", each, version)
        if size is None:
            return None
        if size > _LONGEST_STRING:
            raise MessageError(f"string field {each.name} had invalid length {size}")
        return java_text(reader.bytes(size)).decode()

    def _size(self, reader: Reader, layout: str, each: Field, version: int) -> int | None:
        size: int = reader.varint() - 1 if version >= self.flexible else reader.number(layout)
        if size >= 0:
            return size
        if each.is_nullable:
            return None
        raise MessageError(f"non-nullable field {each.name} was serialized as null")


def _json_struct(fields: list[Field], value: Struct, version: int) -> Struct:
    found: Struct = {}
    for each in fields:
        content = value[each.name]
        if not each.is_in(version) or (each.tag is not None and content == each.default_value()):
            continue
        if each.is_array and content is not None:
            found[each.name] = [_json_value(each, element, version) for element in content]
        else:
            found[each.name] = _json_value(each, content, version)
    return found


def _json_value(each: Field, value: Any, version: int) -> Any:
    if value is None or each.type in _NUMBERS or each.type == "string":
        return value
    if each.type == "uuid":
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    if each.type == "bytes":
        return base64.b64encode(value).decode()
    return _json_struct(each.fields, value, version)


def as_json(value: Any) -> str:
    """As Jackson prints it."""
    if isinstance(value, dict):
        members = (f"{_quoted(name)}:{as_json(member)}" for name, member in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        text = double_text(value)
        return text if math.isfinite(value) else _quoted(text)
    return json.dumps(value)


def _quoted(text: str) -> str:
    """What need not be escaped is not, and hexadecimal is upper case."""
    quoted = json.dumps(text, ensure_ascii=False)
    if "\\u00" not in quoted:
        return quoted
    # A backslash of the text itself is doubled, and so is no beginning of an escape.
    parts = quoted.split("\\\\")
    return "\\\\".join(
        _CONTROL.sub(lambda match: "\\u" + match[0][2:].upper(), part) for part in parts
    )


# -- schemas ---------------------------------------------------------------------------------------


def parse_schemas(text: str) -> dict[str, Message]:
    """The messages of a text of ``schemas``, by name."""
    found: dict[str, Message] = {}
    for message in re.split(r"\n(?! )", text.strip()):
        head, _, body = message.partition(":")
        name, versions, *options = head.split()
        given = dict(option.split("=") for option in options)
        first, last = map(int, versions.split("-"))
        tokens = iter(re.findall(r"[][{},]|[^][{},\s]+", body))
        found[name] = Message(
            name,
            first,
            last,
            int(given.get("flexible", _LAST_VERSION + 1)),
            int(given.get("id", -1)),
            _parse_fields(tokens, last),
        )
    return found


def _parse_fields(tokens: Iterator[str], last: int) -> list[Field]:
    """Up to the bracket that ends them."""
    fields: list[Field] = []
    words: list[str] = []
    for token in tokens:
        if token in "[{":
            words.append("struct*" if token == "[" else "struct")
            nested = _parse_fields(tokens, last)
            fields.append(Field(words[0], "struct", fields=nested))
        elif token in ",]}":
            _finish(fields, words, last)
            words = []
            if token != ",":
                return fields
        else:
            words.append(token)
    if words:
        _finish(fields, words, last)
    return fields


def _finish(fields: list[Field], words: list[str], last: int) -> None:
    name, type_, *options = words
    if not type_.startswith("struct"):
        fields.append(Field(name, type_.rstrip("*")))
    each = fields[-1]
    each.is_array = type_.endswith("*")
    for option in options:
        key, _, value = option.partition("=")
        if key == "null":
            each.is_nullable = True
        elif key == "tag":
            each.tag = int(value)
        elif key == "default":
            each.default = value
        else:
            first, _, upper = option.rstrip("+").partition("-")
            each.first = int(first)
            if upper and int(upper) < last:
                each.last = int(upper)
