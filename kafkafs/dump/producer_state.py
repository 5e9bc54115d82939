"""Dumps the files with a broker's producer state: `.txnindex` and `.snapshot` files."""

from __future__ import annotations

import os
import struct
from typing import Final

from kafkafs.dump.offset_index import base_offset
from kafkafs.dump.output import DumpError, Output, Value
from storage.record.crc import crc32c
from storage.state.producer_state import VERSION, sequence_after

_ABORTED: Final = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
_CRC_END: Final = 6
_PRODUCER: Final = struct.Struct(">qhiqiqiq")


class SnapshotError(Exception):
    """A snapshot is corrupt; the message has ProducerStateManager's words."""


def dump_txn_index(path: str, output: Output) -> None:
    """Print a transaction index; nothing if the file is missing: a log without aborts has none."""
    base_offset(path)
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        data = file.read()
    entries = list(_ABORTED.iter_unpack(data[: len(data) // _ABORTED.size * _ABORTED.size]))
    for version, *_ in entries:
        if version != 0:
            raise DumpError(
                f"Unexpected aborted transaction version {version} in transaction index {path},"
                " supported version range is 0 to 0"
            )
    for version, producer_id, first, last, stable in entries:
        output.event(
            "abortedTransaction",
            version=version,
            producerId=producer_id,
            firstOffset=first,
            lastOffset=last,
            lastStableOffset=stable,
        )


def dump_snapshot(path: str, output: Output) -> None:
    """Print the producers of a snapshot, or a complaint if it is corrupt."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        producers = read_snapshot(data)
    except SnapshotError as error:
        output.complain(str(error), "corruptSnapshot", file=path, message=str(error))
        return
    for producer in producers:
        output.event("producer", **producer)


def read_snapshot(data: bytes) -> list[dict[str, Value]]:
    """Return the producers. SnapshotError has the fault that Kafka's own reader finds first."""
    failed = "Snapshot failed schema validation: "
    if len(data) < 2:
        raise SnapshotError(failed + "null")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version != VERSION:
        raise SnapshotError(f"{failed}Snapshot contained an unknown file version {version}")
    if len(data) < _SNAPSHOT_HEAD.size:
        raise SnapshotError(failed + "null")
    _, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    left = len(data) - _SNAPSHOT_HEAD.size
    if count < 0:
        raise SnapshotError(failed + "non-nullable field producerEntries was serialized as null")
    if count > left:
        raise SnapshotError(
            f"{failed}Tried to allocate a collection of size {count}, but there are only {left}"
            " bytes remaining."
        )
    if count * _PRODUCER.size > left:
        raise SnapshotError(failed + "null")
    computed = crc32c(data[_CRC_END:])
    if crc != computed:
        raise SnapshotError(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {crc}."
            f" Computed crc: {computed}"
        )
    end = _SNAPSHOT_HEAD.size + count * _PRODUCER.size
    return [_producer(*fields) for fields in _PRODUCER.iter_unpack(data[_SNAPSHOT_HEAD.size : end])]


def _producer(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    first_offset: int,
) -> dict[str, Value]:
    batch: dict[str, Value] | None = None
    if last_offset >= 0:
        batch = {
            "firstSequence": sequence_after(last_sequence, -offset_delta),
            "lastSequence": last_sequence,
            "lastOffset": last_offset,
            "offsetDelta": offset_delta,
            "timestamp": timestamp,
        }
    return {
        "producerId": producer_id,
        "producerEpoch": epoch,
        "coordinatorEpoch": coordinator_epoch,
        "currentTxnFirstOffset": first_offset if first_offset >= 0 else None,
        "lastTimestamp": timestamp,
        "lastBatch": batch,
    }
