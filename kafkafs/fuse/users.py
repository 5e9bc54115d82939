"""Finds the processes that keep a mount busy, as far as this user sees them.

It reads /proc and touches no mounted file system.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator

from kafkafs import mount_table

#: How much of a command line, and how many of a process's files, a line names.
COMMAND_LENGTH = 60
NAMED = 3

_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ \S+ +(/.*)$", re.M)


def users(path: str) -> list[str]:
    """The processes and mounts that use files below a mount's path: a few words for each."""
    found = []
    for pid in sorted(map(int, filter(str.isdecimal, os.listdir("/proc")))):
        held = list(dict.fromkeys(_held(pid, path)))
        if held:
            more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
            found.append(f"{_command(pid)} (process {pid}: {', '.join(held[:NAMED])}{more})")
    for mounted in mount_table.mounts():
        if mounted.path.startswith(f"{path}/"):
            found.append(f"the mount {mounted.path}")
    return found


def _held(pid: int, path: str) -> Iterator[str]:
    """The names of the files below `path` that a process uses."""
    with contextlib.suppress(OSError):
        for link, meaning in (("cwd", "working directory"), ("root", "root directory")):
            name = _below(path, os.readlink(f"/proc/{pid}/{link}"))
            if name is not None:
                yield f"{meaning} {name}" if name else meaning
    with contextlib.suppress(OSError):
        for number in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            with contextlib.suppress(FileNotFoundError):
                name = _below(path, os.readlink(f"/proc/{pid}/fd/{number}"))
                if name is not None:
                    yield name or "the top directory"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
        for mapped in _MAPPED.findall(os.fsdecode(maps.read())):
            name = _below(path, mapped)
            if name is not None:
                yield name


def _below(path: str, used: str) -> str | None:
    """A path's name below `path`, empty for that itself; None: it is elsewhere."""
    if used == path:
        return ""
    return used.removeprefix(f"{path}/") if used.startswith(f"{path}/") else None


def _command(pid: int) -> str:
    """A process's command line, shortened."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        if not words:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
                words = [name.read().rstrip("\n")]
        line = shlex.join([os.path.basename(words[0]), *words[1:]])
        return line if len(line) <= COMMAND_LENGTH else f"{line[: COMMAND_LENGTH - 1]}…"
    return "a process"
