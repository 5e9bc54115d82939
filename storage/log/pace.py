"""Detects slow disks, and queues the appends to their logs.

An append waits for the disk if a page that it writes into has to be read back, or if too many pages
are dirty already; this cannot be predicted. So after an append that took longer than `SLOW_NS` the
log is slow, until `FAST` appends in a row were faster. An append to a slow log takes a turn, in
another thread: the log thread does not wait for the disk (`aside`). While any call is queued, no
call changes the log out of turn.

The two checks raise OutOfTurn before anything has changed; the log thread then queues for the turn
and calls again. A function that changes several logs checks all of them first.

A program that only appends waits for each append in any case: there no log is ever slow
(`LogManager.take_turns`).

Not here: the order of the queue (`kafkafs.fuse.turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SLOW_NS = 10_000_000
"""The longest time of an append to a fast log, in nanoseconds."""
FAST = 8
"""Faster appends in a row after which a slow log is fast again."""


class OutOfTurn(Exception):  # noqa: N818 - no error: the caller queues, and calls again
    """A log is changed in turn, and it is not the caller's: nothing has changed.

    `paces`: of the logs whose turn the caller needs.
    """

    def __init__(self, paces: Iterable[Pace]) -> None:
        self.paces = frozenset(paces)
        super().__init__(", ".join(sorted(pace.name for pace in self.paces)))


class Turn(Protocol):
    """`thread`: the one that has the turn, in place of the log thread; 0 while it waits `aside`."""

    thread: int

    def aside(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function that waits for the disk, while the log thread continues."""
        ...


class Pace:
    """The queue of one log. `name`: the log's. `turn`: the present turn, or None. `in_turn`:
    whether the log is slow, or a call is queued.
    """

    __slots__ = ("_fast", "_queued", "_slow", "in_turn", "name", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn: Turn | None = None
        self.in_turn = False
        self._slow = False
        self._fast = 0
        self._queued = 0

    @property
    def is_callers(self) -> bool:
        """Whether it is this thread's turn."""
        return self.turn is not None and self.turn.thread == get_ident()

    def check_turn(self) -> None:
        """Check that no call is queued, before a change of the log. Errors: OutOfTurn."""
        if self._queued and not self.is_callers:
            raise OutOfTurn([self])

    def check_pace(self) -> None:
        """Check that no call is queued and the log is fast, before an append. Errors: OutOfTurn."""
        if self.in_turn and not self.is_callers:
            raise OutOfTurn([self])

    def aside(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function that waits for the log's disk; in turn, the log thread continues."""
        turn = self.turn
        if turn is None or turn.thread != get_ident():
            return function(*arguments)
        return turn.aside(function, *arguments)

    def took(self, ns: int) -> None:
        """Note the duration of an append, in nanoseconds."""
        if ns > SLOW_NS:
            self._slow, self._fast = True, 0
        elif self._slow:
            self._fast += 1
            self._slow = self._fast < FAST
        self._changed()

    def queue(self) -> None:
        """Note that a call is queued for a turn, or has it, until `leave`."""
        self._queued += 1
        self._changed()

    def leave(self) -> None:
        self._queued -= 1
        self._changed()

    def forget(self) -> None:
        """Treat the log as fast again."""
        self._slow = False
        self._changed()

    def _changed(self) -> None:
        self.in_turn = self._slow or self._queued > 0


def check_paces(paces: Iterable[Pace]) -> None:
    """Check several logs (`check_pace`). Errors: OutOfTurn with all turns that the caller needs."""
    wanted = [pace for pace in paces if pace.in_turn and not pace.is_callers]
    if wanted:
        raise OutOfTurn(wanted)
