"""Reads a file from the disk, not from the page cache.

The page cache would answer from memory with bytes that were written a while ago, and would drop
other processes' pages for bytes that are read once. So the file is read with O_DIRECT: the kernel
writes its dirty pages back, reads from the disk, and leaves the cache unchanged. On a file system
without it (EINVAL) the file is read through the cache.

Bytes that the disk cannot read (EIO) become zeros: no checksum matches them.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from functools import partial

from storage.files import Files

#: The multiple that O_DIRECT requires of positions, sizes and memory, on any disk.
BLOCK = 4096
_ROOM = 1 << 20


class DirectFile:
    """One file, open for reading. Not thread-safe; `close` it. Errors: OSError."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        try:
            self._fd = files.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd = files.open(path, os.O_RDONLY)
        self._room = mmap.mmap(-1, _ROOM)

    def close(self) -> None:
        self._files.close(self._fd)

    def settle(self) -> None:
        """Wait until all written bytes are on the disk."""
        self._files.fdatasync(self._fd)

    def read(self, position: int, size: int) -> memoryview:
        """Return `size` bytes from `position`, valid until the next call; fewer at the file's
        end.
        """
        start = position - position % BLOCK
        length = -(-(position + size - start) // BLOCK) * BLOCK
        if length > len(self._room):
            self._room = mmap.mmap(-1, length)
        view = memoryview(self._room)
        # Once: after the end of a growing file there may be more bytes now.
        count = fill_readable(partial(self._files.preadv_once, self._fd), view[:length], start)
        return view[position - start : max(min(position - start + size, count), position - start)]


def fill_readable(fill: Callable[[memoryview, int], int], view: memoryview, position: int) -> int:
    """Fill `view` from `position` of a file; bytes that the disk cannot read (EIO) become zeros.

    `fill(view, position)` reads, and returns the count of bytes, fewer than the view's size only at
    the file's end. Return the number of bytes of the view that the file has. Errors: OSError.
    """
    try:
        return fill(view, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    for at in range(0, len(view), BLOCK):
        block = view[at : at + BLOCK]
        try:
            count = fill(block, position + at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            block[:] = bytes(len(block))
        else:
            if count < len(block):
                return at + count
    return len(view)
