"""Parses lines of JSON into record batches for the `jsonl` view; `_json_records` has the hot loop.

A line is one object (RFC 8259), with fields in any order and any spacing; the last of two with the
same name counts. Each field may be missing:

    offset          an integer, and ignored
    timestamp       milliseconds, an integer of -1 (none) or more; missing: now
    timestampType   "CreateTime" or "LogAppendTime", and ignored
    key, value      bytes; null or missing: null
    headers         a list of [name, value], name and value bytes, the value perhaps null

Bytes are a string, or {"base64":"…"} (RFC 4648's standard alphabet, padded). The parser (msgspec)
checks all this by the types below. The first append of JSON imports this module and the parser.

InvalidRecord names the line and says in plain words what is wrong; these count bytes from 1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from kafkafs.views._json_records import encode_lines
from storage.errors import InvalidRecord

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LARGEST: Final = 2**63 - 1
_NOW: Final = -2


class Base64(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Bytes that are not UTF-8."""

    base64: bytes


class JsonRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The record of one line of JSON."""

    offset: int = 0
    timestamp: Annotated[int, msgspec.Meta(ge=-1, le=_LARGEST)] = _NOW
    timestampType: Literal["CreateTime", "LogAppendTime"] = "CreateTime"  # noqa: N815
    key: str | Base64 | None = None
    value: str | Base64 | None = None
    headers: tuple[tuple[str | Base64, str | Base64 | None], ...] = ()


_decoder: Final = msgspec.json.Decoder(JsonRecord)

_KINDS: Final = {
    "int": "an integer",
    "float": "a number that is not an integer",
    "bool": "true or false",
    "str": "a string",
    "bytes": "a string",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


def parse(
    data: Buffer,
    start: int,
    end: int,
    timestamp_ms: int,
    max_batch_bytes: int,
    begun: bytes | bytearray = b"",
) -> tuple[bytearray, int]:
    """Encode lines of JSON as `_parse.encode_lines` does lines of values. Raises as that."""
    try:
        return encode_lines(_decoder.decode, data, start, end, timestamp_ms, max_batch_bytes, begun)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _first_error(b"".join((begun, memoryview(data)[start:end]))) from None


def _first_error(data: bytes) -> InvalidRecord:
    """The error of the first line that the parser refuses. `data` has such a line."""
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return InvalidRecord(f"line {number}: {_reason(error, line)}")
    raise AssertionError("the parser takes each line")


def _reason(error: Exception, line: bytes) -> str:
    """The parser's error in plain words."""
    if not line.strip():
        return "the line is empty, not a JSON object"
    try:
        line.decode()  # msgspec says it in two ways, depending on its version
    except UnicodeDecodeError:
        return "not UTF-8"
    if not isinstance(error, msgspec.ValidationError):
        return _malformed(str(error), line)
    message, _, path = str(error).partition(" - at `$")
    reason = _mismatch(message)
    # A field's name may be long, or have a newline.
    reason = "".join(char if char.isprintable() else "?" for char in reason)
    if len(reason) > 200:
        reason = f"{reason[:200]}…"
    where = path.rstrip("`").removeprefix(".")
    return f"{where}: {reason}" if where else reason


def _malformed(message: str, line: bytes) -> str:
    if "surrogate" in message or (
        "truncated" in message and re.search(rb"\\u[dD][89a-bA-B]..", line[-20:])
    ):
        return "not JSON: half of a surrogate pair"
    if "truncated" in message:
        return "not JSON: it is incomplete"
    message = message.removeprefix("JSON is malformed: ")
    found = re.fullmatch(r"(.*) \(byte (\d+)\)", message)
    if found is None:
        return f"not JSON: {message}"
    # msgspec counts from 0, but from 1 for characters after the object.
    byte = int(found[2]) + (found[1] != "trailing characters")
    return f"not JSON: {found[1]} at byte {byte}"


def _mismatch(message: str) -> str:
    found = re.fullmatch(r"Expected `([^`]*)`(.*?)(?:, got `([^`]*)`)?", message)
    if found is not None:
        kinds = [_KINDS.get(kind, kind) for kind in found[1].split(" | ")]
        wanted = " or ".join([", ".join(kinds[:-1]), kinds[-1]] if kinds[1:] else kinds)
        given = f", not {_KINDS.get(found[3], found[3])}" if found[3] else ""
        return f"must be {wanted}{found[2]}{given}"
    found = re.fullmatch(r"Object contains unknown field `(.*)`", message, re.DOTALL)
    if found is not None:
        return f"there is no field {found[1]}"
    found = re.fullmatch(r"Object missing required field `(.*)`", message)
    if found is not None:
        return f"the field {found[1]} is missing"
    if message.startswith("Invalid enum value"):
        return "must be CreateTime or LogAppendTime"
    if message.startswith("Invalid base64"):
        return "not Base64 with padding"
    return message[:1].lower() + message[1:]
