"""`kafkafs mount DATA MOUNT`: starts the daemon."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.ending import fail, say
from kafkafs.cli.common.progress import opening_shown
from kafkafs.cli.common.words import DIRECTORY, OptionList
from storage.plural import counted

if TYPE_CHECKING:
    from kafkafs.mount_options import MountOptions


class MountCommand(click.Command):
    """A command whose `--help` describes the mount options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kafkafs.mount_options import OPTIONS

        super().format_options(ctx, formatter)
        with formatter.section("Mount options (-o)"):
            formatter.write_dl([(option.synopsis, option.meaning) for option in OPTIONS])


options_option = click.option(
    "-o",
    "options",
    multiple=True,
    type=OptionList(),
    help="Mount options, separated by commas. May be repeated.",
)


@click.command(
    "mount",
    cls=MountCommand,
    epilog=examples(
        "kafkafs mount data mnt",
        "kafkafs mount -o ro /var/lib/kafka/data mnt    # also while its broker runs",
        "kafkafs mount -o allow_other,create /srv/log /mnt/log",
    ),
)
@click.argument("data_dir", metavar="DATA", type=DIRECTORY)
@click.argument("mount_point", metavar="MOUNT", type=DIRECTORY)
@options_option
@click.option(
    "-f",
    "--foreground",
    is_flag=True,
    help="Keep the daemon in the foreground, and print its events on standard error.",
)
def command(data_dir: str, mount_point: str, options: tuple[str, ...], foreground: bool) -> None:
    """Mount the data directory DATA at the directory MOUNT.

    MOUNT must be an empty directory. With the mount option `nonempty`, MOUNT can contain files.
    DATA must be empty, or must contain files of Kafka or kafkafs. With the mount option `create`,
    DATA can also contain other files. If DATA is missing, this option creates it.

    The command starts a daemon, which serves the mount. When the mount answers requests, the
    command prints what is mounted, and returns. The daemon continues in the background. Exit status
    78 means that a name, a permission or a setting is wrong. Every attempt fails until somebody
    corrects the mistake.
    """
    mount(data_dir, mount_point, parsed_options(options), foreground=foreground)


def parsed_options(texts: tuple[str, ...], *, sloppy: bool = False) -> MountOptions:
    """Return the mount options of a command line. Errors: UsageError."""
    from kafkafs.mount_options import InvalidMountOption, parse_mount_options

    try:
        return parse_mount_options(texts, sloppy=sloppy)
    except InvalidMountOption as error:
        raise click.UsageError(str(error)) from None


def mount(
    data_dir: str, mount_point: str, options: MountOptions, *, foreground: bool, quiet: bool = False
) -> None:
    """Start the daemon, and say what is mounted unless `quiet`."""
    from kafkafs.fuse.background import run_in_background
    from kafkafs.fuse.mount_point import ConfigurationError, MountError, resolve
    from kafkafs.fuse.user import become

    def mounted(topics: int, read_only: bool) -> str:
        mode = "read-only" if read_only else "read-write"
        return f"mounted {data_dir} on {mount_point}, {counted(topics, 'topic')}, {mode}"

    try:
        for name, given in (("DATA", data_dir), ("MOUNT", mount_point)):
            if not given:
                raise ConfigurationError(f"{name} is empty (is a shell variable unset?)")
        if options.setuid is not None:
            become(options.setuid)
        data, path = resolve(data_dir), resolve(mount_point)

        def serve(ready: Callable[[str], None]) -> int:
            # Starting makes next to no garbage: collecting would only delay it.
            gc.disable()
            from kafkafs import service_manager
            from kafkafs.fuse import daemon

            place = daemon.Mount(data, path, options, foreground)
            told = service_manager.opening_told() if foreground else None
            with opening_shown() as shown:
                return daemon.run(place, lambda *facts: ready(mounted(*facts)), shown or told)

        if not foreground:
            line = run_in_background(serve)
            if not quiet:
                say(line)
            return

        def ready(line: str) -> None:
            from kafkafs import service_manager
            from kafkafs.fuse.daemon import to_standard_error

            to_standard_error(line)
            service_manager.tell("READY=1", f"STATUS={line}")

        sys.exit(serve(ready))
    except MountError as error:
        if foreground:
            from kafkafs import service_manager

            service_manager.tell(f"STATUS={error}")
        raise fail(str(error), error.exit_status) from None
