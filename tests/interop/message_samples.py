"""Random messages of Kafka's own topics, written by the schemas that kafkafs reads them by.

Kafka judges both: what it cannot read, or reads otherwise, shows in what it prints.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from storage.record.batch import Record
from storage.settings.message_schemas import METADATA, PROTOCOL
from storage.settings.messages import Field, Message, parse_schemas

_LAYOUTS = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}


def records(rng: random.Random, schemas: str, count: int) -> list[Record]:
    """Whole ones of all versions, tombstones, damaged ones and ones of types that there are not."""
    messages = parse_schemas(schemas)
    keys = [message for name, message in messages.items() if name.endswith("Key")]
    found = []
    for offset in range(count):
        key_message = rng.choice(keys)
        value_message = messages[key_message.name.removesuffix("Key") + "Value"]
        version = rng.randint(value_message.first, value_message.last)
        key = struct.pack(">h", key_message.id) + encoded(rng, key_message, 0)
        value: bytes | None = struct.pack(">h", version) + encoded(rng, value_message, version)
        kind = rng.randrange(16)
        if kind == 0:
            value = None
        elif kind == 1 and value is not None:
            value = value[: rng.randrange(len(value))]
        elif kind == 2:
            key = key[: rng.randrange(len(key))]
        elif kind == 3:
            value = struct.pack(">h", version + rng.choice([-3, 5])) + b"rest"
        elif kind == 4:
            key = struct.pack(">h", rng.choice([-1, 9, 18, 24])) + b"key"
        found.append(Record(offset, 1_700_000_000_000, 0, key, value))
    return found


def metadata_records(rng: random.Random, count: int) -> list[Record]:
    """Of ``__cluster_metadata``."""
    messages = list(parse_schemas(METADATA).values())
    found = []
    for offset in range(count):
        message = rng.choice(messages)
        version = rng.randint(message.first, message.last)
        kind = rng.randrange(20)
        frame = rng.choice([0, 2, 70000]) if kind == 0 else 1
        id_ = rng.choice([6, 99, 70000]) if kind == 1 else message.id
        value = b"".join(map(_varint, (frame, id_, version)))
        value += encoded(rng, message, version)
        if kind == 2:
            value = value[: rng.randrange(len(value))]
        elif kind == 3:
            value += b"more"
        found.append(Record(offset, 1_700_000_000_000, 0, None, None if kind == 4 else value))
    return found


def encoded(rng: random.Random, message: Message, version: int) -> bytes:
    return _struct(rng, message, message.fields, version)


def _struct(rng: random.Random, message: Message, fields: list[Field], version: int) -> bytes:
    out = b""
    tagged = []
    for each in fields:
        if not each.is_in(version):
            continue
        if each.tag is None:
            out += _field(rng, message, each, version)
        elif rng.random() < 0.7:
            tagged.append((each.tag, _field(rng, message, each, version)))
    if version >= message.flexible:
        if rng.random() < 0.1:
            tagged.append((77, b"unknown"))
        out += _varint(len(tagged))
        for tag, data in sorted(tagged):
            out += _varint(tag) + _varint(len(data)) + data
    return out


def _field(rng: random.Random, message: Message, each: Field, version: int) -> bytes:
    is_flexible = version >= message.flexible
    is_null = each.is_nullable and rng.random() < 0.3
    if each.is_array:
        count = -1 if is_null else rng.randrange(3)
        items = [_value(rng, message, each, version) for _ in range(count)]
        return _size(count, ">i", is_flexible) + b"".join(items)
    if each.type == "struct" and each.is_nullable:
        if is_null:
            return b"\0" if each.tag is not None else b"\xff"
        return b"\1" + _value(rng, message, each, version)
    if is_null:
        return _size(-1, ">h" if each.type == "string" else ">i", is_flexible)
    return _value(rng, message, each, version)


def _value(rng: random.Random, message: Message, each: Field, version: int) -> bytes:
    if each.type == "struct":
        return _struct(rng, message, each.fields, version)
    if each.type == "uuid":
        return rng.choice([bytes(16), rng.randbytes(16)])
    if each.type == "bool":
        return rng.choice([b"\0", b"\1"])
    if each.type == "float64":
        doubles = [0.0, -0.0, 100.0, 0.1, 9999999.5, 1e7, -1.5e-5, 1e300, float("nan"), 12345.678]
        return struct.pack(">d", rng.choice(doubles))
    if each.name == "transactionStatus":
        return struct.pack(">b", rng.randrange(-1, 10))
    if each.type in _LAYOUTS:
        numbers: list[Any] = [0, 1, 100] if each.type.startswith("u") else [-1, 0, 1, 100]
        return struct.pack(_LAYOUTS[each.type], rng.choice(numbers))
    is_flexible = version >= message.flexible
    if each.type == "bytes":
        data = rng.choice([b"", b"\0", b"\xff\xfe\0\1", _protocol(rng, each.name)])
        return _size(len(data), ">i", is_flexible) + data
    texts = ["", "consumer", 'a"\\ü€𝄞', "\0\x1f\x7f\n\t\\u001f", "\u2028/", "topic"]
    data = b"consumer" if each.name == "protocolType" else rng.choice(texts).encode()
    if rng.random() < 0.05:
        data += b"\xff\xed\xa0\x80"
    return _size(len(data), ">h", is_flexible) + data


def _protocol(rng: random.Random, name: str) -> bytes:
    """Return a random encoded subscription or assignment of a consumer group's member."""
    word = "Subscription" if name == "subscription" else "Assignment"
    message = parse_schemas(PROTOCOL)[f"ConsumerProtocol{word}"]
    version = rng.randint(message.first, message.last + 1)
    return struct.pack(">h", version) + encoded(rng, message, version)


def _size(size: int, layout: str, is_flexible: bool) -> bytes:
    return _varint(size + 1) if is_flexible else struct.pack(layout, size)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
