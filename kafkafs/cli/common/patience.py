"""Waits for partitions that a mount is still measuring."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_AGAIN_S = 0.1

_T = TypeVar("_T")


def patiently(call: Callable[[], _T]) -> _T:
    """Call again while a partition is measured."""
    while True:
        try:
            return call()
        except BlockingIOError:
            time.sleep(_AGAIN_S)
