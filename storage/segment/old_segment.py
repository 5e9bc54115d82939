"""A partition that Kafka 0.7 has written: ``.kafka`` files, read and never written.

Layout: ``<byte offset>.kafka``, its first byte's position in the partition; so the next file's name
is this one's plus its size (0.7.2: kafka/log/Log.scala). A message's id, which is its offset here,
is its position too, and no index is needed: only to tell whether an entry begins there the file
must be walked, and where it has been walked is remembered, sparsely.

The last file may be torn, where the broker died: what 0.7 would cut at its next start (from the
first entry on that is not whole or has a wrong CRC; FileMessageSet.recover) is out of sight.

Not here: what an entry is (``record.legacy_07``), appending (nothing appends to these, and what a
broker appends after the load is not followed), indexes and producers (there are none).
"""

from __future__ import annotations

import os
import threading
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from storage import paths
from storage.errors import CorruptRecord, ReadOnlyFormat
from storage.files import ByteSource, Files
from storage.record._legacy_07 import BAD_CRC, CUT_OFF, REASONS, WHOLE, head, walk
from storage.record.header import BatchHeader, Buffer
from storage.record.legacy_07 import LARGEST_HEAD, headers_07, plain_07
from storage.segment.segment import Segment
from storage.settings.config import LogConfig

_CHUNK = 256 * 1024
# Bytes of log between two entries of which it is remembered that they begin where they do.
_EDGES_EVERY = 64 * 1024


class OldSegment(Segment):
    """One ``.kafka`` file.  Offsets are ids: positions in the partition, in bytes."""

    __slots__ = ("_edges", "_edges_lock")

    holds_batches = False

    def __init__(self, files: Files, directory: str, name: str, config: LogConfig) -> None:
        base_offset = paths.old_base_offset_of(name)
        assert base_offset is not None
        # Where entries begin, one every `_EDGES_EVERY` bytes or more: as far as it was walked.
        self._edges = array("q", [0])
        self._edges_lock = threading.Lock()
        super().__init__(files, directory, base_offset, config, writable=False, log_name=name)

    def expand(self, data: Buffer, at: int, end: int, position: int) -> tuple[Buffer, int]:
        return plain_07(data, at, end, self.base_offset + position)

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        return headers_07(self.source(), position, self.size, self.base_offset)

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The first entry whose id is ≥ ``offset``."""
        wanted = max(offset - self.base_offset, 0)
        if wanted >= self.size:
            return None
        return next(self.batches(self._edge(wanted)), None)

    def last_batch(self) -> tuple[int, BatchHeader] | None:
        self._edge(self.size)
        last = deque(self.batches(self._edges[-1]), maxlen=1)
        return last[0] if last else None

    @property
    def largest_timestamp(self) -> int:
        """When the file was last written, in ms: nothing in it tells a time."""
        return self.mtime_ns // 1_000_000

    def place(self, size: int) -> None:
        """The file has ``size`` bytes that count."""
        if size > paths.MAX_OFFSET - self.base_offset:
            raise CorruptRecord("the file ends behind the largest offset", path=self.log_path)
        self.size = self.stable_size = size
        self.next_offset = self.base_offset + size

    def leave_out_tail(self, progress: Callable[[int], None]) -> list[str]:
        """Let the segment end before its first entry that is wrong or not whole; what was there."""
        try:
            good, reason = check_entries(self.source(), 0, self.size, progress)
        finally:
            self.files.close_descriptors()
        if reason is None:
            return []
        hidden = self.size - good
        self.place(good)
        return [f"{self.log_path}: position {good}: {reason}; {hidden} bytes are left out of sight"]

    def _edge(self, position: int) -> int:
        """The first entry's start at or behind ``position``; CorruptRecord on the way there."""
        source = self.source()
        with self._edges_lock:
            edges = self._edges
            at = edges[bisect_right(edges, position) - 1]
            while at < position:
                reached = step_to(source, at, min(position, at + _EDGES_EVERY), self.size)
                if at == edges[-1] and reached - at >= _EDGES_EVERY:
                    edges.append(reached)
                at = reached
        return at


def step_to(source: ByteSource, position: int, until: int, end: int) -> int:
    """From one entry's start to the first at or behind ``until``."""
    while position < until:
        chunk = source.read_at(position, min(until - position + LARGEST_HEAD, end - position))
        at, fault = walk(chunk, 0, len(chunk), until - position, check_crc=False)
        if fault == CUT_OFF:
            # It begins in front of `until` and ends behind what was read.
            _, size, _, _ = head(chunk, at, len(chunk), check_crc=False)
            if position + at + size <= end:
                at, fault = at + size, WHOLE
        if fault != WHOLE or not chunk:
            raise CorruptRecord(_reason(fault), path=source.path, position=position + at)
        position += at
    return position


def check_entries(
    source: ByteSource, position: int, end: int, progress: Callable[[int], None]
) -> tuple[int, str | None]:
    """Read the entries from ``position``, which begins one, to ``end`` and check their CRCs.

    Returns the end of what is good, and why the rest is not.
    """
    while position < end:
        chunk = source.read_at(position, min(_CHUNK, end - position))
        at, fault = walk(chunk, 0, len(chunk), len(chunk), check_crc=True)
        if fault == CUT_OFF and at == 0:
            at, fault = _check_large(source, chunk, position, end)
        elif fault == CUT_OFF:
            fault = WHOLE  # the next chunk begins with it
        progress(at)
        position += at
        if fault != WHOLE or not chunk:
            return position, _reason(fault)
    return position, None


def _check_large(source: ByteSource, chunk: Buffer, position: int, end: int) -> tuple[int, int]:
    """Check an entry that does not fit into a chunk: (its size, a fault)."""
    fault, size, payload, _ = head(chunk, 0, len(chunk), check_crc=False)
    if len(chunk) < LARGEST_HEAD or position + size > end:
        return 0, fault
    stored = int.from_bytes(chunk[payload - 4 : payload], "big")
    crc = zlib.crc32(memoryview(chunk)[payload:])
    done = len(chunk)
    while done < size:
        part = source.read_at(position + done, min(_CHUNK, size - done))
        if not part:
            return 0, CUT_OFF
        crc = zlib.crc32(part, crc)
        done += len(part)
    return (size, WHOLE) if crc == stored else (0, BAD_CRC)


def _reason(fault: int) -> str:
    return REASONS.get(fault, "the last entry is incomplete")


# -- loading -------------------------------------------------------------------------------------


def holds_entries(names: Iterable[str]) -> bool:
    """Whether a partition's directory with these files holds Kafka 0.7's entries, not batches.

    Later brokers do not see ``.kafka`` files, so that those beside their own do not count.
    """
    found = False
    for name in names:
        if name.endswith(paths.LOG):
            return False
        found = found or paths.old_base_offset_of(name) is not None
    return found


def refusal(directory: str) -> ReadOnlyFormat:
    """Why the partition in ``directory`` is not opened for writing."""
    name = os.path.basename(directory)
    return ReadOnlyFormat(
        f"partition {name} was written by Kafka 0.7, whose format can only be read: mount it with "
        "-o ro, or convert it with kafkafs convert",
        path=directory,
    )


def load(
    files: Files,
    directory: str,
    names: Iterable[str],
    config: LogConfig,
    *,
    check_last: bool,
    progress: Callable[[int], None],
) -> tuple[list[OldSegment], list[str]]:
    """The segments of a directory, of whose files ``names`` are some, and what is out of sight.

    ``check_last``: read the last file, as 0.7 does where no clean stop was marked; what begins
    with its first wrong or incomplete entry is left out.  CorruptRecord where a file does not
    begin where the one before it ends (``Log.scala``: validateSegments); OSError.
    """
    segments = [
        OldSegment(files, directory, name, config)
        for name in names
        if paths.old_base_offset_of(name) is not None
    ]
    segments.sort(key=lambda segment: segment.base_offset)
    for segment in segments:
        stat = files.file_stat(segment.log_path)
        segment.mtime_ns = stat.st_mtime_ns
        segment.place(stat.st_size)
        segment.files.sealed = segment is not segments[-1]
    for before, after in pairwise(segments):
        if before.next_offset != after.base_offset:
            raise CorruptRecord(
                f"ends at {before.next_offset}, but the next file, {after.log_path}, begins at "
                f"{after.base_offset}: a file between them is missing, or one was cut",
                path=before.log_path,
            )
    faults: list[str] = []
    if check_last and segments:
        faults += segments[-1].leave_out_tail(progress)
    return segments, faults
