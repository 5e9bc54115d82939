"""Finds the segments of a split in a directory that another process writes.

Segments are found by their names. Their owner may roll, delete or clean them meanwhile, and during
a swap a name is missing for a moment: the finder waits for it.

Not here: reading (`split_reader`), planning (`split`).
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from storage import paths
from storage.errors import OffsetOutOfRange, SegmentGone, UnknownTopicOrPartition
from storage.files import Files
from storage.kafka07.segment import Segment07, entry_files, holds_entries
from storage.segment.damage import Damage
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.settings.config import LogConfig
from storage.state import checkpoint_file

# Seconds that a cleaner may take to rename the files of a swap, or a listed file may be missing.
PATIENCE_S = 10.0


class Patience:
    """Waits for another process, in growing steps, `PATIENCE_S` in all."""

    def __init__(self) -> None:
        self._end = time.monotonic() + PATIENCE_S
        self._pause_s = 0.005

    def wait(self) -> bool:
        """Wait one step; return False at the end of the patience."""
        if time.monotonic() > self._end:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, 0.25)
        return True


class AbortedSpan(NamedTuple):
    """A producer's transactional records between these offsets, both included, are aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


class Split(NamedTuple):
    """A part of a partition: the offsets from `from_offset` to before `to_offset`.

    `directory` is the partition's. At planning a batch began at `position` of the log with
    `base_offset`, and no record of the split lay before it; `size`: approximate bytes of log.
    `aborted`: spans that readers skip; empty for uncommitted reads. `topic_id`: identifies the
    topic among others of the same name. `segments`: base offsets of segments that must still exist,
    because only retention removes any; empty if a cleaner may. `lost`: at planning, the first
    segment in it with lost records (`Segment.lost`), by its path.
    """

    topic: str
    partition: int
    directory: str
    base_offset: int
    position: int
    size: int
    from_offset: int
    to_offset: int
    aborted: tuple[AbortedSpan, ...] = ()
    topic_id: str = ""
    segments: tuple[int, ...] = ()
    lost: tuple[str, Damage] | None = None


class Place(NamedTuple):
    """The segment of an offset; `following`: the next one's base offset, if there is one.

    `log_start`: the first segment's base offset.
    """

    segment: Segment
    following: int | None
    log_start: int

    def open(self) -> None:
        """Open the segment's log, with its present size. Errors: SegmentGone if the list of
        segments is out of date; CorruptRecord, OSError.
        """
        segment, end = self.segment, paths.MAX_OFFSET
        fd = segment.log_fd()
        segment.identity = segment.disk.identity(fd)
        size = segment.disk.size(fd)
        if isinstance(segment, Segment07):
            segment.set_size(size)
            return
        if self.following is not None:
            end = self.following
            name = paths.file_name(end, paths.LOG)
            path = os.path.join(os.path.dirname(segment.log_path), name)
            # A cleaner removes the next segment's name before a file that includes the next
            # segment gets this one's name.
            if not segment.disk.exists(path):
                raise SegmentGone("the next segment does not exist any more", path=path, offset=end)
        segment.restore(SegmentSummary(size, end, mtime_ns=0))


class Finder:
    """Finds a split's segments. Lists the directory once, and again if `refresh` requests it.

    A list may be out of date: a file opened by a name in it has the records from there on, but
    perhaps not all up to the next name.
    """

    def __init__(self, files: Files, split: Split) -> None:
        self._files = files
        self._split = split
        # (base offset, name) of each segment.
        self._logs: list[tuple[int, str]] = []

    def find(self, offset: int, *, refresh: bool = False) -> Place:
        """Return the segment of an offset of the split; `refresh`: list the directory again.

        Errors: OffsetOutOfRange if the offset was deleted, UnknownTopicOrPartition if the partition
        was, SegmentGone if a cleaner was stopped in the middle or a segment is missing; OSError.
        """
        directory = self._split.directory
        if refresh or not self._logs:
            self._logs = self._settled_logs(offset)
            self._check_segments(offset, self._logs)
        logs = self._logs
        number = bisect_right(logs, offset, key=lambda log: log[0]) - 1
        if number < 0:
            self.check_topic()
            raise OffsetOutOfRange(offset, logs[0][0], self._split.to_offset, path=directory)
        base, name = logs[number]
        following = logs[number + 1][0] if number + 1 < len(logs) else None
        segment: Segment
        if name.endswith(paths.LOG):
            segment = Segment(self._files, directory, base, LogConfig(), writable=False)
        else:
            segment = Segment07(self._files, directory, name, LogConfig())
        return Place(segment, following, logs[0][0])

    def check_topic(self) -> None:
        """Check that the topic was not deleted and created again. Errors: UnknownTopicOrPartition.

        Call it once a file is open: then the file is the right topic's.
        """
        directory = self._split.directory
        if self._split.topic_id:
            path = os.path.join(directory, paths.PARTITION_METADATA)
            found = checkpoint_file.read_partition_metadata(self._files, path)
            if found not in (None, "", self._split.topic_id):
                raise UnknownTopicOrPartition(
                    f"another topic has this name now: its id is {found}, not "
                    f"{self._split.topic_id}",
                    path=directory,
                )

    def _check_segments(self, offset: int, logs: list[tuple[int, str]]) -> None:
        """Check that only retention removed segments. Errors: SegmentGone, those of
        `check_topic`.
        """
        there = {base for base, _ in logs}
        wanted = self._split.segments
        first = max([logs[0][0], *(base for base in wanted if base <= offset)])
        for base in wanted:
            if base >= first and base not in there:
                self.check_topic()  # another one's have other names
                raise SegmentGone(
                    "this segment is missing, but later segments exist",
                    path=os.path.join(self._split.directory, paths.file_name(base, paths.LOG)),
                    offset=base,
                )

    def _settled_logs(self, offset: int) -> list[tuple[int, str]]:
        """Return (base offset, name) of each segment, once no cleaner is changing one."""
        directory = self._split.directory
        patience = Patience()
        while True:
            try:
                names = self._files.names(directory)
            except FileNotFoundError:
                raise UnknownTopicOrPartition(
                    "the partition no longer exists", path=directory
                ) from None
            logs = entry_files(names) if holds_entries(names) else _logs(names)
            if not logs:
                raise UnknownTopicOrPartition("the partition has no segments", path=directory)
            swapped = [name for name in names if self._may_concern(name, offset, logs[-1][0])]
            if not swapped:
                return logs
            if not patience.wait():
                raise SegmentGone(
                    "an interrupted compaction has not renamed all segments: open the "
                    "directory for writing, then read it again",
                    path=os.path.join(directory, swapped[0]),
                    offset=offset,
                )

    def _may_concern(self, name: str, offset: int, last: int) -> bool:
        """Return whether a file is part of a swap in the split's offsets from `offset` on."""
        if not name.endswith(paths.LOG + paths.SWAP) or offset >= last:
            return False
        return (paths.base_offset_of(name) or 0) < self._split.to_offset


def _logs(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return (base offset, name) of the segments among these files."""
    bases = ((paths.base_offset_of(name), name) for name in names if name.endswith(paths.LOG))
    return sorted(
        (base, name)
        for base, name in bases
        if base is not None and name == paths.file_name(base, paths.LOG)
    )
