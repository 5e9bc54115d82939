"""How pyfuse3's worker tasks take turns at the kernel's request queue.

pyfuse3 runs several worker tasks. Each takes a lock, waits until the FUSE
descriptor is readable, releases the lock, receives one request and answers
it. With trio's own parts most of a request's time goes into the scheduler:
trio's lock hands itself over to the next worker, and every wait arms epoll
again. pyfuse3 takes both parts from its module attribute `trio`, which
`pyfuse3.asyncio.enable()` replaces. `install` puts a namespace there that
has all of trio, with two other parts:

- `BargingLock`: a release wakes one waiter but leaves the lock free, so the
  worker that has just answered goes straight back to reading.
- `Spinner.wait_readable`: looks at the descriptor for a few microseconds
  before it sleeps in trio's `wait_readable`, since a client mostly sends its
  next request right after an answer.

Invariants:

- The loop visits trio's scheduler every millisecond, plus the time of one
  request at most: timers, signals and cancellation are never late. While a
  request waits for a thread (`Spinner.elsewhere`) it visits more often, so that
  the thread's answer does not wait.
- After `SPIN_S` without a request the worker sleeps in epoll: an idle
  daemon uses no processor time.
- No waiter is lost: one that a release wakes takes the lock, or finds it taken
  and waits again; the holder of the lock then wakes the next at its release.

The loop never reads from the descriptor and knows nothing of requests. Like
pyfuse3 it is for one thread and one mount.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace, TracebackType
from typing import Any

import trio

#: How long to look at the descriptor before sleeping, in seconds.
SPIN_S = 30e-6
#: The longest time without a visit to the scheduler, in seconds.
VISIT_S = 1e-3
#: As `VISIT_S`, while a request waits for a worker thread.
VISIT_ELSEWHERE_S = 0.2e-3

#: How many idle worker tasks stay, and how many handle requests at once at most
#: (arguments of `pyfuse3.main`).
MIN_TASKS = 4
MAX_TASKS = 256


class BargingLock:
    """A lock that its releaser may take again before the task that it wakes.

    Not fair, on purpose. `async with` does not checkpoint when the lock is
    free; while it waits it can be cancelled.
    """

    __slots__ = ("_held", "_parked", "_woken")

    def __init__(self) -> None:
        self._held = False
        self._woken = False
        self._parked = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        while self._held:
            await self._parked.park()
            # Only the task that a release wakes comes here; from now on the
            # next release may wake another.
            self._woken = False
        self._held = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = False
        if not self._woken and self._parked:
            self._woken = True
            self._parked.unpark()


class Spinner:
    """Waits for a descriptor: first by polling for a moment, then in trio.

    `visits` counts the visits to trio's scheduler, `sleeps` those that
    waited in epoll.
    """

    __slots__ = ("_elsewhere", "_fd", "_poll", "_visit_at", "_visit_s", "sleeps", "visits")

    def __init__(self) -> None:
        self._fd = -1
        self._poll: Callable[[float], list[tuple[int, int]]] = select.poll().poll
        self._visit_at = 0.0
        self._visit_s = VISIT_S
        self._elsewhere = 0
        self.visits = 0
        self.sleeps = 0

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Mark that a handler waits for something that trio's scheduler brings."""
        self._elsewhere += 1
        self._visit_s = VISIT_ELSEWHERE_S
        try:
            yield
        finally:
            self._elsewhere -= 1
            if not self._elsewhere:
                self._visit_s = VISIT_S

    async def wait_readable(self, fd: int) -> None:
        """Return when `fd` is readable (or closed by its other end).

        Raises what `trio.lowlevel.wait_readable` does.
        """
        if fd != self._fd:
            # poll(), since select() cannot take all of the daemon's descriptors.
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            self._poll = poller.poll
            self._fd = fd
        poll = self._poll
        now = perf_counter()
        if now >= self._visit_at:
            self.visits += 1
            await trio.lowlevel.checkpoint()
            now = perf_counter()
            self._visit_at = now + self._visit_s
        until = now + SPIN_S
        while not poll(0):
            if perf_counter() >= until:
                break
        else:
            return
        self.visits += 1
        self.sleeps += 1
        await trio.lowlevel.wait_readable(fd)
        self._visit_at = perf_counter() + self._visit_s


class _Overlay(SimpleNamespace):
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(**names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def install(pyfuse3: Any, spinner: Spinner, say: Callable[[str], None]) -> bool:
    """Put the loop's parts into `pyfuse3`; call it before `pyfuse3.main`.

    If this pyfuse3 has no attribute `trio`, tell `say` so in one line and
    return False: pyfuse3 then runs its own loop.
    """
    if getattr(pyfuse3, "trio", None) is not trio:
        version = getattr(pyfuse3, "__version__", "of unknown version")
        say(f"pyfuse3 {version} has no attribute 'trio': using the slower loop of pyfuse3")
        return False
    lowlevel = _Overlay(trio.lowlevel, wait_readable=spinner.wait_readable)
    pyfuse3.trio = _Overlay(trio, Lock=BargingLock, lowlevel=lowlevel)
    return True
