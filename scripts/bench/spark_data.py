"""Topics for `spark.py`: rows of 16-byte keys and 100-byte values, encoded as our sink does.

A row has 132 bytes with its offset and timestamp. Keys are hexadecimal digits, drawn at random from
a given number of keys. Values are random letters, so that no dictionary makes them shorter.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from kafkafs.spark.sink.sink_columns import columns_of
from storage import LogManager
from storage.record.columns._rows import RowEncoder

KEY_BYTES = 16
VALUE_BYTES = 100
ROW_BYTES = KEY_BYTES + VALUE_BYTES + 16
BATCH_BYTES = 64 << 10
MAX_BATCH_BYTES = 1 << 20
SEGMENT_BYTES = 256 << 20
CHUNK_ROWS = 100_000


@dataclass(frozen=True)
class Topic:
    """A topic in a data directory of its own, which no process has open."""

    data: Path
    name: str
    rows: int
    keys: int
    size: int

    def copy(self, to: Path) -> Topic:
        """Return a copy with the same segment files, which no process writes to."""
        shutil.copytree(self.data, to, copy_function=_link, ignore=shutil.ignore_patterns(".lock"))
        return Topic(to, self.name, self.rows, self.keys, self.size)


def _link(source: str, target: str) -> None:
    if source.endswith(".log") and os.path.getsize(source):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def write_topic(
    data: Path, rows: int, keys: int, *, partitions: int = 1, policy: str = "delete"
) -> Topic:
    """Create a topic. All segments are sealed except for empty active ones."""
    data.mkdir(parents=True)
    name = "rows"
    (data / "kafkafs.properties").write_text(
        f"log.segment.bytes={min(SEGMENT_BYTES, max(rows * ROW_BYTES // 8, 1 << 20))}\n"
        f"log.cleanup.policy={policy}\nlog.cleaner.min.cleanable.ratio=0.0001\n"
        "log.retention.ms=-1\n"
    )
    with LogManager.open(str(data)) as manager:
        logs = manager.create_topic(name, partitions).partitions

        def append(partition: int, batches: memoryview) -> None:
            logs[partition].append(bytearray(batches), now_ns=time.time_ns(), defer_flush=True)

        encoder = RowEncoder(
            sorted(logs),
            append,
            lambda before: (before + 1) % partitions,
            batch_bytes=BATCH_BYTES,
            max_batch_bytes=MAX_BATCH_BYTES,
            stay_bytes=BATCH_BYTES,
        )
        for batch in made(rows, keys):
            columns = columns_of(batch)
            encoder.add(time.time_ns() // 1_000_000, columns.keys, columns.values)
        for partition in logs:
            encoder.flush(partition)
        for log in logs.values():
            log.roll(time.time_ns() // 1_000_000)
        size = sum(log.size for log in logs.values())
        records = sum(log.log_end_offset for log in logs.values())
    assert records == rows, f"{records} records of {rows} rows"
    return Topic(data, name, rows, keys, size)


def made(rows: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows, the same ones in each call. With enough rows each key occurs."""
    rng = np.random.default_rng(1)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    for first in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - first)
        drawn = rng.integers(0, keys, count, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        nibbles = drawn[:, None] >> np.arange(0, 64, 4, dtype=np.uint64) & np.uint64(15)
        letters = rng.integers(0, 1 << 63, count * VALUE_BYTES // 8 + 1, np.uint64)
        values = (letters.view(np.uint8)[: count * VALUE_BYTES] & 15) + ord("a")
        columns = [
            _binary(digits[nibbles.astype(np.uint8)].tobytes(), KEY_BYTES),
            _binary(values.tobytes(), VALUE_BYTES),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def _binary(block: bytes, width: int) -> pa.Array:
    count = len(block) // width
    positions = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(positions), pa.py_buffer(block)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def empty_topic(data: Path, partitions: int) -> Topic:
    """Create a topic to write to."""
    data.mkdir(parents=True)
    (data / "kafkafs.properties").write_text("log.retention.ms=-1\n")
    with LogManager.open(str(data)) as manager:
        manager.create_topic("rows", partitions)
    return Topic(data, "rows", 0, 0, 0)


def count_written(topic: Topic) -> int:
    """Return the number of records of one transaction, which has a marker in each partition."""
    with LogManager.open(str(topic.data), read_only=True) as manager:
        logs = [log for log in manager.logs() if log.topic == topic.name]
        return sum(log.last_stable_offset - 1 for log in logs)


def warm(topic: Topic) -> None:
    """Read the topic's segments into the page cache."""
    for log in sorted(topic.data.glob("*/*.log")):
        with open(log, "rb", buffering=0) as file:
            while file.read(4 << 20):
                pass
