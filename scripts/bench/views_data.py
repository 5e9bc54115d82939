"""The records of `views.py`, and logs of them, written by the library.

The records are mixed: the tables below have the shares of quotes, newlines, bytes that are not
UTF-8, and headers, which make text slow to write. A block of some 4 MiB is drawn once. A log
repeats this block with rising offsets and timestamps.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from crc32c import crc32c

from storage import LogManager, Record, encode

MIB = 1 << 20
BLOCK_BYTES = 4 * MIB
BATCH_BYTES = 16 << 10  # Kafka's batch.size
STEP_MS = 2  # from one record to the next
AGE_MS = 3 * 24 * 3_600_000  # of the first record, so that no retention deletes it

Drawn = TypeVar("Drawn")
Table = dict[str, tuple[float, Callable[[random.Random], Drawn]]]  # by name: share, draw
Headers = tuple[tuple[str, bytes | None], ...]


def _words(rng: random.Random, words: str, count: int) -> str:
    return " ".join(rng.choices(words.split(), k=count))


def _json_object(rng: random.Random) -> bytes:
    document = {
        "id": str(uuid.UUID(int=rng.getrandbits(128))),
        "customer": rng.randrange(10**6),
        "state": rng.choice(["new", "paid", "packed", "sent", "returned"]),
        "total": rng.randrange(10**6) / 100,
        "lines": [
            {"article": f"A-{rng.randrange(10**5):05}", "count": rng.randrange(1, 9)}
            for _ in range(rng.randrange(1, 5))
        ],
        "note": _words(rng, 'please leave it with the neighbours at the "blue" door', 5),
    }
    return json.dumps(document).encode()


def _log_line(rng: random.Random) -> bytes:
    return (
        f"2026-11-21T08:{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}Z"
        f" INFO worker-{rng.randrange(32):02} request id={rng.getrandbits(64):016x} status=200"
        f" took={rng.randrange(10**5)}us"
    ).encode()


def _foreign(rng: random.Random) -> bytes:
    words = (
        "größer Übergänge façade naïve Øresund žluťoučký 東京 京都市 Привет мир 😀 and also some"
    )
    return _words(rng, words, rng.randrange(8, 25)).encode()


def _trace(rng: random.Random) -> bytes:
    calls = (f'\tat org.example.Some.method{n}(Some.java:{n}) "why"' for n in range(4, 9))
    return "\n".join(["java.lang.IllegalStateException: it was so", *calls]).encode()


VALUES: Table[bytes | None] = {
    "JSON objects": (0.40, _json_object),
    "log lines": (0.30, _log_line),
    "text that is not ASCII": (0.10, _foreign),
    "bytes that are no UTF-8": (0.08, lambda rng: b"\xff" + rng.randbytes(rng.randrange(64, 256))),
    "stack traces of several lines": (0.05, _trace),
    "empty values": (0.04, lambda _: b""),
    "tombstones": (0.03, lambda _: None),
}
KEYS: Table[bytes | None] = {
    "short keys": (0.55, lambda rng: b"customer-%06d" % rng.randrange(10**6)),
    "UUIDs": (0.20, lambda rng: str(uuid.UUID(int=rng.getrandbits(128))).encode()),
    "8 bytes that are no UTF-8": (0.05, lambda rng: b"\x00\xfe" + rng.randbytes(6)),
    "no key": (0.20, lambda _: None),
}
HEADERS: Table[Headers] = {
    "no header": (0.70, lambda _: ()),
    "one header": (0.20, lambda rng: (("trace-id", b"%032x" % rng.getrandbits(128)),)),
    "three headers": (
        0.10,
        lambda rng: (
            ("trace-id", b"%032x" % rng.getrandbits(128)),
            ("content-type", b"application/json"),
            ("retried", None),
        ),
    ),
}


@dataclass
class Block:
    """Records, their batches, and their composition."""

    records: list[Record]
    batches: list[bytearray]
    counts: Counter[str]
    lines_only: bool  # no value has a newline or is null

    @classmethod
    def draw(cls, size: int = BLOCK_BYTES, *, lines_only: bool = False) -> Block:
        """Draw about `size` bytes of batches. `lines_only`: each value is one line of text."""
        rng = random.Random(1)
        block = cls([], [], Counter(), lines_only)
        stored = 0
        while stored < size:
            batch: list[Record] = []
            while sum(map(_size, batch)) < BATCH_BYTES - 200:
                batch.append(block._record(rng, len(batch)))
            block.batches.append(bytearray(encode(batch)))
            block.records += batch
            stored += len(block.batches[-1])
        return block

    def _record(self, rng: random.Random, number: int) -> Record:
        key, value = self._drawn(KEYS, rng), self._drawn(VALUES, rng)
        headers = self._drawn(HEADERS, rng)
        if self.lines_only:
            value = (value or b"").replace(b"\n", b" ")
        return Record(number, STEP_MS * number, 0, key, value, headers)

    def _drawn(self, table: Table[Drawn], rng: random.Random) -> Drawn:
        [name] = rng.choices(list(table), [share for share, _ in table.values()])
        self.counts[name] += 1
        return table[name][1](rng)

    def composition(self) -> Iterator[str]:
        """Return lines that describe the records."""
        count = len(self.records)
        stored = sum(map(len, self.batches))
        yield f"records of {stored / count:.0f} bytes in batches of {BATCH_BYTES >> 10} KiB:"
        for title, table in (("values", VALUES), ("keys", KEYS), ("headers", HEADERS)):
            shares = (f"{self.counts[name] / count:.0%} {name}" for name in table)
            yield f"- {title}: {', '.join(shares)}"


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 10


@dataclass(frozen=True)
class Written:
    """A topic of one partition: its records, and the times of the first and the last."""

    records: int
    size: int  # of its segments, in bytes
    first_ms: int
    last_ms: int


def write_topic(data: Path, topic: str, block: Block, size: int) -> Written:
    """Append the block to a new topic until its log has `size` bytes."""
    first_ms = int(time.time() * 1000) - AGE_MS
    at_ms, records, written = first_ms, 0, 0
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic(topic, 1).partitions[0]
        append = bytearray()
        for batch in itertools.cycle(block.batches):
            at_ms = _set_time(batch, at_ms)
            append += batch
            records += struct.unpack_from(">i", batch, 57)[0]
            if len(append) >= MIB or written + len(append) >= size:
                log.append(append, now_ns=time.time_ns())
                written += len(append)
                append = bytearray()
                if written >= size:
                    break
    return Written(records, written, first_ms, at_ms - STEP_MS)


def _set_time(batch: bytearray, first_ms: int) -> int:
    """Set the start time of a batch; return that of the next one."""
    last: int = STEP_MS * struct.unpack_from(">i", batch, 23)[0]
    struct.pack_into(">qq", batch, 27, first_ms, first_ms + last)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return first_ms + last + STEP_MS


def segments(data: Path, topic: str) -> list[Path]:
    """Return the files that hold a topic's records."""
    return sorted((data / f"{topic}-0").glob("*.log"))


def link_foreign(data: Path, topic: str, to: Path) -> None:
    """Link the topic as a broker leaves it, without our files about its views."""
    there = to / f"{topic}-0"
    there.mkdir(parents=True)
    for file in (data / f"{topic}-0").iterdir():
        if file.suffix in (".log", ".index", ".timeindex") or file.name.startswith("partition."):
            os.link(file, there / file.name)
