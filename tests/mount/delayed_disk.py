"""A file system that shows one directory, and writes to it late: a slow disk below a partition.

Run as ``python -m tests.mount.delayed_disk DIRECTORY MOUNT_POINT``. Each write takes `DELAY_S`.
After the line "hold" on standard input the next write says "held" on standard output, and it and
later ones wait for the line "release". The end of standard input ends it.
"""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyfuse3
import trio

from tests.mount.steering import ROOT
from tests.waits import HANG_S

#: Longer than an append to a log that is not slow.
DELAY_S = 0.03


class DelayedDisk:
    """The process; used as `with` block."""

    def __init__(self, directory: Path, path: Path) -> None:
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mount.delayed_disk", str(directory), str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.wait("mounted")

    def wait(self, word: str) -> None:
        """Return when it says so."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode().strip()
        assert said == word

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def __enter__(self) -> DelayedDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


class FlatDirectory(pyfuse3.Operations):
    """The files of one directory, each through one descriptor."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._fds: dict[int, int] = {pyfuse3.ROOT_INODE: self._root}
        self._inodes: dict[str, int] = {}
        self._newest = pyfuse3.ROOT_INODE
        self.released = trio.Event()
        self.released.set()
        self._has_said = True

    def hold(self) -> None:
        self.released = trio.Event()
        self._has_said = False

    # -- names ---------------------------------------------------------------------------------

    def _known(self, name: str, flags: int = 0, mode: int = 0o600) -> pyfuse3.EntryAttributes:
        if name in (".", ".."):
            return self._attributes(pyfuse3.ROOT_INODE)
        if name not in self._inodes:
            fd = os.open(name, os.O_RDWR | flags, mode, dir_fd=self._root)
            self._newest += 1
            self._fds[self._newest] = fd
            self._inodes[name] = self._newest
        return self._attributes(self._inodes[name])

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        found, entry = os.fstat(self._fds[inode]), pyfuse3.EntryAttributes()
        entry.st_ino = inode
        for name in ("mode", "size", "nlink", "uid", "gid", "blocks", "mtime_ns", "ctime_ns"):
            setattr(entry, f"st_{name}", getattr(found, f"st_{name}"))
        entry.attr_timeout = entry.entry_timeout = 0
        return entry

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        try:
            return self._known(os.fsdecode(name))
        except FileNotFoundError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        entry = self._known(os.fsdecode(name), os.O_CREAT, mode)
        return pyfuse3.FileInfo(fh=entry.st_ino), entry

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        os.unlink(os.fsdecode(name), dir_fd=self._root)
        self._inodes.pop(os.fsdecode(name), None)

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        old, new = os.fsdecode(name_old), os.fsdecode(name_new)
        os.rename(old, new, src_dir_fd=self._root, dst_dir_fd=self._root)
        self._inodes[new] = self._inodes.pop(old)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for number, name in enumerate(sorted(os.listdir(self._root)), 1):
            if number > start_id and not pyfuse3.readdir_reply(
                token, os.fsencode(name), self._known(name), number
            ):
                return

    async def releasedir(self, fh: int) -> None: ...

    async def fsyncdir(self, fh: int, datasync: bool) -> None: ...

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found, answer = os.fstatvfs(self._root), pyfuse3.StatvfsData()
        for name in ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail"):
            setattr(answer, f"f_{name}", getattr(found, f"f_{name}"))
        return answer

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None: ...

    # -- files ---------------------------------------------------------------------------------

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(inode)

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        fd = self._fds[inode]
        if fields.update_size:
            os.ftruncate(fd, attr.st_size)
        if fields.update_mode:
            os.fchmod(fd, attr.st_mode & 0o7777)
        if fields.update_mtime:
            os.utime(fd, ns=(attr.st_atime_ns, attr.st_mtime_ns))
        return self._attributes(inode)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_TRUNC:
            os.ftruncate(self._fds[inode], 0)
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(self._fds[fh], size, off)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        await trio.sleep(DELAY_S)
        if not self._has_said:
            self._has_said = True
            print("held", flush=True)
        # If a test never releases the write, it shall fail, not hang.
        with trio.move_on_after(HANG_S):
            await self.released.wait()
        return os.pwrite(self._fds[fh], buf, off)

    async def flush(self, fh: int) -> None: ...

    async def fsync(self, fh: int, datasync: bool) -> None: ...

    async def release(self, fh: int) -> None: ...


async def serve(disk: FlatDirectory) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        print("mounted", flush=True)
        while word := await trio.to_thread.run_sync(sys.stdin.readline):
            if word == "hold\n":
                disk.hold()
            else:
                disk.released.set()
        disk.released.set()
        pyfuse3.terminate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("path")
    arguments = parser.parse_args()
    disk = FlatDirectory(arguments.directory)
    pyfuse3.init(disk, arguments.path, {"fsname=delayed", "default_permissions"})
    try:
        trio.run(serve, disk)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
