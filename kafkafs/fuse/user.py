"""Becomes another user before anything is opened or mounted: the mount option `setuid=USER`.

The kernel shows a process's first environment in /proc/PID/environ to the process's user, whatever
the process does with it later. So root's environment is replaced by executing the program again.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import shlex
import sys
from pathlib import Path

import kafkafs
from kafkafs.fuse.mount_point import ConfigurationError

_PR_SET_DUMPABLE = 4  # prctl.h
#: The variables that a daemon needs of its caller.
_KEPT = re.compile(r"PATH|HOME|USER|LOGNAME|TZ|LANG|LC_.*|XDG_.*|NOTIFY_SOCKET|WATCHDOG_.*")


def become(name: str) -> None:
    """Take a user's identity, groups and home directory, before any thread starts.

    If root's environment has other variables than `_KEPT`, execute the program again without them:
    the call does not return. A process that is that user already stays as it is, root's
    capabilities and groups included. Errors: ConfigurationError.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError(
            f"setuid={name}: no such user. To create it: useradd --system {shlex.quote(name)}"
        ) from None
    if user.pw_uid == os.geteuid():
        return
    if os.geteuid() != 0:
        raise ConfigurationError(f"setuid={name}: only root may mount as another user")
    os.environ.update(HOME=user.pw_dir, USER=name, LOGNAME=name)
    kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    if len(kept) < len(os.environ):
        os.execve(sys.executable, sys.orig_argv, kept)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    _check_modules_are_readable(name, user.pw_uid)
    os.setuid(user.pw_uid)
    # A process that has changed its user hides /proc/PID/fd, by which `umount` finds the daemon.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _check_modules_are_readable(name: str, uid: int) -> None:
    """Check that the user can import modules: the daemon imports some when it needs them.

    The process has the user's groups. Errors: ConfigurationError.
    """
    modules = [Path(each) for each in {*sys.path, *kafkafs.__path__} if os.path.isdir(each)]
    os.seteuid(uid)
    try:
        closed = next(filter(None, map(_closed_directory, sorted(modules))), None)
    finally:
        os.seteuid(0)
    if closed is not None:
        raise ConfigurationError(
            f"setuid={name}: {name} cannot read Python's modules below {closed}. Install Python "
            "and kafkafs in another directory, such as /opt, or as root: "
            f"chmod o+{'rx' if closed in modules else 'x'} {shlex.quote(str(closed))}"
        )


def _closed_directory(directory: Path) -> Path | None:
    """Return the topmost part of a path that this process cannot search or read, or None."""
    for each in (*reversed(directory.parents), directory):
        needed = os.X_OK if each != directory else os.R_OK | os.X_OK
        if not os.access(each, needed, effective_ids=True):
            return each
    return None
