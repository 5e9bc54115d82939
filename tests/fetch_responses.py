"""Decode fetch responses as a 0.7 client does (`MessageSetSend` and `MultiMessageSetSend`)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from storage.record.compression import decompress

_HEAD = Struct(">ih")
_MESSAGE = Struct(">ib")


class Response(NamedTuple):
    """A `MessageSetSend`: its error code and the bytes of its messages."""

    error: int
    messages: bytes


def decode_response(data: bytes) -> Response:
    """Decode one whole `MessageSetSend`; fail if bytes follow it."""
    [response] = _responses(data)
    return response


def decode_multi_response(data: bytes) -> list[Response]:
    """Decode one whole `MultiMessageSetSend`; fail if bytes follow it."""
    error, body = decode_response(data)
    assert error == 0, "the error code of a multi-response is always 0"
    return list(_responses(body))


def _responses(data: bytes) -> Iterator[Response]:
    at = 0
    while at < len(data):
        length, error = _HEAD.unpack_from(data, at)
        end = at + 4 + length
        assert length >= 2
        assert end <= len(data), "a response is cut off"
        yield Response(error, data[at + _HEAD.size : end])
        at = end


def payloads(messages: bytes) -> list[bytes]:
    """The payload of each whole message; a part of one at the end is dropped."""
    found = []
    at = 0
    while len(messages) - at >= _MESSAGE.size:
        length, magic = _MESSAGE.unpack_from(messages, at)
        end = at + 4 + length
        if end > len(messages):
            break
        codec = messages[at + 5] & 3 if magic else 0
        at += 6 if magic else 5
        payload = messages[at + 4 : end]
        assert zlib.crc32(payload) == int.from_bytes(messages[at : at + 4], "big")
        found += payloads(bytes(decompress(codec, payload))) if codec else [payload]
        at = end
    return found
