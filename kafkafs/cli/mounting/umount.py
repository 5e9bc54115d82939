"""`kafkafs umount MOUNT`."""

from __future__ import annotations

import click

from kafkafs.cli import examples
from kafkafs.cli.common.ending import fail, warn
from kafkafs.cli.common.words import DIRECTORY


@click.command(
    "umount",
    epilog=examples(
        "kafkafs umount mnt",
        "kafkafs umount --lazy mnt    # the mount ends when the last file is closed",
    ),
)
@click.argument("mount_point", metavar="MOUNT", type=DIRECTORY)
@click.option(
    "-l",
    "--lazy",
    is_flag=True,
    help="Return at once. The daemon ends when the last open file is closed.",
)
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help=(
        "Unmount even if files are open or the daemon does not answer. Processes that use MOUNT "
        "get ENOTCONN."
    ),
)
def command(mount_point: str, lazy: bool, force: bool) -> None:
    """Unmount MOUNT, and return when everything is written and the daemon has ended.

    If files in MOUNT are open, umount prints which processes use them, and changes nothing.
    """
    unmount(mount_point, lazy=lazy, force=force)


def unmount(mount_point: str, *, lazy: bool, force: bool) -> None:
    """Unmount and wait; what takes long or fails is a line on standard error."""
    from kafkafs.fuse.mount_point import MountError, unmount_and_wait

    try:
        unmount_and_wait(mount_point, warn, lazy=lazy, force=force)
    except MountError as error:
        raise fail(str(error)) from None
