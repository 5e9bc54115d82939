"""The mount table: which file systems are mounted where.

It reads /proc and touches no mount of kafkafs, whose daemon may not answer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: The type of a kafkafs in the mount table.
TYPE = "fuse.kafkafs"
#: How many symbolic links the kernel follows in a path.
_MAX_LINKS = 40


class Mounted(NamedTuple):
    """A line of the mount table."""

    path: str
    device: str
    """MAJOR:MINOR"""
    type: str
    source: str
    user: int
    """The uid of the user who has mounted a FUSE file system; else -1."""
    read_only: bool
    id: str
    """The kernel's number of the mount, in all mount namespaces."""


def mounts(process: str = "self") -> Iterator[Mounted]:
    """The mount table, as a process sees it; of several mounts at one place the topmost comes
    last. OSError.
    """
    # Paths of the command line are decoded in the locale's encoding, too.
    encoding = sys.getfilesystemencoding()
    name = f"/proc/{process}/mountinfo"
    with open(name, encoding=encoding, errors="surrogateescape", newline="\n") as table:
        for line in table:
            fields = line.split(" ")
            kind, source, options = fields[fields.index("-") + 1 :][:3]
            user = re.search(r"\buser_id=(\d+)", options)
            who = int(user[1]) if user else -1
            read_only = "ro" in fields[5].split(",")
            path, source = _unescape(fields[4]), _unescape(source)
            yield Mounted(path, fields[2], kind, source, who, read_only, fields[0])


def find(path: str) -> Mounted | None:
    """The topmost mount at `path` (absolute, without symbolic links)."""
    found = None
    for mounted in mounts():
        if mounted.path == path:
            found = mounted
    return found


def places(device: str) -> dict[str, str]:
    """Return the places of a file system by mount id, in all mount namespaces that this user sees.

    The text of a place in another namespace, such as a container's, also names a process of it.
    """
    found: dict[str, str] = {}
    looked_at = set()
    for process in ("self", *filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            namespace = os.readlink(f"/proc/{process}/ns/mnt")
            if namespace in looked_at:
                continue
            looked_at.add(namespace)
            seen = "" if process == "self" else f" (as process {process} sees it)"
            found.update(
                (each.id, each.path + seen) for each in mounts(process) if each.device == device
            )
    return found


def find_around(path: str) -> Mounted | None:
    """The mount on which `path` (absolute, without symbolic links) lies."""
    return _around(mounts(), path)


def _around(table: Iterable[Mounted], path: str) -> Mounted | None:
    found = None
    for mounted in table:
        # (os.path.commonpath is much slower.)
        is_around = f"{path}/".startswith(f"{mounted.path.rstrip('/')}/")
        if is_around and (found is None or len(mounted.path) >= len(found.path)):
            found = mounted
    return found


def resolve(path: str) -> str:
    """`path` absolute and without symbolic links. OSError where there are too many of them.

    As `os.path.realpath`, but it looks at no mount point, which is no link, and at nothing in a
    mount of kafkafs, where there are none.
    """
    table = list(mounts())
    here = os.sep if os.path.isabs(path) else os.getcwd()
    left = path.split(os.sep)[::-1]
    links = 0
    while left:
        name = left.pop()
        if name in ("", os.curdir):
            continue
        if name == os.pardir:
            here = os.path.dirname(here)
            continue
        below = os.path.join(here, name)
        around = _around(table, below)
        if around is not None and (around.path == below or around.type == TYPE):
            here = below
            continue
        try:
            target = os.readlink(below)
        except OSError:
            here = below
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        here = os.sep if os.path.isabs(target) else here
        left += target.split(os.sep)[::-1]
    return here


def _unescape(text: str) -> str:
    """Decode the octal numbers for blanks, tabs, newlines and backslashes in the mount table."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
