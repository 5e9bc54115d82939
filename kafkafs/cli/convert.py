"""`kafkafs convert DATA_DIR`: rewrites old message formats as v2."""

from __future__ import annotations

import sys

import click

from kafkafs.cli import one_line_errors, say
from kafkafs.cli.addresses import data_dir_argument
from kafkafs.cli.progress import reading_shown


@click.command("convert")
@data_dir_argument()
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def command(data_dir: str, topics: tuple[str, ...], dry_run: bool) -> None:
    """Rewrite what is not of format v2 in DATA_DIR, which must not be in use, in place.

    Message formats v0 and v1 (Kafka 0.8 to 0.10) and whole logs of Kafka 0.7. Offsets, keys,
    values, codecs and the files' times stay; the byte positions of 0.7 stay as offsets. The old
    files are removed when the new ones are durable: nothing is lost, whenever this is killed; run
    it again then. It takes as much free disk as the largest segment, of 0.7 the largest partition.
    """
    from storage.convert.convert import convert
    from storage.verify.verify import log_bytes

    with one_line_errors(), reading_shown("converting", log_bytes(data_dir)) as progress:
        outcome = convert(data_dir, topics=topics, dry_run=dry_run, report=say, progress=progress)
    for fault in outcome.faults:
        say(f"kafkafs: {fault}", err=True)
    done = "would be converted" if dry_run else "converted"
    say(f"{len(outcome.converted)} files {done}")
    if outcome.faults:
        sys.exit(1)
