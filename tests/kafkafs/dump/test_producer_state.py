"""Snapshots of producers and aborted transactions, whole and damaged, in Kafka's words."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kafkafs.dump.output import DumpError
from kafkafs.dump.producer_state import SnapshotError, dump_snapshot, dump_txn_index, read_snapshot
from storage.index import txn_index
from storage.state.producer_state import ProducerEntry, encode
from tests.kafkafs.dump.printed import Printed

T = 1_700_000_000_000
NAME = f"{0:020}"
SNAPSHOT = encode([ProducerEntry(1000, 3, 4, 14, 4, T, 7, 11)])


@pytest.mark.parametrize(
    ("last_sequence", "delta", "first_sequence"),
    [(4, 4, 0), (4, 5, 2**31 - 1), (0, 0, 0), (-1, 0, 2**31 - 1), (-1, 2, 2**31 - 3)],
)
def test_the_first_sequence_of_the_last_batch(
    last_sequence: int, delta: int, first_sequence: int
) -> None:
    entry = ProducerEntry(1000, 3, last_sequence, 14, delta, T, 7, -1)
    (producer,) = read_snapshot(encode([entry]))
    batch = producer["lastBatch"]
    assert isinstance(batch, dict)
    assert batch["firstSequence"] == first_sequence


def test_a_producer_without_a_batch() -> None:
    (producer,) = read_snapshot(encode([ProducerEntry(1000, 3, -1, -1, 0, T, -1, 11)]))
    assert producer == {
        "producerId": 1000,
        "producerEpoch": 3,
        "coordinatorEpoch": -1,
        "currentTxnFirstOffset": 11,
        "lastTimestamp": T,
        "lastBatch": None,
    }


FAILED = "Snapshot failed schema validation: "


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", FAILED + "null"),
        (SNAPSHOT[:1], FAILED + "null"),
        (b"\0\2", FAILED + "Snapshot contained an unknown file version 2"),
        (SNAPSHOT[:9], FAILED + "null"),
        (
            SNAPSHOT[:6] + struct.pack(">i", -1) + SNAPSHOT[10:],
            FAILED + "non-nullable field producerEntries was serialized as null",
        ),
        (
            SNAPSHOT[:6] + struct.pack(">i", 47) + SNAPSHOT[10:],
            FAILED + "Tried to allocate a collection of size 47, but there are only 46 bytes"
            " remaining.",
        ),
        (SNAPSHOT[:-1], FAILED + "null"),
        (
            SNAPSHOT[:2] + bytes(4) + SNAPSHOT[6:],
            "Snapshot is corrupt (CRC is no longer valid). Stored crc: 0. Computed crc: "
            f"{int.from_bytes(SNAPSHOT[2:6], 'big')}",
        ),
    ],
)
def test_a_damaged_snapshot(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(data)
    assert str(caught.value) == says
    path, printed = tmp_path / f"{NAME}.snapshot", Printed()
    path.write_bytes(data)
    dump_snapshot(str(path), printed)
    assert printed.complaints == [says + "\n"]
    assert printed.events == []


def test_aborted_transactions(tmp_path: Path) -> None:
    path, printed = tmp_path / f"{NAME}.txnindex", Printed()
    path.write_bytes(txn_index.encode([txn_index.TxnEntry(1000, 5, 10, 11)]) + b"odd")
    dump_txn_index(str(path), printed)
    assert printed.events == [
        (
            "abortedTransaction",
            {
                "version": 0,
                "producerId": 1000,
                "firstOffset": 5,
                "lastOffset": 10,
                "lastStableOffset": 11,
            },
        )
    ]


def test_a_log_without_aborts_has_no_file(tmp_path: Path) -> None:
    printed = Printed()
    dump_txn_index(str(tmp_path / f"{NAME}.txnindex"), printed)
    assert (printed.events, printed.complaints) == ([], [])
    with pytest.raises(DumpError, match="the file name is not an offset"):
        dump_txn_index(str(tmp_path / "some.txnindex"), printed)


def test_a_version_of_later_is_no_entry_of_any(tmp_path: Path) -> None:
    """Before any entry is printed."""
    path, printed = tmp_path / f"{NAME}.txnindex", Printed()
    entry = txn_index.encode([txn_index.TxnEntry(1000, 5, 10, 11)])
    path.write_bytes(entry + b"\0\1" + entry[2:])
    with pytest.raises(DumpError, match="Unexpected aborted transaction version 1 in"):
        dump_txn_index(str(path), printed)
    assert printed.events == []
