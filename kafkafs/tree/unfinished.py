"""The bytes that writers leave with their open files: lines without a newline, parts of batches.

They stay in memory until their ends come, and anybody may leave any number of them. So they count
against the user who has opened the file, and against all users together.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from typing import Final

IN_ALL: Final = 4
"""All users together may leave so many times what one may."""


class UnfinishedError(OSError):
    """No room for what is unfinished (ENOMEM): what there was of the line or batch is dropped."""


class Unfinished:
    """See the module. `limit`: the most bytes of one user. Any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        """Bytes of all users."""
        self._of: Counter[int] = Counter()
        # `.config` and control files are written in worker threads.
        self._lock = threading.Lock()

    def check(self, uid: int, more: int) -> None:
        """UnfinishedError unless a user may leave `more` bytes."""
        for who, held, limit in (
            (f"user {uid}", self._of[uid], self.limit),
            ("all users", self.total, self.limit * IN_ALL),
        ):
            if held + more > limit:
                raise UnfinishedError(
                    errno.ENOMEM,
                    f"unfinished lines of {who} would take {held + more} bytes, of {limit}: end "
                    "them with a newline, close files, or mount with more (-o memory=BYTES)",
                )

    def add(self, uid: int, more: int) -> None:
        """Count `more` bytes of a user, or fewer than before."""
        with self._lock:
            self.total += more
            self._of[uid] += more
            if not self._of[uid]:
                del self._of[uid]
