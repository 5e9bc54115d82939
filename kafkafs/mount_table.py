"""The mount table: which file systems are mounted where.

It reads /proc and touches no mounted file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

#: The type of a kafkafs in the mount table.
TYPE = "fuse.kafkafs"


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


def mounts() -> Iterator[Mounted]:
    """The mount table; of several mounts at one place the topmost comes last."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields = line.split(" ")
            kind, source, options = fields[fields.index("-") + 1 :][:3]
            user = re.search(r"\buser_id=(\d+)", options)
            who = int(user[1]) if user else -1
            read_only = "ro" in fields[5].split(",")
            yield Mounted(_unescape(fields[4]), fields[2], kind, _unescape(source), who, read_only)


def find(path: str) -> Mounted | None:
    """The topmost mount at `path` (absolute, without symbolic links)."""
    found = None
    for mounted in mounts():
        if mounted.path == path:
            found = mounted
    return found


def find_around(path: str) -> Mounted | None:
    """The mount on which `path` (absolute, without symbolic links) lies."""
    found = None
    for mounted in mounts():
        if os.path.commonpath([mounted.path, path]) == mounted.path and (
            found is None or len(mounted.path) >= len(found.path)
        ):
            found = mounted
    return found


def _unescape(text: str) -> str:
    """Decode the octal numbers for blanks, tabs, newlines and backslashes in the mount table."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
