"""The state of one partition's log: its segments and offsets, and what refuses changes.

`log.Log` extends it. The parts of a log, which `log` imports, read and change it.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple

from storage.errors import CutShort, LogClosed, ReadOnlyLog
from storage.files import Files
from storage.log.append_queue import AppendQueue
from storage.log.group import LogGroup
from storage.segment.segment import Segment
from storage.segment.writer import SegmentWriter
from storage.settings.config import LogConfig
from storage.state.producer_state import ProducerState

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LogState:
    """The state of one log. Offsets count records, sizes are in bytes, times in ms since 1970."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        segments: Sequence[Segment],
        producers: ProducerState,
        group: LogGroup[Any],
        *,
        log_start: int,
        read_only: bool,
        tiered: str | None = None,
    ) -> None:
        """`tiered`: why the log of a tiered topic is read-only, for users; else None."""
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.config = config
        self.group = group
        self.tiered = tiered
        self.read_only = read_only or tiered is not None
        self.closed = False
        self.append_queue = AppendQueue(self.name)
        self.segments = tuple(segments)
        # Appends to the active segment.
        self.writer = SegmentWriter(self.segments[-1])
        self._retired: list[tuple[int, Segment]] = []
        self.producers = producers
        self.log_start_offset = max(log_start, self.segments[0].base_offset)
        self.log_end_offset = self.segments[-1].next_offset
        # If flushed records are missing at the end: the offset up to which the log was flushed;
        # else 0.
        self.lost_end = 0
        # Why the files cannot be trusted: an fsync has failed, or the active file was truncated.
        self.flush_error: OSError | None = None

    def __repr__(self) -> str:
        return f"<Log {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>"

    @property
    def name(self) -> str:
        """`topic/partition`."""
        return f"{self.topic}/{self.partition}"

    @property
    def active(self) -> Segment:
        """The segment of new appends."""
        return self.segments[-1]

    @property
    def last_written(self) -> Segment:
        """The newest segment with records; the active one if none has any."""
        active = self.segments[-1]
        if active.size:
            return active
        return next((segment for segment in reversed(self.segments) if segment.size), active)

    @property
    def high_watermark(self) -> int:
        """The log end, since there are no replicas."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records are shown."""
        return max(self.decided_end, self.log_start_offset)

    @property
    def decided_end(self) -> int:
        """The first offset of the oldest open transaction, which may be below the log start;
        without any, the log end.
        """
        first = self.producers.first_undecided_offset
        return self.log_end_offset if first is None else first

    @property
    def is_start_decided(self) -> bool:
        """Whether no open transaction has begun before the log start."""
        return self.decided_end >= self.log_start_offset

    @property
    def is_new(self) -> bool:
        """Whether it never had a record: an offset is never assigned twice."""
        return self.log_end_offset == 0 and not self.lost_end

    def segments_from(self, offset: int) -> Sequence[Segment]:
        """Return the segment in which `offset` lies or would lie, and all later ones."""
        segments = self.segments
        number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        return segments[max(number, 0) :]

    @property
    def size(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size for segment in self.segments)

    @property
    def retired(self) -> list[tuple[int, Segment]]:
        """Segments that have left the log, each with the monotonic time of its release.

        The log is in the group's `retiring` while it has any, unless it is closed.
        """
        return self._retired

    @retired.setter
    def retired(self, retired: list[tuple[int, Segment]]) -> None:
        self._retired = retired
        if retired and not self.closed:
            self.group.retiring.add(self)
        else:
            self.group.retiring.discard(self)

    # -- checks --------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Check that the log may be changed. Errors: LogClosed, ReadOnlyLog; OSError if an fsync
        has failed, or the log's end was lost; MustQueue as in `AppendQueue.check_not_queued`.
        """
        if self.append_queue.in_use:
            self.append_queue.check_not_queued()
        if self.closed:
            raise LogClosed("this log has been closed", path=self.directory)
        if self.read_only:
            self.check_not_read_only()
        if self.flush_error is not None:
            self.check_no_flush_error()
        if self.lost_end:
            raise OSError(errno.EIO, self.what_is_lost, self.directory)

    def check_not_read_only(self) -> None:
        """Check that the log is not read-only. Errors: ReadOnlyLog, with the reason."""
        if self.read_only:
            reason = self.tiered or "this log was opened read-only"
            raise ReadOnlyLog(reason, path=self.directory)

    def check_no_flush_error(self) -> None:
        """Check that no fsync has failed. Errors: OSError."""
        if self.flush_error is not None:
            reason = f"{self.flush_error_text}; appends are refused until the data is on the disk"
            raise OSError(errno.EIO, reason, self.directory)

    @property
    def flush_error_text(self) -> str:
        """`flush_error` for users."""
        error = self.flush_error
        if isinstance(error, CutShort):
            return f"{error.strerror} ({error.filename})"
        return f"fsync failed ({error})"

    @property
    def what_is_lost(self) -> str:
        """A text for users about the lost offsets at the log's end, with a remedy."""
        return (
            f"offsets {self.log_end_offset} to {self.lost_end - 1} had been flushed but are "
            "missing; appends are refused so that these offsets are not reused. To restore "
            "them: kafkafs repair --salvage --apply, or a backup. To accept the loss: kafkafs "
            "repair --accept-loss --apply"
        )

    # -- waiting -------------------------------------------------------------------------------

    def off_log_thread(
        self, segment: Segment, function: Callable[[*Ts], T], /, *arguments: *Ts
    ) -> T:
        """Call a function that waits for the disk. In a turn, the log thread continues meanwhile
        (`AppendQueue.off_log_thread`), and a lease keeps the files of `segment`.
        """
        if not self.append_queue.in_use:
            return function(*arguments)
        segment.lease()
        try:
            return self.append_queue.off_log_thread(function, *arguments)
        finally:
            segment.release()
