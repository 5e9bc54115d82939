"""Calls in trio's worker threads, of which the system may let none start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from storage.errors import NoThread
from storage.threads import check_room

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def in_thread(
    limiter: trio.CapacityLimiter | None, function: Callable[[*Ts], T], *arguments: *Ts
) -> T:
    """`trio.to_thread.run_sync`; `limiter` None: trio's own. NoThread: it was not called."""
    begun = False

    def call() -> T:
        nonlocal begun
        begun = True
        return function(*arguments)

    check_room()
    try:
        return await trio.to_thread.run_sync(call, limiter=limiter)
    except RuntimeError:
        if begun:
            raise
        raise NoThread from None
