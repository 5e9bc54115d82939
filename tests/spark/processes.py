"""Processes of this machine: list the children of a process, and end processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path


def tree_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for each, parent, _ in _processes():
        children.setdefault(parent, []).append(each)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def session_of(leader: int) -> list[int]:
    """The processes of a session (setsid), whoever has started them."""
    return [pid for pid, _, session in _processes() if session == leader]


def kill(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Signal them; some may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and session of each."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                yield int(name), int(fields[1]), int(fields[3])


def command_of(pid: int) -> str:
    """Its words; nothing where it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
