"""The last lookups of each process, of names that lead to what is there at that moment.

A program asks for a file's attributes before it opens it, and compares both (cp, tar, rsync). So a
lookup finds the same file as the last lookup of the same process, for `RECENT_S`, until the process
opens the file. If the process opens any file for writing, its next lookups find the present state,
with what it appends.

The kernel sends the number of the thread that asks; the threads of a process share its lookups. A
process of another pid namespace has no number here (0), and its lookups are not remembered.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable

from kafkafs.tree.inodes import Node

RECENT_S = 5.0
"""Seconds for which a lookup is remembered."""
RECENT = 4096
"""So many lookups are remembered, the last ones."""

ASKED_S = 0.1
"""Seconds: too short for the kernel to give the number of a thread to another one."""

_STATUS_BYTES = 1024

Lookup = tuple[int, int, str]
"""A process, a directory's inode, and a name in it."""


class RecentLookups:
    """See the module. On the owner's thread."""

    __slots__ = ("_asked", "_clock", "_last", "_lookups")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The thread that has asked last, its process, and when.
        self._asked = 0, 0, 0.0
        # The node that a lookup has found, and when; the latest last.
        self._lookups: OrderedDict[Lookup, tuple[Node, float]] = OrderedDict()
        # By process and inode: the last lookup that led there.
        self._last: dict[tuple[int, int], Lookup] = {}

    def __len__(self) -> int:
        return len(self._lookups)

    def process_of(self, thread: int) -> int:
        """Return `process_of(thread)`.

        It reads `/proc` once for a thread that asks again within `ASKED_S`, as `ls -l` does.
        """
        known, process, when = self._asked
        now = self._clock()
        if thread != known or now - when >= ASKED_S:
            process = process_of(thread)
        self._asked = thread, process, now
        return process

    def find(self, lookup: Lookup) -> Node | None:
        """The node to find again; None if the lookup has to find the present state."""
        node, when = self._lookups.get(lookup, (None, 0.0))
        if node is None or self._clock() - when >= RECENT_S or not node.is_current():
            return None
        return node

    def note(self, lookup: Lookup, node: Node) -> None:
        """The kernel has the answer to a lookup of the process."""
        self._drop(lookup)
        self._lookups[lookup] = node, self._clock()
        self._last[lookup[0], node.inode] = lookup
        if len(self._lookups) > RECENT:
            self._drop(next(iter(self._lookups)))

    def opened(self, process: int, node: Node) -> None:
        """The process has opened what its last lookup has found."""
        lookup = self._last.get((process, node.inode))
        if lookup is not None:
            self._drop(lookup)

    def writes(self, process: int) -> None:
        """The process has opened a file to write."""
        for lookup in [each for each in self._lookups if each[0] == process]:
            self._drop(lookup)

    def expire(self) -> None:
        """Drop the lookups that are too old; called about once a second."""
        before = self._clock() - RECENT_S
        while self._lookups:
            lookup, (_, when) = next(iter(self._lookups.items()))
            if when > before:
                break
            self._drop(lookup)

    def _drop(self, lookup: Lookup) -> None:
        node, _ = self._lookups.pop(lookup, (None, 0.0))
        if node is not None and self._last.get((lookup[0], node.inode)) == lookup:
            del self._last[lookup[0], node.inode]


def process_of(thread: int) -> int:
    """The process of a thread that waits for an answer; 0 where it is not known."""
    if not thread:
        return 0
    try:
        fd = os.open(f"/proc/{thread}/status", os.O_RDONLY)
    except OSError:
        # It has been killed, or this user may not look.
        return thread
    try:
        status = os.read(fd, _STATUS_BYTES)
    except OSError:
        return thread
    finally:
        os.close(fd)
    _, found, rest = status.partition(b"\nTgid:")
    return int(rest.split(None, 1)[0]) if found else thread
