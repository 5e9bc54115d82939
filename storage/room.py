"""Room on a disk for operations that must not fail when it is full.

`Files.room` is a `Room` without a reserve, or the reserve of the directory (`directory.reserve`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a disk, or of a user's share of it, that has no room left."""

T = TypeVar("T")


class Room:
    """A disk without a reserve."""

    def with_reserve(self, operation: Callable[[], T]) -> T:
        """Call an operation that frees space or records what is deleted."""
        return operation()

    def check(self) -> None:
        """Raise OSError (ENOSPC) if only the reserve is left."""
