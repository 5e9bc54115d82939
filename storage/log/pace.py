"""How fast appends to a log are, and whose turn it is to change it.

An append waits for the disk where a page that it writes into has to be read back, or where too much
is unwritten already; nobody can tell beforehand.  So after an append that took longer than
``SLOW_NS`` the log is slow, until ``FAST`` appends in a row were faster.  Whoever appends to a slow
log takes a turn, in another thread: the owner does not wait for the disk (``aside``).  While
anybody queues for turns, nobody changes the log out of turn.

The two checks raise OutOfTurn before anything has changed; the owner then queues for the turn and
calls again.  A function that changes several logs checks all of them first.

A program that does nothing but append waits for each append in any case: there no log is ever slow
(``LogManager.take_turns``).

Not here: who queues, and in which order (``kafkafs.fuse.turns``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SLOW_NS = 10_000_000
"""Nanoseconds that an append to a log that is not slow takes at most."""
FAST = 8
"""Appends in a row that a slow log has to take in less than that, to be slow no longer."""


class OutOfTurn(Exception):  # noqa: N818 - no error: the caller queues, and calls again
    """A log is changed in turn, and it is not the caller's: nothing has changed.

    ``paces``: of the logs whose turn the caller has to have.
    """

    def __init__(self, paces: Iterable[Pace]) -> None:
        self.paces = frozenset(paces)
        super().__init__(", ".join(sorted(pace.name for pace in self.paces)))


class Turn(Protocol):
    """``thread``: the one that has the turn, in the owner's place; 0 while it waits ``aside``."""

    thread: int

    def aside(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function that waits for the disk, while the owner goes on."""
        ...


class Pace:
    """See the module.  ``name``: the log's.  ``turn``: the turn of who may change it, or None.
    ``in_turn``: whether it is slow, or anybody queues.
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
        """OutOfTurn where others queue.  Whoever changes the log calls it first."""
        if self._queued and not self.is_callers:
            raise OutOfTurn([self])

    def check_pace(self) -> None:
        """OutOfTurn where others queue or the log is slow.  Who is about to append calls it first,
        so that it waits elsewhere.
        """
        if self.in_turn and not self.is_callers:
            raise OutOfTurn([self])

    def aside(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        """Call a function that waits for the log's disk; in turn, the owner goes on meanwhile."""
        turn = self.turn
        if turn is None or turn.thread != get_ident():
            return function(*arguments)
        return turn.aside(function, *arguments)

    def took(self, ns: int) -> None:
        """An append took so long, in nanoseconds."""
        if ns > SLOW_NS:
            self._slow, self._fast = True, 0
        elif self._slow:
            self._fast += 1
            self._slow = self._fast < FAST
        self._changed()

    def queue(self) -> None:
        """Somebody queues for a turn, or has it; until ``leave``."""
        self._queued += 1
        self._changed()

    def leave(self) -> None:
        self._queued -= 1
        self._changed()

    def forget(self) -> None:
        """The log is not slow."""
        self._slow = False
        self._changed()

    def _changed(self) -> None:
        self.in_turn = self._slow or self._queued > 0


def check_paces(paces: Iterable[Pace]) -> None:
    """``check_pace`` of several logs: OutOfTurn names all whose turn the caller has to have."""
    wanted = [pace for pace in paces if pace.in_turn and not pace.is_callers]
    if wanted:
        raise OutOfTurn(wanted)
