"""Messages that are written, and what kafka-python reads and writes of them in every version."""

from __future__ import annotations

import importlib
import random
import re
import warnings
from typing import Any

import pytest

from kafka_client.messages import encode, read_answer, request_frame, schemas
from storage.settings.messages import NUMBERS, Field, MessageError, Reader

#: kafka-python has no messages of the consumer group protocol; `tests/interop` compares those.
MESSAGES = {
    name: message for name, message in schemas().items() if not name.startswith("ConsumerGroup")
}


def theirs(name: str) -> Any:
    """The class of kafka-python."""
    with warnings.catch_warnings():
        # kafka-python reads its schemas in a way that Python 3.11 and 3.12 call deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        for part in ("admin", "consumer", "metadata", "producer", "sasl"):
            module = importlib.import_module(f"kafka.protocol.{part}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AssertionError(name)


def random_struct(rng: random.Random, fields: list[Field], version: int) -> dict[str, Any]:
    found = {}
    for each in fields:
        found[each.name] = each.default_value()
        if not each.is_in(version) or (each.tag is not None and rng.random() < 0.3):
            continue
        if each.is_nullable and rng.random() < 0.2:
            found[each.name] = None
        elif each.is_array:
            count = rng.choice([0, 1, 2, 200]) if not each.fields else rng.randrange(3)
            found[each.name] = [random_value(rng, each, version) for _ in range(count)]
        else:
            found[each.name] = random_value(rng, each, version)
    return found


def random_value(rng: random.Random, each: Field, version: int) -> Any:
    if each.type == "struct":
        return random_struct(rng, each.fields, version)
    if each.type == "bool":
        return rng.random() < 0.5
    if each.type in NUMBERS:
        bits = int(re.sub(r"\D", "", each.type))
        return rng.choice([0, 1, -1, -(1 << bits - 1), (1 << bits - 1) - 1, 77])
    if each.type == "uuid":
        return rng.randbytes(16)
    length = rng.choice([0, 1, 127, 128, 20_000])
    return rng.randbytes(length) if each.type == "bytes" else b"\xc3\xa4" * (length // 2)


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)


def assert_same(fields: list[Field], version: int, ours: Any, other: Any) -> None:
    """kafka-python has the same values under the same names."""
    for each in fields:
        if not each.is_in(version) or each.name.lower().endswith("authorizedoperations"):
            continue  # it makes sets of the bits
        mine, found = ours[each.name], getattr(other, snake(each.name))
        if each.type == "struct" and not each.is_array:
            if found is None:  # it has no defaults for structs that are not there
                assert mine in (None, each.default_value()), each.name
            else:
                assert_same(each.fields, version, mine, found)
        elif each.type == "struct" and mine is not None:
            assert len(mine) == len(found)
            for one, two in zip(mine, found, strict=True):
                assert_same(each.fields, version, one, two)
        else:
            assert normal(each, mine) == normal(each, found), each.name


def normal(each: Field, value: Any) -> Any:
    if isinstance(value, list):
        return [normal(each, item) for item in value]
    if each.type == "uuid":
        return bytes(16) if value is None else getattr(value, "bytes", value)
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


@pytest.mark.parametrize("name", MESSAGES)
def test_kafka_python_reads_and_writes_the_same(name: str) -> None:
    message, other = schemas()[name], theirs(name)
    rng = random.Random(name)
    for version in range(message.first, min(message.last, other.max_version) + 1):
        for _ in range(8):
            data = random_struct(rng, message.fields, version)
            if version < message.last:
                data = without_nulls(message.fields, data)
            if name == "ApiVersionsResponse":
                data["errorCode"] = 0  # with an error it reads another version
            out = bytearray()
            encode(out, message, version, data)
            assert message.read(Reader(bytes(out)), version) == data
            read = other.decode(bytes(out), version=version)
            assert_same(message.fields, version, data, read)
            read._header = None  # without it, its encoder fails
            written = bytes(read.encode(version=version))
            assert message.read(Reader(written), version) == data


def without_nulls(fields: list[Field], data: dict[str, Any]) -> dict[str, Any]:
    """Fields that only later versions let be null are not null."""
    found = {}
    for each in fields:
        value = data[each.name]
        if value is None and each.default != "null":
            value = [] if each.is_array else each.default_value()
        if each.type == "struct" and value is not None:
            items = value if each.is_array else [value]
            made = [without_nulls(each.fields, item) for item in items]
            value = made if each.is_array else made[0]
        found[each.name] = value
    return found


def test_a_request_has_its_size_its_header_and_the_message() -> None:
    message = schemas()["ListGroupsRequest"]
    assert request_frame(message, 0, 5, "me", {}) == bytes.fromhex(
        "0000000c001000000000000500026d65"
    )
    flexible = request_frame(message, 4, 5, "me", {"statesFilter": ["ok"]})
    assert flexible[4:] == bytes.fromhex("001000040000000500026d650002036f6b00")


def test_a_field_that_is_not_there_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="no such fields"):
        request_frame(schemas()["ListGroupsRequest"], 4, 5, "me", {"states": []})


def test_an_answer_with_bytes_after_it_is_refused() -> None:
    message = schemas()["SaslHandshakeResponse"]
    assert read_answer(message, 1, bytes.fromhex("000000000001000141")) == {
        "errorCode": 0,
        "mechanisms": [b"A"],
    }
    with pytest.raises(MessageError, match="1 bytes follow"):
        read_answer(message, 1, bytes.fromhex("00000000000000"))


def test_an_answer_has_a_limited_number_of_elements() -> None:
    """An element of two bytes costs hundreds in memory."""
    message = schemas()["MetadataResponse"]
    count = 700_000
    replicas = count.to_bytes(4, "big") + bytes(4 * count)
    partition = bytes(10) + replicas * 3
    topic = bytes(2) + b"\0\1t" + b"\0" + (1).to_bytes(4, "big") + partition
    data = bytes(4) + bytes(4) + b"\xff\xff" + bytes(4) + (1).to_bytes(4, "big") + topic
    with pytest.raises(MessageError, match="too many elements"):
        read_answer(message, 5, data)
