"""Starts threads. A limit of processes or of memory may allow no more of them.

`NoThread` is raised then, at once, before any of the work has begun. Work that is only shared among
threads goes on in the threads that there are (`side_by_side`).
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

#: Bytes that a thread needs to begin, beside its stack; and its stack where that has no limit.
_ROOM = 1 << 20
_STACK = 2 << 20


def check_room() -> None:
    """NoThread where a thread could be created but would find no memory to begin.

    CPython waits for ever for such a thread to begin. Only a limit of the address space causes it.
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
    """Let a pool call a function. Errors: NoThread: it is never called."""
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
    """Call a function for each item, in this thread and `threads - 1` more, or as many as there can
    be; returns the results in the order of the items.

    After a failure no further item is begun; it is raised when those that were begun have ended.
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
