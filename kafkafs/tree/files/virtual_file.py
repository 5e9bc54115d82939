"""Files whose text is made when they are opened.

A handle keeps its text, so that a reader sees one consistent state. stat makes the text, too, for
an exact size. The kernel caches nothing of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kafkafs.printable import lines
from kafkafs.tree.handles import Handle, WritingHandle
from kafkafs.tree.inodes import Attributes, Change, Node, file_mode
from storage.modes import Ownership
from storage.waiting import at_once, may_wait


class Content(Protocol):
    """What a virtual file shows: its length, and its bytes at any position."""

    def __len__(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


class Text:
    """Content in memory: lines of facts."""

    __slots__ = ("_data",)

    def __init__(self, text: str) -> None:
        self._data = lines(text).encode()

    def __len__(self) -> int:
        return len(self._data)

    def read(self, position: int, size: int) -> bytes:
        return self._data[position : position + size]


def text_table(columns: Sequence[tuple[str, int]], rows: Iterable[Sequence[object]]) -> list[str]:
    """A header line and rows, right-aligned in columns (name, width). The last column may have
    width 0, for text of any length.
    """
    widths = [width for _, width in columns]
    return [
        " ".join(str(value).rjust(width) for value, width in zip(row, widths, strict=True))
        for row in [[name for name, _ in columns], *rows]
    ]


class VirtualFile(Node):
    """A file whose short content `make` makes on the owner's thread. If that would have to wait,
    which is BlockingIOError, a worker thread makes it.

    `take(flags, reader)` makes the handle for writing, of a file that takes lines. `of`: a node
    that is replaced together with this file.
    """

    __slots__ = ("_make", "_mtime_ns", "_of", "_owner", "_path", "_take")

    def __init__(
        self,
        inode: int,
        make: Callable[[], Content],
        owner: Callable[[], Ownership],
        mtime_ns: Callable[[], int],
        *,
        take: Callable[[int, Handle | None], WritingHandle] | None = None,
        path: str = "",
        of: Node | None = None,
    ) -> None:
        super().__init__(inode)
        self._path = path
        self._of = of
        self._make = make
        self._owner = owner
        self._mtime_ns = mtime_ns
        self._take = take

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_replaced(self) -> bool:
        return self._of is not None and self._of.is_replaced

    def attributes(self) -> Attributes:
        return self._attributes(len(self._make()))

    def _attributes(self, size: int) -> Attributes:
        mode, uid, gid = self._owner()
        mtime_ns = self._mtime_ns()
        return Attributes(self.inode, file_mode(mode), size, mtime_ns, 1, uid, gid, 0, 0.0, 0.0)

    def listed_attributes(self) -> Attributes:
        try:
            return at_once(self.attributes)
        except BlockingIOError:
            return self._attributes(0)

    def set_attributes(self, change: Change) -> None:
        """`>` cuts a file that takes lines to nothing first, which means nothing here."""
        if self._take is None or not change.is_content:
            super().set_attributes(change)

    def open(self, flags: int) -> Handle:
        access = flags & os.O_ACCMODE
        if self._take is None and (access != os.O_RDONLY or flags & os.O_TRUNC):
            raise OSError(errno.EACCES, "this file is read-only")
        if self._take is None or access == os.O_RDONLY:
            return self._open_content()
        return self._take(flags, self._open_content() if access == os.O_RDWR else None)

    def _open_content(self) -> Handle:
        """A handle for reading."""
        return ContentHandle(self._make())


class ContentHandle(Handle):
    """A virtual file as it was at open."""

    __slots__ = ("_content",)

    direct_io = True

    def __init__(self, content: Content) -> None:
        self._content = content

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        return self._content.read(position, size)


class MadeFile(VirtualFile):
    """A file whose content takes long to make: a worker thread makes it for each open.

    The owner's thread calls `look` before that. While a text is open, stat shows the size of the
    text that was opened last; else the size of a text that is made for the stat.
    """

    __slots__ = ("_look", "_opened", "_size")

    def __init__(
        self,
        inode: int,
        make: Callable[[], Content],
        owner: Callable[[], Ownership],
        mtime_ns: Callable[[], int],
        *,
        look: Callable[[], object] = lambda: None,
        take: Callable[[int, Handle | None], WritingHandle] | None = None,
        path: str = "",
    ) -> None:
        super().__init__(inode, make, owner, mtime_ns, take=take, path=path)
        self._look = look
        # The sizes of the open handles' texts, and the size that a worker thread has found.
        self._opened: dict[Handle, int] = {}
        self._size: int | None = None

    def attributes(self) -> Attributes:
        if may_wait():
            self._size = len(self._make())
            return self._attributes(self._size)
        if self._opened:
            return self._attributes(next(reversed(self._opened.values())))
        size, self._size = self._size, None
        if size is None:
            self._look()
            raise BlockingIOError
        return self._attributes(size)

    def listed_attributes(self) -> Attributes:
        return self._attributes(0)

    def _open_content(self) -> Handle:
        if not may_wait():
            self._look()
            raise BlockingIOError
        return MadeHandle(self._opened, self._make)


class MadeHandle(ContentHandle):
    """Content that `opened` counts until release."""

    __slots__ = ("_opened",)

    def __init__(self, opened: dict[Handle, int], make: Callable[[], Content]) -> None:
        content = make()
        super().__init__(content)
        self._opened = opened
        opened[self] = len(content)

    def release(self) -> None:
        del self._opened[self]
