"""The same file system as `limit.c` in stock pyfuse3: a peer without our session loop.

    stock_peer.py [-t SECONDS] MOUNT_POINT FILE...

FILE is `+NAME=PATH` (appended to with pwrite, read with pread) or `NAME=PATH[,PATH...]` (served
from the memory-mapped bytes of files, back to back). It stays in the foreground; SIGTERM unmounts.
It has no flush, no extended attributes and no directories, and checks nothing.
"""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import signal
import stat
from collections.abc import Sequence

import pyfuse3
import trio
from pyfuse3 import FileHandleT, FileNameT, FlagT, InodeT, RequestContext

FIRST = pyfuse3.ROOT_INODE + 1


class ServedFile:
    """Files in memory, back to back."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.parts: list[memoryview] = []
        for path in paths:
            with open(path, "rb") as file:
                self.parts.append(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
        self.size = sum(map(len, self.parts))

    def read(self, position: int, size: int) -> bytes | memoryview:
        found: list[memoryview] = []
        for part in self.parts:
            if size and position < len(part):
                found.append(part[position : position + size])
                size -= len(found[-1])
                position = 0
            else:
                position -= len(part)
        return found[0] if len(found) == 1 else b"".join(found)

    def append(self, data: bytes) -> int:
        raise pyfuse3.FUSEError(errno.EPERM)


class AppendedFile:
    """A file that grows."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.size = os.fstat(self.fd).st_size

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position)

    def append(self, data: bytes) -> int:
        written = os.pwrite(self.fd, data, self.size)
        self.size += written
        return written


def file_of(spec: str) -> tuple[FileNameT, ServedFile | AppendedFile]:
    name, paths = spec.split("=", 1)
    if name.startswith("+"):
        return FileNameT(os.fsencode(name[1:])), AppendedFile(paths)
    return FileNameT(os.fsencode(name)), ServedFile(paths.split(","))


class Peer(pyfuse3.Operations):
    """One directory of files, with inodes counted from `FIRST`."""

    def __init__(self, files: dict[FileNameT, ServedFile | AppendedFile], timeout: float) -> None:
        super().__init__()
        self.numbers = {name: InodeT(FIRST + n) for n, name in enumerate(files)}
        self.files = list(files.values())
        self.timeout = timeout

    def attributes(self, inode: InodeT) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_uid = os.getuid()
        entry.st_gid = os.getgid()
        entry.attr_timeout = entry.entry_timeout = self.timeout
        if inode == pyfuse3.ROOT_INODE:
            entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o755)
        else:
            entry.st_mode = pyfuse3.ModeT(stat.S_IFREG | 0o644)
            entry.st_size = self.files[inode - FIRST].size
            entry.st_blocks = (entry.st_size + 511) // 512
        return entry

    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name not in self.numbers:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self.attributes(self.numbers[name])

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.EntryAttributes:
        return self.attributes(inode)

    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> pyfuse3.FileInfo:
        reads = flags & os.O_ACCMODE == os.O_RDONLY
        return pyfuse3.FileInfo(fh=FileHandleT(inode), keep_cache=reads, direct_io=not reads)

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        # The method also accepts a memoryview; its declared type is too narrow.
        return self.files[fh - FIRST].read(off, size)  # type: ignore[return-value]

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return self.files[fh - FIRST].append(buf)

    async def release(self, fh: FileHandleT) -> None:
        pass


async def serve() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


def main() -> None:
    parser = argparse.ArgumentParser(description="limit.c in stock pyfuse3")
    parser.add_argument("-t", dest="timeout", type=float, default=3600, metavar="SECONDS")
    parser.add_argument("mount_point")
    parser.add_argument("files", nargs="+", metavar="[+]NAME=PATH")
    arguments = parser.parse_args()
    files = dict(map(file_of, arguments.files))
    options = {*pyfuse3.default_options, "fsname=stock_peer"}
    pyfuse3.init(Peer(files, arguments.timeout), arguments.mount_point, options)
    try:
        trio.run(serve)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
