"""A disk that fails one operation, or is full from some operation on.

Counted are the operations that change something. A full disk (ENOSPC) fails those that need room,
from the given one on, and one that became read-only (EROFS) fails all from there on; any other
error hits one operation only.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.crash.moments import Moments

_GROWS = ("create", "pwrite", "mkdir")


class FailingDisk(Moments):
    """See the module.  ``failed``: the first operation that did."""

    def __init__(self, root: str, visit: Callable[[str], None] | None = None) -> None:
        super().__init__(root, visit or (lambda _: None))
        self.armed = False
        self.fail_at = 0
        self.error = 0
        self.kind = ""
        self.failed = ""
        self.done = 0

    def fail_from_now(self, error: int, at: int, *, kind: str = "") -> None:
        """Fail the ``at``-th operation from now on with ``error``; ``at`` 0: no more.

        Only the operations are counted whose name and path contain ``kind``.
        """
        self.error, self.fail_at, self.kind, self.done = error, at, kind, 0

    def _mutate(self, what: str, path: str) -> None:
        if self.fail_at:
            lasts = self.error in (errno.ENOSPC, errno.EROFS)
            if self.error != errno.ENOSPC or what.startswith(_GROWS):
                has_begun = self.done >= self.fail_at
                is_counted = self.kind in f"{what} {path}"
                self.done += is_counted
                if (is_counted and self.done == self.fail_at) or (lasts and has_begun):
                    self.failed = self.failed or f"{what} {os.path.relpath(path, self.root)}"
                    raise OSError(self.error, os.strerror(self.error), path)
        super()._mutate(what, path)


def each_failure(built: Path, data: Path) -> Iterator[tuple[int, FailingDisk]]:
    """Copy ``built`` to ``data`` and yield a number and a disk, until no operation has failed.

    The caller lets the operation of this number fail.
    """
    for at in itertools.count(1):
        shutil.copytree(built, data)
        disk = FailingDisk(str(data))
        yield at, disk
        shutil.rmtree(data)
        if not disk.failed:
            return


def left_by_a_swap(directory: Path) -> frozenset[str]:
    """Return the names of the files in which a swap stands still; none if it left nothing."""
    names = [name for name in os.listdir(directory) if not name.endswith(".tmp")]
    is_left = any(name.endswith((".cleaned", ".swap", ".deleted")) for name in names)
    return frozenset(names if is_left else ())
