"""Whether the mounts of kafkafs answer, and read as well as they can."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from functools import partial

from kafkafs.cli.mounting.doctor.finding import Check, Finding
from kafkafs.fuse import mount_point
from kafkafs.fuse.mount_point import Answer, MountError
from kafkafs.mount_options import READ_AHEAD_KIB
from kafkafs.mount_table import Mounted


def checks(mounts: Iterable[Mounted]) -> Iterator[Check]:
    """What to look at of these mounts."""
    for mounted in mounts:
        silent = Finding(f"{mounted.path} does not answer", _force(mounted))
        yield Check(f"mount {mounted.path}", partial(_answers, mounted), silent)


def _force(mounted: Mounted) -> str:
    return f"kafkafs umount --force {shlex.quote(mounted.path)}"


def _answers(mounted: Mounted) -> Iterator[Finding]:
    """The daemon is there and answers; the kernel reads ahead."""
    path = mounted.path
    try:
        answer, _ = mount_point.ask(path)
    except MountError as error:
        yield Finding(str(error), "try again with fewer processes running")
        return
    if answer is Answer.DEAD:
        clear = f"kafkafs umount {shlex.quote(path)}"
        yield Finding(f"the daemon of {path} has exited; the mount is dead", clear)
    elif answer is Answer.NONE:
        daemon, _ = mount_point.find_daemon(mounted)
        if daemon is not None and mount_point.is_stopped(daemon):
            what = f"the daemon of {path}, process {daemon}, is stopped"
            yield Finding(what, f"kill -CONT {daemon}")
        else:
            which = "" if daemon is None else f", process {daemon},"
            yield Finding(f"the daemon of {path}{which} does not answer", _force(mounted))
    else:
        yield from _read_ahead(mounted)


def _read_ahead(mounted: Mounted) -> Iterator[Finding]:
    setting = f"/sys/class/bdi/{mounted.device}/read_ahead_kb"
    try:
        with open(setting, encoding="ascii") as file:
            kib = int(file.read())
    except (OSError, ValueError):
        return  # without sysfs nobody can change it
    if kib < READ_AHEAD_KIB:
        yield Finding(
            f"read-ahead of {mounted.path} is {kib} KiB instead of {READ_AHEAD_KIB} KiB",
            f"echo {READ_AHEAD_KIB} | sudo tee {setting}",
            is_wrong=False,
        )
