"""Compiles Avro schemas to the table of nodes that `_avro` follows.

A schema is JSON as the specification of Avro 1.12 says. Only the writer's schema is used: default
values, aliases and orders of sorting have no effect. An invalid logical type is ignored, and the
value is that of the type below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from kafkafs.schemas._avro import KINDS, Avro
from kafkafs.schemas.errors import SchemaError

LARGEST_SCHEMA: Final = 5_000_000
"""The most bytes of a schema with all schemas that it refers to."""
_DEEPEST: Final = 200
_LARGEST_DECIMAL: Final = 1024
"""A decimal of more bytes is written as bytes."""

_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_UNITS: Final = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}

_Json: TypeAlias = object
_Type: TypeAlias = dict[str, object]


def compiled(
    schema: str, references: Sequence[str] = (), *, iso_times: bool = False, avro_json: bool = False
) -> Avro:
    """Return the decoder of a schema.

    `references` are the schemas whose named types it uses; each one uses only those before it.
    `iso_times` writes dates, times and timestamps as ISO 8601. `avro_json` writes the JSON that the
    specification describes: unions with the names of their branches, bytes as strings, and
    logical types as the types below them.

    Errors: SchemaError.
    """
    texts = [*references, schema]
    if sum(len(text.encode()) for text in texts) > LARGEST_SCHEMA:
        raise SchemaError(f"the schema has more than {LARGEST_SCHEMA:,} bytes")
    compiler = _Compiler(iso_times=iso_times, avro_json=avro_json)
    for text in texts:
        try:
            parsed = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise SchemaError(f"the schema is not JSON: {error}") from None
        root = compiler.add(parsed, "", 0)
    return compiler.decoder(root)


class _Compiler:
    """Collects the nodes and edges of one schema. The node 0 is a copy of the schema's own."""

    def __init__(self, *, iso_times: bool, avro_json: bool) -> None:
        self._iso_times = iso_times
        self._avro_json = avro_json
        self._nodes: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        self._edges: list[tuple[int, bytes]] = []
        self._named: dict[str, int] = {}
        self._names: dict[int, str] = {}
        """The names of the nodes' types, for the branches of unions."""
        self._shared: dict[tuple[int, int, int, int], int] = {}

    def decoder(self, root: int) -> Avro:
        self._nodes[0] = self._nodes[root]
        return Avro(self._nodes, self._edges)

    def add(self, schema: _Json, namespace: str, depth: int) -> int:
        """Add a schema, and return its node. Errors: SchemaError."""
        if depth > _DEEPEST:
            raise SchemaError(f"the schema is nested more than {_DEEPEST} deep")
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict):
            raise SchemaError(f"{_shown(schema)} is not a type")
        kind = schema.get("type")
        add = _COMPLEX.get(kind) if isinstance(kind, str) else None
        if add is not None:
            return add(self, schema, namespace, depth)
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return self._primitive(kind, schema)
        if kind is None:
            raise SchemaError(f"{_shown(schema)} has no type")
        return self.add(kind, namespace, depth + 1)

    # -- types without a name ----------------------------------------------------------------------

    def _by_name(self, name: str, namespace: str) -> int:
        if name in _PRIMITIVES:
            return self._primitive(name, {})
        for full_name in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full_name in self._named:
                return self._named[full_name]
        raise SchemaError(f"the type {_shown(name)} is not defined")

    def _primitive(self, name: str, schema: _Type) -> int:
        kind, size = self._logical(name, schema) or (name, _SIZES.get(name, 0))
        if self._avro_json and name == "bytes":
            kind = "bytes-string"
        return self._node(kind, 0, 0, size, name)

    def _logical(self, name: str, schema: _Type) -> tuple[str, int] | None:
        """The kind and the size of a logical type; None if there is no valid one."""
        logical = schema.get("logicalType")
        if self._avro_json or not isinstance(logical, str):
            return None
        if name == "bytes" and logical == "decimal":
            scale = _scale_of(schema, _LARGEST_DECIMAL)
            return None if scale is None else ("decimal", scale)
        if name == "bytes" and logical == "big-decimal":
            return "big-decimal", 0
        if not self._iso_times:
            return None
        if name == "int" and logical == "date":
            return "date", 0
        kind, _, unit = logical.rpartition("-")
        if (name, logical) in (("int", "time-millis"), ("long", "time-micros")) or (
            name == "long" and kind in ("timestamp", "local-timestamp") and unit in _UNITS
        ):
            return kind, _UNITS[unit]
        return None

    def _array(self, schema: _Type, namespace: str, depth: int) -> int:
        return self._items("array", schema.get("items"), namespace, depth)

    def _map(self, schema: _Type, namespace: str, depth: int) -> int:
        return self._items("map", schema.get("values"), namespace, depth)

    def _items(self, kind: str, schema: _Json, namespace: str, depth: int) -> int:
        items = self.add(schema, namespace, depth + 1)
        self._edges.append((items, b""))
        return self._node(kind, len(self._edges) - 1, 1, 0, kind)

    def _union(self, branches: list[_Json], namespace: str, depth: int) -> int:
        edges = []
        for branch in branches:
            if isinstance(branch, list):
                raise SchemaError("a union is directly inside of a union")
            node = self.add(branch, namespace, depth + 1)
            name = self._names[node]
            has_name = self._avro_json and name != "null"
            edges.append((node, b"{%s:" % _json(name) if has_name else b""))
        first = len(self._edges)
        self._edges += edges
        return self._node("union", first, len(edges), 0, "union")

    # -- named types -------------------------------------------------------------------------------

    def _record(self, schema: _Type, namespace: str, depth: int) -> int:
        node, namespace = self._define(schema, namespace)
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"the record {_shown(self._names[node])} has no list of fields")
        edges: list[tuple[int, bytes]] = []
        for field in fields:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or "type" not in field:
                record = _shown(self._names[node])
                raise SchemaError(f"a field of the record {record} has no name or type")
            before = b",%s:" if edges else b"{%s:"
            edges.append((self.add(field["type"], namespace, depth + 1), before % _json(name)))
        first = len(self._edges)
        self._edges += edges
        self._nodes[node] = (KINDS["record"], first, len(edges), 0)
        return node

    def _enum(self, schema: _Type, namespace: str, depth: int) -> int:
        node, _ = self._define(schema, namespace)
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
            raise SchemaError(f"the enum {_shown(self._names[node])} has no list of symbols")
        self._nodes[node] = (KINDS["enum"], len(self._edges), len(symbols), 0)
        self._edges += [(0, _json(symbol)) for symbol in symbols]
        return node

    def _fixed(self, schema: _Type, namespace: str, depth: int) -> int:
        node, _ = self._define(schema, namespace)
        size = schema.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
            raise SchemaError(f"the fixed {_shown(self._names[node])} has no size")
        logical = schema.get("logicalType")
        kind, first = "fixed", 0
        if self._avro_json:
            kind = "fixed-string"
        elif logical == "decimal":
            scale = _scale_of(schema, min(size, _LARGEST_DECIMAL))
            if scale is not None:
                kind, first, size = "fixed-decimal", size, scale
        elif (logical, size) == ("uuid", 16):
            kind = "fixed-uuid"
        elif (logical, size) == ("duration", 12):
            kind = "duration"
        self._nodes[node] = (KINDS[kind], first, 0, size)
        return node

    def _define(self, schema: _Type, namespace: str) -> tuple[int, str]:
        """Add a node for a named type. Return it, and the namespace of the types inside."""
        name, given = schema.get("name"), schema.get("namespace")
        if not isinstance(name, str) or not name:
            raise SchemaError(f"the {schema['type']} {_shown(schema)} has no name")
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            namespace = given if isinstance(given, str) else namespace
            name = f"{namespace}.{name}" if namespace else name
        if name in self._named or name in _PRIMITIVES:
            raise SchemaError(f"the type {_shown(name)} is defined twice")
        self._nodes.append((0, 0, 0, 0))
        node = len(self._nodes) - 1
        self._named[name] = node
        self._names[node] = name
        return node, namespace

    def _node(self, kind: str, first: int, count: int, size: int, name: str) -> int:
        fields = (KINDS[kind], first, count, size)
        node = self._shared.setdefault(fields, len(self._nodes))
        if node == len(self._nodes):
            self._nodes.append(fields)
            self._names[node] = name
        return node


_Add: TypeAlias = Callable[[_Compiler, _Type, str, int], int]
_COMPLEX: Final[dict[str, _Add]] = {
    "array": _Compiler._array,
    "map": _Compiler._map,
    "record": _Compiler._record,
    "error": _Compiler._record,
    "enum": _Compiler._enum,
    "fixed": _Compiler._fixed,
}


def _scale_of(schema: _Type, size: int) -> int | None:
    """The scale of a decimal of at most `size` bytes; None if precision or scale is not valid."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    largest = len(str((1 << max(8 * size - 1, 0)) - 1)) - 1
    return scale if 0 <= scale <= precision and 0 < precision <= largest else None


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)


def _shown(schema: _Json) -> str:
    """A part of a schema for a message."""
    text = msgspec.json.encode(schema).decode()
    return text if len(text) <= 100 else f"{text[:100]}…"
