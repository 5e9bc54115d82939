"""The gaps of a mirrored partition: `kafkafs.gaps` in its directory (Kafka ignores it).

A line for each gap, in the order in which the mirror has found them::

    deleted 8000 12344 1700000000000      kind, first and last offset, time in ms since 1970

The kinds:

- `deleted`: the source had deleted these offsets before they were copied;
- `missing`: the source has no records at these offsets, although it does not compact the topic;
- `damaged`: the source's records are damaged, and `--accept-loss` has skipped them;
- `tombstones`: in a compacted topic, records at these offsets may have keys that the source has
  deleted;
- `diverged`: the records that were copied first were removed, as the source lost them;
- `aborted`: the mirror has ended a transaction by an abort marker, as the source has removed its
  marker.

A line is a fact of its time, and stays: after a truncation its offsets may have records, and
retention may have deleted the records around it. A gap of the new records at these offsets is
written as another line (`in_force`).

The file is replaced as a whole. So a kill or a power cut leaves no incomplete line, and a file with
one is damaged, which makes no partition unreadable: the next gap is written to a new file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage import paths
from storage.bad_file import set_aside
from storage.errors import CorruptCheckpoint, UnusableFile
from storage.files import Files
from storage.waiting import before_waiting

FILE_NAME = "kafkafs.gaps"
UNREADABLE = "unreadable"
KINDS = ("deleted", "missing", "damaged", "tombstones", "diverged", "aborted")

_log = logging.getLogger(__name__)


class Gap(NamedTuple):
    """A gap of one of the `KINDS`. `last` is inclusive.

    `UNREADABLE`: not known, as the file is damaged; the numbers are -1 then.
    """

    kind: str
    first: int
    last: int
    time_ms: int

    def __str__(self) -> str:
        return f"{self.kind} {self.first} {self.last} {self.time_ms}"


def read(files: Files, directory: str) -> tuple[Gap, ...]:
    """Return the gaps of a partition. Errors: CorruptCheckpoint, OSError."""
    path = os.path.join(directory, FILE_NAME)
    if not files.exists(path):
        return ()
    before_waiting()
    try:
        *lines, rest = files.read_whole(path).decode().split("\n")
        if rest or not lines:
            raise ValueError(rest)
        return tuple(map(_parsed, lines))
    except FileNotFoundError:
        return ()
    except (ValueError, UnusableFile):
        raise CorruptCheckpoint("not a list of gaps", path=path) from None


def add(files: Files, directory: str, gaps: Iterable[Gap]) -> list[Gap]:
    """Write gaps, except those of a kind and offsets that are in force; return the new ones.
    Durable. Each `diverged` is written: the offsets may have had other records since the last one.
    So if a kill has interrupted a truncation, the file has two lines of this loss.

    A file that cannot be read is renamed. Errors: OSError.
    """
    try:
        known = read(files, directory)
    except CorruptCheckpoint as error:
        kept_as = set_aside(files, os.path.join(directory, FILE_NAME))
        _log.warning("%s: its gaps are not listed any more; kept as %s", error, kept_as)
        known = ()
    there = {gap[:3] for gap in in_force(known) if gap.kind != "diverged"}
    new = [gap for gap in gaps if gap[:3] not in there]
    if not new:
        # A killed process may have written them.
        files.sync_directory(directory)
        return []
    assert all(_parsed(str(gap)) == gap for gap in new)
    data = "".join(f"{gap}\n" for gap in (*known, *new)).encode()
    files.replace_atomically(os.path.join(directory, FILE_NAME), data)
    return new


def in_force(gaps: Sequence[Gap]) -> list[Gap]:
    """Return the gaps below the offsets at which the log was truncated after them, in any order."""
    found: list[Gap] = []
    end = paths.MAX_OFFSET + 1
    for gap in reversed(gaps):
        if gap.first < end:
            found.append(gap._replace(last=min(gap.last, end - 1)))
        if gap.kind == "diverged":
            end = min(end, gap.first)
    return found


def _parsed(line: str) -> Gap:
    """Return the gap of a line. Errors: ValueError."""
    kind, *numbers = line.split(" ")
    first, last, time_ms = map(int, numbers)
    gap = Gap(kind, first, last, time_ms)
    is_possible = 0 <= first <= last <= paths.MAX_OFFSET and 0 <= time_ms <= paths.MAX_OFFSET
    if kind not in KINDS or not is_possible or str(gap) != line:
        raise ValueError(line)
    return gap
