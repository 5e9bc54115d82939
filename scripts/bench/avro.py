#!/usr/bin/env python3
"""Measures how fast Avro values become JSON, beside fastavro and libavro.

    scripts/bench/avro.py [--passes N] [--tiny]

Needs scripts/setup test. Only kafkafs is measured beside fastavro if libavro's headers
(libavro-dev) are missing. The values are orders with nested records, unions, an array, a map, an
enum and bytes. fastavro makes Python objects, which msgspec then writes as JSON. libavro's
`avro_value_to_json` is what kcat prints. A figure is thousands of values a second of processor
time, so that it is about the same on a busy machine: the best of several passes over all values.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import msgspec

from kafkafs.schemas.avro import compiled

NAME = {"type": "record", "name": "Name", "fields": [
    {"name": "first", "type": "string"}, {"name": "last", "type": ["null", "string"]},
]}  # fmt: skip
ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": NAME},
    {"name": "lines", "type": {"type": "array", "items": {
        "type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"},
            {"name": "quantity", "type": "int"},
            {"name": "price", "type": "bytes"},
        ],
    }}},
    {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}},
    {"name": "total", "type": "double"},
    {"name": "tags", "type": {"type": "map", "values": "string"}},
]}  # fmt: skip


def orders(count: int) -> list[bytes]:
    """Make values of the schema. The same in each run."""
    draw = random.Random(1)
    schema = fastavro.parse_schema(ORDER)
    found = []
    for number in range(count):
        order = {
            "id": draw.getrandbits(40),
            "customer": {"first": "Ann", "last": draw.choice([None, "Müller"])},
            "lines": [
                {"sku": f"sku-{draw.randrange(1000)}", "quantity": n, "price": draw.randbytes(3)}
                for n in range(4)
            ],
            "status": draw.choice(["NEW", "PAID"]),
            "total": draw.randrange(10**6) / 100,
            "tags": {"shop": "west", "street": f"{number} Main Street"},
        }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, order)
        found.append(out.getvalue())
    return found


def rate(work: Callable[[bytes], object], values: list[bytes], passes: int) -> float:
    """Return thousands of values a second."""
    least = float("inf")
    for _ in range(passes):
        start = time.process_time()
        for value in values:
            work(value)
        least = min(least, time.process_time() - start)
    return len(values) / least / 1000


def libavro(values: list[bytes], passes: int) -> float | None:
    """The rate of libavro; None if it is not installed."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-bench-") as directory:
        program, schema, data = (Path(directory, name) for name in ("avro", "schema", "values"))
        source = str(Path(__file__).with_suffix(".c"))
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-O2", "-o", str(program), source, "-lavro"]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        schema.write_text(json.dumps(ORDER))
        sized = [struct.pack("=I", len(value)) + value for value in values]
        data.write_bytes(b"".join([struct.pack("=I", len(values)), *sized]))
        words = [str(program), str(schema), str(data), str(passes)]
        took = float(subprocess.run(words, capture_output=True, check=True).stdout)
    return len(values) / took / 1000


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--tiny", action="store_true", help="a second, to see that it runs")
    options = parser.parse_args()
    passes = 1 if options.tiny else options.passes
    values = orders(200 if options.tiny else 5000)
    avro = compiled(json.dumps(ORDER))
    schema = fastavro.parse_schema(ORDER)

    def theirs(value: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(value), schema)

    for value in values[:200]:
        expected = msgspec.json.encode(theirs(value))
        ours = json.loads(avro.decode(value)[0])
        for line in ours["lines"]:
            line["price"] = base64.b64decode(line["price"]["base64"])
        assert msgspec.json.encode(ours) == expected
    figures = {
        "kafkafs": rate(avro.decode, values, passes),
        "fastavro": rate(theirs, values, passes),
        "fastavro and msgspec": rate(
            lambda value: msgspec.json.encode(theirs(value)), values, passes
        ),
        "libavro": libavro(values, passes),
    }
    print(f"{sum(map(len, values)) / len(values):.0f} bytes a value, 1,000 values a second:")
    for name, figure in figures.items():
        print(f"{name:22}{'not installed' if figure is None else f'{figure:.0f}'}")
    if figures["libavro"] is None:
        print("for libavro: apt-get install libavro-dev", file=sys.stderr)


if __name__ == "__main__":
    main()
