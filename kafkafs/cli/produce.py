"""`kafkafs produce TOPIC:PARTITION < FILE`: appends ready record batches without a mount."""

from __future__ import annotations

import os
import sys
import time

import click

from kafkafs.cli import fail, one_line_errors, say
from kafkafs.cli.addresses import check_places, data_dir_option, topic_and_partition
from kafkafs.cli.progress import opening_shown


@click.command("produce")
@data_dir_option
@click.argument("place", metavar="TOPIC:PARTITION", callback=topic_and_partition)
def command(data_dir: str, place: tuple[str, int]) -> None:
    """Append the record batches on standard input, as they lie in a .log file, to a partition.

    The directory must not be in use. Batches of any format are taken and get new offsets; format
    v0 and v1 become v2; the codec stays unless the topic's compression.type says otherwise; what
    a producer has written before is not written again. Where a batch is refused, those in front
    of it are appended and the rest is not: standard error says how many, and exit status is 1.

    What was appended survives the machine when this returns.
    """
    from storage.directory.manager import LogManager
    from storage.log.produce import StreamAppender

    if sys.stdin is None:
        raise fail("standard input is closed")
    producer: StreamAppender | None = None
    with one_line_errors():
        check_places(data_dir, [place])
        try:
            with (
                opening_shown() as progress,
                LogManager.open(data_dir, progress=progress) as manager,
            ):
                log = manager.log(*place)
                stdin = sys.stdin.fileno()
                if os.path.samestat(os.fstat(stdin), os.stat(log.active.log_path)):
                    raise fail("standard input is the log itself")
                producer = StreamAppender(log, time.time_ns)
                # Closing the directory flushes what was appended, after an error, too.
                producer.run(lambda size: os.read(stdin, size))
        finally:
            if producer is not None:
                say(f"{place[0]}:{place[1]}: {producer.produced}", err=True)
