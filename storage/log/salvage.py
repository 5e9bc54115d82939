"""Recovers the valid batches after a damaged range.

Recovery ends a log at its first damaged batch, as Kafka does, and keeps the bytes that it cuts in
`*.cut` files. Salvage searches those files, on demand, for batches of the log by the rule of
`batch_check`: the batch at a segment's start, or at the position in an index or by the damaged
batch's own length, and the following ones with correct CRCs and ascending offsets. Apparent batches
inside of a user's value are skipped. Batches that begin at or above the log end are appended with
their offsets. Damaged ones become gaps of offsets, as after compaction.

Invariants: nothing is invented, reordered or written twice (a second run finds every batch below
the log end); the `*.cut` files stay until `cut.purge`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.index.index import OFFSET, Index
from storage.log.append import append_as_follower
from storage.log.log import Log
from storage.plural import counted
from storage.record.header import HEADER_SIZE, BatchHeader
from storage.record.plain import first_offset
from storage.record.scan import batches
from storage.segment.batch_check import Part, check_part
from storage.segment.cut import cut_files, index_path
from storage.segment.walk import Buffered
from storage.task import Task


@dataclass(slots=True)
class Salvaged:
    """One `.cut` file: the number of records that were appended again, and why others were not.

    `left`: a line for each part of the file that is left; `damaged`: the bytes of these parts that
    the log does not have.
    """

    path: str
    size: int
    batches: int = 0
    records: int = 0
    bytes: int = 0
    damaged: int = 0
    left: list[str] = field(default_factory=list)

    def lines(self, verb: str) -> list[str]:
        """Return the figures in a line, and one for each part that is left."""
        return [
            f"{self.path}: {verb} {counted(self.records, 'record')} in "
            f"{counted(self.batches, 'batch')}, "
            f"{self.bytes} of {self.size} bytes",
            *(f"{self.path}: left {part}" for part in self.left),
        ]


@dataclass(slots=True)
class _CutBytes:
    """Bytes `start` to `end` of the file at `path`, cut off the segment `base_offset`.

    Callers read by positions in that segment's log: the first of these bytes was at `position`
    there. `index`: the path of its offset index, if there is one.
    """

    files: Files
    path: str
    start: int
    end: int
    base_offset: int
    position: int
    index: str
    fd: int = -1

    def size(self) -> int:
        return self.position + self.end - self.start

    def read_at(self, position: int, size: int) -> bytes:
        size = min(size, self.size() - position)
        return self.files.pread(self.fd, max(size, 0), position - self.position + self.start)

    def fill(self, view: memoryview, position: int) -> int:
        view = view[: max(self.size() - position, 0)]
        return self.files.preadv(self.fd, view, position - self.position + self.start)


def salvage(log: Log, now_ns: int) -> list[Salvaged]:
    """Append the valid batches of every `*.cut` file and flush. Errors: OSError from the disk.

    A log whose end was lost takes them, and is whole again if they extend to its former end.
    """
    lost_end, log.lost_end = log.lost_end, 0
    outcome = []
    try:
        for source in _set_aside(log):
            outcome.append(salvaged := Salvaged(source.path, source.end - source.start))
            for data, _ in _batches(log, source, log.log_end_offset, salvaged):
                append_as_follower(log, data, now_ns)
        if any(salvaged.batches for salvaged in outcome):
            log.flush()
    finally:
        if log.log_end_offset < lost_end:
            log.lost_end = lost_end
    return outcome


def plan_salvage(log: Log) -> list[Salvaged]:
    """Return the result that `salvage` would have after a recovery. Errors: OSError.

    `log`: opened to be read, and checked as a whole, so that it ends where it would be cut.
    """
    outcome = []
    end = log.log_end_offset
    for source in (*_set_aside(log), *_to_be_cut(log)):
        outcome.append(salvaged := Salvaged(source.path, source.end - source.start))
        for _, header in _batches(log, source, end, salvaged):
            end = header.last_offset + 1
    return outcome


def plan_cuts(log: Log) -> list[str]:
    """Return a line for each file that a recovery would cut. Errors: OSError.

    `log`: as for `plan_salvage`.
    """
    return [
        f"{source.path}: would truncate {source.end - source.start} bytes at position "
        f"{source.start}"
        for source in _to_be_cut(log)
    ]


def count_behind(log: Log, damage: CorruptRecord) -> int:
    """Count the records of a log after damage in it, by the rule of `salvage`. Errors: OSError."""
    return sum(
        header.records_count
        for source in _from_position(log, damage.path or "", damage.position or 0)
        for _, header in _batches(log, source, damage.offset or 0, Salvaged(source.path, 0))
        if not header.is_control
    )


def _from_position(log: Log, path: str, position: int) -> Iterator[_CutBytes]:
    """Yield a log's bytes from a position in the file at `path` to its end."""
    for segment in log.segments:
        start = position if segment.log_path == path else 0
        is_behind = segment.log_path >= path and not segment.is_lost
        if is_behind and start < segment.size:
            index = segment.file_path(paths.INDEX)
            base = segment.base_offset
            yield _CutBytes(log.files, segment.log_path, start, segment.size, base, start, index)


def _set_aside(log: Log) -> Iterator[_CutBytes]:
    for path in cut_files(log.files, log.directory):
        name = os.path.basename(path)
        base = paths.base_offset_of(name)
        if paths.LOG + "." not in name or base is None:
            continue
        position = name.split(".")[2]
        index, size = index_path(path), log.files.file_stat(path).st_size
        # The name of a whole segment may have a number to be unique: less than a header's size,
        # where no batch can be cut.
        start = int(position) if position.isdecimal() else 0
        yield _CutBytes(log.files, path, 0, size, base, start if start > HEADER_SIZE else 0, index)


def _to_be_cut(log: Log) -> Iterator[_CutBytes]:
    """Yield the bytes in a log's files that are not part of it: after its end, and after the last
    batch of each segment. The log was opened to be read.
    """
    sizes = {segment.base_offset: segment.size for segment in log.segments}
    first = min(sizes)
    names = [name for name in log.files.names(log.directory) if name.endswith(paths.LOG)]
    for base, name in sorted((paths.base_offset_of(name), name) for name in names):
        if base is None or base < first:
            continue
        path = os.path.join(log.directory, name)
        index = path.removesuffix(paths.LOG) + paths.INDEX
        start = sizes.get(base, 0)
        size = log.files.file_stat(path).st_size
        if start < size:
            yield _CutBytes(log.files, path, start, size, base, start, index)


def _batches(
    log: Log, source: _CutBytes, log_end: int, salvaged: Salvaged
) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield the batches to append; count them, and list the parts that are left."""
    index = Index.of_file(log.files, OFFSET, source.index, source.base_offset, is_active=True)
    with log.files.held_open(source.path) as source.fd, contextlib.closing(index):
        end = source.size()
        largest = max(log.config.max_message_bytes, 1 << 20)
        part = Part(
            *(source.base_offset, source.position, source.base_offset, end, largest),
            named=index.position_after,
            may_be_torn=True,
        )
        damages = check_part(Buffered(source.fill), part, Task()).damages
        position = source.position
        for place in [*damages, None]:
            until = end if place is None else place.start
            known = 0
            for at, header in batches(source, position, until):
                data = source.read_at(at, header.size)
                if _first_offset(data, header) < log_end:
                    known += header.size
                    continue
                yield data, header
                log_end = header.last_offset + 1
                salvaged.batches += 1
                salvaged.records += header.records_count
                salvaged.bytes += header.size
            if known:
                salvaged.left.append(f"{known} bytes: batches whose offsets the log already has")
            if place is not None:
                position = place.end
                why = "" if place.next_offset >= 0 else ", and no later batch was found"
                size = place.end - place.start
                salvaged.damaged += size
                left = f"{size} bytes from position {place.start}: {place.reason}{why}"
                salvaged.left.append(left)


def _first_offset(data: bytes, header: BatchHeader) -> int:
    """Return a batch's first offset; -1 for a wrapper that is damaged inside."""
    try:
        return first_offset(data, header)
    except CorruptRecord:
        return -1
