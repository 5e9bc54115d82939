"""`kafkafs create`: makes a topic with its partitions and settings."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, mount_to_change
from kafkafs.cli.common.changes import ask_daemon, opened_to_change, topic_and_rest
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.words import Logs, Setting, Topic, words_argument
from storage.plural import counted


@click.command(
    "create",
    epilog=examples(
        "kafkafs create data orders",
        "kafkafs create mnt orders --partitions 3 retention.ms=7d",
        "kafkafs create mnt/users cleanup.policy=compact",
    ),
)
@words_argument("DATA|MOUNT TOPIC [NAME=VALUE]...", Logs(Topic(), Setting()))
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1, 999_999),
    metavar="N",
    help=(
        "Number of partitions. The default is num.partitions in kafkafs.properties, or 1 if it is "
        "not set."
    ),
)
@output_options()
def command(words: Sequence[str], partitions: int | None, out: Output) -> None:
    """Create TOPIC, with partitions and settings. MOUNT/TOPIC is accepted, too.

    The topic belongs to the user who runs the command. The mode of the topic is 0777 without the
    bits of the umask. create checks all settings together, by Kafka's rules. If a name or a setting
    is wrong, or if the topic exists, create fails and creates nothing. The topic and its settings
    appear at the same time. If the command is killed, the topic may have fewer partitions: delete
    it, and create it again.

    If DATA is mounted, the daemon creates the topic, but only for the user who mounted DATA. Other
    users create a topic with mkdir. The command fails while a process other than the mount's daemon
    writes DATA.
    """
    address, given = topic_and_rest(words)
    settings = dict(map(_setting, given))
    topic = address.topic()
    mask = os.umask(0)
    os.umask(mask)
    owner = (os.geteuid(), os.getegid(), 0o777 & ~mask)
    mount = mount_to_change(address)
    partitions = _checked(address, topic, partitions, settings)
    if mount is None:
        with opened_to_change(address.data_dir) as manager:
            manager.create_topic(topic, partitions, owner=owner, settings=settings)
    else:
        from kafkafs.tree.control.topic_commands import create_line

        ask_daemon(mount, create_line(topic, partitions, owner, given))
    out.say(f"created {topic} with {counted(partitions, 'partition')}")
    out.json({"topic": topic, "partitions": partitions})


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value or any(map(str.isspace, text)):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def _checked(address: Address, topic: str, partitions: int | None, settings: dict[str, str]) -> int:
    """Look whether the topic can be made, before a directory is opened; a mount says only an errno.

    Returns the number of partitions.
    """
    from storage import paths
    from storage.errors import TopicExists
    from storage.files import Files
    from storage.retention.retention import check_policy
    from storage.settings.settings import Settings

    files = Files(address.data_dir)
    paths.check_new_name(topic)
    there = files.listing(address.data_dir)
    found = paths.partitions_in(there)
    # Opening the directory finishes an interrupted deletion.
    if topic in found and not any(_is_deleted(topic, name) for name, _ in there):
        count = counted(len(found[topic]), "partition")
        raise TopicExists(f"topic {topic!r} already exists, with {count}", path=address.data_dir)
    known = Settings(files, address.data_dir, check_policy)
    known.checked(topic, settings)
    return known.broker.num_partitions if partitions is None else partitions


def _is_deleted(topic: str, name: str) -> bool:
    """Return whether a directory of this name may be a deleted partition of the topic."""
    from storage.paths import parse_aside_directory

    aside = parse_aside_directory(name)
    return aside is not None and aside.kind == "delete" and topic.startswith(aside.topic)
