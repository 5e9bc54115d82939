"""Checks whether the daemon of a mount answers, and says what to type if it does not.

A command that works through a mount calls this module first. If the daemon is stopped or stuck, a
process that touches the mount waits for ever and cannot be killed.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import sys

from kafkafs.cli.common.ending import fail
from kafkafs.mount_table import TYPE, Mounted, find, find_around

#: Seconds that a daemon may take to answer a command that needs it.
PATIENCE_S = 20.0


def check_served(path: str) -> None:
    """Check the kafkafs mount at `path`, if there is one.

    Errors: ClickException if the daemon does not answer, or if this user has no access at all.
    """
    mounted = find(path)
    if mounted is not None and mounted.type == TYPE:
        why = why_silent(mounted, PATIENCE_S)
        if why is None and not os.access(path, os.F_OK):
            why = f"{path}: only the user who mounted it may use it. Try: {as_its_user(mounted)}"
        if why is not None:
            raise fail(why)


def check_not_moved(mounted: Mounted) -> None:
    """Raise ClickException if the data directory of a mount was moved; see `moved_text`."""
    from kafkafs.fuse.mount_point import MountError

    try:
        moved = moved_text(mounted)
    except MountError as error:
        raise fail(str(error)) from None
    if moved is not None:
        raise fail(f"{moved}. Give its new path instead, or unmount and mount it there")


def moved_text(mounted: Mounted) -> str | None:
    """Return a text that says that a mount's data directory is not where the mount table has it.

    None: it has that path, or this is not known: the daemon does not answer, or not to this user.
    Errors: MountError if the process that asks the daemon cannot start.
    """
    from kafkafs.fuse import mount_point
    from kafkafs.mount_options import DIRECTORY_ATTRIBUTE, directory_identity

    _, said = mount_point.attribute(mounted.path, DIRECTORY_ATTRIBUTE)
    # (The mount table may lack the name of the directory.)
    if not said or not os.path.isabs(mounted.source):
        return None
    try:
        found = os.stat(mounted.source)
    except FileNotFoundError:
        pass
    except OSError:
        return None  # opening the directory fails, too, and reports the error
    else:
        if directory_identity(found) == said:
            return None
    return f"{mounted.path}: its data directory was moved from {mounted.source}, or deleted"


def as_its_user(mounted: Mounted) -> str:
    """Return the line that runs this command as the user who has mounted."""
    return as_user(mounted.user, shlex.join(["kafkafs", *sys.argv[1:]]))


def why_silent(mounted: Mounted, patience_s: float | None = None) -> str | None:
    """Return why the daemon of a mount does not answer, and what to type; None: it answers.

    `patience_s`: see `mount_point.ask`.

    Errors: ClickException if the process that asks the daemon cannot start.
    """
    from kafkafs.fuse import mount_point
    from kafkafs.fuse.mount_point import Answer, MountError

    try:
        answer, _ = mount_point.ask(mounted.path, patience_s)
    except MountError as error:
        raise fail(str(error)) from None
    if answer is Answer.GIVEN:
        return None
    if answer is Answer.DEAD:
        return f"{mounted.path}: {_ended(mounted)}"
    daemon, _ = mount_point.find_daemon(mounted)
    if (stopped := stopped_text(daemon)) is not None:
        return f"{mounted.path}: {stopped}"
    which = "its daemon" if daemon is None else f"its daemon, process {daemon},"
    return f"{mounted.path}: {which} does not answer. To end the mount: {force_line(mounted.path)}"


def stopped_text(daemon: int | None) -> str | None:
    """Return a text that says that a daemon is stopped; None: it is not."""
    from kafkafs.fuse.mount_point import is_stopped

    if daemon is None or not is_stopped(daemon):
        return None
    return f"its daemon, process {daemon}, is stopped. To continue it: kill -CONT {daemon}"


def force_line(path: str) -> str:
    """Return the line that ends a mount whose daemon does not answer."""
    return f"kafkafs umount --force {shlex.quote(path)}"


def has_gone(error: OSError) -> bool:
    """Return whether an error means that the daemon of a mount has ended."""
    return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)


def why_gone(path: str) -> str:
    """Return what has happened to a mount whose daemon has ended.

    If it is still mounted, the text has the command that mounts it again.

    `path`: a path in the mount, absolute, without symbolic links.
    """
    mounted = find_around(path)
    if mounted is None or mounted.type != TYPE:
        return "the file system was unmounted"
    return _ended(mounted)


def _ended(mounted: Mounted) -> str:
    again = ["kafkafs", "mount", *(["-o", "ro"] if mounted.read_only else [])]
    again += [mounted.source, mounted.path]
    return f"its daemon has exited. To mount it again: {shlex.join(again)}"


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
