"""Lines that commit a position: `POSITION`, or `POSITION TAB METADATA`.

    1234                  an offset
    earliest, latest      the log start; the last stable offset
    +100, -100            that many offsets after, or before, the committed position
    2026-11-21T08:00Z     a time, in all forms of `N@TIME` (`start_names`), also -15m: the first
                          record with that timestamp or a later one, or `latest` where there is none

A position is the offset of the next record to be read, within log start..log end.
"""

from __future__ import annotations

import errno
import re
from typing import Final, NamedTuple

from kafkafs.printable import one_line
from kafkafs.tree.files.start_names import Edge, Offset, Time, parse_point
from kafkafs.tree.files.start_points import offset_of_time
from kafkafs.tree.partition.partition import Partition
from storage.waiting import before_waiting

_LONGEST: Final = 64
_CHANGE: Final = re.compile("[+-][0-9]{1,19}")
_EDGES: Final = {"earliest": Edge.START, "latest": Edge.END}


class Change(NamedTuple):
    """So many offsets from the committed position."""

    offsets: int


class Wanted(NamedTuple):
    """The request of a line."""

    where: Offset | Change | Edge | Time
    metadata: str


def parse(line: str, now_ms: int) -> Wanted:
    """OSError: EINVAL."""
    text, _, metadata = line.partition("\t")
    text = text.strip(" ")
    return Wanted(_where(text, now_ms), metadata)


def _where(text: str, now_ms: int) -> Offset | Change | Edge | Time:
    if _CHANGE.fullmatch(text):
        return Change(int(text))
    if text in _EDGES:
        return _EDGES[text]
    point = parse_point(text, now_ms) if len(text) <= _LONGEST else None
    if isinstance(point, Offset | Time):
        return point
    raise OSError(
        errno.EINVAL,
        f"{one_line(text[:_LONGEST])!r} is not an offset, earliest, latest, +N, -N or a time "
        "(2026-11-21T08:00, 08:00, -15m); metadata may follow after a TAB",
    )


def offset_of(wanted: Wanted, partition: Partition, committed: int | None) -> int:
    """The offset that a request leads to now. OSError: EINVAL; BlockingIOError, StorageError."""
    log, where = partition.log, wanted.where
    if isinstance(where, Offset):
        offset = where.offset
    elif isinstance(where, Change):
        if committed is None:
            why = f"no offset is committed in {log.name}, so {where.offsets:+d} has no start"
            raise OSError(errno.EINVAL, why)
        offset = committed + where.offsets
    elif isinstance(where, Time):
        # Only the owner's thread makes a view, and it asks first.
        text = partition.text(partition.mount.views[0])
        before_waiting()
        found = offset_of_time(text, where.timestamp_ms)
        offset = log.last_stable_offset if found is None else found
    else:
        offset = log.log_start_offset if where is Edge.START else log.last_stable_offset
    if not log.log_start_offset <= offset <= log.log_end_offset:
        bounds = f"{log.log_start_offset}..{log.log_end_offset}"
        raise OSError(errno.EINVAL, f"offset {offset} is outside of {log.name} ({bounds})")
    return offset
