"""Whether the caller may wait: for the disk, for another thread, or for a long computation.

A daemon answers all requests on one thread.  While that thread waits, no request is answered, and a
process that waits for an answer cannot be killed.  So the daemon calls what answers a request with
``at_once``: inside of that call, whatever would wait raises BlockingIOError instead.  What shows
anywhere has not changed then; what was made for the call may stay.  The daemon repeats the call in
a worker thread, where it waits.

Everywhere else a thread may wait: a program that answers no requests does nothing about it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Thread(threading.local):
    may_wait = True


_thread = _Thread()


def may_wait() -> bool:
    """Whether this thread may wait now."""
    return _thread.may_wait


def answering() -> bool:
    """Whether this is inside of ``at_once``: on the thread that owns what is read."""
    return not _thread.may_wait


def before_waiting() -> None:
    """Call this before what waits: BlockingIOError inside of ``at_once``."""
    if not _thread.may_wait:
        raise BlockingIOError


def at_once(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function that must not wait.  BlockingIOError: call it where it may."""
    before = _thread.may_wait
    _thread.may_wait = False
    try:
        return function(*arguments)
    finally:
        _thread.may_wait = before


def anyway(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Call a function that waits, also inside of ``at_once``: it can run on this thread only."""
    before = _thread.may_wait
    _thread.may_wait = True
    try:
        return function(*arguments)
    finally:
        _thread.may_wait = before
