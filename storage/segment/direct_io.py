"""Reads a file as it is on the disk.

The page cache would answer from memory what was written a while ago, and would drop pages that
others read for those that are read once.  So the file is read with O_DIRECT: the kernel writes its
dirty pages back, reads from the disk, and leaves the cache as it is.  On a file system without it
(EINVAL) the file is read through the cache.

What the disk refuses to read (EIO) reads as zeros: no checksum fits them.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from functools import partial

from storage.files import Files

#: What O_DIRECT wants positions, sizes and memory to be multiples of, on any disk.
BLOCK = 4096
_ROOM = 1 << 20


class DirectFile:
    """One file, open for reading.  For one thread; ``close`` it.  OSError."""

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
        """Wait until all that was written is on the disk."""
        self._files.fdatasync(self._fd)

    def read(self, position: int, size: int) -> memoryview:
        """``size`` bytes from ``position``, valid until the next call; fewer at the file's end."""
        start = position - position % BLOCK
        length = -(-(position + size - start) // BLOCK) * BLOCK
        if length > len(self._room):
            self._room = mmap.mmap(-1, length)
        view = memoryview(self._room)
        # Once: behind the end of a file that is growing there may be more by now.
        count = fill_readable(partial(self._files.preadv_once, self._fd), view[:length], start)
        return view[position - start : max(min(position - start + size, count), position - start)]


def fill_readable(fill: Callable[[memoryview, int], int], view: memoryview, position: int) -> int:
    """Fill ``view`` from ``position`` of a file; what the disk refuses to read (EIO) becomes zeros.

    ``fill(view, position)`` reads, and returns the count of bytes, fewer than the view's size only
    at the file's end.  Returns how many bytes of the view the file has.  OSError.
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
