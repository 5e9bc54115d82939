"""Waits: look again until a condition holds, and give up after a time."""

from __future__ import annotations

import time
from collections.abc import Callable

#: No machine is so loaded that what a test waits for takes as long, in seconds: it hangs.
HANG_S = 300.0
#: The shortest and the longest pause between two looks, in seconds.
_PAUSE_S = 0.002, 0.1


def until(holds: Callable[[], object], seconds: float = HANG_S) -> None:
    """Look again and again until something holds.

    A pause is at least as long as the look before it, and grows with the time waited so far: who
    waits leaves the processor to what it waits for.
    """
    begun = time.monotonic()
    before = begun
    while not holds():
        now = time.monotonic()
        assert now < begun + seconds, "that never came to be"
        shortest, longest = _PAUSE_S
        time.sleep(min(max(shortest, now - before, (now - begun) / 8), longest))
        before = time.monotonic()
