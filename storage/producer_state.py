"""``.snapshot``: what is known of each producer up to an offset (``ProducerStateManager.java``).

Layout, big-endian: version i16 = 1, CRC-32C u32 of everything behind it, count i32, then per
producer 46 bytes: producer id i64, epoch i16, last sequence i32, last offset i64 (-1: none),
offset delta i32, timestamp i64 in ms, coordinator epoch i32 (-1: none), first offset of its open
transaction i64 (-1: none).  The file is named by the offset up to which, exclusive, it speaks.

Here is the file's codec; without idempotent producers only empty snapshots occur.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from storage.errors import CorruptCheckpoint

VERSION = 1
_HEAD = Struct(">hIi")
_COUNT_AT = 6
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class ProducerEntry(NamedTuple):
    """One producer's last batch and open transaction, as a snapshot has them."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a snapshot."""
    packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
    body = _COUNT.pack(len(packed) // _ENTRY.size) + packed
    return _HEAD.pack(VERSION, crc32c(body), 0)[:_COUNT_AT] + body


def decode(data: bytes, *, path: str) -> list[ProducerEntry]:
    """The entries of a snapshot; CorruptCheckpoint, with ``path``, where it is none.

    A corrupt snapshot is no loss: the next older one and the log make it anew.
    """
    if len(data) < _HEAD.size:
        raise CorruptCheckpoint(f"{len(data)} bytes are too few for a snapshot", path=path)
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptCheckpoint(f"snapshot version {version} is unknown", path=path)
    if crc32c(data[_COUNT_AT:]) != crc:
        raise CorruptCheckpoint("the snapshot's checksum is wrong", path=path)
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptCheckpoint(
            f"{count} producers were announced in a snapshot of {len(data)} bytes", path=path
        )
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :])]


EMPTY_SNAPSHOT = encode(())
