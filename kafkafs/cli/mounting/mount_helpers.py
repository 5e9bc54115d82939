"""The programs that mount(8) and umount(8) start for kafkafs.

| program | who starts it |
|---|---|
| `/sbin/mount.kafkafs` | `mount -t kafkafs`, and fstab's lines of this type |
| `/sbin/mount.fuse.kafkafs` | `mount -t fuse.kafkafs`, the mounted type; `mount -o remount` |
| `/sbin/umount.fuse.kafkafs` | `umount` of a mount, unless with `-i` |

Each is a shell script (`kafkafs/linux`) that executes Python with `-I`: root starts them, and
neither root's environment nor its working directory may load code into them.

They take the arguments of all such helpers (mount(8), "EXTERNAL HELPERS"), do what `kafkafs mount`
and `kafkafs umount` do, and exit with the statuses of mount(8): 1 for a wrong command line, 32
for what failed. They say nothing of success unless `-v` asks for it, as mount(8) does.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import click

from kafkafs.cli.common.ending import failure, open_standard_streams, wrong_usage
from kafkafs.cli.common.words import DIRECTORY
from kafkafs.cli.mounting.mount import MountCommand, options_option, parsed_options
from kafkafs.cli.mounting.mount import mount as start
from kafkafs.cli.mounting.umount import unmount

#: Statuses of mount(8).
_WRONG_COMMAND_LINE = 1
_FAILED = 32


def mount() -> NoReturn:
    """The program `mount.kafkafs`."""
    _run(mount_command)


def umount() -> NoReturn:
    """The program `umount.fuse.kafkafs`."""
    _run(umount_command)


def _run(command: click.Command) -> NoReturn:
    """Run a program to its end, with mount(8)'s exit statuses."""
    # As in `kafkafs.__main__`.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    open_standard_streams()
    try:
        command.main(prog_name=command.name, standalone_mode=False)
    except click.UsageError as error:
        wrong_usage(error).show()
        sys.exit(_WRONG_COMMAND_LINE)
    except click.Abort:
        sys.exit(_FAILED)
    except Exception as error:
        failed = failure(error)
        if failed is None:
            raise
        failed.show()
        sys.exit(_FAILED)
    sys.exit(0)


_HELP = {"help_option_names": ["-h", "--help"]}

_no_mtab_option = click.option("-n", "no_mtab", is_flag=True, expose_value=False, hidden=True)
_type_option = click.option("-t", "type_", metavar="TYPE", expose_value=False, hidden=True)
_verbose_option = click.option("-v", "verbose", is_flag=True, help="Print what was done.")


@click.command("mount.kafkafs", cls=MountCommand, context_settings=_HELP)
@click.argument("data_dir", metavar="DATA", type=DIRECTORY)
@click.argument("mount_point", metavar="MOUNT", type=DIRECTORY)
@options_option
@click.option("-r", "read_only", is_flag=True, help="Mount with the option ro.")
@click.option("-s", "sloppy", is_flag=True, help="Accept unknown mount options, without effect.")
@click.option("-f", "fake", is_flag=True, help="Check only the options.")
@click.option("-w", "writable", is_flag=True, expose_value=False, hidden=True)
@_no_mtab_option
@_type_option
@_verbose_option
def mount_command(
    data_dir: str,
    mount_point: str,
    options: tuple[str, ...],
    read_only: bool,
    sloppy: bool,
    fake: bool,
    verbose: bool,
) -> None:
    """Mount the data directory DATA at the directory MOUNT, for mount(8) and fstab."""
    texts = (*options, "ro") if read_only else options
    parsed = parsed_options(texts, sloppy=sloppy)
    if not fake:
        start(data_dir, mount_point, parsed, foreground=False, quiet=not verbose)


@click.command("umount.fuse.kafkafs", context_settings=_HELP)
@click.argument("mount_point", metavar="MOUNT", type=DIRECTORY)
@click.option("-f", "force", is_flag=True, help="Unmount even if files are open.")
@click.option("-l", "lazy", is_flag=True, help="Return at once.")
@click.option("-r", "read_only", is_flag=True, expose_value=False, hidden=True)
@_no_mtab_option
@_type_option
@_verbose_option
def umount_command(mount_point: str, force: bool, lazy: bool, verbose: bool) -> None:
    """Unmount MOUNT, and wait until everything is written, for umount(8)."""
    unmount(mount_point, lazy=lazy, force=force)
    if verbose:
        click.echo(f"{mount_point} unmounted")
