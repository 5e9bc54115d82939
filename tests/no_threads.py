"""A system that lets no thread start: each wants a stack for which there is no room."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import trio

ENDLESS = 1 << 47


@contextlib.contextmanager
def no_threads() -> Iterator[None]:
    """Threads that there are stay."""
    threading.stack_size(ENDLESS)
    try:
        yield
    finally:
        threading.stack_size(0)


@contextlib.contextmanager
def no_free_threads() -> Iterator[None]:
    """Trio's, which wait to be used again, have something else to do, too."""
    over = threading.Event()
    with no_threads():
        try:
            with contextlib.suppress(RuntimeError):
                while True:
                    trio.lowlevel.start_thread_soon(over.wait, lambda _: None)
            yield
        finally:
            over.set()
