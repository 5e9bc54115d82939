"""Finds the schema of a key or a value.

The schema is named by the bytes themselves (a frame: 0 and an id of four bytes), by a header of the
record, or by the user, as `parse_choice` says.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from kafkafs.schemas.avro import compiled
from kafkafs.schemas.errors import SchemaError
from kafkafs.schemas.registry_topic import (
    DEFAULT_CONTEXT,
    RegistryTopic,
    StoredSchema,
    context_of,
)

Decode: TypeAlias = Callable[[bytes, int, bool], tuple[bytes, int]]
"""Decodes the bytes from a position on to JSON. Returns the text and the position after it.

The flag is true for what a serializer of the registry has written: it puts no length before a value
whose schema is `bytes`. Errors: SchemaError.
"""
Field: TypeAlias = Literal["key", "value"]

_FRAME_SIZE: Final = 5
_GUID_SIZE: Final = 17
_KINDS: Final = {"PROTOBUF": "a Protobuf schema", "JSON": "a JSON Schema"}
_APICURIO_IDS: Final = ("globalId", "contentId")


class Choice(NamedTuple):
    """The user's choice of a schema: `kind` is auto, none, file, id or subject."""

    kind: str
    name: str = ""
    """The subject or the path; of an id the subject, or empty, that gives its context."""
    number: int | None = None
    """The id or the version; None: the latest version."""


def parse_choice(text: str) -> Choice:
    """Parse auto, none, FILE, id:[:.CONTEXT:]ID or subject:NAME[:VERSION].

    Errors: SchemaError.
    """
    if text in ("auto", "none"):
        return Choice(text)
    if text.startswith("id:"):
        found = re.fullmatch(r"id:(:\.[^:]*:)?([0-9]{1,10})", text)
        if found is None:
            raise SchemaError(f"{text!r} is not an id, such as id:7")
        return Choice("id", found[1] or "", int(found[2]))
    if text.startswith("subject:"):
        found = re.fullmatch(r"subject:((?::\.[^:]*:)?[^:].*?)(?::([0-9]{1,9}))?", text)
        if found is None:
            raise SchemaError(f"{text!r} is not a subject, such as subject:orders-value:3")
        return Choice("subject", found[1], None if found[2] is None else int(found[2]))
    return Choice("file", text)


class Schema(NamedTuple):
    """A schema that is ready to decode. `name` is as the user would choose it."""

    name: str
    decode: Decode


class Schemas:
    """Finds schemas, and compiles each once.

    `registry` is the topic of the registry beside the log; None: there is none.
    """

    def __init__(
        self, registry: RegistryTopic | None, *, iso_times: bool = False, avro_json: bool = False
    ) -> None:
        self._registry = registry
        self._iso_times = iso_times
        self._avro_json = avro_json
        self._known: dict[tuple[str, object, str], Schema | SchemaError] = {}

    def forget_missing(self) -> None:
        """Look for the schemas again that could not be used: the registry may have new ones."""
        for key, found in list(self._known.items()):
            if isinstance(found, SchemaError):
                del self._known[key]

    def chosen(self, choice: Choice, read_file: Callable[[str], str]) -> Schema:
        """Return the schema of a choice other than auto and none. Errors: SchemaError, OSError."""
        if choice.kind == "file":
            return self._avro(choice.name, read_file(choice.name), [])
        if choice.kind == "id":
            return self.with_id(choice.number or 0, choice.name)
        version = "" if choice.number is None else f":{choice.number}"
        return self._stored(
            f"subject:{choice.name}{version}",
            lambda registry: registry.by_version(choice.name, choice.number),
        )

    def with_id(self, number: int, subject: str) -> Schema:
        """Return the schema with an id that a record of this subject has. Errors: SchemaError."""
        return self._cached(
            ("id", number, subject),
            lambda: self._stored(f"id:{number}", lambda registry: registry.by_id(number, subject)),
        )

    def with_guid(self, guid: bytes) -> Schema:
        """Return the schema with a GUID. Errors: SchemaError."""
        return self._cached(
            ("guid", guid, ""),
            lambda: self._stored(
                f"guid:{uuid.UUID(bytes=guid)}", lambda registry: registry.by_guid(guid)
            ),
        )

    def _cached(self, key: tuple[str, object, str], find: Callable[[], Schema]) -> Schema:
        found = self._known.get(key)
        if found is None:
            try:
                found = find()
            except SchemaError as error:
                found = error
            self._known[key] = found
        if isinstance(found, SchemaError):
            raise found
        return found

    def _stored(self, name: str, find: Callable[[RegistryTopic], StoredSchema | None]) -> Schema:
        registry = self._registry
        if registry is None:
            raise SchemaError(f"{name} is not known: there is no topic _schemas beside the log")
        found = find(registry)
        if found is None:
            registry.update()
            found = find(registry)
        if found is None:
            raise SchemaError(f"the topic _schemas has no {name}")
        if found.kind != "AVRO":
            kind = _KINDS.get(found.kind, "a schema of an unknown type")
            raise SchemaError(f"{name} is {kind}, and only Avro can be decoded")
        context = context_of(found.subject)
        if context != DEFAULT_CONTEXT and name.startswith("id:"):
            name = f"id::{context}:{found.id}"
        return self._avro(name, found.schema, registry.references_of(found))

    def _avro(self, name: str, text: str, references: list[str]) -> Schema:
        avro = compiled(text, references, iso_times=self._iso_times, avro_json=self._avro_json)
        return Schema(name, avro.decode)


class Decoded(NamedTuple):
    """JSON of a key or a value. `end` is where the bytes after it begin."""

    text: bytes
    end: int
    schema: str


class FieldDecoder:
    """Decodes the keys, or the values, of a topic."""

    def __init__(
        self,
        field: Field,
        topic: str,
        choice: Choice,
        schemas: Schemas,
        read_file: Callable[[str], str],
    ) -> None:
        """Errors: SchemaError, OSError."""
        self._field = field
        self._subject = f"{topic}-{field}"
        self._schemas = schemas
        self._is_none = choice.kind == "none"
        self._told = None
        if choice.kind not in ("auto", "none"):
            self._told = schemas.chosen(choice, read_file)

    def decode(self, data: bytes, headers: Mapping[bytes | None, bytes | None]) -> Decoded | None:
        """Decode a key or a value; None if it has no schema. Errors: SchemaError."""
        if self._is_none:
            return None
        start = 0
        schema = self._told
        if schema is not None:
            return _decoded_as_told(schema, data)
        if headers:
            schema = self._by_header(headers)
        if schema is None:
            if len(data) < _FRAME_SIZE or data[0] != 0:
                return None
            start = _FRAME_SIZE
            schema = self._schemas.with_id(int.from_bytes(data[1:start]), self._subject)
        text, end = schema.decode(data, start, True)
        return Decoded(text, end, schema.name)

    def _by_header(self, headers: Mapping[bytes | None, bytes | None]) -> Schema | None:
        found = headers.get(b"__%s_schema_id" % self._field.encode())
        if found is not None:
            if found[:1] == b"\1" and len(found) == _GUID_SIZE:
                return self._schemas.with_guid(found[1:])
            if found[:1] == b"\0" and len(found) == _FRAME_SIZE:
                return self._schemas.with_id(int.from_bytes(found[1:]), self._subject)
            raise SchemaError(f"the header __{self._field}_schema_id is malformed")
        for kind in _APICURIO_IDS:
            name = f"apicurio.{self._field}.{kind}"
            found = headers.get(name.encode())
            if found is not None:
                number = int.from_bytes(found)
                raise SchemaError(f"{name} {number} is not known: it is of an Apicurio Registry")
        return None


def _decoded_as_told(schema: Schema, data: bytes) -> Decoded:
    """Decode bytes that may have a frame or not.

    They have one if they begin with a zero and the schema describes exactly the bytes after it.
    """
    starts = [_FRAME_SIZE, 0] if len(data) >= _FRAME_SIZE and data[0] == 0 else [0]
    found: list[Decoded] = []
    for start in starts:
        try:
            text, end = schema.decode(data, start, start > 0)
        except SchemaError:
            if start == starts[-1] and not found:
                raise
        else:
            found.append(Decoded(text, end, schema.name))
    exact = [each for each in found if each.end == len(data)]
    if len(exact) > 1:
        raise SchemaError("the bytes match the schema both with and without a frame of 5 bytes")
    return exact[0] if exact else found[-1]
