"""When what has failed is tried again: after a pause that doubles each time, up to a longest one.

So that a disk that is gone for an hour is not asked four times a second, by each of thousands of
partitions, and one that is back is used again within that longest pause.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import trio

T = TypeVar("T")


class Retries(Generic[T]):
    """Of things that are tried by themselves; pauses in seconds, by trio's clock."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        # The last pause, and when it is over.
        self._pauses: WeakKeyDictionary[T, tuple[float, float]] = WeakKeyDictionary()

    def waits(self, thing: T) -> bool:
        """Whether its next turn has not come yet."""
        pause = self._pauses.get(thing)
        return pause is not None and trio.current_time() < pause[1]

    @property
    def waiting(self) -> set[T]:
        """All whose next turn has not come yet."""
        return {thing for thing in self._pauses if self.waits(thing)}

    def failed(self, thing: T) -> None:
        """It pauses from now on."""
        pause_s = self._first_s
        if thing in self._pauses:
            pause_s = min(2 * self._pauses[thing][0], self._longest_s)
        self._pauses[thing] = pause_s, trio.current_time() + pause_s

    def succeeded(self, thing: T) -> None:
        """The next pause is a short one again."""
        self._pauses.pop(thing, None)
