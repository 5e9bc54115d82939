"""The index of aborted transactions: Kafka's bytes, a file only where there is an entry."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage.descriptors import Descriptor
from storage.files import Files
from storage.index.txn_index import TxnEntry, TxnIndex, decode, encode, sanity
from tests.crash.disk import SimulatedDisk

ONE = bytes.fromhex("000000000000000003e80000000000000005000000000000000a000000000000000b")
ENTRY = TxnEntry(1000, 5, 10, 11)


def index(path: Path, files: Files | None = None, *, writable: bool = True) -> TxnIndex:
    disk = files or Files()

    def open_file(suffix: str, flags: int) -> Descriptor:
        return Descriptor(disk, str(path / f"x{suffix}"), flags)

    return TxnIndex(disk, open_file, writable=writable)


def entry(last: int) -> TxnEntry:
    return TxnEntry(7, last - 1, last, last + 1)


def test_known_bytes() -> None:
    assert encode([ENTRY]) == ONE
    assert decode(ONE) == (ENTRY,)
    assert decode(b"") == ()


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ((), None),
        ((entry(10), entry(19)), None),
        ((TxnEntry(7, 2, 12, 13),), None),  # begun in an earlier segment
        ((entry(9),), "not within 10..19"),
        ((entry(20),), "not within 10..19"),
        ((entry(12), entry(12)), "not within 13..19"),
        ((TxnEntry(7, 13, 12, 14),), "beyond"),
        ((TxnEntry(0, 0, 0, 0),), "is not within"),
    ],
)
def test_sanity(entries: tuple[TxnEntry, ...], reason: str | None) -> None:
    found = sanity(entries, 10, 20)
    assert (found is None) if reason is None else reason in (found or "")


def test_the_first_entry_makes_the_file(tmp_path: Path) -> None:
    made = index(tmp_path)
    path = tmp_path / "x.txnindex"
    assert not path.exists()
    made.sync()
    assert not path.exists()
    made.append(entry(3))
    made.append(entry(6))
    made.release()
    assert path.read_bytes() == encode([entry(3), entry(6)])
    made.append(entry(9))
    made.release()
    assert index(tmp_path).entries == (entry(3), entry(6), entry(9))


def test_what_was_left_incomplete_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.txnindex"
    path.write_bytes(encode([entry(3)]) + b"torn")
    made = index(tmp_path)
    assert (made.entries, made.is_sound) == ((entry(3),), False)
    made.append(entry(6))
    made.release()
    assert path.read_bytes() == encode([entry(3), entry(6)])


def test_entries_count_while_their_offsets_rise(tmp_path: Path) -> None:
    (tmp_path / "x.txnindex").write_bytes(encode([entry(3), entry(9), entry(6), entry(12)]))
    made = index(tmp_path, writable=False)
    assert (made.entries, made.is_sound) == ((entry(3), entry(9)), False)


def test_truncate_and_replace(tmp_path: Path) -> None:
    made = index(tmp_path)
    path = tmp_path / "x.txnindex"
    made.append(entry(3))
    made.append(entry(6))
    made.truncate_to(1)
    assert path.read_bytes() == encode([entry(3)])
    made.replace((entry(3), entry(9)))
    assert path.read_bytes() == encode([entry(3), entry(9)])
    made.replace((entry(9),))
    assert path.read_bytes() == encode([entry(9)])
    made.replace(())
    assert path.read_bytes() == b""
    assert made.entries == ()
    path.unlink()
    made.release()
    made.sync()
    assert not path.exists(), "there is nothing to sync"


def test_a_refused_append_changes_nothing(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    made = index(tmp_path, disk)
    made.append(entry(3))
    disk.fail_next("pwrite", errno.ENOSPC, suffix=".txnindex")
    with pytest.raises(OSError, match="No space"):
        made.append(entry(6))
    assert made.entries == (entry(3),)
    made.append(entry(9))
    made.release()
    assert (tmp_path / "x.txnindex").read_bytes() == encode([entry(3), entry(9)])


def test_a_cut_that_was_refused_is_made_up_for(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    made = index(tmp_path, disk)
    made.append(entry(3))
    made.append(entry(6))
    disk.fail_next("ftruncate", errno.EIO, suffix=".txnindex")
    made.truncate_to(1)
    assert made.entries == (entry(3),)
    made.trim()
    assert (tmp_path / "x.txnindex").read_bytes() == encode([entry(3)])


def test_what_another_process_has_cut_is_written_again(tmp_path: Path) -> None:
    made = index(tmp_path)
    entries = tuple(entry(last) for last in (3, 6, 9))
    made.append(entries[0])
    made.append(entries[1])
    path = tmp_path / "x.txnindex"
    path.write_bytes(b"")
    made.append(entries[2])
    assert decode(path.read_bytes()) == entries
    made.release()
