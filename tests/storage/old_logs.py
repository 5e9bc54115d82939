"""Partition directories in the formats that Kafka wrote before v2."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from storage.record.compression import compress
from storage.record.header import Buffer
from tests import oracle
from tests.storage.logs import NOW_MS

MTIME_NS = 1_400_000_000_123_456_789


_MAGIC_0 = struct.Struct(">ibI")
_MAGIC_1 = struct.Struct(">ibbI")


def encode_entry(payload: Buffer, *, magic: int = 1, codec: int = 0) -> bytes:
    """One entry with this payload; with a codec the payload is a compressed set already."""
    assert magic in (0, 1)
    assert codec in (0, 1, 2)
    assert magic or not codec, "magic 0 knows no codecs"
    crc = zlib.crc32(payload)
    if magic:
        return _MAGIC_1.pack(len(payload) + 6, magic, codec, crc) + payload
    return _MAGIC_0.pack(len(payload) + 5, magic, crc) + payload


def encode_set(payloads: Iterable[Buffer], codec: int) -> bytes:
    """One entry around a compressed set of entries with these payloads."""
    entries = b"".join(encode_entry(payload) for payload in payloads)
    return encode_entry(compress(codec, entries), codec=codec)


def wrapper(messages: list[oracle.Message], magic: int, codec: int) -> bytes:
    """A compressed set as a broker stores it; the messages have absolute offsets."""
    base = messages[0].offset if magic else 0
    inner = b"".join(
        oracle.put_message(oracle.Message(m.offset - base, m.key, m.value, m.timestamp), magic)
        for m in messages
    )
    largest = max(m.timestamp for m in messages)
    outer = oracle.Message(messages[-1].offset, None, compress(codec, inner), largest)
    return oracle.put_message(outer, magic, codec)


def messages(first: int, count: int, magic: int) -> list[oracle.Message]:
    """Messages with and without keys and values; v0 has no timestamps."""
    return [
        oracle.Message(
            offset,
            None if offset % 3 else b"k%d" % offset,
            None if offset % 7 == 6 else b"value %d" % offset * (offset % 5),
            NOW_MS + offset * (-1 if offset % 4 == 3 else 1) if magic else -1,
        )
        for offset in range(first, first + count)
    ]


def legacy_segment(first: int, magic: int) -> tuple[bytes, int]:
    """A log of single messages and sets in every codec that the format has; its next offset."""
    data = b""
    for codec in (0, 1, 2, 3, 0):
        some = messages(first, 20, magic)
        first += 20
        if codec:
            data += wrapper(some, magic, codec)
        else:
            data += b"".join(oracle.put_message(message, magic) for message in some)
    return data, first


def write_legacy(data: Path, topic: str, magic: int, segments: int = 2) -> Path:
    """Write a partition as a broker leaves it on a clean stop, without indexes; return its path."""
    directory = data / f"{topic}-0"
    directory.mkdir()
    offset = 5
    for _ in range(segments):
        log, following = legacy_segment(offset, magic)
        path = directory / f"{offset:020}.log"
        path.write_bytes(log)
        touch(path)
        offset = following
    return directory


def write_old(data: Path, topic: str, *files: bytes, digits: int = 20) -> Path:
    """A partition of 0.7 with these files; its directory."""
    directory = data / f"{topic}-0"
    directory.mkdir()
    start = 0
    for content in files:
        path = directory / f"{start:0{digits}}.kafka"
        path.write_bytes(content)
        touch(path)
        start += len(content)
    return directory


def old_file(*values: bytes) -> bytes:
    """Entries of both magics, and a set in each codec, with these payloads among theirs."""
    single = b"".join(encode_entry(value, magic=n % 2) for n, value in enumerate(values))
    return single + encode_set([b"a", b"b", b""], 1) + encode_set(values, 2) + single


def touch(path: Path) -> None:
    """Give a file the time of an old broker."""
    os.utime(path, ns=(MTIME_NS, MTIME_NS))


def content(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def copy(source: Path, target: Path) -> Path:
    """A fresh copy of a data directory."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


TORN = b"\0\0\0\x09\1\0"
"""The bytes of a batch that was cut off, at the end of the last file of `old_and_legacy`."""


def old_and_legacy(data: Path) -> None:
    """A data directory with topic `t` in format v1 and `u` of Kafka 0.7."""
    data.mkdir()
    write_legacy(data, "t", 1)
    write_old(data, "u", old_file(b"one", b"two"), old_file(b"three"), TORN, digits=11)
    (data / ".kafka_cleanshutdown").touch()
