"""Values that confluent-kafka's AvroSerializer has written, decoded by the registry's topic.

The registry is a small server of its API, which writes the topic `_schemas` as a registry does.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import threading
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkafs.schemas.choice import Choice, Schemas
from kafkafs.schemas.lines import LineDecoder
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
BYTES = {"type": "bytes"}
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
    """A server of the registry's API, and its topic. It registers one schema."""

    def __init__(self) -> None:
        self.topic = Topic()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(registry.register(body["schema"]), 200)

            def do_GET(self) -> None:
                self._answer({"error_code": 404, "message": "not here"}, 404)

            def _answer(self, value: object, status: int) -> None:
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

    def register(self, schema: str) -> dict[str, Any]:
        self.topic.register("orders-value", 1, 1, schema)
        known = self.topic.opened()
        known.update()
        stored = known.by_version("orders-value", 1)
        assert stored is not None
        assert stored.guid is not None
        guid = str(uuid.UUID(bytes=stored.guid))
        return {"subject": "orders-value", "version": 1, "id": 1, "schema": schema, "guid": guid}

    def written(
        self, schema: Any, value: Any, **options: Any
    ) -> tuple[bytes, list[tuple[str, bytes]]]:
        """A value of the topic `orders` as AvroSerializer writes it, and its headers."""
        serialize = AvroSerializer(self.client, Schema(json.dumps(schema), "AVRO"), conf=options)
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


def test_a_guid_in_a_header(registry: Registry) -> None:
    data, headers = registry.written(
        STRING, "text", **{"schema.id.serializer": header_schema_id_serializer}
    )
    assert headers[0][0] == "__value_schema_id"
    line = registry.decoded(data, headers)
    assert line["value"] == "text"
    assert line["valueSchema"].startswith("guid:")


def test_bytes_have_no_length(registry: Registry) -> None:
    for value in (b"", b"\x04text", b"\0"):
        data, _ = registry.written(BYTES, value)
        line = registry.decoded(data)
        assert line["value"] == {"base64": base64.b64encode(value).decode()}
        assert "valueRest" not in line
        data, headers = registry.written(
            BYTES, value, **{"schema.id.serializer": header_schema_id_serializer}
        )
        assert registry.decoded(data, headers)["value"] == line["value"]
