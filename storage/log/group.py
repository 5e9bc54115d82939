"""The state that the logs of one data directory share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from storage import clock
from storage.counters import LogCounters
from storage.log.listener import LogListener

L = TypeVar("L")


@dataclass(slots=True)
class LogGroup(Generic[L]):
    """`listeners`: they are called after changes of any log; `unflushed`: the logs that have
    something to flush; `retiring`: the logs that have retired segments.
    """

    monotonic_ms: Callable[[], int] = clock.monotonic_ms
    # Returns the time for measuring appends; None: no change is queued (`append_queue`), and no log
    # is slow.
    append_clock_ns: Callable[[], int] | None = None
    counters: LogCounters = field(default_factory=LogCounters)
    listeners: list[LogListener[L]] = field(default_factory=list)
    unflushed: set[L] = field(default_factory=set)
    retiring: set[L] = field(default_factory=set)
