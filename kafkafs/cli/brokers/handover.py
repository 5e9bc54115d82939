"""`kafkafs handover`: gives topics to a broker that is stopped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import checked_directory, directory_to_open, resolve
from kafkafs.cli.common.ending import end, warn
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.words import DIRECTORY, Logs, Topic
from storage.plural import counted

if TYPE_CHECKING:
    from storage.handover.handover import HandoverOutcome

_SERVER = "--bootstrap-server localhost:9092"


@click.command(
    "handover",
    epilog=examples(
        "kafkafs handover --dry-run data /var/lib/kafka",
        "kafkafs handover data /var/lib/kafka orders",
        "kafkafs handover --at before-upgrade backup /var/lib/kafka",
    ),
)
@click.argument("data", metavar="DATA|MOUNT", type=Logs())
@click.argument("broker_dir", metavar="BROKER_DIR", type=DIRECTORY)
@click.argument("topics", metavar="[TOPIC]...", type=Topic(), nargs=-1)
@click.option(
    "--dry-run",
    is_flag=True,
    help=(
        "Only print what would be done, what prevents the handover, and which commands to run at "
        "the broker. The directories may be in use."
    ),
)
@click.option(
    "--at",
    metavar="POINT",
    help=(
        "Hand over the state of a restore point of a mirror, with the committed offsets of "
        "consumer groups. `kafkafs points` lists the points."
    ),
)
@click.option("--force", is_flag=True, help="Also hand over a restore point that is not valid.")
@click.option(
    "--link/--copy",
    default=False,
    help="Make hard links to the files that never change (--link), or copy these files (--copy).",
)
@click.option("--abort", is_flag=True, help="Abort the transactions that are open in DATA.")
@output_options("`dry_run` and `lines` (the messages)")
def command(
    data: str,
    broker_dir: str,
    topics: Sequence[str],
    dry_run: bool,
    at: str | None,
    force: bool,
    link: bool,
    abort: bool,
    out: Output,
) -> None:
    """Hand topics of DATA over to a stopped broker. DATA must not be in use.

    handover copies topics into BROKER_DIR, the broker's log directory. The topics must already
    exist there, with the same number of partitions, and must never have had a record there. Without
    TOPIC, handover copies all topics of DATA except Kafka's own. handover checks every byte.

    First run handover with --dry-run: it prints a shell script that creates the topics at the
    broker, with their settings. Run this script, stop the broker, run handover, and start the
    broker. From then on, DATA and the broker are independent: records that are written to one of
    them do not appear in the other.

    With --link, handover makes hard links to the log files of closed segments instead of copies.
    Both directories must then be on one file system. handover still copies a log file that another
    user owns. It also copies a log file whose leader epoch is above 0 (this epoch counts the
    leaders that the partition has had). The copy has leader epoch 0.

    handover refuses topics with open transactions. --abort ends these transactions: it writes ABORT
    markers into DATA. Without --abort, handover does not change DATA.

    With --at, each partition ends at the offset of the restore point, followed by the markers of
    the transactions there. handover does not change DATA. Without TOPIC, handover copies all topics
    of the point, and writes the groups into the broker's __consumer_offsets, which must have all
    its partitions and no groups. With TOPIC, name __consumer_offsets, too.

    If an error occurs, or after Ctrl-C, handover undoes its changes. If handover is killed, the
    next run undoes the changes and starts again. Until that run, no broker starts on BROKER_DIR.
    """
    from kafkafs.cli.common.progress import long_work
    from storage.handover.handover import hand_over

    if at is None and force:
        raise click.UsageError("--force requires --at")
    if at is not None and abort:
        raise click.UsageError("--abort is not for --at, which never leaves open transactions")
    logs = resolve((data, *topics))
    if any(partition is not None for _, partition in logs.places):
        raise click.UsageError("handover takes topics, not single partitions")
    data_dir = logs.data_dir if dry_run else directory_to_open(logs)
    broker_dir = checked_directory(broker_dir, needs="files")
    names = [topic for topic, _ in logs.places]
    with long_work() as task:
        outcome = hand_over(
            data_dir,
            broker_dir,
            names,
            at=at,
            force=force,
            abort=abort,
            link=link,
            dry_run=dry_run,
            task=task,
        )
    lines = list(_report(outcome, would=dry_run))
    for line in lines:
        out.say(line)
    out.json({"dry_run": dry_run, "lines": lines})
    if outcome.refusals:
        for refusal in outcome.refusals:
            out.problem(refusal, "REFUSED")
            warn(refusal, wrong=True)
        end(found=dry_run, failed=not dry_run)


def _report(outcome: HandoverOutcome, *, would: bool) -> Iterator[str]:
    """Yield the lines of a shell script: the commands for the broker, and comments."""
    for topic, partition in outcome.finished:
        yield f"# {topic}:{partition}: already handed over"
    for handed in outcome.handed:
        yield f"# {handed}"
    for topic, partition, producer_id in outcome.aborted:
        aborted = "would be aborted" if would else "was aborted"
        yield f"# {topic}:{partition}: the transaction of producer {producer_id} {aborted}"
    for topic in outcome.left_out:
        yield f"# {topic}: skipped, because it is internal. To hand it over, name it"
    yield f"# {counted(len(outcome.handed), 'partition')} {'would be ' if would else ''}handed over"
    if outcome.settings:
        yield "# set these before the broker's first retention check:"
    for topic, settings in outcome.settings.items():
        yield _broker_command(topic, settings, outcome.missing.get(topic))
    if not would:
        yield "# now start the broker"


def _broker_command(topic: str, settings: Mapping[str, str], partitions: int | None) -> str:
    """The command that sets a topic's settings; with `partitions`, that creates it with them."""
    values = dict(settings)
    if values.get("cleanup.policy") == "none":
        values["cleanup.policy"] = ""  # brokers write no policy as an empty list
    if partitions is not None:
        words = [f"--config {shlex.quote(f'{n}={v}')}" for n, v in values.items()]
        create = f"--create --topic {topic} --partitions {partitions} --replication-factor 1"
        return " ".join([f"kafka-topics {_SERVER} {create}", *words])
    lists = (f"{n}=[{v}]" if "," in v or not v else f"{n}={v}" for n, v in values.items())
    alter = f"--alter --entity-type topics --entity-name {topic}"
    return f"kafka-configs {_SERVER} {alter} --add-config {shlex.quote(','.join(lists))}"
