"""`kafkafs undelete`: takes the deletion of a topic back, while its files are there."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import mount_to_change
from kafkafs.cli.common.changes import ask_daemon, opened_to_change, topic_and_rest
from kafkafs.cli.common.ending import one_line_errors
from kafkafs.cli.common.output import Output, output_options


@click.command(
    "undelete",
    epilog=examples(
        "kafkafs undelete data orders",
        "kafkafs undelete mnt/orders --id Vr5mPsyATbuvJlUWmxWLwA  # which one of that name",
    ),
)
@click.argument("words", metavar="DATA|MOUNT TOPIC", nargs=-1, required=True)
@click.option("--id", "topic_id", metavar="ID", help="Which one, where several had the name.")
@output_options()
@click.pass_context
def command(
    context: click.Context, words: Sequence[str], topic_id: str | None, out: Output
) -> None:
    """Take the deletion of TOPIC back, with its records, settings, owners and modes.

    Possible until the topic's file.delete.delay.ms is over; kafkafs topics lists what can be
    undeleted. Not where there is a topic of that name again. Where DATA is mounted, the daemon does
    it.
    """
    address, others = topic_and_rest(context, words)
    if others:
        raise click.UsageError("give one topic: DATA TOPIC, or MOUNT/TOPIC")
    topic = address.topic()
    with one_line_errors():
        mount = mount_to_change(address)
        if mount is None:
            with opened_to_change(address.data_dir) as manager:
                manager.undelete_topic(topic, topic_id)
        else:
            from kafkafs.tree.control.topic_commands import undelete_line

            ask_daemon(mount, undelete_line(topic, topic_id))
    out.say(f"{topic} is back")
    out.json({"topic": topic})
