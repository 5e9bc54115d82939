"""A file system that stores nothing, to load the session loop alone.

Run as a program: `python -m tests.kafkafs.fuse.bare_file_system MOUNT [options]`. It prints
`mounted` when it answers and, at its end, one line of JSON with what it saw. `MOUNT/file` takes
every write and reads as zeros. `MOUNT/slow` answers from a worker thread after `--slow`
milliseconds. A write to `MOUNT/cancel` cancels the main task. `--watch` runs a task that sleeps
over and over and lists how late it wakes. `--linger` keeps the connection and the process after the
unmount. `--stock` is pyfuse3's own loop, `--without-trio` the fall-back to it.

The program is a process of its own, because a process cannot use a file system that it serves.
"""

from __future__ import annotations

import argparse
import errno
import json
import signal
import stat
import sys
import time
from typing import Any

import pyfuse3
import trio

from kafkafs.fuse import mount_point, session_loop

NAMES = {b"file": 2, b"slow": 3, b"cancel": 4}


class BareFileSystem(pyfuse3.Operations):
    """All handlers answer at once, except those of `slow`."""

    def __init__(self, spinner: session_loop.Spinner, slow_s: float) -> None:
        super().__init__()
        self.spinner = spinner
        self.slow_s = slow_s
        self.scope = trio.CancelScope()
        self.requests = 0
        self.zeros = bytes(1 << 20)
        self.entries = {1: self._attributes(1)}
        self.entries.update({inode: self._attributes(inode) for inode in NAMES.values()})

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o644
        entry.st_size = 1 << 40
        entry.attr_timeout = entry.entry_timeout = 3600
        return entry

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        inode = NAMES.get(name)
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self.entries[inode]

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self.entries[inode]

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        await self._answer(fh)
        return self.zeros[:size]

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        await self._answer(fh)
        return len(buf)

    async def _answer(self, fh: int) -> None:
        self.requests += 1
        if fh == NAMES[b"slow"]:
            with self.spinner.elsewhere():
                await trio.to_thread.run_sync(time.sleep, self.slow_s)
        elif fh == NAMES[b"cancel"]:
            self.scope.cancel()

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        pass


async def watch(late_ms: list[float]) -> None:
    """Sleep over and over, and list how late each waking is, in milliseconds of processor time.

    Under full load, the loop uses all the time that the machine gives it.
    """
    while True:
        due = time.thread_time() + 0.01
        await trio.sleep(0.01)
        late_ms.append((time.thread_time() - due) * 1000)


async def serve(operations: BareFileSystem, facts: dict[str, Any], watched: bool) -> None:
    with operations.scope:
        async with trio.open_nursery() as nursery:
            if watched:
                nursery.start_soon(watch, facts["late_ms"])
            print("mounted", flush=True)
            await pyfuse3.main(session_loop.MIN_TASKS, session_loop.MAX_TASKS)
            nursery.cancel_scope.cancel()
    facts["cancelled"] = operations.scope.cancelled_caught


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mount")
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--without-trio", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--linger", action="store_true")
    parser.add_argument("--subtype", action="append", default=[])
    parser.add_argument("--slow", type=float, default=50.0)
    arguments = parser.parse_args()
    said: list[str] = []
    spinner = session_loop.Spinner()
    operations = BareFileSystem(spinner, arguments.slow / 1000)
    if arguments.without_trio:
        # A later pyfuse3 may have no attribute `trio`. Its own loop still works.
        class Later:
            __version__ = "9.9"

        session_loop.install(Later, spinner, said.append)
    elif not arguments.stock:
        session_loop.install(pyfuse3, spinner, said.append)
    facts: dict[str, Any] = {"late_ms": []}
    options = {"fsname=bare", "default_permissions"}
    options.update(f"subtype={name}" for name in arguments.subtype)
    if "kafkafs" in arguments.subtype:
        mount_point.take_name()
    pyfuse3.init(operations, arguments.mount, options)
    try:
        trio.run(serve, operations, facts, arguments.watch)
        if arguments.linger:
            signal.pause()
    finally:
        pyfuse3.close()
    facts.update(
        said=said,
        requests=operations.requests,
        visits=spinner.visits,
        sleeps=spinner.sleeps,
        cpu_s=time.process_time(),
    )
    json.dump(facts, sys.stdout)
    print()


if __name__ == "__main__":
    main()
