"""`kafkafs dump`: its objects, and what it does with what it cannot read.

That its lines are those of DumpLogSegments is for `tests/interop/test_dump_matches.py`.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from storage.index import txn_index
from storage.record.batch import Record, encode
from storage.record.control import ABORT, encode_marker
from storage.record.header import CONTROL_BIT
from storage.record.plain import recompress
from storage.state import producer_state
from tests import oracle
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, kafkafs
from tests.storage.logs import append, opened
from tests.waits import HANG_S

pytestmark = pytest.mark.programs

T = 1_700_000_000_000
LOG = f"{0:020}.log"


def objects(*arguments: object) -> list[dict[str, Any]]:
    done = kafkafs("dump", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_objects_of_a_log(tmp_path: Path) -> None:
    headers = (("h", b"x"), ("n", None), ("b", b"\xff"))
    stored = [Record(0, T, 0, b"k", b"v\n\xc3\xa9", headers), Record(1, T + 5, 0, b"\xff", None)]
    batch = recompress(encode(stored, leader_epoch=3), 1)
    marker = bytes(encode_marker(ABORT, 1000, 3, 7, 2, T, 4))
    path = write(tmp_path / LOG, batch + marker + b"junk")
    file, log, first, *records, second, end, tail = objects(path, "--print-data-log")
    assert file == {"type": "file", "file": str(path)}
    assert log == {"type": "log", "startOffset": 0}
    assert first == {
        "type": "batch",
        "baseOffset": 0,
        "lastOffset": 1,
        "count": 2,
        "baseSequence": -1,
        "lastSequence": -1,
        "producerId": -1,
        "producerEpoch": -1,
        "partitionLeaderEpoch": 3,
        "isTransactional": False,
        "isControl": False,
        "deleteHorizonMs": None,
        "position": 0,
        "timestampType": "CreateTime",
        "maxTimestamp": T + 5,
        "size": len(batch),
        "magic": 2,
        "compression": "gzip",
        "crc": int.from_bytes(batch[17:21], "big"),
        "isValid": True,
    }
    shown = [
        {"key": "h", "value": "x"},
        {"key": "n", "value": None},
        {"key": "b", "valueBase64": "/w=="},
    ]
    assert records == [
        {
            "type": "record",
            "offset": 0,
            "timestamp": T,
            "keySize": 1,
            "valueSize": 4,
            "sequence": -1,
            "headers": shown,
            "key": "k",
            "value": "v\né",
        },
        {
            "type": "record",
            "offset": 1,
            "timestamp": T + 5,
            "keySize": 1,
            "valueSize": -1,
            "sequence": -1,
            "headers": [],
            "keyBase64": "/w==",
            "value": None,
        },
    ]
    assert (second["isControl"], second["position"]) == (True, len(batch))
    assert end["control"] == {"type": "ABORT", "coordinatorEpoch": 7}
    assert tail == {"type": "invalidBytes", "count": 4, "name": LOG}


def test_objects_of_old_records(tmp_path: Path) -> None:
    data = oracle.put_message(oracle.Message(5, b"k", b"v", T), 1, 0)
    path = write(tmp_path / LOG, data)
    _, _, batch, record, gap = objects(path, "--deep-iteration")
    crc = int.from_bytes(data[12:16], "big")
    assert (batch["lastOffset"], batch["magic"], batch["crc"]) == (5, 1, crc)
    assert "baseOffset" not in batch
    assert record == {
        "type": "record",
        "offset": 5,
        "timestamp": T,
        "keySize": 1,
        "valueSize": 1,
        "isValid": True,
        "crc": crc,
    }
    assert gap == {
        "type": "nonConsecutiveOffsets", "file": str(path), "offset": -1, "nextOffset": 5,
    }  # fmt: skip


def test_objects_of_control_records(tmp_path: Path) -> None:
    record = Record(0, T, 0, struct.pack(">hh", 0, 3), struct.pack(">hqb", 0, 17, 0))
    path = write(tmp_path / LOG, encode([record], attributes=CONTROL_BIT))
    control = objects(path, "--deep-iteration")[-1]["control"]
    assert control == {"type": "SnapshotHeader", "version": 0, "lastContainedLogTimestamp": 17}


def test_objects_of_the_other_files(tmp_path: Path) -> None:
    log = encode([Record(n, T + n, 0, None, b"v") for n in range(3)])
    write(tmp_path / LOG, log)
    index = write(tmp_path / f"{0:020}.index", struct.pack(">iiii", 2, 0, 3, 0))
    times = write(tmp_path / f"{0:020}.timeindex", struct.pack(">qi", T, 2))
    empty = write(tmp_path / f"{1:020}.index", b"")
    write(tmp_path / f"{1:020}.log", b"")
    entries = [producer_state.ProducerEntry(1000, 3, 4, 14, 4, T, 7, -1)]
    snapshot = write(tmp_path / f"{15:020}.snapshot", producer_state.encode(entries))
    damaged = write(tmp_path / f"{16:020}.snapshot", b"\0\1")
    aborted = txn_index.encode([txn_index.TxnEntry(1000, 5, 10, 11)])
    txn = write(tmp_path / f"{0:020}.txnindex", aborted)
    files = [index, times, empty, snapshot, damaged, txn, tmp_path / "other"]
    found = [each for each in objects(*files) if each["type"] != "file"]
    batch = {"firstSequence": 0, "lastSequence": 4, "lastOffset": 14}
    assert found == [
        {"type": "indexEntry", "offset": 2, "position": 0},
        {"type": "indexEntry", "offset": 3, "position": 0},
        {"type": "timeIndexEntry", "timestamp": T, "offset": 2},
        {"type": "emptyIndex", "file": str(empty)},
        {
            "type": "producer",
            "producerId": 1000,
            "producerEpoch": 3,
            "coordinatorEpoch": 7,
            "currentTxnFirstOffset": None,
            "lastTimestamp": T,
            "lastBatch": {**batch, "offsetDelta": 4, "timestamp": T},
        },
        {
            "type": "corruptSnapshot",
            "file": str(damaged),
            "message": "Snapshot failed schema validation: null",
        },
        {
            "type": "abortedTransaction",
            "version": 0,
            "producerId": 1000,
            "firstOffset": 5,
            "lastOffset": 10,
            "lastStableOffset": 11,
        },
        {"type": "unknownFile", "file": str(tmp_path / "other")},
        {"type": "mismatch", "file": str(index), "indexOffset": 3, "logOffset": 2},
        {
            "type": "timestampMismatch",
            "file": str(times),
            "indexTimestamp": T,
            "logTimestamp": T + 2,
        },
    ]
    assert objects(index, "--index-sanity-check")[1] == {"type": "saneIndex", "file": str(index)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give at least one file"),
        (
            ["f.log", "--value-decoder-class", "com.example.Decoder"],
            "decoder com.example.Decoder is not supported",
        ),
        (
            ["f.log", "--remote-log-metadata-decoder"],
            "remote-log-metadata-decoder is not supported",
        ),
        (["f.log", "--max-bytes", "-1"], "max-bytes"),
    ],
)
def test_what_cannot_be_asked_for(arguments: list[str], says: str) -> None:
    """With status 1, as DumpLogSegments ends."""
    done = kafkafs("dump", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr


@pytest.mark.parametrize("file", [LOG, f"{0:020}.index", f"{0:020}.timeindex", f"{0:020}.snapshot"])
def test_a_file_that_is_not_there(tmp_path: Path, file: str) -> None:
    done = kafkafs("dump", tmp_path / file)
    assert done.returncode == 1
    assert done.stdout.startswith(f"Dumping {tmp_path / file}\n")
    assert done.stderr.startswith(f"kafkafs: {tmp_path}")
    assert done.stderr.endswith("No such file or directory\n")
    assert list(tmp_path.iterdir()) == []


def test_a_partition_is_no_file_of_a_log(place: Place) -> None:
    """The error names a command that prints the partition's segments.

    The path is in a mount or in the data directory.
    """
    with opened(place.data) as manager:
        append(manager.create_topic("orders", 1).partitions[0], b"one")
    place.mount()
    for partition in (place.path / "orders/0", place.data / "orders-0"):
        done = kafkafs("dump", partition)
        assert done.returncode == 1
        _, _, line = done.stderr.rpartition(": kafkafs ")
        printed = subprocess.run(
            ["bash", "-c", f'"$@" {line}', "bash", *KAFKAFS],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "baseOffset: 0 lastOffset: 0 count: 1" in printed.stdout


def test_a_name_without_an_offset(tmp_path: Path) -> None:
    path = write(tmp_path / "some.log", b"")
    done = kafkafs("dump", path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f'{path}: the file name is not an offset: "some"' in done.stderr


def test_damage_says_where(tmp_path: Path) -> None:
    batch = encode([Record(0, T, 0, None, b"v")])
    path = write(tmp_path / LOG, batch + bytes(20))
    done = kafkafs("dump", path, "--json")
    assert done.returncode == 1
    assert done.stdout.count("\n") == 3
    assert done.stderr == (
        f"kafkafs: {path}: the size field says 0, less than any entry's (position {len(batch)})\n"
    )


def test_nothing_is_changed(tmp_path: Path) -> None:
    write(tmp_path / LOG, encode([Record(0, T, 0, None, b"v")]))
    index = write(tmp_path / f"{0:020}.index", struct.pack(">ii", 0, 0) + b"odd")
    assert kafkafs("dump", index).returncode == 0
    assert index.stat().st_size == 11


def test_odd_names(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a,b\xff"))
    directory.mkdir()
    path = write(directory / LOG, encode([Record(7, T, 0, None, b"v")]))
    done = subprocess.run(
        [*KAFKAFS, "dump", "--deep-iteration", f"{directory}//{LOG}"],
        capture_output=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.startswith(b"Dumping " + os.fsencode(path) + b"\n")
    assert b"Non-consecutive offsets in " + os.fsencode(path) + b"\n" in done.stderr


def test_nobody_reads_on(tmp_path: Path) -> None:
    batch = encode([Record(0, T, 0, None, b"v" * 1000) for _ in range(100)])
    path = write(tmp_path / LOG, batch * 50)
    command = [*KAFKAFS, "dump", str(path), "--print-data-log"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"Dumping ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(HANG_S) != 0


def test_a_full_disk_behind_a_long_dump(tmp_path: Path) -> None:
    path = write(tmp_path / LOG, encode([Record(n, T, 0, None, b"x" * 100) for n in range(1000)]))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*KAFKAFS, "dump", "--print-data-log", str(path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=HANG_S,
        )
    message = "kafkafs: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, message)
