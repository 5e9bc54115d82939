"""Directories for `directories` to begin with: made by a log, and of older formats."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from storage import Log, LogManager
from storage.log.append import append_batches
from storage.record.batch import encode
from storage.record.control import ABORT, encode_marker
from tests.fuzz.directories import NAMES, SECOND, pack
from tests.fuzz.seeds import T, entries_07, legacy, records, v2


def _written(directory: Path, *, transactions: bool, clean: bool) -> bytes:
    manager = LogManager.open(str(directory))
    log = manager.create_topic("t", 1).partitions[0]
    _fill(log, transactions)
    if clean:
        manager.close()
    else:
        log.flush()
        manager.checkpoint()
        manager.abandon()
    files = {name: (directory / name).read_bytes() for name in NAMES if (directory / name).exists()}
    # Pre-sized indexes would be all there is.
    return pack({name: data for name, data in files.items() if len(data) < 60_000})


def _fill(log: Log, transactions: bool) -> None:
    log.append(bytearray(encode(records(SECOND))), now_ns=T * 10**6)
    log.roll(T)
    if not transactions:
        log.append(bytearray(encode(records(3))), now_ns=T * 10**6)
        return
    written = bytearray(
        encode(records(2), producer_id=7, producer_epoch=1, base_sequence=0, attributes=0x10)
    )
    append_batches(log, written, now_ns=T * 10**6)
    append_batches(log, encode_marker(ABORT, 7, 1, 3, 0, T, 0), now_ns=T * 10**6)


@functools.cache
def directory_seeds() -> list[bytes]:
    made = []
    for transactions in (False, True):
        for clean in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                made.append(_written(Path(directory), transactions=transactions, clean=clean))
    made += [pack({NAMES[0]: data}) for data in (*v2(), *legacy())]
    olds = list(entries_07())
    made.append(pack({f"t-0/{0:020}.kafka": olds[1]}))
    return made
