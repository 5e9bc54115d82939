"""A command as it is typed for another user."""

from __future__ import annotations

import os
import pwd


def as_root(command: str) -> str:
    """A command that only root may run."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def as_user(uid: int, command: str) -> str:
    """A command that a user is to run."""
    if uid == 0:
        return as_root(command)
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"'#{uid}'"
    return f"sudo -u {name} {command}"
