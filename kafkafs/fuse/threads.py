"""Calls in trio's worker threads; the system may refuse to start one."""

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
    """As `trio.to_thread.run_sync`; `limiter` None: trio's. NoThread: `function` did not run."""
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
