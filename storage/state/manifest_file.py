"""The list of a log's sealed segments, by which a lost segment is detected.

A partition directory of our own has, once the log has rolled, one more small file,
`kafkafs.segments` (Kafka ignores it), the *manifest*::

    version 0
    start 17                     log start offset
    segment 0 40 1048576 1600000000000
                                 base offset, next offset, bytes, largest timestamp in ms
    crc 1a2b3c4d                 CRC-32C over the lines before

Each `segment` line is an entry: this file existed, and had this size. A segment without an entry
may be part of the log, too. So an outdated manifest has fewer entries than possible, which does no
harm, with one rule: *an entry is withdrawn, durably, before its file is removed* or replaced
(`log.manifest`). Entries for new files are written with the next checkpoint, before a recovery
point passes them (`log.manifest`), and when the log is closed. No append and no roll waits for it.

An empty file is the manifest of a log that was made here and has no entries yet: no cleaner can
have been there. A log without a manifest may have any history.

When a log is opened, entries count above the log start, for segments that had been flushed. A
manifest that does not match the files is ignored.

A broker's directory has none, as a broker deletes and cleans without updating it. A program that
rewrites segments of a partition that is not open removes the manifest first (`drop`).

Not here: the handling of a missing segment (`recovery`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.record.crc import crc32c

FILE_NAME = "kafkafs.segments"
# Bytes of a segment, far more than Kafka's formats allow; the sum of many is still a valid file
# size.
_LARGEST = 1 << 48


class ManifestEntry(NamedTuple):
    """A sealed segment: `next_offset` is the end of it, `timestamp` the largest in ms."""

    base_offset: int
    next_offset: int
    size: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ManifestContent:
    """The content of a manifest; empty without one."""

    log_start: int = 0
    entries: Sequence[ManifestEntry] = field(default=())


def read(files: Files, directory: str) -> ManifestContent:
    """Return a partition's manifest; empty if there is none. Errors: CorruptCheckpoint, OSError."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = files.read_whole(path)
        return _parse(data) if data else ManifestContent()
    except FileNotFoundError:
        return ManifestContent()
    except (ValueError, IndexError, TypeError):
        raise CorruptCheckpoint("not a segment manifest", path=path) from None


def begin(files: Files, directory: str) -> None:
    """Make the manifest of a new log; durable with the directory. Errors: OSError."""
    path = os.path.join(directory, FILE_NAME)
    files.close(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def is_blank(files: Files, directory: str) -> bool:
    """Return whether the log was made here and its manifest has no entries yet. Errors: OSError."""
    try:
        found = files.file_stat(os.path.join(directory, FILE_NAME))
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_size


def drop(files: Files, directory: str) -> None:
    """Withdraw all entries, durably, before a closed partition is rewritten. Errors: OSError."""
    path = os.path.join(directory, FILE_NAME)
    if files.exists(path):
        # A directory of that name has no entries.
        with contextlib.suppress(IsADirectoryError):
            files.unlink(path)
            files.sync_directory(directory)


def _parse(data: bytes) -> ManifestContent:
    body, mark, crc = data.decode().rpartition("crc ")
    lines = body.splitlines()
    if not mark or crc32c(body.encode()) != int(crc, 16) or lines[0] != "version 0":
        raise ValueError(data)
    start = int(lines[1].split(" ")[1])
    entries = [ManifestEntry(*map(int, line.split(" ")[1:])) for line in lines[2:]]
    rising = all(one.base_offset < other.base_offset for one, other in itertools.pairwise(entries))
    if not 0 <= start <= paths.MAX_OFFSET or not rising or not all(map(_is_possible, entries)):
        raise ValueError(data)
    return ManifestContent(start, entries)


def _is_possible(entry: ManifestEntry) -> bool:
    return (
        0 <= entry.base_offset <= entry.next_offset <= paths.MAX_OFFSET
        and 0 <= entry.size <= _LARGEST
        and abs(entry.timestamp) <= paths.MAX_OFFSET
    )


def text(recorded: ManifestContent) -> bytes:
    """Return the file's bytes."""
    lines = ["version 0", f"start {recorded.log_start}"]
    lines += [f"segment {' '.join(map(str, entry))}" for entry in recorded.entries]
    body = "".join(f"{line}\n" for line in lines)
    return f"{body}crc {crc32c(body.encode()):08x}\n".encode()


# -- comparing a log with its manifest -----------------------------------------------------------


def missing(
    entries: Sequence[ManifestEntry], sizes: Mapping[int, int], log_start: int
) -> list[ManifestEntry]:
    """Return the listed segments that are not among those of `sizes` (bytes by base offset).

    Only below the last one: later segments are the log's end. `log_start`: entries below it do not
    count.
    """
    bases = sorted(sizes)
    if not bases or not fits(entries, sizes):
        return []
    return [
        entry
        for entry in entries
        if entry.base_offset not in sizes
        and entry.size
        and entry.next_offset > log_start
        and entry.base_offset < bases[-1]
    ]


def short(entries: Sequence[ManifestEntry], sizes: Mapping[int, int]) -> list[ManifestEntry]:
    """Return the entries with shorter files. `sizes`: those of sealed segments."""
    found = [entry for entry in entries if sizes.get(entry.base_offset, entry.size) < entry.size]
    return found if found and fits(entries, sizes) else []


def fits(entries: Sequence[ManifestEntry], sizes: Mapping[int, int]) -> bool:
    """Return whether no other program has rewritten the log: no segment overlaps or has grown."""
    if any(sizes.get(entry.base_offset, 0) > entry.size for entry in entries):
        return False
    ends = {entry.base_offset: entry.next_offset for entry in entries}
    starts = sorted({*sizes, *ends})
    return all(ends.get(base, 0) <= after for base, after in itertools.pairwise(starts))
