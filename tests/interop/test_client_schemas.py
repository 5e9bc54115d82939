"""The schemas of the client's messages say what the definitions in Kafka's jar say."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any

import pytest

from kafka_client.messages import schemas
from storage.settings.messages import Field, Message
from tests.interop.kafka_tools import jars

NEVER = 1 << 15


def definition(name: str) -> Any:
    (jar,) = jars().glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as archive:
        text = archive.read(f"common/message/{name}.json").decode()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def versions(text: str, within: tuple[int, int]) -> tuple[int, int] | None:
    """A range such as `3+`, as far as the message has these versions."""
    if text == "none":
        return None
    first, _, last = text.rstrip("+").partition("-")
    end = within[1] if text.endswith("+") else int(last or first)
    found = max(int(first), within[0]), min(end, within[1])
    return found if found[0] <= found[1] else None


def expected(fields: list[Any], structs: dict[str, Any], valid: tuple[int, int]) -> list[Any]:
    found = []
    for each in fields:
        span = versions(each["versions"], valid)
        if span is None:
            continue
        kind = each["type"].removeprefix("[]").replace("records", "bytes")
        inner = each.get("fields") or structs.get(kind)
        nullable = versions(each.get("nullableVersions", "none"), valid)
        default = each.get("default", "null" if kind == "" else None)
        found.append(
            (
                each["name"][0].lower() + each["name"][1:],
                "struct" if inner else kind,
                each["type"].startswith("[]"),
                span,
                nullable is not None,
                each.get("tag"),
                value_of(kind, None if default is None else str(default)),
                expected(inner or [], structs, span),
            )
        )
    return found


def value_of(kind: str, default: str | None) -> Any:
    """A default that is not the type's zero."""
    if default in (None, "", "false") or default == "null":
        return "null" if default == "null" else None
    return int(default, 0) or None if kind.startswith(("int", "uint")) else default


def ours(fields: list[Field], valid: tuple[int, int]) -> list[Any]:
    return [
        (
            each.name,
            each.type,
            each.is_array,
            (span := (max(each.first, valid[0]), min(each.last, valid[1]))),
            each.is_nullable,
            each.tag,
            value_of(each.type, each.default),
            ours(each.fields, span),
        )
        for each in fields
    ]


def head(message: Message) -> tuple[int, int, int, int]:
    return message.first, message.last, min(message.flexible, NEVER), message.id


@pytest.mark.parametrize("name", schemas())
def test_a_schema_is_kafkas(name: str) -> None:
    defined, message = definition(name), schemas()[name]
    first, _, last = defined["validVersions"].partition("-")
    valid = int(first), int(last or first)
    flexible = defined["flexibleVersions"].rstrip("+").replace("none", str(NEVER))
    assert head(message) == (*valid, int(flexible), defined["apiKey"])
    structs = {each["name"]: each["fields"] for each in defined.get("commonStructs", ())}
    assert ours(message.fields, valid) == expected(defined["fields"], structs, valid)
