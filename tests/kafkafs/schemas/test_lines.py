"""kafkafs.schemas.lines: lines of the `jsonl` view with decoded keys and values."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kafkafs.schemas.choice import Choice, Schemas, parse_choice
from kafkafs.schemas.errors import SchemaError
from kafkafs.schemas.lines import LineDecoder
from tests.kafkafs.schemas.avro_values import ORDER, Oracle, encoded, order
from tests.kafkafs.schemas.registries import Topic, framed, lines_of

NAME = {"type": "record", "name": "Name", "fields": [{"name": "name", "type": "string"}]}
ANN = encoded(NAME, {"name": "Ann"})
AMBIGUOUS = {
    "type": "record", "name": "Two", "fields": [
        {"name": "a", "type": {"type": "array", "items": "null"}},
        {"name": "b", "type": {
            "type": "array", "items": {"type": "fixed", "name": "f", "size": 4},
        }},
    ],
}  # fmt: skip


@pytest.fixture
def topic() -> Topic:
    made = Topic()
    made.register("names-value", 1, 7, NAME)
    made.register("names-value", 2, 8, ["null", NAME])
    made.register("names-key", 1, 9, '"long"')
    return made


def decoder(
    topic: Topic | None, *, value: str = "auto", key: str = "auto", **more: Any
) -> LineDecoder:
    value_only = more.pop("value_only", False)
    return LineDecoder(
        "names",
        parse_choice(key),
        parse_choice(value),
        Schemas(None if topic is None else topic.opened(), **more),
        lambda path: Path(path).read_text(),
        value_only=value_only,
    )


def shown(topic: Topic | None, data: bytes | None, key: bytes | None = None, **more: Any) -> Any:
    """The fields after the timestamp in the line of one record, without those that are null."""
    headers = more.pop("headers", ())
    (line,) = decoder(topic, **more).feed(lines_of((key, data), headers=headers)).splitlines()
    found = json.loads(line)
    del found["headers"]
    return {name: found[name] for name in list(found)[3:] if found[name] is not None}


def test_a_value_with_a_frame_is_decoded(topic: Topic) -> None:
    text = lines_of((b"k", framed(7, ANN)), (None, None), (b"\xff", b"text"))
    made = decoder(topic)
    assert made.feed(text).splitlines() == [
        b'{"offset":0,"timestamp":1700000000000,"timestampType":"CreateTime","key":"k",'
        b'"value":{"name":"Ann"},"headers":[],"valueSchema":"id:7"}',
        *text.splitlines()[1:],
    ]
    assert made.failed == 0


def test_lines_are_the_same_in_pieces_of_any_size(topic: Topic) -> None:
    text = lines_of((b"k", framed(7, ANN)), (b"\n", framed(6, ANN)), (framed(9, b"\2"), None))
    whole = decoder(topic).feed(text)
    for size in (1, 7, 100, 200):
        made = decoder(topic)
        pieces = [made.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join(pieces) == whole


def test_key_and_value_are_decoded(topic: Topic) -> None:
    assert shown(topic, framed(7, ANN), framed(9, b"\x04")) == {
        "key": 2, "value": {"name": "Ann"}, "keySchema": "id:9", "valueSchema": "id:7",
    }  # fmt: skip


def test_a_key_that_does_not_decode_leaves_the_value(topic: Topic) -> None:
    assert shown(topic, framed(7, ANN), framed(1, b"a")) == {
        "key": "\0\0\0\0\1a", "value": {"name": "Ann"},
        "keyError": "the topic _schemas has no id:1", "valueSchema": "id:7",
    }  # fmt: skip


def test_a_value_that_does_not_decode_is_its_line_with_the_error_alone(topic: Topic) -> None:
    text = lines_of((framed(9, b"\2"), framed(7, ANN[:-1])), headers=(("a", b"\xff"),))
    made = decoder(topic)
    error = b',"valueError":"the value ends too early (position 6)"}\n'
    assert made.feed(text) == text[:-2] + error
    assert made.failed == 1


def test_bytes_behind_a_value_are_shown(topic: Topic) -> None:
    found = shown(topic, framed(7, ANN + b"\1\2"), framed(9, b"\2\3"))
    assert found["valueRest"] == {"base64": "AQI="}
    assert found["keyRest"] == {"base64": "Aw=="}


def test_only_values_are_shown_but_nothing_is_hidden(topic: Topic) -> None:
    text = lines_of((b"k", framed(7, ANN)), (b"k", None), (b"k", b"text"), (b"k", framed(6, ANN)),
                    (b"k", framed(7, ANN + b"\0")))  # fmt: skip
    found = decoder(topic, value_only=True).feed(text).splitlines()
    assert found[:3] == [b'{"name":"Ann"}', b"null", b'"text"']
    assert found[3:] == decoder(topic).feed(text).splitlines()[3:]
    assert b"valueError" in found[3]
    assert b"valueRest" in found[4]


# -- which schema --------------------------------------------------------------------------------


def test_text_with_an_unknown_id_stays_text(topic: Topic) -> None:
    assert shown(topic, b"\0\0\0\0\1text") == {
        "value": "\0\0\0\0\1text", "valueError": "the topic _schemas has no id:1",
    }  # fmt: skip
    assert shown(topic, b"\0\0\0\0\1text", value="none") == {"value": "\0\0\0\0\1text"}
    assert shown(topic, b"\0\0\0\0") == {"value": "\0\0\0\0"}


def test_without_a_topic_of_the_registry_no_id_is_known() -> None:
    assert shown(None, framed(7, ANN))["valueError"] == (
        "id:7 is not known: there is no topic _schemas beside the log"
    )


def test_an_id_that_is_registered_later_is_found(topic: Topic) -> None:
    made = decoder(topic)
    text = lines_of((None, framed(10, b"\x04")))
    assert b"valueError" in made.feed(text)
    topic.register("names-value", 3, 10, '"int"')
    assert b'"value":2' in made.feed(text)


def test_an_id_is_that_of_the_topics_own_context() -> None:
    topic = Topic()
    topic.register("other-value", 1, 7, '"long"')
    topic.register(":.east:names-value", 1, 7, NAME)
    assert shown(topic, framed(7, ANN)) == {"value": {"name": "Ann"}, "valueSchema": "id::.east:7"}
    assert shown(topic, b"\2", value="id:7") == {"value": 1, "valueSchema": "id:7"}
    assert shown(topic, ANN, value="id::.east:7")["value"] == {"name": "Ann"}


def test_a_header_has_the_guid_of_the_schema(topic: Topic) -> None:
    registry = topic.opened()
    registry.update()
    stored = registry.by_id(7, "names-value")
    assert stored is not None
    assert stored.guid is not None
    headers = (("__value_schema_id", b"\1" + stored.guid), ("__key_schema_id", b"\0\0\0\0\x09"))
    found = shown(topic, ANN, b"\2", headers=headers)
    assert (found["key"], found["value"]) == (1, {"name": "Ann"})
    assert found["valueSchema"] == f"guid:{uuid.UUID(bytes=stored.guid)}"
    assert found["keySchema"] == "id:9"


def test_the_last_of_several_headers_names_the_schema(topic: Topic) -> None:
    """A serializer appends its header, also to a record that has another one from its source."""
    first, last = (("__value_schema_id", b"\0" + bytes(3) + each) for each in (b"\x09", b"\7"))
    assert shown(topic, ANN, headers=(first, last)) == {
        "value": {"name": "Ann"}, "valueSchema": "id:7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (("__value_schema_id", b"\1" + bytes(16)),
         "the topic _schemas has no guid:00000000-0000-0000-0000-000000000000"),
        (("__value_schema_id", b"\1"), "the header __value_schema_id is malformed"),
        (("apicurio.value.globalId", bytes(7) + b"\7"),
         "apicurio.value.globalId 7 is not known: it is of an Apicurio Registry"),
        (("apicurio.value.contentId", bytes(7) + b"\7"),
         "apicurio.value.contentId 7 is not known: it is of an Apicurio Registry"),
    ],
)  # fmt: skip
def test_a_header_whose_schema_is_not_known(
    topic: Topic, header: tuple[str, bytes], error: str
) -> None:
    assert shown(topic, framed(7, ANN), headers=(header,))["valueError"] == error
    assert shown(topic, ANN, headers=(header,), value="id:7")["value"] == {"name": "Ann"}


@pytest.mark.parametrize("choice", ["id:7", "subject:names-value:1", "FILE"])
def test_a_chosen_schema_decodes_values_with_a_frame_and_without(
    choice: str, topic: Topic, tmp_path: Path
) -> None:
    if choice == "FILE":
        choice = str(tmp_path / "name.avsc")
        Path(choice).write_text(json.dumps(NAME))
    for data in (ANN, framed(1, ANN)):
        assert shown(topic, data, value=choice) == {
            "value": {"name": "Ann"}, "valueSchema": choice,
        }  # fmt: skip


def test_the_latest_version_of_a_subject(topic: Topic) -> None:
    found = shown(topic, b"\2" + ANN, value="subject:names-value")
    assert found == {"value": {"name": "Ann"}, "valueSchema": "subject:names-value"}


def test_a_chosen_schema_reads_the_frame_only_if_the_rest_fits(topic: Topic) -> None:
    topic.register("a", 1, 10, '{"type":"array","items":"null"}')
    assert shown(topic, b"\0\0\0\0\0", value="id:10")["valueRest"] == {"base64": "AAAAAA=="}
    assert shown(topic, b"\0\0\0\0\0\0", value="id:10") == {"value": [], "valueSchema": "id:10"}
    error = "a length is negative (position 1)"
    assert shown(topic, b"\1", value="id:7")["valueError"] == error
    assert shown(topic, framed(7, b"\1"), value="id:7")["valueRest"] == {"base64": "AAAABwE="}


def test_bytes_have_a_length_only_without_a_frame(topic: Topic) -> None:
    topic.register("a", 1, 10, '"bytes"')
    topic.register("b", 1, 11, {
        "type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2,
    })  # fmt: skip
    topic.register("c", 1, 12, '["bytes"]')
    for data, schema, value in (
        (framed(10, b"\4ab"), "auto", {"base64": "BGFi"}),
        (framed(10, b""), "auto", {"base64": ""}),
        (framed(11, b"\4\xd2"), "auto", "12.34"),
        (framed(12, b"\0\4ab"), "auto", {"base64": "YWI="}),
        (framed(10, b"\4ab"), "id:10", {"base64": "BGFi"}),
        (b"\4ab", "id:10", {"base64": "YWI="}),
        (b"\0", "id:10", {"base64": ""}),
    ):
        found = shown(topic, data, value=schema)
        assert found.pop("valueSchema").startswith("id:1")
        assert found == {"value": value}
    assert shown(topic, framed(10, b"\4ab"), avro_json=True)["value"] == "\4ab"


def test_bytes_that_fit_with_and_without_a_frame_are_not_decoded(topic: Topic) -> None:
    topic.register("a", 1, 10, AMBIGUOUS)
    error = "the bytes match the schema both with and without a frame of 5 bytes"
    data = framed(0x02000000, b"\0\0")
    assert shown(topic, data, value="id:10")["valueError"] == error


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("auto", Choice("auto")), ("none", Choice("none")), ("a.avsc", Choice("file", "a.avsc")),
        ("id:7", Choice("id", "", 7)), ("id::.east:7", Choice("id", ":.east:", 7)),
        ("subject:a-value", Choice("subject", "a-value")),
        ("subject:a:b:3", Choice("subject", "a:b", 3)),
        ("subject::.east:a:3", Choice("subject", ":.east:a", 3)),
        ("subject:3", Choice("subject", "3")),
    ],
)  # fmt: skip
def test_a_choice_is_parsed(text: str, choice: Choice) -> None:
    assert parse_choice(text) == choice


@pytest.mark.parametrize("text", ["id:", "id:x", "id:-1", "id:.east:7", "subject:", "subject::a"])
def test_a_choice_that_is_malformed_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="is not a"):
        parse_choice(text)


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ("id:1", "the topic _schemas has no id:1"),
        ("subject:x:2", "the topic _schemas has no subject:x:2"),
        ("id:20", "id:20 is a Protobuf schema, and only Avro can be decoded"),
        ("id:21", "id:21 is a JSON Schema, and only Avro can be decoded"),
    ],
)
def test_a_chosen_schema_that_cannot_be_used_is_an_error(
    choice: str, error: str, topic: Topic
) -> None:
    topic.register("p", 1, 20, 'syntax = "proto3";', schemaType="PROTOBUF")
    topic.register("j", 1, 21, "{}", schemaType="JSON")
    with pytest.raises(SchemaError) as caught:
        decoder(topic, value=choice)
    assert str(caught.value) == error
    if choice.startswith("id:"):
        found = shown(topic, framed(int(choice[3:]), b""))
        assert found["valueError"] == error


# -- whole topics --------------------------------------------------------------------------------


@pytest.mark.parametrize("value_only", [False, True])
def test_damaged_records_are_all_shown(value_only: bool) -> None:
    """Each truncation and 400 flipped bits of each of 15 records: none is missing, none is more."""
    topic = Topic()
    topic.register("names-value", 1, 7, ORDER)
    made = decoder(topic, value_only=value_only)
    oracle = Oracle(ORDER)
    random = Random(5)
    for _ in range(15):
        data = framed(7, encoded(ORDER, order(random)))
        damaged = [data[:size] for size in range(len(data))]
        for _ in range(400):
            flipped = bytearray(data)
            flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
            damaged.append(bytes(flipped))
        text = lines_of(*((b"key", each) for each in damaged))
        lines = made.feed(text).split(b"\n")
        assert lines.pop() == b""
        assert len(lines) == len(damaged)
        for line, raw, each in zip(lines, text.splitlines(), damaged, strict=True):
            if b'"valueError":' in line:
                assert line.startswith(raw[:-1] + b',"valueError":"')
            elif b'"valueSchema":' not in line and not value_only:
                assert line == raw
                assert each[:1] != b"\0" or len(each) < 5
            elif not value_only:
                found = json.loads(line)
                rest = base64.b64decode(found.get("valueRest", {"base64": ""})["base64"])
                if b"base64" not in json.dumps(found["value"]["tags"]).encode():
                    _check(oracle, each, found["value"], len(each) - 5 - len(rest))
    assert made.failed > 3000


def _check(oracle: Oracle, data: bytes, value: Any, size: int) -> None:
    """The decoded value is the one that fastavro reads, except for strings that are not UTF-8."""
    try:
        expected = oracle.read(data[5:])
    except UnicodeDecodeError:
        return
    assert (value, size) == expected
