"""Mount points: what is mounted where, cleaning up after a killed daemon, unmounting.

All from /proc/self/mountinfo, without touching the mounted file system itself: a daemon must not
ask itself, and nobody should wait for a dead one. Imports neither pyfuse3 nor trio, so that
`kafkafs umount` starts quickly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import subprocess
from typing import NamedTuple

from kafkafs.config import PID_ATTRIBUTE

#: The file system's type in the mount table.
TYPE = "fuse.kafkafs"


class MountError(Exception):
    """What keeps a file system from being mounted or unmounted, in one line."""


class Mounted(NamedTuple):
    """A line of the mount table."""

    path: str
    device: str
    """MAJOR:MINOR"""
    type: str
    source: str


def find(path: str) -> Mounted | None:
    """What is mounted at `path` (absolute, without symbolic links); the topmost one."""
    found = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields = line.split(" ")
            if _unescape(fields[4]) == path:
                kind, source = fields[fields.index("-") + 1 :][:2]
                found = Mounted(path, fields[2], kind, _unescape(source))
    return found


def _unescape(text: str) -> str:
    """Blanks, tabs, newlines and backslashes stand in the mount table as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def is_dead(path: str) -> bool:
    """Whether a FUSE daemon that was mounted here has gone without unmounting."""
    try:
        # Not stat(), which the kernel may still answer from what it has cached.
        os.statvfs(path)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def clean(path: str) -> None:
    """Take away what killed daemons of ours have left at a mount point. MountError."""
    while (mounted := find(path)) is not None and mounted.type == TYPE and is_dead(path):
        unmount(path, lazy=True)


def unmount(path: str, *, lazy: bool = False) -> None:
    """Unmount a FUSE file system as its owner or as root. MountError, for example if it is busy.

    `lazy`: at once out of the tree of names, and for good when nobody uses it any more.
    """
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise MountError("there is no fusermount3 (Debian's package fuse3)") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines() or [f"{path}: fusermount3 failed"]
        raise MountError(reason[-1])


def unmount_and_wait(path: str) -> None:
    """Unmount, and return when the daemon has written everything and ended. MountError."""
    path = os.path.realpath(path)
    mounted = find(path)
    if mounted is None or mounted.type != TYPE:
        raise MountError(f"{path}: no kafkafs is mounted here")
    daemon = _open_daemon(path)
    try:
        unmount(path)
        if daemon is not None:
            select.select([daemon], [], [])
    finally:
        if daemon is not None:
            os.close(daemon)


def _open_daemon(path: str) -> int | None:
    """A descriptor that becomes readable when the daemon ends; None where it cannot be asked."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(os.getxattr(path, PID_ATTRIBUTE))
        return os.pidfd_open(pid)
    return None


def raise_read_ahead(device: str, kib: int) -> bool:
    """Let the kernel read `kib` KiB ahead on a mounted device; only root may."""
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as setting:
            setting.write(str(kib))
    except OSError:
        return False
    return True
