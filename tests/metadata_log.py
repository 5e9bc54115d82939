"""Writes a metadata log and its snapshots as a KRaft controller does, without one."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from pathlib import Path

from storage import Record, encode
from storage.record.header import HEADER_SIZE

TOPIC, BROKER = 2, 4
NOW_MS = 1_700_000_000_000
_CONTROL = 0x20


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data) + 1]) + data


def _framed(kind: int, body: bytes) -> bytes:
    """Frame version 1, the type and version 0, and no tagged fields at the end."""
    return bytes([1, kind, 0]) + body + b"\0"


def _size(size: int) -> bytes:
    return bytes([size] if size < 128 else [size % 128 + 128, size // 128])


def _id(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==")


def topic(name: str, topic_id: str) -> bytes:
    return _framed(2, _string(name) + _id(topic_id))


def partition(topic_id: str, number: int, replicas: int = 1) -> bytes:
    """On the brokers 1 to `replicas`, which are all in sync."""
    ids, none = bytes([replicas + 1]) + struct.pack(f">{replicas}i", *range(1, replicas + 1)), b"\1"
    lists = ids + ids + none + none
    numbers = struct.pack(">iii", 1, 0, 0)  # leader, its epoch, the partition's
    return _framed(3, struct.pack(">i", number) + _id(topic_id) + lists + numbers)


def replicas_changed(topic_id: str, number: int, replicas: int) -> bytes:
    """As of a reassignment to the brokers 1 to `replicas`, with the ISR and a leader."""
    ids = bytes([replicas + 1]) + struct.pack(f">{replicas}i", *range(1, replicas + 1))
    tagged = ((0, ids), (1, struct.pack(">i", 1)), (2, ids))
    fields = b"".join(bytes([tag]) + _size(len(data)) + data for tag, data in tagged)
    return bytes([1, 5, 0]) + struct.pack(">i", number) + _id(topic_id) + b"\3" + fields


def removed(topic_id: str) -> bytes:
    return _framed(9, _id(topic_id))


def config(kind: int, of: str, name: str, value: str | None) -> bytes:
    return _framed(4, bytes([kind]) + _string(of) + _string(name) + _string(value))


def metadata_version(level: int) -> bytes:
    return _framed(12, _string("metadata.version") + struct.pack(">h", level))


def unregistered_controller() -> bytes:
    return _framed(29, struct.pack(">i", 3001))


def later(kind: int, version: int) -> bytes:
    """A record of a type or a version that no release has yet."""
    return bytes([1, kind, version]) + b"\xff" * 8


def begin() -> bytes:
    return _framed(23, b"")


def end() -> bytes:
    return _framed(24, b"")


def abort() -> bytes:
    return _framed(25, b"")


def no_op() -> bytes:
    return _framed(20, b"")


def batch(values: Sequence[bytes], base_offset: int) -> bytes:
    return bytes(
        encode(
            [Record(base_offset + n, NOW_MS, 0, None, each) for n, each in enumerate(values)],
            base_offset=base_offset,
        )
    )


def control(kind: int, base_offset: int) -> bytes:
    """A control batch of KRaft's: 2 a leader change, 3 and 4 what a snapshot is framed by."""
    key = b"\0\0\0" + bytes([kind])
    return bytes(
        encode(
            [Record(base_offset, NOW_MS, 0, key, bytes(16))],
            base_offset=base_offset,
            attributes=_CONTROL,
        )
    )


class MetadataLog:
    """``__cluster_metadata-0`` of a data directory."""

    def __init__(self, data: Path) -> None:
        self.directory = data / "__cluster_metadata-0"
        self.directory.mkdir(parents=True)
        self.next_offset = 0
        self.path = self.roll()

    def roll(self) -> Path:
        self.path = self.directory / f"{self.next_offset:020}.log"
        self.path.touch()
        return self.path

    def append(self, *values: bytes) -> None:
        """One batch."""
        self._write(batch(values, self.next_offset))
        self.next_offset += len(values)

    def change_leader(self) -> None:
        self._write(control(2, self.next_offset))
        self.next_offset += 1

    def _write(self, data: bytes) -> None:
        assert len(data) > HEADER_SIZE
        with open(self.path, "ab") as file:
            file.write(data)

    def snapshot(self, *values: bytes) -> Path:
        """All that is so at the log's end."""
        path = self.directory / f"{self.next_offset:020}-{1:010}.checkpoint"
        path.write_bytes(control(3, 0) + batch(values, 1) + control(4, 1 + len(values)))
        return path
