"""Carries out what retention decides: segments leave the head of logs, log starts move.

In the order that a crash at any point may end:

1. The owner plans (``plan_retention``) from facts that are in memory: no log is read.  Where all
   of a log goes it rolls.
2. In the worker's thread: what is not flushed below the new log start is flushed, what readers were
   shown is written down (``rewriting``), and the new log start is in its checkpoint, durably.  From
   here on the records are gone, whatever happens: a start finds no more of them.
3. The owner takes the segments out of the log; their files get the suffix ``.deleted``, some at a
   time, and go when file.delete.delay.ms is over (``LogManager.sweep``).

A log whose plan no longer fits at step 3, because it was deleted or a cleaner is at it, is left for
the next time.  One that fails keeps no other from its turn.

Not here: the rules (``retention``), when to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from storage.log import Log
from storage.retention import Doomed, LogFacts
from storage.task import Task

HIGH_WATERMARK = -1
"""The offset of ``delete_records`` that stands for the high watermark."""


class Manager(Protocol):
    """The part of ``LogManager`` that is needed here."""

    @property
    def clock_ms(self) -> Callable[[], int]: ...
    def start_checkpoint(self, *, snapshots: bool = True) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What would go from one log now.

    ``offsets``: how many offsets of records that can be read go with the segments, transactions'
    markers and what compaction has left out included.  ``rolls``: all segments go, so that a new
    one is begun first.  ``fault``: why the topic's policy does not count.
    """

    log: Log
    doomed: tuple[Doomed, ...]
    rolls: bool
    fault: str | None

    @property
    def size(self) -> int:
        """Bytes of the ``.log`` files that go."""
        return sum(segment.size for segment, _ in self.doomed)

    @property
    def log_start(self) -> int:
        """The log start offset afterwards."""
        after = self.doomed[-1].segment.next_offset if self.doomed else 0
        return max(self.log.log_start_offset, after)

    @property
    def offsets(self) -> int:
        return self.log_start - self.log.log_start_offset


@dataclass(slots=True)
class Retained:
    """The outcome of one run.  ``notes``: what was wrong, one line each, with the partition."""

    logs: int = 0
    segments: int = 0
    size: int = 0
    offsets: int = 0
    cleaning: int = 0
    """Logs that were left for when their cleaner is done."""
    notes: list[str] = field(default_factory=list)


def facts_of(log: Log) -> LogFacts:
    """What a decision about a log is made from."""
    raise NotImplementedError


def plan_retention(log: Log, now_ms: int) -> RetentionPlan:
    """What would go from this log now; changes nothing and reads nothing.  The owner's thread."""
    raise NotImplementedError


def retain(
    manager: Manager, logs: Iterable[Log], task: Task, now_ms: int | None = None
) -> Retained:
    """Apply retention to ``logs`` now.  A worker's thread.

    What goes wrong with a log is a note of the outcome.  TaskCancelled between two logs; OSError
    where the log starts' checkpoint cannot be written: nothing was deleted then.
    """
    raise NotImplementedError


def delete_records(manager: Manager, log: Log, offset: int, task: Task) -> int:
    """Move the log start up to ``offset`` (``HIGH_WATERMARK``: as far as possible); returns it.

    Durable when it returns.  An offset at or below the log start changes nothing.  Segments that
    hold nothing else any more go with the next ``retain``.  A worker's thread.

    OffsetOutOfRange above the high watermark or below -1, PolicyViolation where cleanup.policy is
    compact only (``Partition.deleteRecordsOnLeader``), OSError and other StorageErrors.
    """
    raise NotImplementedError
