"""Recognises what a user gives instead of a data directory, and says what to give.

A command that is pointed at a mount, at another program's directory or at a single partition must
neither call it whole nor write into it. `storage.directory.contents` finds what a directory holds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from typing import NamedTuple

from kafkafs.mount_table import TYPE, Mounted, find, find_around, resolve
from storage.directory.contents import Contents, contents_of
from storage.directory.mirror import is_mirror
from storage.directory.top_level import Ignored
from storage.errors import LogLocked
from storage.files import Files
from storage.settings import broker_settings
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):[0-9]{4,5}")
_IS_AN_ADDRESS = (
    "this is the address of a broker. The commands ls, describe, groups, cat, grep and append "
    "accept kafka://HOST:PORT/TOPIC; this command line needs a directory, such as one of the "
    "broker's log.dirs"
)


class Mistake(NamedTuple):
    """Why a path is no data directory; `number`: the errno that says the same; `instead`: the path
    to give, where that is known.
    """

    reason: str
    number: int | None
    instead: str | None = None

    @property
    def is_missing(self) -> bool:
        """Nothing is there."""
        return self.number == errno.ENOENT


def find_mistake(path: str) -> Mistake | None:
    """Why nothing can be a data directory at `path`; None where it may be one.

    It does not touch a mount of kafkafs that the path names, whose daemon may not answer.
    """
    try:
        where = resolve(path)
        mounted = find_around(where)
        if mounted is not None and mounted.type == TYPE:
            return _shown(where, mounted)
        found = os.stat(path)
    except FileNotFoundError:
        if is_broker_address(path):
            return Mistake(_IS_AN_ADDRESS, errno.EINVAL)
        return Mistake("no such data directory", errno.ENOENT)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOTCONN:
            reason = f"its file system is dead ({reason}). To remove it: fusermount3 -u"
        return Mistake(reason, error.errno)
    if not stat.S_ISDIR(found.st_mode):
        return Mistake("a file, not a data directory", errno.ENOTDIR)
    return None


def is_broker_address(path: str) -> bool:
    """Return whether a path that is not there reads as HOST:PORT, as a list of these, or as
    kafka://...
    """
    if path.startswith("kafka://"):
        return True
    parts = os.path.basename(path).split(",")
    return all(map(_ADDRESS.fullmatch, parts)) and not os.path.lexists(path)


def _shown(path: str, mounted: Mounted) -> Mistake:
    where = "a kafkafs mount" if path == mounted.path else "inside a kafkafs mount"
    if not os.path.isabs(mounted.source):
        return Mistake(f"{where}; give its data directory instead", errno.EINVAL)
    return Mistake(f"{where} of {mounted.source}", errno.EINVAL, mounted.source)


def in_use(error: LogLocked, mount_point: str = "MNT") -> str:
    """An error of a data directory that another process has open, with what ends that."""
    if error.path is None:
        return str(error)
    directory = os.path.dirname(error.path)
    with contextlib.suppress(OSError):
        owner = owner_file.read(Files(), directory)
        if owner is not None and owner.pid == error.pid:
            if mount_of(owner, directory) is not None:
                unmount = f"kafkafs umount {shlex.quote(owner.mount)}"
                return f"{error}: mounted at {owner.mount}. To unmount it: {unmount}"
            return (
                f"{error}: the daemon of a mount that is not visible here, or was unmounted with "
                f"--lazy while files were open. To end it: kill {owner.pid}"
            )
        if is_mirror(Files(), directory):
            return f"{error}: used by a running kafkafs mirror. Stop it first"
        if is_run_by_broker(directory, error.pid):
            mount = shlex.join(["kafkafs", "mount", "-o", "ro", directory, mount_point])
            return (
                f"{error}: used by a running broker. Stop the broker, or mount read-only: {mount}"
            )
    return str(error)


def mount_of(owner: OwnerProcess, directory: str) -> Mounted | None:
    """Return the mount of the process that has a data directory open; None: it is not visible here.

    After `umount --lazy`, and in another mount namespace, another directory may be mounted at the
    same path.
    """
    mounted = find(owner.mount)
    if mounted is None or mounted.type != TYPE:
        return None
    with contextlib.suppress(OSError):
        # (The mount table may lack the name of the directory.)
        if not os.path.isabs(mounted.source) or os.path.samefile(mounted.source, directory):
            return mounted
    return None


def is_run_by_broker(directory: str, holder: int | None) -> bool:
    """Whether the process that has the lock of a data directory is a broker: a Java program.

    The process may not be visible here, as in another container. OSError.
    """
    if not broker_settings.is_brokers(Files(), directory):
        return False
    try:
        with open(f"/proc/{holder}/comm") as file:
            return file.read() == "java\n"
    except FileNotFoundError:
        return True


def contents_or_mistake(path: str, *, writes: bool = False) -> Contents | Mistake:
    """Return the contents of the data directory at `path`, or why it is none.

    `writes`: count only the entries that count for a process that writes it.
    """
    mistake = find_mistake(path)
    if mistake is not None:
        return mistake
    try:
        where = os.path.realpath(path)
        files = Files(where)
        if writes:
            Ignored(files, where)
        return contents_of(files, where)
    except OSError as error:
        return Mistake(error.strerror or str(error), error.errno)
