"""The ways in which programs read a file, each as a function of (descriptor, position, size).

All return the bytes up to the end of the file, at most `size`. If a page of a map cannot be read,
they fail with EFAULT, because the kernel copies the page. A direct access would end the process
with SIGBUS.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable

PIECE = 1 << 20
_PIPE = 1 << 16


def by_read(fd: int, position: int, size: int) -> bytes:
    """read(2) in pieces of what stdio takes, 4 KiB, or of a megabyte."""
    piece = 4096 if size < PIECE else PIECE
    os.lseek(fd, position, os.SEEK_SET)
    return _all(size, lambda done: os.read(fd, min(piece, size - done)))


def by_pread(fd: int, position: int, size: int) -> bytes:
    return _all(size, lambda done: os.pread(fd, min(PIECE, size - done), position + done))


def by_splice(fd: int, position: int, size: int) -> bytes:
    source, target = os.pipe()

    def piece(done: int) -> bytes:
        count = min(_PIPE, size - done)
        count = os.splice(fd, target, count, offset_src=position + done)
        return os.read(source, count) if count else b""

    try:
        return _all(size, piece)
    finally:
        os.close(source)
        os.close(target)


def by_sendfile(fd: int, position: int, size: int) -> bytes:
    """As `shutil.copyfile` and nginx."""
    return _through_memory(
        size, lambda memory, done: os.sendfile(memory, fd, position + done, size - done)
    )


def by_copy_file_range(fd: int, position: int, size: int) -> bytes:
    """Copy as cp does, also if the kernel refuses to copy between two file systems."""

    def copy(memory: int, done: int) -> int:
        try:
            return os.copy_file_range(fd, memory, size - done, offset_src=position + done)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            data = os.pread(fd, min(PIECE, size - done), position + done)
            return os.write(memory, data)

    return _through_memory(size, copy)


def by_shared_map(fd: int, position: int, size: int) -> bytes:
    return _mapped(fd, position, size, mmap.MAP_SHARED)


def by_private_map(fd: int, position: int, size: int) -> bytes:
    return _mapped(fd, position, size, mmap.MAP_PRIVATE)


def _mapped(fd: int, position: int, size: int, flags: int) -> bytes:
    size = min(size, os.fstat(fd).st_size - position)
    if size <= 0:
        return b""
    with (
        mmap.mmap(fd, position + size, flags=flags, prot=mmap.PROT_READ) as pages,
        memoryview(pages) as view,
        view[position:] as part,
    ):

        def copy(memory: int, done: int) -> int:
            with part[done:] as rest:
                return os.write(memory, rest)

        return _through_memory(size, copy)


def _all(size: int, piece: Callable[[int], bytes]) -> bytes:
    got = bytearray()
    while len(got) < size and (more := piece(len(got))):
        got += more
    return bytes(got)


def _through_memory(size: int, copy: Callable[[int, int], int]) -> bytes:
    """Return the bytes that `copy(descriptor, bytes done)` writes to a file in memory."""
    memory = os.memfd_create("read")
    try:
        done = 0
        while done < size and (count := copy(memory, done)):
            done += count
        return by_pread(memory, 0, done)
    finally:
        os.close(memory)


Way = Callable[[int, int, int], bytes]

READS: tuple[Way, ...] = (by_read, by_pread)
"""Exact on everything, also on what grows."""
WAYS: tuple[Way, ...] = (
    *(by_read, by_pread, by_splice, by_sendfile, by_copy_file_range),
    *(by_shared_map, by_private_map),
)
"""Exact on what cannot grow."""
