"""The list of a log's sealed segments, by which a lost segment is detected.

A partition directory of our own has, once the log has rolled, one more small file,
`kafkafs.segments` (Kafka ignores it), the *book*::

    version 0
    start 17                     log start offset
    segment 0 40 1048576 1600000000000
                                 base offset, next offset, bytes, largest timestamp in ms
    crc 1a2b3c4d                 CRC-32C over the lines before

Each `segment` line is a claim: this file existed, and had this size. A segment without a claim may
be part of the log, too. So an outdated book has fewer claims than possible, which does no harm,
with one rule: *a claim is withdrawn, durably, before its file is removed* or replaced (`log.book`).
Claims for new files are written with the next checkpoint, before a recovery point passes them
(`log.book`), and when the log is closed. No append and no roll waits for it.

An empty file is the book of a log that was made here and has no claims yet: no cleaner can have
been there. A log without a book may have any history.

When a log is opened, claims count above the log start, for segments that had been flushed. A book
that does not match the files is ignored.

A broker's directory has none, as a broker deletes and cleans without updating it. A program that
rewrites segments of a partition that is not open removes the book first (`drop`).

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


class Claim(NamedTuple):
    """A sealed segment: `next_offset` is the end of it, `timestamp` the largest in ms."""

    base_offset: int
    next_offset: int
    size: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class BookContent:
    """The content of a book; empty without one."""

    log_start: int = 0
    claims: Sequence[Claim] = field(default=())


def read(files: Files, directory: str) -> BookContent:
    """Return a partition's book; empty where there is none. Errors: CorruptCheckpoint, OSError."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = files.read_whole(path)
        return _parse(data) if data else BookContent()
    except FileNotFoundError:
        return BookContent()
    except (ValueError, IndexError, TypeError):
        raise CorruptCheckpoint("not a segment manifest", path=path) from None


def begin(files: Files, directory: str) -> None:
    """Make the book of a new log; durable with the directory. Errors: OSError."""
    path = os.path.join(directory, FILE_NAME)
    files.close(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def is_blank(files: Files, directory: str) -> bool:
    """Return whether the log was made here, and its book has no claims yet. Errors: OSError."""
    try:
        found = files.file_stat(os.path.join(directory, FILE_NAME))
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_size


def drop(files: Files, directory: str) -> None:
    """Withdraw all claims, durably, before a closed partition is rewritten. Errors: OSError."""
    path = os.path.join(directory, FILE_NAME)
    if files.exists(path):
        # A directory of that name has no claims.
        with contextlib.suppress(IsADirectoryError):
            files.unlink(path)
            files.sync_directory(directory)


def _parse(data: bytes) -> BookContent:
    body, mark, crc = data.decode().rpartition("crc ")
    lines = body.splitlines()
    if not mark or crc32c(body.encode()) != int(crc, 16) or lines[0] != "version 0":
        raise ValueError(data)
    start = int(lines[1].split(" ")[1])
    claims = [Claim(*map(int, line.split(" ")[1:])) for line in lines[2:]]
    rising = all(one.base_offset < other.base_offset for one, other in itertools.pairwise(claims))
    if not 0 <= start <= paths.MAX_OFFSET or not rising or not all(map(_is_possible, claims)):
        raise ValueError(data)
    return BookContent(start, claims)


def _is_possible(claim: Claim) -> bool:
    return (
        0 <= claim.base_offset <= claim.next_offset <= paths.MAX_OFFSET
        and 0 <= claim.size <= _LARGEST
        and abs(claim.timestamp) <= paths.MAX_OFFSET
    )


def text(recorded: BookContent) -> bytes:
    """Return the file's bytes."""
    lines = ["version 0", f"start {recorded.log_start}"]
    lines += [f"segment {' '.join(map(str, claim))}" for claim in recorded.claims]
    body = "".join(f"{line}\n" for line in lines)
    return f"{body}crc {crc32c(body.encode()):08x}\n".encode()


# -- holding a log against its book --------------------------------------------------------------


def missing(claims: Sequence[Claim], sizes: Mapping[int, int], log_start: int) -> list[Claim]:
    """Return the claimed segments that are not among those of `sizes` (bytes by base offset).

    Only below the last one: later segments are the log's end. `log_start`: claims below it do not
    count.
    """
    bases = sorted(sizes)
    if not bases or not fits(claims, sizes):
        return []
    return [
        claim
        for claim in claims
        if claim.base_offset not in sizes
        and claim.size
        and claim.next_offset > log_start
        and claim.base_offset < bases[-1]
    ]


def short(claims: Sequence[Claim], sizes: Mapping[int, int]) -> list[Claim]:
    """Return the claims with shorter files. `sizes`: those of sealed segments."""
    found = [claim for claim in claims if sizes.get(claim.base_offset, claim.size) < claim.size]
    return found if found and fits(claims, sizes) else []


def fits(claims: Sequence[Claim], sizes: Mapping[int, int]) -> bool:
    """Return whether no other program has rewritten the log: no segment overlaps or has grown."""
    if any(sizes.get(claim.base_offset, 0) > claim.size for claim in claims):
        return False
    ends = {claim.base_offset: claim.next_offset for claim in claims}
    starts = sorted({*sizes, *ends})
    return all(ends.get(base, 0) <= after for base, after in itertools.pairwise(starts))
