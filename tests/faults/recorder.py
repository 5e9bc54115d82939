"""Records which functions each test file reaches: `reach` copies this module into the code.

A plugin of pytest writes the name of the running test file into a file that other processes map:
daemons, Spark workers and the fork server often outlive the test file that started them. Each
process appends to a file of its own at once, so that nothing is lost if it is killed.
"""

from __future__ import annotations

import mmap
import os

# The functions of `os` before a test replaces them.
from os import O_APPEND, O_CREAT, O_RDONLY, O_RDWR, O_WRONLY, close, getpid, open, write

VARIABLE = "KAFKAFS_REACH"
"""An environment variable: the folder of the records. The plugin changes it to the mapped file."""
SIZE = 200
_current: mmap.mmap | None = None
_recorded: set[tuple[int, bytes]] = set()


def reached(function: int) -> None:
    """Record a function once for each process and test file."""
    global _current
    if _current is None:
        path = os.environ.get(VARIABLE, "")
        if not path.endswith(".current"):
            return
        fd = open(path, O_RDONLY)
        _current = mmap.mmap(fd, SIZE, access=mmap.ACCESS_READ)
        close(fd)
    record = (function, _current[:])
    if record in _recorded:
        return
    _recorded.add(record)
    try:
        path = os.path.join(os.path.dirname(os.environ[VARIABLE]), f"{getpid()}.reached")
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0o666)
        try:
            write(fd, b"%d %s\n" % (function, record[1].rstrip(b"\0")))
        finally:
            close(fd)
    except (OSError, KeyError):
        pass  # a test has taken the disk, the descriptors or the environment away


def pytest_configure() -> None:
    global _current
    if (folder := os.environ.get(VARIABLE)) is not None:
        if folder.endswith(".current"):  # of the process that started this one
            folder = os.path.dirname(folder)
        path = os.environ[VARIABLE] = os.path.join(folder, f"{getpid()}.current")
        fd = open(path, O_RDWR | O_CREAT, 0o644)
        os.truncate(fd, SIZE)
        _current = mmap.mmap(fd, SIZE)
        close(fd)


def pytest_runtest_logstart(nodeid: str) -> None:
    if _current is not None:
        _current[:] = nodeid.partition("::")[0].encode().ljust(SIZE, b"\0")
