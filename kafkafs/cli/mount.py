"""`kafkafs mount DATA_DIR MOUNT`: starts the daemon."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import click

from kafkafs.cli import fail
from kafkafs.cli.progress import opening_shown


@click.command("mount")
@click.argument("data_dir", metavar="DATA_DIR")
@click.argument("mount_point", metavar="MOUNT")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTIONS",
    help="ro, until=high-watermark, isolation=read_uncommitted, out_of_range=error, allow_other, "
    "show_dot, create, nonempty, uid=N, gid=N, umask=OCTAL, memory=BYTES; separated by "
    "commas.",
)
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground.")
def command(data_dir: str, mount_point: str, options: tuple[str, ...], foreground: bool) -> None:
    """Mount the data directory DATA_DIR at the directory MOUNT.

    MOUNT is an empty directory (with -o nonempty any). DATA_DIR is one too, or has Kafka's or
    kafkafs' files; with -o create it is made, or may have files of others.

    Returns when the mount answers; the daemon stays in the background.
    """
    from kafkafs.fuse.background import run_in_background
    from kafkafs.fuse.mount_point import MountError, resolve
    from kafkafs.mount_options import InvalidMountOption, parse_mount_options

    try:
        parsed = parse_mount_options(options)
    except InvalidMountOption as error:
        raise click.UsageError(str(error)) from None
    try:
        data, path = resolve(data_dir), resolve(mount_point)
    except MountError as error:
        raise fail(str(error)) from None

    def serve(ready: Callable[[], None]) -> int:
        # Starting makes next to no garbage: collecting would only delay it.
        gc.disable()
        from kafkafs.fuse import daemon

        mount = daemon.Mount(data, path, parsed, foreground)
        with opening_shown() as progress:
            return daemon.run(mount, daemon.notify_ready if foreground else ready, progress)

    try:
        if foreground:
            sys.exit(serve(lambda: None))
        run_in_background(serve)
    except MountError as error:
        raise fail(str(error)) from None
