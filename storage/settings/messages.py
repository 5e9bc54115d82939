"""Reads Kafka's own messages by their schemas (`message_schemas`).

A message is a dict by the names of its fields; strings are bytes in it, as they are stored, and
uuids 16 bytes. The texts of errors are Kafka's (of the classes that its generator makes from the
message definitions), since DumpLogSegments prints them.

Not here: the messages as text (`kafkafs.dump`).
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from storage.settings.message_schemas import METADATA

Struct: TypeAlias = "dict[str, Any]"

NUMBERS: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
}
_LONGEST_STRING: Final = 0x7FFF
_LARGEST_ARRAY: Final = 1_000_000
_MOST_TAGS: Final = 10_000
_LAST_VERSION: Final = 0x7FFF
_UNKNOWN_TAGS: Final = ""
_LARGEST_SHORT: Final = 0x7FFF
_FRAME_VERSION: Final = 1


class MessageError(Exception):
    """Bytes that are not a valid message."""


class LaterRecordError(MessageError):
    """A record of the metadata log that only a later Kafka can read."""


class Reader:
    """The remaining bytes of a message (`ByteBufferAccessor`).

    `most_elements`: the limit of the elements in all arrays of the message.
    """

    def __init__(self, data: bytes, most_elements: int = sys.maxsize) -> None:
        self._data = data
        self._at = 0
        self._elements_left = most_elements

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def number(self, layout: str) -> Any:
        size = struct.calcsize(layout)
        if self.remaining < size:
            raise MessageError("null")  # the text of a BufferUnderflowException
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
            raise MessageError(f"{size}")  # the text of a NegativeArraySizeException
        if size > self.remaining:
            raise MessageError(
                f"Error reading byte array of {size} byte(s):"
                f" only {self.remaining} byte(s) available"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def take_elements(self, count: int) -> None:
        self._elements_left -= count
        if self._elements_left < 0:
            raise MessageError("the arrays have too many elements in all")


@dataclass
class Field:
    """A field of a message. `struct`: the fields of a struct, or of an array's structs."""

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
        if self.type in NUMBERS:
            return int(self.default or 0)
        return bytes(16) if self.type == "uuid" else b""


@dataclass
class Message:
    """One message's schema."""

    name: str
    first: int
    last: int
    flexible: int
    id: int
    fields: list[Field]

    def read(self, reader: Reader, version: int, fields: list[Field] | None = None) -> Struct:
        """Return the message, or a struct with these fields. Errors: MessageError."""
        fields = self.fields if fields is None else fields
        value = {each.name: each.default_value() for each in fields}
        is_flexible = version >= self.flexible
        for each in fields:
            if each.tag is None and each.is_in(version):
                value[each.name] = self._read_field(reader, each, version)
        if is_flexible:
            tagged = {each.tag: each for each in fields if each.is_in(version)}
            for _ in range(_tag_count(reader)):
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
            if size > _LARGEST_ARRAY:
                raise MessageError(
                    f"Tried to read a collection of size {size}, which exceeds the maximum"
                    f" allowed size of {_LARGEST_ARRAY}."
                )
            reader.take_elements(size)
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
            return self.read(reader, version, each.fields)
        if each.type in NUMBERS:
            return reader.number(NUMBERS[each.type])
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
        return reader.bytes(size)

    def _size(self, reader: Reader, layout: str, each: Field, version: int) -> int | None:
        size: int = reader.varint() - 1 if version >= self.flexible else reader.number(layout)
        if size >= 0:
            return size
        if each.is_nullable:
            return None
        raise MessageError(f"non-nullable field {each.name} was serialized as null")


def _tag_count(reader: Reader) -> int:
    """Return the number of tagged fields. Errors: MessageError."""
    count = reader.varint()
    if count < 0:
        raise MessageError(f"Invalid negative number of tagged fields {count}")
    if count > reader.remaining:
        raise MessageError(
            f"Tried to read {count} tagged fields, but there are only"
            f" {reader.remaining} bytes remaining."
        )
    if count > _MOST_TAGS:
        raise MessageError(
            f"Tried to read {count} tagged fields, which exceeds the maximum allowed count of"
            f" {_MOST_TAGS}."
        )
    return count


# -- schemas ---------------------------------------------------------------------------------------


def parse_schemas(text: str) -> dict[str, Message]:
    """Return the messages of a text of `message_schemas`, by name."""
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
    """Return the fields up to the closing bracket."""
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


# -- coordinators' topics --------------------------------------------------------------------------


class CoordinatorRecord(NamedTuple):
    """A key or a value of a coordinator's topic; `version`: the value's, 0 for a key."""

    message: Message
    version: int
    data: Struct


class CoordinatorReader:
    """Reads the records of a coordinator's topic, by `schemas` (`CoordinatorRecordSerde.java`).

    A key is its type i16 and a message, a value its version i16 and a message.
    """

    def __init__(self, schemas: str) -> None:
        self._keys: dict[int, Message] = {}
        self._values: dict[int, Message] = {}
        for name, message in parse_schemas(schemas).items():
            (self._keys if name.endswith("Key") else self._values)[message.id] = message

    def knows(self, kind: int) -> bool:
        """Return whether keys of this type exist."""
        return kind in self._keys

    def read_key(self, key: bytes) -> CoordinatorRecord:
        """Return the key, whose type is its message's id. Errors: MessageError."""
        kind = leading_version(key, "key")
        if kind not in self._keys:
            raise MessageError(f"Unknown record type {kind}")
        message = self._keys[kind]
        return CoordinatorRecord(message, 0, _body(message, key, 0, kind, "key"))

    def read_value(self, kind: int, value: bytes) -> CoordinatorRecord:
        """Return the value of a key of this type. Errors: MessageError."""
        version = leading_version(value, "value")
        message = self._values[kind]
        if not message.first <= version <= message.last:
            raise MessageError(f"Found an unknown record version {version} for {kind} type")
        return CoordinatorRecord(message, version, _body(message, value, version, version, "value"))


def leading_version(data: bytes, name: str) -> int:
    """Return the number that a coordinator's key or value begins with. Errors: MessageError."""
    if len(data) < 2:
        raise MessageError(f"Could not read version from {name}'s buffer.")
    return int.from_bytes(data[:2], "big", signed=True)


def _body(message: Message, data: bytes, version: int, told: int, name: str) -> Struct:
    try:
        return message.read(Reader(data[2:]), version)
    except MessageError as error:
        raise MessageError(
            f"Could not read record with version {told} from {name}'s buffer due to: {error}."
        ) from None


# -- the metadata log ------------------------------------------------------------------------------


class MetadataRecord(NamedTuple):
    """A record of `__cluster_metadata`."""

    message: Message
    version: int
    data: Struct


class MetadataReader:
    """Reads the records of `__cluster_metadata` (`MetadataRecordSerde.java`).

    A value is a message after three varints: the versions of the frame and of the record, and the
    record's type. `only`: the names of the wanted messages; None: all.
    """

    def __init__(self, only: frozenset[str] | None = None) -> None:
        self._messages = {each.id: each for each in parse_schemas(METADATA).values()}
        self._only = only

    def read(self, value: bytes) -> MetadataRecord | None:
        """Return the record; None: not wanted. Errors: MessageError, LaterRecordError."""
        reader = Reader(value)
        frame = _short(reader, "frame version")
        if frame == 0:
            raise MessageError(
                "Could not deserialize metadata record with frame version 0. Note that upgrades"
                " from the preview release of KRaft in 2.8 to newer versions are not supported."
            )
        if frame != _FRAME_VERSION:
            raise LaterRecordError(
                "Could not deserialize metadata record due to unknown frame version"
                f" {frame}(only frame version 1 is supported)"
            )
        kind, version = _short(reader, "type"), _short(reader, "version")
        message = self._messages.get(kind)
        if message is None:
            raise LaterRecordError(
                "org.apache.kafka.common.errors.UnsupportedVersionException:"
                f" Unknown metadata id {kind}"
            )
        if self._only is not None:
            if message.name not in self._only:
                return None
            if version > message.last:
                raise LaterRecordError(f"Unknown version {version} of {message.name}")
        try:
            data = message.read(reader, version)
        except MessageError:
            raise MessageError(f"Failed to deserialize record with type {kind}") from None
        if reader.remaining:
            raise MessageError(f"Found {reader.remaining} byte(s) of garbage after {kind}")
        return MetadataRecord(message, version, data)


def _short(reader: Reader, name: str) -> int:
    try:
        number = reader.varint()
    except MessageError:
        raise MessageError(f"Error while reading {name}") from None
    if number > _LARGEST_SHORT:
        raise MessageError(f"Value for {name} was too large.")
    return (number + 0x8000) % 0x10000 - 0x8000
