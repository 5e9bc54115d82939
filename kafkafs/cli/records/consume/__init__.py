"""`kafkafs consume`: reads topics of a mount as a consumer, alone or in a group.

`sources` says what is read, `reader` reads it in batches, `outputs` takes them, `positions` keeps
how far it has come, and `consumer` is the loop.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import LOGS
from kafkafs.cli.common.decoding import Decoding, decode_options, topic_decoders, view_to_decode
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.mount_files import MountFiles
from kafkafs.cli.common.serving import has_gone, why_gone
from kafkafs.cli.common.views import taken_from_paths, view_option
from kafkafs.cli.common.words import FILE, ByteCount, Duration, Group, Topic, words_argument

_COUNT = click.IntRange(min=1)


@click.command(
    "consume",
    epilog=examples(
        "kafkafs consume mnt/orders",
        "kafkafs consume mnt orders:0 payments",
        "kafkafs consume -g billing mnt/orders --exec 'load-orders'",
        "kafkafs consume -g billing mnt/orders --follow --exec 'load-orders' --on-failure retry",
        "kafkafs consume mnt/orders --from -15m --follow --view jsonl | jq .value",
        "kafkafs consume mnt/orders --from -15m --decode --value-only | jq .total",
    ),
)
@click.option(
    "-g",
    "--group",
    type=Group(),
    help="Resume from this group's committed offsets. A new group begins at START (see --from).",
)
@click.option(
    "--positions",
    "file",
    type=FILE,
    help=(
        "Like -g, but store the committed offsets in FILE. For read-only mounts. Only one consumer "
        "at a time can use FILE."
    ),
)
@view_option
@decode_options
@click.option(
    "--from",
    "start",
    metavar="START",
    default="earliest",
    help="Where to begin if no offset is committed: earliest, latest, an offset, or a time (-15m).",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Wait for new records. Without it, consume ends at the end of the partitions.",
)
@click.option("--max-records", type=_COUNT, metavar="N", help="End after N records.")
@click.option("--exec", "shell", metavar="COMMAND", help="Run `sh -c COMMAND` for each batch.")
@click.option(
    "--batch-records",
    type=_COUNT,
    metavar="N",
    default=10_000,
    help="Largest number of records in a batch.",
)
@click.option(
    "--batch-bytes",
    type=ByteCount(least="1"),
    default="1MiB",
    help="Largest number of bytes in a batch. A larger record is a batch of its own.",
)
@click.option(
    "--batch-wait",
    type=Duration(),
    default="0ms",
    help="With --follow: how long a batch that is not full waits for more records.",
)
@click.option(
    "--on-failure",
    type=click.Choice(["stop", "retry", "skip"]),
    default="stop",
    help="If COMMAND fails: end with its exit status, run it again, or skip the batch.",
)
@click.option(
    "--dead-letter",
    type=Topic(),
    help=(
        "With `--on-failure skip`: append the records of skipped batches to this topic of the same "
        "mount."
    ),
)
@words_argument(LOGS)
def command(
    group: str | None,
    file: str | None,
    view: str,
    decoding: Decoding | None,
    start: str,
    follow: bool,
    max_records: int | None,
    shell: str | None,
    batch_records: int,
    batch_bytes: int,
    batch_wait: int,
    on_failure: str,
    dead_letter: str | None,
    words: Sequence[str],
) -> None:
    """Read topics or partitions of a mount. Without TOPIC, read all topics that exist at the start.

    Without -g, consume prints the existing records, in order within each partition. With -g,
    consume belongs to a consumer group: it begins at the group's committed offsets, and commits its
    progress. The consumers of a group share the partitions. A new consumer gets its share when the
    others have finished their batches. If a consumer ends or is killed, the others get its share at
    once.

    --exec runs COMMAND for each batch of at most --batch-records records. COMMAND gets the lines of
    the batch on standard input, and the variables KAFKAFS_TOPIC, KAFKAFS_PARTITION,
    KAFKAFS_FIRST_OFFSET and KAFKAFS_LAST_OFFSET in its environment. With -g, consume commits a
    batch after COMMAND has exited with status 0. So each record is handled at least once.

    With -g but without --exec, consume commits records when the program that reads its output has
    read them. If this program then fails before it has handled the records, no program gets them
    again. So each record is handled at most once. If each record must be handled at least once, use
    --exec.

    After Ctrl-C or SIGTERM, consume finishes the batch, commits it, and exits with status 130 or
    143. A second signal stops the batch, too: with --exec, COMMAND gets this signal.
    """
    from kafkafs.cli.records.consume.consumer import Consumer, Rules
    from kafkafs.cli.records.consume.outputs import (
        Command,
        DeadLetters,
        Output,
        StandardOutput,
    )
    from kafkafs.cli.records.consume.positions import FilePositions, GroupPositions, Positions
    from kafkafs.cli.records.consume.reader import Limits
    from kafkafs.cli.records.consume.sources import Directories, sources_of

    _check(group, file, shell, on_failure, dead_letter)
    plain, view = taken_from_paths(words)
    if decoding is not None:
        view = view_to_decode(view)
    sources = sources_of(plain)
    if dead_letter in sources.topics:
        raise click.UsageError(
            f"--dead-letter {dead_letter}: this topic is being consumed; give another one"
        )
    point = _point(start)
    keeps = group is not None or file is not None
    rules = Rules(
        view=view,
        point=point,
        follow=follow,
        max_records=max_records,
        limits=Limits(batch_records, batch_bytes),
        wait_s=batch_wait / 1000,
        on_failure=on_failure,
    )
    with ExitStack() as stack:
        letters = decoders = None
        if dead_letter is not None:
            letters = DeadLetters(sources.mount, dead_letter, group or "")
        descriptors = _raise_limit()
        output: Output = (
            StandardOutput(is_taken=keeps) if shell is None else Command(shell, descriptors)
        )
        if decoding is not None:
            opened = MountFiles(sources.mount).opened
            decoders = stack.enter_context(topic_decoders(decoding, opened))
        directories = Directories(sources)
        positions = Positions(directories)
        if file is not None:
            positions = FilePositions(directories, file)
        elif group is not None:
            positions = GroupPositions(directories, sources, group)
        try:
            status = Consumer(rules, positions, directories, output, decoders, letters).run()
        except OSError as error:
            if has_gone(error):
                raise fail(f"{sources.mount}: {why_gone(sources.mount)}") from None
            raise
        finally:
            positions.close()
    sys.exit(status)


def _check(
    group: str | None, file: str | None, shell: str | None, on_failure: str, dead_letter: str | None
) -> None:
    """UsageError for options that do not go together."""
    if group is not None and file is not None:
        raise click.UsageError("give either -g GROUP or --positions FILE, not both")
    if group == "":
        raise click.UsageError("-g GROUP: the name is empty")
    if dead_letter is not None and "/" in dead_letter:
        raise click.UsageError(
            "--dead-letter TOPIC takes the name of a topic in the same mount, not a path"
        )
    if shell is None and on_failure != "stop":
        raise click.UsageError("--on-failure requires --exec COMMAND")
    if (on_failure == "skip") != (dead_letter is not None):
        raise click.UsageError("--on-failure skip and --dead-letter TOPIC require each other")


def _point(start: str) -> str:
    """Return the word of `N@START`. Errors: BadParameter."""
    from time import time_ns

    from kafkafs.tree.files.start_names import Offset, Time, parse_point

    if start in ("earliest", "latest"):
        return "start" if start == "earliest" else start
    if not isinstance(parse_point(start, time_ns() // 1_000_000), Offset | Time):
        raise click.BadParameter(f"{start!r} is not earliest, latest, an offset or a time")
    return start


def _raise_limit() -> int | None:
    """Raise the limit of descriptors to the hard limit: each partition needs a descriptor.

    Return the limit before; None: it was the hard limit already.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return None
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
