"""`.txnindex`: the aborted transactions of a segment (`TransactionIndex.java`).

Entry, 34 bytes big-endian: version i16 = 0, producer id i64, first offset of the transaction i64,
last offset i64 (its ABORT marker's), last stable offset i64 (when the marker was written). An entry
lies with the segment of the *marker*; the transaction may have begun in an earlier one. Last
offsets strictly rise. The file is made with its first entry: most segments have none. An incomplete
entry at the end does not count.

The few entries are kept in memory, in a tuple that is replaced as a whole: any thread may read
them. One thread changes the file.

Not here: tracking transactions (`state.producer_state`), the entries of all segments of a log
(`log.transactions`).
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import NamedTuple

from storage import paths
from storage.descriptors import Descriptor
from storage.errors import UnusableFile
from storage.files import Files

ENTRY_SIZE = 34
# Of whole entries.
_CHUNK_BYTES = ENTRY_SIZE << 15
VERSION = 0
_ENTRY = Struct(">hqqqq")


class TxnEntry(NamedTuple):
    """One aborted transaction; all offsets are inclusive except the last stable one."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode(entries: Iterable[TxnEntry]) -> bytes:
    """Return the bytes of these entries."""
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def decode(data: bytes) -> tuple[TxnEntry, ...]:
    """Return the whole entries in `data`. Later versions are read as version 0, as Kafka does."""
    whole = len(data) // ENTRY_SIZE * ENTRY_SIZE
    return tuple(TxnEntry(*fields) for _, *fields in _ENTRY.iter_unpack(data[:whole]))


def sanity(entries: tuple[TxnEntry, ...], base_offset: int, end: int) -> str | None:
    """Return why these cannot be the entries of a segment of the offsets base..end - 1, or None.

    Kafka's `TransactionIndex.sanityCheck`, and that last offsets rise and lie within the segment.
    """
    last = base_offset - 1
    for entry in entries:
        if not last < entry.last_offset < end:
            return f"last offset {entry.last_offset} is not within {last + 1}..{end - 1}"
        if not 0 <= entry.first_offset <= entry.last_offset:
            return f"first offset {entry.first_offset} is beyond last offset {entry.last_offset}"
        last = entry.last_offset
    return None


def aborted_within(aborted: Sequence[TxnEntry], start: int, end: int) -> list[TxnEntry]:
    """Return the aborted transactions, in the order of their markers, that begin before `end` and
    end at `start` or later (`UnifiedLog.collectAbortedTransactions`).
    """
    first = bisect_left(aborted, start, key=lambda entry: entry.last_offset)
    found = []
    for entry in islice(aborted, first, None):
        if entry.first_offset < end:
            found.append(entry)
        if entry.last_stable_offset >= end:
            break  # all later entries begin at or after `end`
    return found


def _rising(files: Files, fd: int, size: int) -> Iterator[TxnEntry]:
    """Yield the entries of a file while last offsets rise. Errors: OSError."""
    last = -1
    for at in range(0, size, _CHUNK_BYTES):
        for entry in decode(files.pread(fd, _CHUNK_BYTES, at)):
            if entry.last_offset <= last:
                return
            last = entry.last_offset
            yield entry


class TxnIndex:
    """The transaction index file of one segment. `open_file`: as for an `Index`."""

    def __init__(
        self, files: Files, open_file: Callable[[str, int], Descriptor], *, writable: bool
    ) -> None:
        """Read the file; a missing one has no entries. Errors: OSError.

        A broker that swaps a segment in renames the log first, and kafkafs renames it last. So in a
        read-only log only one of the two names may end in `.swap`, and the file may be renamed at
        this moment. For the kind with `.swap`, `open_file` opens the other name.
        """
        self._files = files
        self._open_file = open_file
        self._writable = writable
        self.fd = -1
        self._dirty = False
        self._length = 0
        self.entries: tuple[TxnEntry, ...] = ()
        kind = paths.TXNINDEX
        try:
            for name in (kind,) if writable else (kind, kind + paths.SWAP, kind):
                with contextlib.suppress(FileNotFoundError):
                    fd = open_file(name, os.O_RDONLY)
                    self._length = files.size(fd)
                    self.entries = tuple(_rising(files, fd, self._length))
                    break
        except UnusableFile:
            if writable:
                raise

    @property
    def is_sound(self) -> bool:
        """Whether the file has nothing except these entries."""
        return self._length == len(self.entries) * ENTRY_SIZE

    def append(self, entry: TxnEntry) -> None:
        """Add an entry; the first one makes the file. Errors: OSError; nothing has changed."""
        assert self._writable
        assert not self.entries or entry.last_offset > self.entries[-1].last_offset
        fd = self._open_to_write()
        self._dirty = True
        end = len(self.entries) * ENTRY_SIZE
        if self._files.size(fd) < end:
            # Another process has truncated it; its entries are in memory.
            self._files.pwrite(fd, encode(self.entries), 0)
        # After an incomplete write, the file's end is checked before it counts.
        self._length = max(self._length, end + ENTRY_SIZE)
        self._files.pwrite(fd, encode((entry,)), end)
        # A file with unsynced bytes stays open: another thread may have closed it meanwhile.
        self.fd = fd
        self.entries = (*self.entries, entry)

    def truncate_to(self, count: int) -> None:
        """Drop the entries from number `count` on.

        If the disk refuses to cut the file, `trim` cuts it.
        """
        assert self._writable
        if count < len(self.entries):
            self.entries = self.entries[:count]
        with contextlib.suppress(OSError):
            self.trim()

    def forget_from(self, offset: int) -> None:
        """Drop the transactions that end at `offset` or later from memory: the log has lost their
        markers, but the file stays.
        """
        self.entries = tuple(entry for entry in self.entries if entry.last_offset < offset)

    def trim(self) -> None:
        """Make the file as long as its entries. Errors: OSError."""
        if not self.is_sound:
            length = len(self.entries) * ENTRY_SIZE
            self._files.ftruncate(self._open_to_write(), length)
            self._length = length

    def replace(self, entries: tuple[TxnEntry, ...]) -> None:
        """Replace all entries; the caller removes the file if there are none."""
        assert self._writable
        self.entries = ()
        fd = self._open_to_write()
        self._dirty = bool(entries)
        self._length = max(self._length, len(entries) * ENTRY_SIZE)
        self._files.pwrite(fd, encode(entries), 0)
        self.fd = fd
        self.entries = entries
        self.trim()

    def mark_unsynced(self) -> None:
        """Let the next flush sync the entries: their writer was stopped before its sync."""
        self._dirty = self._dirty or bool(self.entries)

    def observe(self, entry: TxnEntry) -> None:
        """Add an entry of another process, which writes this file and has written its marker.

        The file, read before or since, may have the entry and later ones; that of a cleaned segment
        may lack it.
        """
        assert not self._writable
        number = bisect_left(self.entries, entry.last_offset, key=lambda each: each.last_offset)
        later = self.entries[number:]
        if not later or later[0].last_offset != entry.last_offset:
            self.entries = (*self.entries[:number], entry, *later)

    def open_to_sync(self) -> None:
        """Open the file if it has entries that are not synced. Errors: OSError."""
        if self._dirty:
            self._open_to_write()

    def sync(self) -> None:
        """Make the entries survive a power cut."""
        if self._dirty:
            self._files.fdatasync(self._open_to_write())

    def release(self) -> None:
        """Close the file after its last use. The entries stay in memory. Thread-safe."""
        self.fd = -1

    def _open_to_write(self) -> int:
        fd = self.fd
        if fd < 0:
            self.fd = fd = self._open_file(paths.TXNINDEX, os.O_RDWR | os.O_CREAT)
        return fd
