"""The peers that `codec.py` measures beside kafkafs: aiokafka and kafka-python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import aiokafka.record.default_records as aiokafka_default
import aiokafka.record.memory_records as aiokafka_memory
from codec_works import BATCH_BYTES, Case, Data, T

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the whole client is imported with it
    import kafka.record.default_records as kafka_default
    import kafka.record.memory_records as kafka_memory

KAFKA_PYTHON_SHARE = 16  # it does this fraction of each work


def their_render(records: Callable[[bytes], object], log: bytes) -> bytes:
    values = []
    found = records(log)
    while (batch := found.next_batch()) is not None:  # type: ignore[attr-defined]
        values += [record.value for record in batch]
    values.append(b"")
    return b"\n".join(values)


def their_columns(records: Callable[[bytes], object], log: bytes) -> int:
    offsets, timestamps, keys, values = [], [], [], []
    found = records(log)
    while (batch := found.next_batch()) is not None:  # type: ignore[attr-defined]
        for record in batch:
            offsets.append(record.offset)
            timestamps.append(record.timestamp)
            keys.append(record.key)
            values.append(record.value)
    return len(offsets)


def their_encode(build: Callable[..., object], case: Case, text: bytes) -> int:
    """Encode lines; a batch is full at the same size as ours."""
    lines = text.split(b"\n")
    lines.pop()
    size = at = 0
    count = len(lines)
    while at < count:
        builder = build(
            magic=2,
            compression_type=case.codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES,
        )
        append = builder.append  # type: ignore[attr-defined]
        number = 0
        stop = at + 1 if case.one else count
        while at < stop:
            # Headers are a list. A full batch returns None.
            if append(number, T, None, lines[at], []) is None:
                break
            number += 1
            at += 1
        size += len(builder.build())  # type: ignore[attr-defined]
    return size


@dataclass(frozen=True)
class Peer:
    """A peer's functions for each work. It does a fraction of the work: one in `share`."""

    name: str
    records: Callable[[bytes], object]
    build: Callable[..., object]
    share: int = 1

    def work(self, case: Case, data: Data) -> object:
        if case.work == "render":
            return sum(len(their_render(self.records, log)) for log in data.logs)
        if case.work == "columns":
            return sum(their_columns(self.records, log) for log in data.logs)
        return their_encode(self.build, case, data.text)


PEERS = [
    Peer("aiokafka", aiokafka_memory.MemoryRecords, aiokafka_default.DefaultRecordBatchBuilder),
    Peer(
        "kafka-python",
        kafka_memory.MemoryRecords,
        kafka_default.DefaultRecordBatchBuilder,
        KAFKA_PYTHON_SHARE,
    ),
]
