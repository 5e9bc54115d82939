"""`kafkafs convert`: rewrites old message formats as v2."""

from __future__ import annotations

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, check_address, directory_to_open, logs_argument
from kafkafs.cli.common.ending import end, warn
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import reading_shown
from storage.plural import counted


@click.command(
    "convert",
    epilog=examples("kafkafs convert --dry-run data", "kafkafs convert data orders payments"),
)
@logs_argument(partitions=False)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only print what would be done. It also works while the directory is in use.",
)
@output_options(
    "`dry_run`, and the lists `converted`, `cut` (the bytes that were cut off at the ends of logs) "
    "and `tiered` (a line for each tiered topic)"
)
def command(logs: Address, dry_run: bool, out: Output) -> None:
    """Rewrite old message formats as v2, in place. The data directory must not be in use.

    Old formats are the message formats v0 and v1 (Kafka 0.8 to 0.10), and the logs of Kafka 0.7.
    Offsets, keys, values, timestamps, codecs and the times of the files do not change. The logs of
    Kafka 0.7 have byte positions instead of offsets: these positions become the offsets.

    convert removes the old files only when the new files are on the disk. So if convert is killed,
    nothing is lost: run the command again. The disk needs free space of the size of the largest
    segment (for logs of Kafka 0.7: of the largest partition). If a log ends with an incomplete
    message, convert cuts it off, and stores it in a *.cut file. convert does not change damaged
    logs and tiered topics of a broker, but prints their names.
    """
    from storage.convert.convert import convert
    from storage.verify.verify import log_bytes

    data_dir = logs.data_dir if dry_run else directory_to_open(logs)
    check_address(logs)
    with reading_shown("converting", log_bytes(data_dir, wanted=logs.wants)) as progress:
        outcome = convert(
            data_dir,
            topics=[topic for topic, _ in logs.places],
            dry_run=dry_run,
            report=out.say,
            progress=progress,
        )
    for line in outcome.faults:
        out.problem(line, "FAULT")
    for line in [*outcome.faults, *outcome.tiered]:
        warn(line)
    done = "would be converted" if dry_run else "converted"
    out.say(f"{counted(len(outcome.converted), 'file')} {done}")
    out.json(
        {
            "dry_run": dry_run,
            "converted": list(map(str, outcome.converted)),
            "cut": list(map(str, outcome.cuts)),
            "tiered": outcome.tiered,
        }
    )
    end(found=bool(outcome.faults), failed=bool(outcome.faults) and not dry_run)
