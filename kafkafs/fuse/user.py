"""Becomes another user before anything is opened or mounted: the mount option `setuid=USER`."""

from __future__ import annotations

import ctypes
import os
import pwd
import shlex

from kafkafs.fuse.mount_point import ConfigurationError

_PR_SET_DUMPABLE = 4  # prctl.h


def become(name: str) -> None:
    """Take a user's identity, groups and home directory, before any thread starts.

    ConfigurationError. Who is that user already stays as it is, root's capabilities and groups
    included.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError(
            f"setuid={name}: there is no such user: useradd --system {shlex.quote(name)} makes it"
        ) from None
    if user.pw_uid == os.geteuid():
        return
    if os.geteuid() != 0:
        raise ConfigurationError(f"setuid={name}: only root mounts as another user")
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    # A process that has changed its user hides /proc/PID/fd, by which `umount` finds the daemon.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ.update(HOME=user.pw_dir, USER=name, LOGNAME=name)
