"""Changes the records of groups for another cluster: ids of topics, and leader epochs.

A broker has its own ids of topics, and ignores a committed offset of a topic with another id. In a
record an id is its 16 bytes, in an offset and in a broker's facts about members and assignments.
They are random, so these bytes are the id wherever they occur in a batch; no bytes move.

A broker also has its own leader epochs. A consumer whose committed offset has a higher one waits
for ever for newer metadata. So an epoch above 0 becomes -1, not known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from storage.errors import HandoverRefused
from storage.groups.offset_records import COMMIT, kind_of
from storage.record.batch import decode_plain
from storage.record.crc import crc32c
from storage.record.header import (
    CODEC_BITS,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    Buffer,
    parse_header,
    size_at,
)
from storage.record.plain import plain

_CRC_POSITION = 17
_COVERED_FROM = 21
_ID_SIZE = 16
# The value of a committed offset: version, offset, leader epoch (`OffsetCommitValue.json`).
_OFFSET = struct.Struct(">hqi")
_FIRST_WITH_EPOCH = 3
_NOT_KNOWN = b"\xff" * 4


def change(data: memoryview, end: int, ids: Mapping[bytes, bytes], path: str) -> None:
    """Change whole, valid batches in place, with new checksums; `ids`: ids and their replacements.
    Errors: HandoverRefused if a compressed batch would change; `path` names the log in the message.
    """
    at = 0
    while at < end:
        size = size_at(data, at)
        if data[at + MAGIC_POSITION] == MAGIC:
            _change_batch(data[at : at + size], ids, path)
        at += size


def _change_batch(batch: memoryview, ids: Mapping[bytes, bytes], path: str) -> None:
    header = parse_header(batch)
    if header.is_control:
        return
    made: Buffer = batch
    if header.attributes & CODEC_BITS:
        made, _ = plain(batch, 0, len(batch))
    stored = bytes(made)
    changes = [*_ids(stored, ids), *_epochs(stored)]
    if changes and header.attributes & CODEC_BITS:
        raise HandoverRefused(
            "a compressed batch contains topic ids or leader epochs, which cannot be changed there",
            path=path,
            offset=header.base_offset,
        )
    for position, new in changes:
        batch[position : position + len(new)] = new
    if changes:
        struct.pack_into(">I", batch, _CRC_POSITION, crc32c(batch[_COVERED_FROM:]))


def _ids(batch: bytes, ids: Mapping[bytes, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the positions of ids, and their replacements."""
    for old, new in ids.items():
        position = batch.find(old, _COVERED_FROM)
        while position >= 0:
            yield position, new
            position = batch.find(old, position + _ID_SIZE)


def _epochs(batch: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the positions of leader epochs above 0 of committed offsets, and their replacements."""
    at = HEADER_SIZE
    for record in decode_plain(batch):
        if record.key is None or record.value is None:
            continue
        # Only the length of the value lies between them.
        at = batch.index(record.value, batch.index(record.key, at) + len(record.key))
        if kind_of(record.key) == COMMIT and len(record.value) >= _OFFSET.size:
            version, _, epoch = _OFFSET.unpack_from(record.value)
            if version >= _FIRST_WITH_EPOCH and epoch > 0:
                yield at + _OFFSET.size - len(_NOT_KNOWN), _NOT_KNOWN
        at += len(record.value)
