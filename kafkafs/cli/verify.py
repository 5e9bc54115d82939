"""`kafkafs verify DATA_DIR`: checks everything in a data directory and changes nothing."""

from __future__ import annotations

import sys

import click

from kafkafs.cli import one_line_errors, say
from kafkafs.cli.addresses import data_dir_argument
from kafkafs.cli.progress import reading_shown


@click.command("verify")
@data_dir_argument(may_be_partition=True)
def command(data_dir: str) -> None:
    """Read every byte of DATA_DIR, which may be in use, also by a broker, and name every fault.

    It may be one partition's directory.

    Checked are the batches, the records in them, the indexes, producer snapshots and checkpoints.
    No lock is taken and nothing is written. One line a fault: file, position in bytes, offset,
    reason. Files that deletions, cleaners and recovery have left over are named, and are no faults;
    neither is what a kill has left and the next start makes anew.

    Exits with 0 where all is whole, with 1 where there are faults.
    """
    from storage.verify.verify import log_bytes, verify

    with one_line_errors(), reading_shown("reading", log_bytes(data_dir)) as progress:
        found = verify(data_dir, progress=progress)
    for fault in found.faults:
        say(fault)
    for fault in found.left_over:
        say(f"left over: {fault}")
    state = f"{len(found.faults)} faults" if found.faults else "whole"
    say(f"{found.partitions} partitions with {found.records} records, {found.size} bytes: {state}")
    if found.faults:
        sys.exit(1)
