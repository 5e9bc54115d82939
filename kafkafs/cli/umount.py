"""`kafkafs umount MOUNT`."""

from __future__ import annotations

import click

from kafkafs.cli import fail


@click.command("umount")
@click.argument("mount_point", metavar="MOUNT")
def command(mount_point: str) -> None:
    """Unmount MOUNT, and wait until everything is written and the daemon has ended."""
    from kafkafs.fuse.mount_point import MountError, unmount_and_wait

    try:
        unmount_and_wait(mount_point)
    except MountError as error:
        raise fail(str(error)) from None
