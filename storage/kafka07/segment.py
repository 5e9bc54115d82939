"""A partition that Kafka 0.7 has written: `.kafka` files, read and never written.

Layout: `<byte offset>.kafka`, its first byte's position in the partition; so the next file's name
is this one's plus its size (0.7.2: kafka/log/Log.scala). A message's id, which is its offset here,
is its position too, so a segment needs no index. Only finding the entry at a position takes a walk
through the file; the segment remembers some positions of each walk.

The last file may have a torn end after a crash. The bytes that 0.7 would cut at its next start
(from the first entry on that is not whole or has a wrong CRC; FileMessageSet.recover) are not
shown.

Not here: the layout of an entry (`entries`), appending (these files are not appended to, and
appends of a broker after the load are not followed), indexes and producers (there are none).
"""

from __future__ import annotations

import os
import threading
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise

from storage import paths
from storage.errors import CorruptRecord, ReadOnlyFormat
from storage.files import Files
from storage.kafka07._entries import BAD_CRC, COMPRESSED, CUT_OFF, REASONS, WHOLE, head, walk
from storage.kafka07.entries import LARGEST_HEAD, headers_07, plain_07
from storage.record.compression import MAX_DECOMPRESSED_BYTES
from storage.record.header import BatchHeader, Buffer
from storage.segment.segment import Segment
from storage.settings.config import LogConfig

_CHUNK = 256 * 1024
# Bytes of log between two positions that a segment remembers.
_EDGES_EVERY = 64 * 1024


class Segment07(Segment):
    """One `.kafka` file. Offsets are ids: positions in the partition, in bytes."""

    holds_batches = False

    def __init__(self, files: Files, directory: str, name: str, config: LogConfig) -> None:
        base_offset = paths.old_base_offset_of(name)
        assert base_offset is not None
        # Starts of entries, one every `_EDGES_EVERY` bytes or more, in the walked part.
        self._edges = array("q", [0])
        self._edges_lock = threading.Lock()
        super().__init__(files, directory, base_offset, config, writable=False, log_name=name)

    def expand(
        self, data: Buffer, at: int, end: int, position: int, limit: int = MAX_DECOMPRESSED_BYTES
    ) -> tuple[Buffer, int]:
        return plain_07(data, at, end, self.base_offset + position, limit)

    def decoded_sizes(self, data: Buffer, at: int, end: int) -> tuple[int, int]:
        """Return bounds; a set has none, as it may have other sets."""
        fault, size, _, _ = head(data, at, end, check_crc=False)
        return (size, MAX_DECOMPRESSED_BYTES) if fault == COMPRESSED else (0, 0)

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        return headers_07(self.source(), position, end, self.base_offset)

    def last_indexed_position(self) -> int:
        """Return the last position that is remembered of a walk to the end."""
        self.position_before(self.next_offset - 1)
        return self._edges[max(bisect_left(self._edges, self.size) - 1, 0)]

    @property
    def largest_timestamp(self) -> int:
        """The file's mtime, in ms: no entry has a timestamp."""
        return self.mtime_ns // 1_000_000

    def set_size(self, size: int) -> None:
        """Let the segment end after its file's first `size` bytes."""
        if size > paths.MAX_OFFSET - self.base_offset:
            raise CorruptRecord("the file ends beyond the largest offset", path=self.log_path)
        self.size = self.stable_size = size
        self.next_offset = self.base_offset + size

    def leave_out_tail(self, progress: Callable[[int], None]) -> list[str]:
        """Let the segment end before its first wrong or incomplete entry; return a line on it."""
        good, reason = self.check(progress)
        if reason is None:
            return []
        hidden = self.size - good
        self.set_size(good)
        return [f"{self.log_path}: position {good}: {reason}; {hidden} bytes are not shown"]

    def position_before(self, offset: int) -> int:
        """Return where the first entry begins whose id is ≥ `offset`; the size if none does.

        Errors: CorruptRecord if an entry before it is wrong; OSError.
        """
        if offset >= self.next_offset:
            return self.size
        position = max(offset - self.base_offset, 0)
        with self._edges_lock:
            edges = self._edges
            at = edges[bisect_right(edges, position) - 1]
            while at < position:
                reached = self._step_to(at, min(position, at + _EDGES_EVERY))
                if at == edges[-1] and reached - at >= _EDGES_EVERY:
                    edges.append(reached)
                at = reached
        return at

    def _step_to(self, position: int, until: int) -> int:
        """Walk from an entry's start to the first entry's start at or after `until`."""
        source, end = self.source(), self.size
        while position < until:
            chunk = source.read_at(position, min(until - position + LARGEST_HEAD, end - position))
            at, fault = walk(chunk, 0, len(chunk), until - position, check_crc=False)
            if fault == CUT_OFF:
                # It begins before `until` and ends after the bytes that were read.
                _, size, _, _ = head(chunk, at, len(chunk), check_crc=False)
                if position + at + size <= end:
                    at, fault = at + size, WHOLE
            if fault != WHOLE or not chunk:
                raise CorruptRecord(_reason(fault), path=source.path, position=position + at)
            position += at
        return position

    def check(self, progress: Callable[[int], None]) -> tuple[int, str | None]:
        """Read all entries and check their CRCs; return the end of the sound ones, and why they
        end.

        The reason is None at the segment's end. `progress` gets the bytes of sound entries. Closes
        the files that it has opened. Errors: OSError.
        """
        position, end = 0, self.size
        try:
            source = self.source()
            while position < end:
                chunk = source.read_at(position, min(_CHUNK, end - position))
                at, fault = walk(chunk, 0, len(chunk), len(chunk), check_crc=True)
                if fault == CUT_OFF and at == 0:
                    at, fault = self._check_large(chunk, position)
                elif fault == CUT_OFF:
                    fault = WHOLE  # the next chunk begins with it
                progress(at)
                position += at
                if fault != WHOLE or not chunk:
                    return position, _reason(fault)
            return position, None
        finally:
            self.close_descriptors()

    def _check_large(self, chunk: Buffer, position: int) -> tuple[int, int]:
        """Check an entry that does not fit into a chunk: (its size, a fault)."""
        fault, size, payload, _ = head(chunk, 0, len(chunk), check_crc=False)
        if len(chunk) < LARGEST_HEAD or position + size > self.size:
            return 0, fault
        stored = int.from_bytes(chunk[payload - 4 : payload], "big")
        crc = zlib.crc32(memoryview(chunk)[payload:])
        done = len(chunk)
        while done < size:
            part = self.source().read_at(position + done, min(_CHUNK, size - done))
            if not part:
                return 0, CUT_OFF
            crc = zlib.crc32(part, crc)
            done += len(part)
        return (size, WHOLE) if crc == stored else (0, BAD_CRC)


def _reason(fault: int) -> str:
    return REASONS.get(fault, "the last entry is incomplete")


# -- loading -------------------------------------------------------------------------------------


def entry_files(names: Iterable[str]) -> list[tuple[int, str]]:
    """(base offset, name) of each `.kafka` file among a partition's files, ascending."""
    return sorted(
        (base, name) for name in names if (base := paths.old_base_offset_of(name)) is not None
    )


def holds_entries(names: Collection[str]) -> bool:
    """Return whether a partition's directory with these files holds Kafka 0.7's entries, not
    batches.

    Later brokers do not see `.kafka` files, so files beside a `.log` do not count.
    """
    return bool(entry_files(names)) and not any(name.endswith(paths.LOG) for name in names)


def refusal(directory: str) -> ReadOnlyFormat:
    """Return the error of opening the partition in `directory` for writing."""
    name = os.path.basename(directory)
    return ReadOnlyFormat(
        f"partition {name} was written by Kafka 0.7, whose format can only be read: mount it "
        "with -o ro, or run kafkafs convert",
        path=directory,
    )


def load_entries(
    files: Files,
    directory: str,
    names: Iterable[str],
    config: LogConfig,
    *,
    progress: Callable[[int], None] | None,
) -> tuple[list[Segment07], list[str]]:
    """Return the segments among the files `names` of a directory, and a line about hidden bytes.

    `progress`: read the last file, as 0.7 does after a crash, hide its end from the first wrong or
    incomplete entry on, and report the bytes; None: read nothing. Errors: CorruptRecord if a file
    does not begin at the previous one's end (`Log.scala`: validateSegments); OSError.
    """
    segments = [Segment07(files, directory, name, config) for _, name in entry_files(names)]
    for segment in segments:
        stat = files.file_stat(segment.log_path)
        segment.mtime_ns = stat.st_mtime_ns
        segment.set_size(stat.st_size)
        segment.sealed = segment is not segments[-1]
    for before, after in pairwise(segments):
        if before.next_offset != after.base_offset:
            raise CorruptRecord(
                f"ends at offset {before.next_offset}, but the next file, {after.log_path}, "
                f"begins at {after.base_offset}: a file between them is missing, or one was "
                "truncated",
                path=before.log_path,
            )
    faults = segments[-1].leave_out_tail(progress) if progress and segments else []
    return segments, faults
