"""Kafka's messages as its JSON converters and Jackson write them."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any, Final

from kafkafs.dump._dump import java_text
from kafkafs.dump.java import double_text
from storage.settings.messages import NUMBERS, Field, Message, Struct

_CONTROL: Final = re.compile(r"\\u00[0-9a-f]{2}")


def message_json(message: Message, value: Struct, version: int) -> Struct:
    """Return a message of `version` as Kafka's converters show it."""
    return _json_struct(message.fields, value, version)


def _json_struct(fields: list[Field], value: Struct, version: int) -> Struct:
    found: Struct = {}
    for each in fields:
        content = value[each.name]
        if not each.is_in(version) or (each.tag is not None and content == each.default_value()):
            continue
        if each.is_array and content is not None:
            found[each.name] = [_json_value(each, element, version) for element in content]
        else:
            found[each.name] = _json_value(each, content, version)
    return found


def _json_value(each: Field, value: Any, version: int) -> Any:
    if value is None or each.type in NUMBERS:
        return value
    if each.type == "string":
        return java_text(value).decode()
    if each.type == "uuid":
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    if each.type == "bytes":
        return base64.b64encode(value).decode()
    return _json_struct(each.fields, value, version)


def as_json(value: Any) -> str:
    """Return JSON text as Jackson prints it."""
    if isinstance(value, dict):
        members = (f"{_quoted(name)}:{as_json(member)}" for name, member in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(as_json, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        text = double_text(value)
        return text if math.isfinite(value) else _quoted(text)
    return json.dumps(value)


def _quoted(text: str) -> str:
    """Return a JSON string with Jackson's escapes: only necessary ones, in upper-case digits."""
    quoted = json.dumps(text, ensure_ascii=False)
    if "\\u00" not in quoted:
        return quoted
    # A doubled backslash is part of the text, and begins no escape.
    parts = quoted.split("\\\\")
    return "\\\\".join(
        _CONTROL.sub(lambda match: "\\u" + match[0][2:].upper(), part) for part in parts
    )
