"""The real daemon on a disk whose fsync can be held.

Run as a program: ``python -m tests.kafkafs.fuse.slow_disk DATA GATE MOUNT``, in the foreground; it
prints ``mounted`` when it answers.  While there is a named pipe GATE, an fsync of a log of the
topic ``slow`` waits until somebody has opened the pipe for writing and closed it again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from kafkafs.fuse.daemon import Daemon, Mount
from kafkafs.fuse.notify import KernelNotices
from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from storage.files import Files
from storage.manager import LogManager


class SlowFiles(Files):
    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate = gate

    def _wait(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/slow-" in path and path.endswith(".log"):
            with contextlib.suppress(FileNotFoundError), open(self.gate, "rb") as gate:
                gate.read()

    def fsync(self, fd: int) -> None:
        self._wait(fd)
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._wait(fd)
        super().fdatasync(fd)


def main() -> None:
    data, gate, path = sys.argv[1:]
    events = Events(lambda: time.time_ns() // 1_000_000)
    notices = KernelNotices(events)
    manager = LogManager.open(data, files=SlowFiles(gate))
    tree = FileSystem(MountContext(manager, notices=notices, events=events))
    daemon = Daemon(
        Mount(data, path, MountOptions(), foreground=True),
        tree,
        notices,
        lambda: print("mounted", flush=True),
    )
    daemon.mount()
    sys.exit(daemon.run())


if __name__ == "__main__":
    main()
