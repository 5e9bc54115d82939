"""What to type where the machine, or the rights of files, do not let a mount begin."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat

from storage import paths
from storage.directory.contents import Contents, contents_of
from storage.files import Files

_CONFIGURATION = "/etc/fuse.conf"
_GROUP_READS = stat.S_IRGRP | stat.S_IXGRP


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


def where_opening_failed(number: int, directory: str, *, read_only: bool) -> str:
    """For an errno of opening a data directory that is there; empty where none is known.

    What is another user's is given to the daemon's user only where nobody else needs it: a log that
    is kafkafs' own, or nothing yet.
    """
    place = shlex.quote(directory)
    if number == errno.EROFS:
        return "to mount it read-only: -o ro"
    if number not in (errno.EACCES, errno.EPERM):
        return ""
    found = os.stat(directory)
    if found.st_uid == os.geteuid():
        return f"chmod -R u+rwX {place}"
    owner, user = _name(found.st_uid), _user()
    whose = f"{place} belongs to {owner}, but the daemon runs as {user}; "
    if not read_only and _may_be_given(directory):
        return f"{whose}as root: chown -R {user} {place}"
    if read_only and found.st_gid and found.st_mode & _GROUP_READS == _GROUP_READS:
        group = _group_name(found.st_gid)
        if found.st_gid not in (os.getegid(), *os.getgroups()):
            return f"{whose}as root: usermod -aG {group} {user}  (and log in again)"
    return f"{whose}mount it as {owner}"


def _may_be_given(directory: str) -> bool:
    """Whether a data directory can be another user's without harm, as far as this user sees."""
    files = Files()
    try:
        contents = contents_of(files, directory)
        names = set(files.names(directory))
    except OSError:
        return False
    is_brokers = not names.isdisjoint({paths.META_PROPERTIES, *paths.BROKERS_OWN})
    return not is_brokers and contents not in (Contents.LOG, Contents.OTHERS)


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


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
