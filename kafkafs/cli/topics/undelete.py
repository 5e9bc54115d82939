"""`kafkafs undelete`: takes the deletion of a topic back, while its files are there."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import mount_to_change
from kafkafs.cli.common.changes import ask_daemon, opened_to_change, topic_and_rest
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.words import Logs, Topic, words_argument


@click.command(
    "undelete",
    epilog=examples(
        "kafkafs undelete data orders",
        "kafkafs undelete mnt/orders --id Vr5mPsyATbuvJlUWmxWLwA  # which one of that name",
    ),
)
@words_argument("DATA|MOUNT TOPIC", Logs(Topic(deleted=True)))
@click.option(
    "--id",
    "topic_id",
    metavar="ID",
    help=(
        "Id of the topic, if several topics of that name were deleted. `kafkafs ls` lists the ids."
    ),
)
@output_options()
def command(words: Sequence[str], topic_id: str | None, out: Output) -> None:
    """Restore a deleted topic with its records, settings, owners and modes.

    After its deletion, a topic can be restored for the time in its setting file.delete.delay.ms,
    even if the daemon was restarted. `kafkafs ls` lists the topics that can be restored. If a new
    topic has the same name, delete the new topic first. If the command is killed, nothing is lost:
    the topic is already restored, or you can run the command again.

    If DATA is mounted, the daemon restores the topic. The command fails while a process other than
    the mount's daemon writes DATA.
    """
    address, others = topic_and_rest(words)
    if others:
        raise click.UsageError("give one topic: DATA TOPIC, or MOUNT/TOPIC")
    topic = address.topic()
    mount = mount_to_change(address)
    if mount is None:
        _check_room(address.data_dir)
        with opened_to_change(address.data_dir) as manager:
            manager.undelete_topic(topic, topic_id)
    else:
        from kafkafs.tree.control.topic_commands import undelete_line

        ask_daemon(mount, undelete_line(topic, topic_id))
    out.say(f"restored {topic}")
    out.json({"topic": topic})


def _check_room(data_dir: str) -> None:
    """Raise OSError if opening the directory would remove the files of deleted topics."""
    from storage.directory.make_room import is_full
    from storage.files import Files

    if is_full(Files(data_dir), data_dir):
        reason = (
            "the disk is full, and opening the directory would remove the files of deleted topics. "
            "First delete other files on this disk (8 files with 1 MiB are enough)"
        )
        raise OSError(errno.ENOSPC, reason, data_dir)
