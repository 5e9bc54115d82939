"""`kafkafs repair DATA_DIR`: checks everything, and takes back or removes what was set aside."""

from __future__ import annotations

import os
import time

import click

from kafkafs.cli import fail
from kafkafs.cli.progress import opening_shown


@click.command("repair")
@click.argument("data_dir", metavar="DATA_DIR")
@click.option("--salvage", "wants_salvage", is_flag=True, help="Take back what is valid in it.")
@click.option("--purge", "wants_purge", is_flag=True, help="Remove what was set aside.")
@click.option("--accept-loss", is_flag=True, help="Append where a log's end was lost.")
def command(data_dir: str, wants_salvage: bool, wants_purge: bool, accept_loss: bool) -> None:
    """Read every byte of DATA_DIR, which must not be mounted, and mend what is damaged.

    A log ends at its first damaged batch, as Kafka has it; what lies behind is set aside in
    *.cut files beside it. With --salvage what is valid in those comes back, with the offsets it
    had; with --purge they are removed.

    A log that ends before what was flushed of it takes nothing, since the offsets of what is lost
    would be given out again. With --accept-loss they are.
    """
    from storage.cut import purge
    from storage.errors import StorageError
    from storage.manager import LogManager
    from storage.salvage import salvage

    verify = wants_salvage or not wants_purge
    try:
        with (
            opening_shown() as progress,
            LogManager.open(
                os.path.realpath(data_dir), verify=verify, progress=progress
            ) as manager,
        ):
            logs = list(manager.logs())
            for line in [*manager.faults, *manager.cuts]:
                click.echo(line)
            if wants_salvage:
                for log in logs:
                    for salvaged in salvage(log, time.time_ns()):
                        click.echo(salvaged)
            for log in logs:
                if log.lost_end and accept_loss:
                    click.echo(
                        f"{log.directory}: offsets {log.log_end_offset} to {log.lost_end - 1} are "
                        "given up"
                    )
                    log.accept_loss()
            if wants_purge:
                for log in logs:
                    for path in purge(manager.files, log.directory):
                        click.echo(f"{path}: removed")
            short = [log for log in logs if log.lost_end]
            if verify:
                offsets = sum(log.log_end_offset - log.log_start_offset for log in logs)
                state = f"{len(short)} of them lack their end" if short else "whole"
                click.echo(f"{len(logs)} partitions with {offsets} offsets: {state}")
    except (OSError, StorageError) as error:
        raise fail(str(error)) from None
