"""Starts threads, and reports at once if a limit of processes or memory allows no more.

`NoThread` is raised before any of the work has begun. Work that several threads share continues
with fewer threads (`side_by_side`).
"""

from __future__ import annotations

import mmap
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import TypeVar

from storage.errors import NoThread

T = TypeVar("T")
R = TypeVar("R")

#: Bytes that a thread needs besides its stack, and its stack if that has no limit.
_ROOM = 1 << 20
_STACK = 2 << 20


def check_room() -> None:
    """Check that a new thread would find the memory to begin. Errors: NoThread.

    CPython waits without end for a thread that has too little. Only a limit of the address space
    causes that.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if stack == resource.RLIM_INFINITY:
        stack = _STACK
    try:
        mmap.mmap(-1, stack + _ROOM).close()
    except OSError:
        raise NoThread from None


def start(thread: threading.Thread) -> None:
    """Start a thread. Errors: NoThread."""
    check_room()
    try:
        thread.start()
    except RuntimeError:
        raise NoThread from None


def submit(pool: Executor, function: Callable[[], R]) -> Future[R]:
    """Let a pool call a function. Errors: NoThread; the function is never called."""
    refused = False

    def call() -> R:
        if refused:
            raise NoThread  # the pool has kept the call, for a thread that becomes idle
        return function()

    try:
        check_room()
        return pool.submit(call)
    except (NoThread, RuntimeError):
        refused = True
        raise NoThread from None


def side_by_side(
    function: Callable[[T], R], items: Iterable[T], threads: int, name: str
) -> list[R]:
    """Call a function for each item, in this thread and at most `threads - 1` more; return the
    results in the order of the items.

    After a failure no further item is begun. The failure is raised when the begun ones have ended.
    """
    todo = deque(enumerate(items))
    results: dict[int, R] = {}
    failures: dict[int, Exception] = {}

    def work() -> None:
        while todo:
            try:
                number, item = todo.popleft()
            except IndexError:
                return  # another thread has taken the last one
            try:
                results[number] = function(item)
            except Exception as error:
                failures[number] = error
                todo.clear()

    helpers: list[threading.Thread] = []
    try:
        for number in range(1, min(threads, len(todo))):
            helper = threading.Thread(target=work, name=f"{name}_{number}")
            try:
                start(helper)
            except NoThread:
                break
            helpers.append(helper)
        work()
    finally:
        todo.clear()  # where this thread was interrupted
        for helper in helpers:
            helper.join()
    if failures:
        raise failures[min(failures)]
    return [results[number] for number in sorted(results)]
