"""Reads the schemas that a Confluent Schema Registry stores in its topic, `_schemas`.

The key and the value of each record are JSON objects. A key of the type SCHEMA names a subject and
a version, and its value has the id and the text. A null value deletes the version for good (a hard
delete). A version that is marked as deleted (a soft delete) still decodes. The other types of keys
that matter mark versions of a subject as deleted (DELETE_SUBJECT), or delete those that are marked
(CLEAR_SUBJECT).

A subject may be in a context: `:.CONTEXT:SUBJECT`. Ids are unique within a context only.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kafkafs.schemas.errors import SchemaError
from kafkafs.schemas.json_lines import LineBuffer, bytes_of, parse_line

REGISTRY_TOPIC: Final = "_schemas"
DEFAULT_CONTEXT: Final = "."
_MOST_LEVELS: Final = 1000
_READ_BYTES: Final = 1 << 20

Read = Callable[[int, int], bytes]
"""Returns bytes of the topic's `jsonl` text from a position, at most the given number."""


class Reference(msgspec.Struct, frozen=True):
    """A reference to the version of another subject, under the name that the schema uses."""

    name: str
    subject: str
    version: int


class StoredSchema(msgspec.Struct):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: str
    schemaType: str | None = None  # noqa: N815
    references: tuple[Reference, ...] | None = None
    deleted: bool = False
    md5: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    ruleSet: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815

    @property
    def kind(self) -> str:
        """`AVRO`, `PROTOBUF` or `JSON`."""
        return self.schemaType or "AVRO"

    @property
    def guid(self) -> bytes | None:
        """The registry's hash of the schema, by which headers name it; None if it is not known."""
        if self.md5 is not None:
            try:
                return base64.b64decode(self.md5)
            except ValueError:
                return None
        if bytes(self.metadata) != b"null" or bytes(self.ruleSet) != b"null":
            return None
        parts = [self.schema.encode()]
        for each in self.references or ():
            parts.append(
                f"{each.name}{each.subject}".encode() + (each.version & 0xFFFFFFFF).to_bytes(4)
            )
        return hashlib.md5(b"".join(parts), usedforsecurity=False).digest()


class _Key(msgspec.Struct):
    keytype: str
    subject: str = ""
    version: int = 0


class _SubjectValue(msgspec.Struct):
    subject: str
    version: int = 0


_parse_key: Final = msgspec.json.Decoder(_Key).decode
_parse_schema: Final = msgspec.json.Decoder(StoredSchema).decode
_parse_subject: Final = msgspec.json.Decoder(_SubjectValue).decode


class RegistryTopic:
    """The schemas in a topic `_schemas`, as far as it is read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._position = 0
        self._lines = LineBuffer()
        self._versions: dict[tuple[str, int], StoredSchema] = {}
        self._by_id: dict[tuple[str, int], set[tuple[str, int]]] = {}

    def update(self) -> None:
        """Read the records that are new. Errors: OSError, StorageError."""
        while data := self._read(self._position, _READ_BYTES):
            self._position += len(data)
            for text in self._lines.take(data):
                line = parse_line(text)
                try:
                    self._take(_parse_key(bytes_of(line.key) or b""), bytes_of(line.value))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue  # the registry skips such a record, too

    def _take(self, key: _Key, value: bytes | None) -> None:
        if key.keytype == "SCHEMA":
            at = _plain(key.subject), key.version
            if value is None:
                self._versions.pop(at, None)
                return
            schema = _parse_schema(value)
            id_in_context = context_of(key.subject), schema.id
            # The registry ignores another schema with an id that is in use.
            if all(known.schema == schema.schema for known in self._with_id(*id_in_context)):
                self._versions[at] = schema
                self._by_id.setdefault(id_in_context, set()).add(at)
        elif value is not None and key.keytype == "DELETE_SUBJECT":
            deleted = _parse_subject(value)
            for schema in self._of_subject(deleted.subject):
                schema.deleted = schema.deleted or schema.version <= deleted.version
        elif value is not None and key.keytype == "CLEAR_SUBJECT":
            subject = _parse_subject(value).subject
            for schema in self._of_subject(subject):
                if schema.deleted:
                    del self._versions[_plain(subject), schema.version]

    def _of_subject(self, subject: str) -> list[StoredSchema]:
        plain = _plain(subject)
        return [schema for at, schema in self._versions.items() if at[0] == plain]

    def _with_id(self, context: str, number: int) -> Iterator[StoredSchema]:
        for at in sorted(self._by_id.get((context, number), ())):
            found = self._versions.get(at)
            if found is not None and found.id == number:
                yield found

    def by_id(self, number: int, subject: str) -> StoredSchema | None:
        """Find an id that a record has, as the registry does.

        `subject` is the one that the topic of the record suggests. A schema of this subject comes
        first, then one of this subject in another context, then any in the subject's own context.
        """
        plain, context = _plain(subject), context_of(subject)
        own = list(self._with_id(context, number))
        for found in own:
            if _plain(found.subject) == plain:
                return found
        if context == DEFAULT_CONTEXT:
            for other in sorted({at[0] for at in self._by_id} - {context}):
                for found in self._with_id(other, number):
                    if _name(found.subject) == plain:
                        return found
        return own[0] if own else None

    def by_guid(self, guid: bytes) -> StoredSchema | None:
        """Find a schema by its hash; one in the default context comes first."""
        found = [schema for schema in self._versions.values() if schema.guid == guid]
        return min(found, key=lambda schema: context_of(schema.subject), default=None)

    def by_version(self, subject: str, version: int | None) -> StoredSchema | None:
        """Find a version of a subject; None: the latest that is not deleted."""
        if version is not None:
            return self._versions.get((_plain(subject), version))
        present = [schema for schema in self._of_subject(subject) if not schema.deleted]
        return max(present, key=lambda schema: schema.version, default=None)

    def references_of(self, schema: StoredSchema) -> list[str]:
        """Return the texts of all schemas that one refers to, each behind those that it refers to.

        Errors: SchemaError.
        """
        texts: list[str] = []
        names: set[str] = set()
        done: set[tuple[str, int]] = set()
        path = {(_plain(schema.subject), schema.version): schema}
        left = [iter(schema.references or ())]
        while left:
            reference = next(left[-1], None)
            if reference is None:
                left.pop()
                finished, stored = path.popitem()
                done.add(finished)
                texts.append(stored.schema)
                continue
            parent = next(reversed(path.values()))
            at = in_context(parent.subject, reference.subject), reference.version
            place = f"version {reference.version} of the subject {at[0]}"
            if at in path:
                raise SchemaError(f"the references of the schema form a cycle at {place}")
            if at in done or reference.name in names:
                continue
            found = self._versions.get(at)
            if found is None:
                raise SchemaError(f"the schema refers to {place}, which is missing")
            if len(path) > _MOST_LEVELS:
                raise SchemaError(f"the schema has references of more than {_MOST_LEVELS:,} levels")
            names.add(reference.name)
            path[at] = found
            left.append(iter(found.references or ()))
        return texts[:-1]


def context_of(subject: str) -> str:
    """The context of a subject."""
    return subject[1:].partition(":")[0] if subject.startswith(":.") else DEFAULT_CONTEXT


def _name(subject: str) -> str:
    """A subject without its context."""
    return subject[1:].partition(":")[2] if subject.startswith(":.") else subject


def _plain(subject: str) -> str:
    """A subject with its context only if that is not the default one."""
    return _name(subject) if context_of(subject) == DEFAULT_CONTEXT else subject


def in_context(parent: str, subject: str) -> str:
    """The subject that a schema of the subject `parent` refers to."""
    if subject.startswith(":.") or context_of(parent) == DEFAULT_CONTEXT:
        return _plain(subject)
    return f":{context_of(parent)}:{subject}"
