"""Lists the mounts of kafkafs on this machine, each with its daemon.

It waits a few seconds at most for a daemon that does not answer (`mount_point.ask`).
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from kafkafs import mount_table
from kafkafs.fuse import mount_point
from kafkafs.fuse.mount_point import Answer
from kafkafs.mount_options import MOUNT_ATTRIBUTE


class LiveMount(NamedTuple):
    """A mount of kafkafs."""

    data: str | None
    path: str
    pid: int | None
    """The daemon's; None: there is none, or not for us to see."""
    since_ms: int | None
    """When the daemon was started."""
    options: str | None
    """As they are given to `-o`; None: the daemon does not say."""
    state: str
    """`serving`; `stopped` (SIGSTOP); `stuck`: the daemon does not answer; `dead`: it is killed."""


def live_mounts() -> list[LiveMount]:
    """All mounts of kafkafs that this process sees."""
    return [_look(each) for each in mount_table.mounts() if each.type == mount_table.TYPE]


def _look(mounted: mount_table.Mounted) -> LiveMount:
    pid, _ = mount_point.find_daemon(mounted)
    # Of several mounts at one place only the topmost can be asked.
    state, data, options = "serving", mounted.source, None
    if pid is not None and mount_point.is_stopped(pid):
        state = "stopped"
    elif mount_table.find(mounted.path) == mounted:
        answer, said = mount_point.attribute(mounted.path, MOUNT_ATTRIBUTE)
        state = {Answer.GIVEN: "serving", Answer.DEAD: "dead", Answer.NONE: "stuck"}[answer]
        if said:
            facts = json.loads(said)
            data, options = facts["data"], facts["options"]
            if pid is None and not mount_point.is_elsewhere(facts["pid"], mounted):
                pid = facts["pid"]
    since_ms = None if pid is None else _started_ms(pid)
    return LiveMount(data, mounted.path, pid, since_ms, options, state)


def _started_ms(pid: int) -> int | None:
    """When a process was started, in milliseconds since 1970."""
    ticks = mount_point.started(pid)
    if ticks is None:
        return None
    with open("/proc/stat", encoding="ascii") as stat:
        boot_s = next(int(line.split()[1]) for line in stat if line.startswith("btime "))
    return boot_s * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")
