"""Files whose text is made when they are opened.

An open file has one text, so that a reader sees one consistent state. stat makes the text, too, for
an exact size. The kernel caches nothing of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from kafkafs.printable import lines
from kafkafs.tree.files.control_file import Take
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Attributes, Change, Node, file_mode
from kafkafs.tree.partition.partition import Partition
from storage.modes import Ownership
from storage.waiting import at_once, may_wait


class Content(Protocol):
    """A text that is made in parts: its length, and its bytes at any position."""

    def __len__(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


class Text:
    """A text in memory."""

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


class TextFile(Node):
    """A file whose text `make` makes for each open and each stat.

    The loop thread calls `make`. If that raises BlockingIOError, a worker thread calls it. With
    `prepare` the text takes long to make: the loop thread calls `prepare`, and a worker thread
    calls `make`. While such a text is open, stat shows the size of the text that was opened last.

    `take(flags, reader)` makes the handle for writing, of a file that takes lines. `of`: the
    partition that is replaced together with this file.
    """

    __slots__ = ("_make", "_mtime_ns", "_of", "_opened", "_owner", "_path", "_prepare", "_take")

    def __init__(
        self,
        inode: int,
        make: Callable[[], str | Content] | None,
        owner: Callable[[], Ownership],
        mtime_ns: Callable[[], int],
        *,
        prepare: Callable[[], object] | None = None,
        take: Take | None = None,
        path: str = "",
        of: Partition | None = None,
    ) -> None:
        super().__init__(inode)
        self._path = path
        self._of = of
        self._make = make
        self._owner = owner
        self._mtime_ns = mtime_ns
        self._prepare = prepare
        self._take = take
        # The open texts that took long to make, the latest last.
        self._opened: dict[TextHandle, None] = {}

    @property
    def path(self) -> str:
        return self._path

    @property
    def is_replaced(self) -> bool:
        return self._of is not None and self._of.is_replaced

    def _made(self) -> Content:
        """The text as it is now. BlockingIOError."""
        if self._prepare is not None and not may_wait():
            self._prepare()
            raise BlockingIOError
        made = "" if self._make is None else self._make()
        return Text(made) if isinstance(made, str) else made

    def attributes(self) -> Attributes:
        if self._opened and not may_wait():
            return self._attributes(len(next(reversed(self._opened)).content))
        return self._attributes(len(self._made()))

    def _attributes(self, size: int) -> Attributes:
        mode, uid, gid = self._owner()
        mtime_ns = self._mtime_ns()
        return Attributes(self.inode, file_mode(mode), size, mtime_ns, 1, uid, gid, 0, 0.0, 0.0)

    def listed_attributes(self) -> Attributes:
        if self._prepare is not None:
            return self._attributes(0)
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
        if self._make is None and access != os.O_WRONLY:
            raise OSError(errno.EACCES, "this file is write-only")
        if self._take is None or access == os.O_RDONLY:
            return self._open_text()
        return self._take(flags, self._open_text() if access == os.O_RDWR else None)

    def _open_text(self) -> Handle:
        """A handle for reading."""
        handle = TextHandle(self._made(), self._opened)
        if self._prepare is not None:
            self._opened[handle] = None
        return handle


class TextHandle(Handle):
    """The text as it was at open. `opened` has the open texts, perhaps this one."""

    __slots__ = ("_opened", "content")

    direct_io = True

    def __init__(self, content: Content, opened: dict[TextHandle, None]) -> None:
        self.content = content
        self._opened = opened

    @property
    def text_bytes(self) -> int:
        return len(self.content) if isinstance(self.content, Text) else 0

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        return self.content.read(position, size)

    def release(self) -> None:
        self._opened.pop(self, None)
