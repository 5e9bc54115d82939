"""Detects slow disks, and makes callers queue for changes of their logs.

An append waits for the disk if a page that it writes into has to be read back, or if too many pages
are dirty already; this cannot be predicted. So after an append that took longer than `SLOW_NS` the
log is slow, until `FAST` appends in a row were faster. An append to a slow log takes a turn, in
another thread: the log thread does not wait for the disk (`off_log_thread`). While any call is
queued, no call changes the log out of turn.

Both checks raise MustQueue; the log thread then queues for the turn and calls again. A call checks
`check_may_append` before its first change, for all logs that it changes. Each change checks
`check_not_queued` only: an earlier append of the same call may just have made the log slow, and a
call that has changed something must not be repeated.

A program that only appends waits for each append in any case: there no log is ever slow
(`LogManager.take_turns`).

Not here: the order of the queue (`kafkafs.fuse.threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SLOW_NS = 10_000_000
"""The longest time of an append to a fast log, in nanoseconds."""
FAST = 8
"""Faster appends in a row after which a slow log is fast again."""


class MustQueue(Exception):  # noqa: N818 - no error: the caller queues, and calls again
    """A log is changed in turn, and it is not the caller's: nothing has changed.

    `queues`: of the logs whose turn the caller needs.
    """

    def __init__(self, queues: Iterable[AppendQueue]) -> None:
        self.queues = frozenset(queues)
        super().__init__(", ".join(sorted(queue.name for queue in self.queues)))


class Turn:
    """A turn. `thread`: the one that has it, by default the log thread itself."""

    def __init__(self) -> None:
        self.thread = get_ident()

    def off_log_thread(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function that waits for the disk."""
        return function(*arguments)


class AppendQueue:
    """The queue of one log. `name`: the log's. `turn`: the present turn, or None. `in_use`:
    whether the log is slow, or a call is queued.
    """

    __slots__ = ("_fast", "_queued", "_slow", "in_use", "name", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn: Turn | None = None
        self.in_use = False
        self._slow = False
        self._fast = 0
        self._queued = 0

    @property
    def has_turn(self) -> bool:
        """Whether it is this thread's turn."""
        return self.turn is not None and self.turn.thread == get_ident()

    def check_not_queued(self) -> None:
        """Check that no call is queued, before a change of the log. Errors: MustQueue."""
        if self._queued and not self.has_turn:
            raise MustQueue([self])

    def check_may_append(self) -> None:
        """Check that no call is queued and the log is fast, before an append. Errors: MustQueue."""
        if self.in_use and not self.has_turn:
            raise MustQueue([self])

    def off_log_thread(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function that waits for the log's disk; in turn, the log thread continues."""
        turn = self.turn
        if turn is None or turn.thread != get_ident():
            return function(*arguments)
        return turn.off_log_thread(function, *arguments)

    def note_duration(self, ns: int) -> None:
        """Note the duration of an append, in nanoseconds."""
        if ns > SLOW_NS:
            self._slow, self._fast = True, 0
            self._changed()
        elif self._slow:
            self._fast += 1
            self._slow = self._fast < FAST
            self._changed()

    def enter(self) -> None:
        """Note that a call is queued for a turn, or has it, until `leave`."""
        self._queued += 1
        self._changed()

    def leave(self) -> None:
        self._queued -= 1
        self._changed()

    def reset(self) -> None:
        """Treat the log as fast again."""
        self._slow = False
        self._changed()

    def _changed(self) -> None:
        self.in_use = self._slow or self._queued > 0


def check_all_may_append(queues: Iterable[AppendQueue]) -> None:
    """Check several logs (`check_may_append`). Errors: MustQueue, with all turns that the caller
    needs.
    """
    wanted = [queue for queue in queues if queue.in_use and not queue.has_turn]
    if wanted:
        raise MustQueue(wanted)
