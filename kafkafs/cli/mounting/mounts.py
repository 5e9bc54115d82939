"""`kafkafs mounts`: what is mounted on this machine."""

from __future__ import annotations

import click

from kafkafs.cli import examples
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.output import Output, output_options
from kafkafs.quantities import TimeMs


@click.command(
    "mounts", epilog=examples("kafkafs mounts", "kafkafs mounts --json    # for programs")
)
@output_options(times=True)
def command(out: Output) -> None:
    """List the mounts of kafkafs on this machine.

    Each line has the data directory, the mount point, the process id of the daemon and its start
    time, the state, and the mount options. A dash stands for a value that you cannot see, because
    another user runs the daemon.

    The state is serving, dead (the daemon was killed), stopped (by SIGSTOP) or stuck (the daemon
    does not answer within 5 s). To clear a dead mount, run `kafkafs mount` or `kafkafs umount` on
    its mount point.
    """
    from kafkafs.fuse.live_mounts import live_mounts
    from kafkafs.fuse.mount_point import MountError

    try:
        found = live_mounts()
    except MountError as error:
        raise fail(str(error)) from None
    rows = [
        (
            each.data,
            each.path,
            each.pid,
            None if each.since_ms is None else TimeMs(each.since_ms),
            each.state,
            each.options,
        )
        for each in found
    ]
    if rows or out.as_json:
        out.table(("data", "mount", "pid", "since", "state", "options"), rows)
