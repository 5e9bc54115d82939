"""Values that confluent-kafka's AvroSerializer has written, decoded by the registry's topic.

The registry is a small server of its API, which writes the topic `_schemas` as a registry does.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkafs.schemas.choice import Choice, Schemas
from kafkafs.schemas.lines import LineDecoder
from kafkafs.schemas.registry_topic import context_of
from tests.kafkafs.schemas.avro_values import Oracle
from tests.kafkafs.schemas.registries import Topic, lines_of

ALL_TYPES = {
    "type": "record", "name": "All", "namespace": "test", "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "yes", "type": "boolean"},
        {"name": "int", "type": "int"},
        {"name": "long", "type": "long"},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "bytes", "type": "bytes"},
        {"name": "string", "type": "string"},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "array", "type": {"type": "array", "items": "E"}},
        {"name": "map", "type": {"type": "map", "values": "F"}},
        {"name": "union", "type": ["null", "string", "All"]},
        {"name": "decimal", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3,
        }},
        {"name": "fixed_decimal", "type": {
            "type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 9,
        }},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "date", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time_millis", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "time_micros", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local_millis", "type": {
            "type": "long", "logicalType": "local-timestamp-millis",
        }},
        {"name": "local_micros", "type": {
            "type": "long", "logicalType": "local-timestamp-micros",
        }},
    ],
}  # fmt: skip
STRING = {"type": "string"}
TIME = datetime.datetime(2026, 11, 28, 12, 34, 56, 789000)


def all_types(union: Any) -> dict[str, Any]:
    return {
        "nothing": None, "yes": True, "int": -(2**31), "long": 2**63 - 1, "float": 0.5,
        "double": 0.1, "bytes": b"\0\xff", "string": 'a"\n€', "fixed": b"ab", "enum": "B",
        "array": ["A", "B"], "map": {"k": b"cd"}, "union": union, "decimal": Decimal("-1.250"),
        "fixed_decimal": Decimal(7), "uuid": uuid.UUID(int=5), "date": TIME.date(),
        "time_millis": TIME.time(), "time_micros": TIME.time(),
        "millis": TIME.replace(tzinfo=datetime.UTC),
        "micros": TIME.replace(tzinfo=datetime.UTC),
        "local_millis": TIME, "local_micros": TIME,
    }  # fmt: skip


class Registry:
    """A server of the registry's API, and its topic."""

    def __init__(self) -> None:
        self.topic = Topic()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(registry.register(self._words()[1], body))

            def do_GET(self) -> None:
                kind, subject, _, version = self._words()
                if kind == "subjects":
                    self._answer(registry.found(subject, int(version)))
                else:
                    self._answer({"error_code": 404, "message": "not here"}, 404)

            def do_DELETE(self) -> None:
                _, subject, _, version = self._words()
                registry.delete(subject, int(version), for_good="permanent" in self.path)
                self._answer(int(version))

            def _words(self) -> list[str]:
                return [unquote(word) for word in urlsplit(self.path).path.split("/")[1:]]

            def _answer(self, value: object, status: int = 200) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.client = SchemaRegistryClient({"url": f"http://127.0.0.1:{self._server.server_port}"})

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        known = self.topic.opened()
        known.update()
        number = version = 1
        while known.by_id(number, f":{context_of(subject)}:") is not None:
            number += 1
        while known.by_version(subject, version) is not None:
            version += 1
        references = [
            (each["name"], each["subject"], each["version"]) for each in body.get("references", [])
        ]
        self.topic.register(subject, version, number, body["schema"], references)
        return self.found(subject, version)

    def found(self, subject: str, version: int) -> dict[str, Any]:
        known = self.topic.opened()
        known.update()
        stored = known.by_version(subject, version)
        assert stored is not None
        assert stored.guid is not None
        return {
            "subject": subject, "version": version, "id": stored.id, "schema": stored.schema,
            "guid": str(uuid.UUID(bytes=stored.guid)), "schemaType": "AVRO",
            "references": [
                {"name": each.name, "subject": each.subject, "version": each.version}
                for each in stored.references or ()
            ],
        }  # fmt: skip

    def delete(self, subject: str, version: int, *, for_good: bool) -> None:
        if for_good:
            self.topic.delete_for_good(subject, version)
            return
        known = self.topic.opened()
        known.update()
        stored = known.by_version(subject, version)
        assert stored is not None
        self.topic.register(subject, version, stored.id, stored.schema, deleted=True)

    def written(
        self, schema: Schema | Any, value: Any, **options: Any
    ) -> tuple[bytes, list[tuple[str, bytes]]]:
        """A value of the topic `orders` as AvroSerializer writes it, and its headers."""
        if not isinstance(schema, Schema):
            schema = Schema(json.dumps(schema), "AVRO")
        serialize = AvroSerializer(self.client, schema, conf=options)
        headers: list[tuple[str, str | bytes | None]] = []
        context = SerializationContext("orders", MessageField.VALUE, headers)
        data = serialize(value, context)
        assert data is not None
        return data, [(name, text) for name, text in headers if isinstance(text, bytes)]

    def decoded(self, data: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> dict[str, Any]:
        """The line of a record with this value."""
        schemas = Schemas(self.topic.opened())
        auto = Choice("auto")
        decoder = LineDecoder("orders", auto, auto, schemas, lambda _: "")
        line: dict[str, Any] = json.loads(
            decoder.feed(lines_of((None, data), headers=tuple(headers)))
        )
        return line


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    yield found
    found.close()


def test_every_type_is_decoded_as_fastavro_decodes_it(registry: Registry) -> None:
    for union in (None, "text", all_types(all_types(None))):
        data, _ = registry.written(ALL_TYPES, all_types(union))
        line = registry.decoded(data)
        expected, size = Oracle(ALL_TYPES).read(data[5:])
        assert (line["value"], size) == (expected, len(data) - 5)
        assert re.fullmatch("id:[0-9]", line["valueSchema"])


def test_three_versions_of_a_subject(registry: Registry) -> None:
    fields = [{"name": name, "type": "string", "default": ""} for name in "abc"]
    for count in (1, 2, 3):
        schema = {"type": "record", "name": "R", "fields": fields[:count]}
        value = {field["name"]: "x" for field in fields[:count]}
        data, _ = registry.written(schema, value)
        line = registry.decoded(data)
        assert (line["value"], line["valueSchema"]) == (value, f"id:{count}")


def test_references_three_deep(registry: Registry) -> None:
    schemas = {
        "D": {"type": "enum", "name": "D", "symbols": ["x", "y"]},
        "C": {"type": "record", "name": "C", "fields": [{"name": "d", "type": "D"}]},
        "B": {"type": "record", "name": "B", "fields": [{"name": "c", "type": "C"}]},
        "A": {"type": "record", "name": "A", "fields": [{"name": "b", "type": ["null", "B"]}]},
    }
    references: list[SchemaReference] = []
    for name, text in schemas.items():
        schema = Schema(json.dumps(text), "AVRO", references)
        if name != "A":
            registry.client.register_schema(name, schema)
            references = [SchemaReference(name, name, 1)]
    value = {"b": {"c": {"d": "y"}}}
    data, _ = registry.written(schema, value)
    assert registry.decoded(data)["value"] == value


def test_a_schema_of_a_context(registry: Registry) -> None:
    registry.client.register_schema("orders-value", Schema('"bytes"', "AVRO"))
    registry.client.register_schema("other-value", Schema('"int"', "AVRO"))
    data, _ = registry.written(
        STRING, "text", **{"subject.name.strategy": lambda *_: ":.east:orders-value"}
    )
    assert data[:5] == b"\0\0\0\0\1"
    # The id 1 of the default context is of the same subject.
    assert registry.decoded(data)["value"] == {"base64": "dGV4dA=="}
    registry.client.register_schema(":.east:orders-value", Schema('"long"', "AVRO"))
    data, _ = registry.written(
        {"type": "long"}, 5, **{"subject.name.strategy": lambda *_: ":.east:orders-value",
                      "auto.register.schemas": True},
    )  # fmt: skip
    assert data[:5] == b"\0\0\0\0\3"
    line = registry.decoded(data)
    assert (line["value"], line["valueSchema"]) == (5, "id::.east:3")


def test_a_guid_in_a_header(registry: Registry) -> None:
    data, headers = registry.written(
        STRING, "text", **{"schema.id.serializer": header_schema_id_serializer}
    )
    assert headers[0][0] == "__value_schema_id"
    line = registry.decoded(data, headers)
    assert line["value"] == "text"
    assert line["valueSchema"].startswith("guid:")


def test_deleted_schemas(registry: Registry) -> None:
    data, _ = registry.written(STRING, "text")
    registry.client.delete_version("orders-value", 1)
    assert registry.decoded(data)["value"] == "text"
    registry.client.delete_version("orders-value", 1, permanent=True)
    assert registry.decoded(data)["valueError"] == "the topic _schemas has no id:1"
