"""Avro schemas, values in Avro's encoding, and the JSON that fastavro reads from them."""

from __future__ import annotations

import base64
import decimal
import io
import json
import math
import uuid
from random import Random
from typing import Any

import fastavro

ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": {
            "type": "record", "name": "Customer", "fields": [
                {"name": "name", "type": "string"},
                {"name": "email", "type": ["null", "string"]},
            ],
        }},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [
                {"name": "sku", "type": "string"},
                {"name": "quantity", "type": "int"},
                {"name": "price", "type": {
                    "type": "bytes", "logicalType": "decimal", "precision": 2000, "scale": 2,
                }},
            ],
        }}},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}},
        {"name": "weight", "type": "float"},
        {"name": "total", "type": "double"},
        {"name": "tags", "type": {"type": "map", "values": ["int", "string", "Customer"]}},
        {"name": "checksum", "type": {"type": "fixed", "name": "Sum", "size": 3}},
        {"name": "picture", "type": "bytes"},
        {"name": "gift", "type": "boolean"},
        {"name": "next", "type": ["null", "Order"]},
    ],
}  # fmt: skip


def random_schema(random: Random, depth: int = 0, names: list[str] | None = None) -> Any:
    """A schema with types and names of any kind."""
    names = [] if names is None else names
    simple = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    logical: list[Any] = [
        {"type": "bytes", "logicalType": "decimal", "precision": 300, "scale": 4},
        {"type": "string", "logicalType": "uuid"},
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-micros"},
    ]
    if depth > 3:
        return random.choice(simple + logical)
    kind = random.choice(["simple", "logical", "array", "map", "union", "record", "enum", "fixed"])
    if kind == "simple":
        return random.choice([*simple, {"type": random.choice(simple)}])
    if kind == "logical":
        return random.choice(logical)
    if kind in ("array", "map"):
        of = "items" if kind == "array" else "values"
        return {"type": kind, of: random_schema(random, depth + 1, names)}
    if kind == "union":
        branches = random.sample(["null", "boolean", "long", "double", "string"], 3)
        return [*branches, {"type": "array", "items": random_schema(random, depth + 1, names)}]
    name = f"n{len(names)}"
    names.append(name)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["a", "b", "c" * 40]}
    if kind == "fixed":
        decimals = {"logicalType": "decimal", "precision": 28, "scale": 6}
        size = random.choice([0, 1, 12, 16])
        return {"type": "fixed", "name": name, "size": size} | (decimals if size == 12 else {})
    fields = [
        {"name": "f" * random.choice([1, 5, 40]) + str(n), "type": kind}
        for n in range(random.randrange(5))
        for kind in [random_schema(random, depth + 1, names)]
    ]
    return {"type": "record", "name": name, "fields": fields}


def random_value(random: Random, schema: Any) -> Any:
    """A value of a schema of `random_schema` that fastavro can write."""
    kind = schema if isinstance(schema, str) else None
    if isinstance(schema, list):
        return random_value(random, random.choice(schema))
    if kind is None:
        kind = schema["type"]
    if kind == "null":
        return None
    if kind == "boolean":
        return random.random() < 0.5
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        return decimal.Decimal(random.getrandbits(random.randrange(60)) - 2**40).scaleb(-4)
    if isinstance(schema, dict) and schema.get("logicalType") == "uuid":
        return uuid.UUID(int=random.getrandbits(128))
    if kind in ("int", "long"):
        bits = random.randrange(32 if kind == "int" else 64)
        return random.getrandbits(bits) - (1 << bits) // 2
    if kind in ("float", "double"):
        return random.choice([0.0, -0.0, math.inf, random.random(), random.gauss(0, 1e30), 12.5])
    if kind == "string":
        return "".join(random.choices('ab"\\\n\0é€😀', k=random.choice([0, 3, 20, 70])))
    if kind == "bytes":
        return random.randbytes(random.randrange(40))
    if kind == "fixed":
        return random.randbytes(schema["size"])
    if kind == "enum":
        return random.choice(schema["symbols"])
    if kind == "array":
        return [random_value(random, schema["items"]) for _ in range(random.randrange(4))]
    if kind == "map":
        count = random.randrange(4)
        return {f"k{n}": random_value(random, schema["values"]) for n in range(count)}
    return {field["name"]: random_value(random, field["type"]) for field in schema["fields"]}


def order(random: Random, depth: int = 0) -> dict[str, Any]:
    """A value of ORDER."""
    customer = {"name": "Ann Müller", "email": random.choice([None, "ann@example.org"])}
    return {
        "id": random.getrandbits(random.randrange(63)),
        "customer": customer,
        "items": [
            {
                "sku": f"sku-{n}",
                "quantity": n,
                "price": decimal.Decimal(random.getrandbits(40) - 2**38).scaleb(-2),
            }
            for n in range(random.randrange(4))
        ],
        "status": random.choice(["NEW", "PAID"]),
        "weight": random.random(),
        "total": random.randrange(10**6) / 100,
        "tags": {"a": 7, "b": "west", "c": customer},
        "checksum": random.randbytes(3),
        "picture": random.randbytes(random.randrange(30)),
        "gift": random.random() < 0.5,
        "next": order(random, depth + 1) if random.random() < 0.3 and depth < 3 else None,
    }


def encoded(schema: Any, value: Any) -> bytes:
    """A value in Avro's binary encoding, as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


class Oracle:
    """Decodes values with fastavro. Times are numbers, as in our JSON."""

    def __init__(self, schema: Any) -> None:
        self._schema = fastavro.parse_schema(_without_times(json.loads(json.dumps(schema))))

    def read(self, data: bytes) -> tuple[Any, int]:
        """The JSON of a value, and its size."""
        source = io.BytesIO(data)
        value = fastavro.schemaless_reader(source, self._schema)
        return _json(value), source.tell()


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if str(schema.get("logicalType")).startswith(("date", "time", "local", "uuid")):
        del schema["logicalType"]
    return {name: _without_times(value) for name, value in schema.items()}


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list):
        return [_json(each) for each in value]
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    return value
