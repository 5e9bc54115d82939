"""Pauses before retries: each pause doubles the one before, up to a longest one.

So thousands of partitions do not try four times a second while a disk fails for an hour, and try
again within the longest pause when it works again.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import trio

T = TypeVar("T")


class Retries(Generic[T]):
    """The pauses of things, in seconds by trio's clock."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        # The last pause, and the time when it ends.
        self._pauses: WeakKeyDictionary[T, tuple[float, float]] = WeakKeyDictionary()

    def waits(self, thing: T) -> bool:
        """Whether the thing's pause is not over."""
        pause = self._pauses.get(thing)
        return pause is not None and trio.current_time() < pause[1]

    @property
    def waiting(self) -> set[T]:
        """All things whose pauses are not over."""
        return {thing for thing in self._pauses if self.waits(thing)}

    @property
    def failing(self) -> list[T]:
        """All things that failed at their last attempt."""
        return list(self._pauses)

    def failed(self, thing: T) -> None:
        """Begin the thing's next pause."""
        pause_s = self._first_s
        if thing in self._pauses:
            pause_s = min(2 * self._pauses[thing][0], self._longest_s)
        self._pauses[thing] = pause_s, trio.current_time() + pause_s

    def succeeded(self, thing: T) -> None:
        """Make the thing's next pause a short one."""
        self._pauses.pop(thing, None)
