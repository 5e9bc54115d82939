"""`kafkafs detach`: makes a broker's directory one of kafkafs' own, or undoes that."""

from __future__ import annotations

from contextlib import nullcontext

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, directory_argument, directory_to_open
from kafkafs.cli.common.ending import one_line_errors, say
from kafkafs.cli.common.output import Output, output_options


@click.command(
    "detach",
    epilog=examples(
        "kafkafs config data --broker-config /etc/kafka/server.properties  # first",
        "kafkafs detach --dry-run data",
        "kafkafs detach data",
        "kafkafs detach --undo data",
    ),
)
@directory_argument(allow_empty=False, needs="files")
@click.option("--undo", is_flag=True, help="Give it back to its broker.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@output_options()
def command(where: Address, undo: bool, dry_run: bool, out: Output) -> None:
    """Make the directory of a broker, which must not be in use, one of kafkafs' own.

    Before that, kafkafs makes no topics and partitions in it, since the broker would delete them
    when it comes back. The broker's settings of its topics are kept (kafkafs-broker.properties).
    Then its meta.properties and its metadata log get the suffix .detached, so that no broker starts
    on it. Name its server.properties first, if that is there: kafkafs config DATA
    --broker-config FILE. Prints a line for each topic whose settings are not known: nothing of it
    is deleted or compacted before they are set. Tiered topics are named, with the offsets that are
    only in remote storage: they stay read-only until remote.storage.enable=false is set on them.

    --undo gives everything its names back, unless topics or partitions have been made since. What
    was appended stays. With --dry-run it takes no lock and changes nothing.
    """
    from storage.directory import detach
    from storage.directory.lock import alone
    from storage.files import Files
    from storage.paths import DETACHED

    data_dir = where.data_dir if dry_run else directory_to_open(where)
    with (
        one_line_errors(),
        nullcontext(Files(data_dir)) if dry_run else alone(data_dir) as files,
    ):
        if undo:
            names = detach.names_to_give_back(files, data_dir)
            lines, tiered = [], []
            if not dry_run:
                detach.undo(files, data_dir)
        else:
            names = detach.names_to_set_aside(files, data_dir)
            lines = detach.not_known(files, data_dir) if dry_run else detach.detach(files, data_dir)
            tiered = detach.tiered_lines(files, data_dir)
    out.json(
        {"dry_run": dry_run, "undo": undo, "names": names, "not_known": lines, "tiered": tiered}
    )
    for name in names:
        before, after = name, name + DETACHED
        if undo:
            before, after = after, before
        out.say(f"{before} {'would become' if dry_run else 'became'} {after}")
    for line in [*lines, *tiered]:
        say(f"kafkafs: {line}", err=True)
