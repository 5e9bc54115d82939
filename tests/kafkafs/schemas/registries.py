"""Topics `_schemas`, as a registry writes them, and lines of records."""

from __future__ import annotations

import json
from typing import Any

from kafkafs.schemas.registry_topic import RegistryTopic
from storage.record.batch import Record
from tests.view_text import json_lines


class Topic:
    """The records of a topic `_schemas`, as its `jsonl` text."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []

    def append(self, key: object, value: object) -> None:
        data = None if value is None else json.dumps(value).encode()
        self.records.append((json.dumps(key).encode(), data))

    def register(
        self,
        subject: str,
        version: int,
        number: int,
        schema: Any,
        references: list[tuple[str, str, int]] | None = None,
        **more: Any,
    ) -> None:
        """Append a version of a subject, as the registry does."""
        value = {"subject": subject, "version": version, "id": number, **more}
        value["schema"] = schema if isinstance(schema, str) else json.dumps(schema)
        if references is not None:
            value["references"] = [
                {"name": name, "subject": subject, "version": version}
                for name, subject, version in references
            ]
        value.setdefault("deleted", False)
        self.append(self._key(subject, version), value)

    def delete_for_good(self, subject: str, version: int) -> None:
        self.append(self._key(subject, version), None)

    def _key(self, subject: str, version: int) -> dict[str, object]:
        return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}

    @property
    def text(self) -> bytes:
        return lines_of(*self.records)

    def read(self, position: int, size: int) -> bytes:
        """As `registry_topic.Read`, a few bytes at a time."""
        return self.text[position : position + min(size, 50_000)]

    def opened(self) -> RegistryTopic:
        return RegistryTopic(self.read)


def lines_of(
    *records: tuple[bytes | None, bytes | None],
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """The `jsonl` text of records with these keys and values."""
    return json_lines(
        Record(offset, 1_700_000_000_000, 0, key, value, headers)
        for offset, (key, value) in enumerate(records)
    )


def framed(number: int, data: bytes) -> bytes:
    """A value with the frame of the registry's clients."""
    return b"\0" + number.to_bytes(4) + data
