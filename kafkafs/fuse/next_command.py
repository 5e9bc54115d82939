"""What to type where the machine, or the rights of files, do not let a mount begin."""

from __future__ import annotations

import errno
import os
import pwd
import shlex

_CONFIGURATION = "/etc/fuse.conf"


def where_mounting_failed(reason: str, path: str) -> str:
    """For what libfuse or fusermount3 have said of mounting at `path`; empty: for nothing known."""
    place = shlex.quote(path)
    if "no write access to mountpoint" in reason:
        return f"as root: chown {_user()} {place}"
    if "user_allow_other" in reason:
        return f"as root: echo user_allow_other >> {_CONFIGURATION}"
    if "failed to exec fusermount3" in reason:
        return "as root: apt-get install fuse3"
    return ""


def where_opening_failed(number: int, directory: str) -> str:
    """For an errno of opening a data directory that is there; empty where none is known."""
    place = shlex.quote(directory)
    if number == errno.EROFS:
        return "-o ro mounts it all the same"
    if number not in (errno.EACCES, errno.EPERM):
        return ""
    owner = os.stat(directory).st_uid
    if owner == os.geteuid():
        return f"chmod -R u+rwX {place}"
    return (
        f"{place} is {_name(owner)}'s, and the daemon runs as {_user()}; "
        f"as root: chown -R {_user()} {place}"
    )


def where_making_failed(number: int, directory: str) -> str:
    """For an errno of making a data directory; empty where none is known."""
    place = shlex.quote(directory)
    if number == errno.ENOENT:
        return f"mkdir -p {place}"
    if number in (errno.EACCES, errno.EPERM):
        return f"as root: install -d -m 750 -o {_user()} {place}"
    return ""


def _user() -> str:
    return _name(os.geteuid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
