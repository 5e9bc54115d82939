"""Replaces our ids of topics in the records of groups by the broker's.

A broker has its own ids of topics, and ignores a committed offset of a topic with another id. In a
record an id is its 16 bytes, in an offset and in a broker's facts about members and assignments.
They are random, so these bytes are the id wherever they occur in a batch; no bytes move.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from storage.errors import HandoverRefused
from storage.record.crc import crc32c
from storage.record.header import CODEC_BITS, MAGIC, MAGIC_POSITION, parse_header, size_at
from storage.record.plain import plain

_CRC_POSITION = 17
_COVERED_FROM = 21
_SIZE = 16


def replace_ids(data: memoryview, end: int, ids: Mapping[bytes, bytes], path: str) -> None:
    """Replace these ids in whole, valid batches, in place, with new checksums. Errors:
    HandoverRefused if a compressed batch has any; `path` names the log in the message.
    """
    at = 0
    while at < end:
        size = size_at(data, at)
        if data[at + MAGIC_POSITION] == MAGIC:
            _replace_in_batch(data[at : at + size], ids, path)
        at += size


def _replace_in_batch(batch: memoryview, ids: Mapping[bytes, bytes], path: str) -> None:
    header = parse_header(batch)
    if header.attributes & CODEC_BITS:
        made, _ = plain(batch, 0, len(batch))
        if any(_places(bytes(made), ids)):
            raise HandoverRefused(
                "a compressed batch contains topic ids, which cannot be replaced there",
                path=path,
                offset=header.base_offset,
            )
        return
    places = list(_places(bytes(batch), ids))
    for position, new in places:
        batch[position : position + _SIZE] = new
    if places:
        struct.pack_into(">I", batch, _CRC_POSITION, crc32c(batch[_COVERED_FROM:]))


def _places(batch: bytes, ids: Mapping[bytes, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the positions of ids, and their replacements."""
    for old, new in ids.items():
        position = batch.find(old, _COVERED_FROM)
        while position >= 0:
            yield position, new
            position = batch.find(old, position + _SIZE)
