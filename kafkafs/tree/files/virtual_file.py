"""Files whose text is made when they are opened.

A handle keeps its text, so that a reader sees one consistent state. stat makes the text, too, for
an exact size. The kernel caches nothing of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol

from kafkafs.tree.handles import Handle, WritingHandle
from kafkafs.tree.inodes import Attributes, Change, Node, file_mode
from kafkafs.tree.permissions import Ownership
from storage.waiting import at_once, may_wait


class Content(Protocol):
    """What a virtual file shows: its length, and its bytes at any position."""

    def __len__(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


class Text:
    """Content in memory."""

    __slots__ = ("_data",)

    def __init__(self, text: str) -> None:
        self._data = text.encode()

    def __len__(self) -> int:
        return len(self._data)

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]


class VirtualFile(Node):
    """A read-only file.

    `make` makes its content on the owner's thread. `prepare` does before what waits for the disk,
    and raises BlockingIOError on the owner's thread.
    """

    __slots__ = ("_make", "_mtime_ns", "_owner", "_prepare")

    def __init__(
        self,
        inode: int,
        make: Callable[[], Content],
        owner: Callable[[], Ownership],
        mtime_ns: Callable[[], int],
        prepare: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(inode)
        self._make = make
        self._owner = owner
        self._mtime_ns = mtime_ns
        self._prepare = prepare

    def attributes(self) -> Attributes:
        if self._prepare is not None:
            self._prepare()
        # A worker thread makes no content: the owner's thread asks again after it.
        return self._attributes(len(self._make()) if not may_wait() else 0)

    def _attributes(self, size: int) -> Attributes:
        mode, uid, gid = self._owner()
        mtime_ns = self._mtime_ns()
        return Attributes(self.inode, file_mode(mode), size, mtime_ns, 1, uid, gid, 0, 0.0, 0.0)

    def listed_attributes(self) -> Attributes:
        try:
            return at_once(self.attributes)
        except BlockingIOError:
            return self._attributes(0)

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise OSError(errno.EACCES, "this file can only be read")
        return self.open_content()

    def open_content(self) -> Handle:
        """A handle for reading."""
        if self._prepare is not None:
            self._prepare()
        return ContentHandle(self._make, self._make() if not may_wait() else None)


class ContentHandle(Handle):
    """A virtual file as it was at open; at the first read where the open had to wait."""

    __slots__ = ("_content", "_make")

    direct_io = True

    def __init__(self, make: Callable[[], Content], content: Content | None) -> None:
        self._make = make
        self._content = content

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        if self._content is None:
            if may_wait():
                raise OSError(errno.EIO, "read by a worker thread before the owner's")
            self._content = self._make()
        return self._content.read(position, size)


class MadeFile(Node):
    """A read-only file whose text a worker thread makes for each open.

    The owner's thread calls `look` before. stat shows the size of the text that was opened last,
    while it is open; else of a text that is made for the stat.
    """

    __slots__ = ("_look", "_make", "_mtime_ns", "_opened", "_owner", "_size")

    def __init__(
        self,
        inode: int,
        make: Callable[[], str],
        owner: Callable[[], Ownership],
        mtime_ns: Callable[[], int],
        look: Callable[[], object],
    ) -> None:
        super().__init__(inode)
        self._make = make
        self._owner = owner
        self._mtime_ns = mtime_ns
        self._look = look
        # The sizes of the open handles' texts, and the size that a worker thread has found.
        self._opened: dict[Handle, int] = {}
        self._size: int | None = None

    def attributes(self) -> Attributes:
        if may_wait():
            self._size = len(Text(self._make()))
            return self._attributes(self._size)
        if self._opened:
            return self._attributes(next(reversed(self._opened.values())))
        size, self._size = self._size, None
        if size is None:
            self._look()
            raise BlockingIOError
        return self._attributes(size)

    def _attributes(self, size: int) -> Attributes:
        mode, uid, gid = self._owner()
        mtime_ns = self._mtime_ns()
        return Attributes(self.inode, file_mode(mode), size, mtime_ns, 1, uid, gid, 0, 0.0, 0.0)

    def listed_attributes(self) -> Attributes:
        return self._attributes(0)

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise OSError(errno.EACCES, "this file can only be read")
        if not may_wait():
            self._look()
            raise BlockingIOError
        return MadeHandle(self._opened, Text(self._make()))


class MadeHandle(Handle):
    """An open text, in memory until release."""

    __slots__ = ("_opened", "_text")

    direct_io = True

    def __init__(self, opened: dict[Handle, int], text: Text) -> None:
        self._opened = opened
        self._text = text
        opened[self] = len(text)

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        return self._text.read(position, size)

    def release(self) -> None:
        del self._opened[self]


class LineFile(VirtualFile):
    """A virtual file that also takes lines: `take(flags, reader)` makes the handle for them."""

    __slots__ = ("_take",)

    def __init__(
        self,
        inode: int,
        make: Callable[[], Content],
        owner: Callable[[], Ownership],
        mtime_ns: Callable[[], int],
        take: Callable[[int, Handle | None], WritingHandle],
    ) -> None:
        super().__init__(inode, make, owner, mtime_ns)
        self._take = take

    def set_attributes(self, change: Change) -> None:
        """`>` cuts it to nothing first, which means nothing here."""
        if change.mode is not None or change.uid is not None or change.gid is not None:
            super().set_attributes(change)

    def open(self, flags: int) -> Handle:
        access = flags & os.O_ACCMODE
        if access == os.O_RDONLY:
            return self.open_content()
        return self._take(flags, self.open_content() if access == os.O_RDWR else None)
