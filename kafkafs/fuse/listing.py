"""An open directory: lists its names as they were when reading began, page by page.

Each name comes with its inode and attributes (readdirplus). If a name has to wait for the disk, the
listing looks up the next ones with it, in several threads: the first lookup of a partition waits
for an fsync, and the disk does many of these at once.

The listing shows a name whose lookup fails, so that one damaged partition hides no other; opening
it gives the error.

No await comes between the first entry of a page and its reply: a change in between would come
before the kernel knows what to forget. A page ends before a name that has to wait; only the first
name of a page is waited for.

The listing leaves sizes that take long to measure to getattr: while a process reads a directory the
kernel lets nobody else look up names in it, unless FUSE_PARALLEL_DIROPS is on, which libfuse 3.14
never requests.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

import pyfuse3
import trio

from kafkafs.fuse.answers import Entries
from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.inodes import Directory, Node, inode_number
from storage.errors import StorageError
from storage.waiting import at_once

#: How many names to look up together when one has to wait, and in how many threads. A page has as
#: many entries at most.
LISTED_AT_ONCE = 256
LISTING_THREADS = 8

#: The errors of a lookup that the disk or the log causes.
_FAULTS = (StorageError, OSError)
_Found = dict[str, Node]
#: Calls a function in a worker thread.
InThread = Callable[[Callable[[Sequence[str]], _Found], Sequence[str]], Awaitable[_Found]]


class Listing:
    """See the module. Call `rewind` before the first page, and to read the directory again."""

    __slots__ = (
        *("_entries", "_in_thread", "_looked_up", "_names", "_process", "_tree"),
        "directory",
    )

    def __init__(
        self,
        tree: FileSystem,
        directory: Directory,
        process: int,
        in_thread: InThread,
        entries: Entries,
    ) -> None:
        """`process`: the one that lists, as `FileSystem.asking` has told."""
        self._tree = tree
        self.directory = directory
        self._process = process
        self._in_thread = in_thread
        self._entries = entries
        self._names: list[str] = []
        # The names before this number are looked up.
        self._looked_up = 0

    def rewind(self) -> None:
        """Take the names as they are now. BlockingIOError: again in a worker thread."""
        self._names = self.directory.names()
        self._looked_up = 0

    async def reply(self, start: int, token: pyfuse3.ReaddirToken) -> None:
        """Reply entries from number `start` on, at most as many as the kernel takes at once."""
        directory, names = self.directory.inode, self._names
        found: _Found = {}
        replied = 0
        for position in range(start, len(names)):
            name = names[position]
            try:
                node = found.get(name) or at_once(self._lookup, name)
                waits = not node.is_measured and position >= self._looked_up
            except FileNotFoundError:
                continue  # removed since
            except BlockingIOError:
                waits = True
            except _FAULTS:
                node, waits = self._unreadable(name), False
            if waits:
                if replied:
                    return
                self._looked_up = position + LISTED_AT_ONCE
                found = await self._look_up(names[position : self._looked_up])
                if name not in found:
                    continue
                node = found[name]
            try:
                entry = self._entries.first_of(node, node.listed_attributes())
            except _FAULTS:
                # The partition's past may have changed since the lookup. The kernel keeps its
                # attributes of that inode.
                node = self._unreadable(name)
                entry = self._entries.of(node.listed_attributes())
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, position + 1):
                return
            self._tree.answered(directory, name, self._process, node)
            replied += 1
            if replied == LISTED_AT_ONCE:
                return

    async def _look_up(self, names: Sequence[str]) -> _Found:
        """The nodes of the names that still exist."""
        found: _Found = {}
        waiting: list[str] = []
        failures: list[Exception] = []
        for name in names:
            # First on this thread, as `Directory.lookup` requires: the first lookup of a partition
            # makes its node here.
            try:
                node = at_once(self._lookup, name)
            except FileNotFoundError:
                continue
            except BlockingIOError:
                waiting.append(name)
            except _FAULTS:
                found[name] = self._unreadable(name)
            else:
                if node.is_measured:
                    found[name] = node
                else:
                    waiting.append(name)

        async def look_up(part: Sequence[str]) -> None:
            try:
                found.update(await self._in_thread(self._look_up_some, part))
            except Exception as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(min(LISTING_THREADS, len(waiting))):
                nursery.start_soon(look_up, waiting[number::LISTING_THREADS])
        if failures:
            raise failures[0]
        return found

    def _look_up_some(self, names: Sequence[str]) -> _Found:
        """As `_look_up`, in a worker thread."""
        found: _Found = {}
        for name in names:
            try:
                node = found[name] = self._lookup(name)
            except FileNotFoundError:
                continue
            except _FAULTS:
                found[name] = self._unreadable(name)
                continue
            node.measure()
        return found

    def _lookup(self, name: str) -> Node:
        return self._tree.lookup(self.directory.inode, name, self._process)

    def _unreadable(self, name: str) -> Node:
        """Stands for a name whose lookup fails. The kernel keeps nothing of it."""
        inode = inode_number(self.directory.inode, name, "unreadable")
        return TextFile(inode, _fail, lambda: (0, 0, 0), lambda: 0, prepare=lambda: None)


def _fail() -> NoReturn:
    raise OSError(errno.EIO, "cannot be read")
