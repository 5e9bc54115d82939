"""`storage.words._words` in plain Python: entries, their hashes, a part of a file."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence

from storage.record.batch import Record
from storage.record.crc import crc32c
from tests.storage.compaction.test__offset_map import siphash

LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
PAGE_BUCKETS, BUCKET_BYTES, ANY_BLOCK = 512, 8, 255

Secret = tuple[int, int]


def words(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each word begins and ends."""
    start = None
    for at in range(len(data) + 1):
        if at < len(data) and data[at] in LETTERS:
            start = at if start is None else start
        elif start is not None:
            yield start, at
            start = None


def entries(data: bytes) -> set[bytes]:
    """The entries of a field."""
    found = set()
    places = list(words(data))
    for number, (start, end) in enumerate(places):
        found.add(data[start:end].lower())
        window = data[start : places[number + 3][1]] if number + 3 < len(places) else b""
        parts = window.split(b".")
        if len(parts) == 4 and all(part.isdigit() and len(part) <= 3 for part in parts):
            found.add(window)
    for start in range(len(data)):
        for end in range(start + 2, start + 5):
            try:
                text = data[start:end].decode()
            except UnicodeDecodeError:
                continue
            if len(text) == 1 and text >= "\x80":
                found.add(text.encode())
    return found


def hash_of(data: bytes, secret: Secret, is_key: bool = False) -> int:
    first = secret[0] ^ ((1 << 64) - 1 if is_key else 0)
    keys = first.to_bytes(8, "little") + secret[1].to_bytes(8, "little")
    return int.from_bytes(siphash(keys, data, 1, 3)[4:8], "little") or 1


def hashes(records: Sequence[Record], secret: Secret) -> set[int]:
    """The hashes of a block's entries."""
    found = set()
    fields: set[bytes | None] = set()
    for record in records:
        if record.key is not None:
            found.add(hash_of(record.key, secret, is_key=True))
        fields |= {record.key, record.value}
        for name, value in record.headers:
            fields |= {name.encode(errors="surrogateescape"), value}
    some = set[bytes]().union(*(entries(field) for field in fields if field is not None))
    return found | {hash_of(each, secret) for each in some}


def part(blocks: Sequence[set[int]], secret: Secret, position: int) -> tuple[bytes, bytes, int]:
    """The pages, the directory and the number of buckets of a part with these hashes."""
    places: dict[int, list[int]] = defaultdict(list)
    for block, some in enumerate(blocks):
        for each in sorted(some):
            places[each].append(block)
    size = sum(36 if len(some) > 18 else 2 * len(some) for some in places.values())
    buckets = max(-(-size // BUCKET_BYTES), 1)
    slots: list[list[int]] = [[] for _ in range(-(-buckets // PAGE_BUCKETS) * PAGE_BUCKETS)]
    common: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for hashed in sorted(places):
        bucket, found = hashed * buckets >> 32, places[hashed]
        if len(found) > 18:
            bits = sum(1 << block for block in found)
            common[bucket // PAGE_BUCKETS].append((hashed, bits))
        else:
            slots[bucket] += [(hashed & 0xFF) << 8 | block for block in found]
    pages, directory = b"", b""
    for first in range(0, len(slots), PAGE_BUCKETS):
        buckets_of_page = slots[first : first + PAGE_BUCKETS]
        counts = [min(len(each), ANY_BLOCK) for each in buckets_of_page]
        page = bytes(counts)
        for count, bucket_slots in zip(counts, buckets_of_page, strict=True):
            if count < ANY_BLOCK:
                page += struct.pack(f"<{count}H", *bucket_slots)
        bitmaps = common[first // PAGE_BUCKETS]
        page += b"".join(struct.pack("<I", each) for each, _ in bitmaps)
        page += b"".join(bits.to_bytes(32, "little") for _, bits in bitmaps)
        pages += checked(page, secret, position + len(pages))
        directory += struct.pack("<I", len(pages))
    return pages, checked(directory, secret, position + len(pages)), buckets


def checked(data: bytes, secret: Secret, position: int) -> bytes:
    crc = crc32c(data) ^ (secret[0] + position) & 0xFFFFFFFF
    return data + crc.to_bytes(4, "little")
