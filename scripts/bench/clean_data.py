"""Logs for `clean.py`: keyed records of 100-byte values, written by the library.

Keys are 16 digits, drawn at random from a given number of keys. Values are drawn from a pool of
printable text.
"""

from __future__ import annotations

import os
import random
import shutil
import string
import time
from dataclasses import dataclass
from pathlib import Path

from kafkafs.views._key_value import encode_lines
from storage import LogManager
from storage.paths import CLEAN_SHUTDOWN, PARTITION_METADATA

MIB = 1 << 20
VALUE_BYTES = 100
RECORD_BYTES = 124  # in the log, with its key
BATCH_BYTES = 16 << 10  # Kafka's batch.size
SEGMENTS = 8


@dataclass(frozen=True)
class Keyed:
    """A partition's directory, closed: all but an empty active segment is sealed."""

    directory: Path
    size: int  # of its segments, in bytes
    records: int
    keys: int  # that were drawn from; each at least once where it is as many as the records

    @property
    def segment_bytes(self) -> int:
        return max(self.size // SEGMENTS, MIB)


def write_keyed(data: Path, size: int, distinct: float) -> Keyed:
    """Create a data directory with one topic, `keyed`, of about `size` bytes.

    `distinct`: the share of distinct keys; with 1, each record has a key of its own.
    """
    data.mkdir(parents=True)
    records = size // RECORD_BYTES
    keys = max(int(records * distinct), 1)
    rng = random.Random(1)
    pool = ["".join(rng.choices(string.ascii_letters, k=VALUE_BYTES)) for _ in range(4096)]
    segment_bytes = max(size // SEGMENTS, MIB)
    (data / "kafkafs.properties").write_text(f"log.segment.bytes={segment_bytes}\n")
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic("keyed", 1).partitions[0]
        chunk = MIB // RECORD_BYTES
        for first in range(0, records, chunk):
            count = min(chunk, records - first)
            if distinct == 1:
                # Each key once, in an order that helps no map.
                drawn = [
                    number * 0x9E3779B97F4A7C15 % 10**16 for number in range(first, first + count)
                ]
            else:
                drawn = rng.choices(range(keys), k=count)
            values = rng.choices(pool, k=count)
            lines = "".join(
                f"{key:016}\t{value}\n" for key, value in zip(drawn, values, strict=True)
            )
            now_ns = time.time_ns()
            text = lines.encode()
            batches, _ = encode_lines(text, 0, len(text), now_ns // 1_000_000, BATCH_BYTES)
            log.append(batches, now_ns=now_ns)
        log.roll(time.time_ns() // 1_000_000)
        stored = log.size
    return Keyed(data / "keyed-0", stored, records, keys)


def copy_to(partition: Path, place: Path) -> None:
    """Copy a closed partition.

    Both share the sealed segments' logs, which no process writes to. Indexes may be rebuilt. A
    topic's id at the other place does not change.
    """
    place.mkdir(parents=True, exist_ok=True)
    active = max(int(log.stem) for log in partition.glob("*.log"))
    for file in partition.iterdir():
        number = file.name.partition(".")[0]
        if number.isdecimal() and int(number) < active and file.suffix == ".log":
            os.link(file, place / file.name)
        elif file.name != PARTITION_METADATA:
            shutil.copy2(file, place / file.name)


def mark_clean(data: Path) -> None:
    """Mark the copied partitions as cleanly closed, so that nothing is recovered."""
    (data / CLEAN_SHUTDOWN).touch()


def warm(directory: Path) -> None:
    """Read the files into the page cache."""
    for log in sorted(directory.glob("*.log")):
        with open(log, "rb", buffering=0) as file:
            while file.read(4 * MIB):
                pass
