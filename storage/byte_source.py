"""Bytes that can be read at any position, of an open file or another source."""

from __future__ import annotations

from typing import Protocol

from storage.files import Files


class ByteSource(Protocol):
    """Bytes that can be read at any position."""

    @property
    def path(self) -> str:
        """The name that errors give."""
        ...

    def size(self) -> int:
        """Return the number of bytes now."""
        ...

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        """Return `size` bytes from `position`; fewer only at the end."""
        ...


class FileSource:
    """An open file as a byte source; the caller closes it."""

    __slots__ = ("_fd", "_files", "path")

    def __init__(self, files: Files, fd: int, path: str) -> None:
        self._files = files
        self._fd = fd
        self.path = path

    def size(self) -> int:
        return self._files.size(self._fd)

    def read_at(self, position: int, size: int) -> bytes:
        return self._files.pread(self._fd, size, position)
