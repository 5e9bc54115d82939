"""`kafkafs groups reset`: sets the committed offsets of a group that nobody consumes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    LOGS,
    Address,
    check_address,
    mount_to_change,
    partitions_at,
    resolve,
)
from kafkafs.cli.common.changes import opened_to_change
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.mount_files import MountFiles, find, tree_of
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.refusals import Request
from kafkafs.cli.common.words import Group, words_argument
from kafkafs.quantities import Value
from storage.paths import GROUPS, INTERNAL_TOPICS

if TYPE_CHECKING:
    from kafkafs.tree.groups.positions import Wanted
    from storage.manager import LogManager

_Partition = tuple[str, int]


@click.command(
    "reset",
    epilog=examples(
        "kafkafs groups reset -g billing --to earliest mnt/orders",
        "kafkafs groups reset -g billing --to 2026-11-21 data orders:0 payments",
    ),
)
@words_argument(LOGS)
@click.option(
    "-g", "--group", type=Group(), required=True, help="The group. It need not exist yet."
)
@click.option(
    "--to",
    "start",
    metavar="START",
    required=True,
    help=(
        "The new offset: earliest, latest, an offset, a time (-15m), or a number to add to the "
        "committed offset (+100, -100)."
    ),
)
@output_options("a list of objects with `topic`, `partition` and `offset`")
def command(words: Sequence[str], group: str, start: str, out: Output) -> None:
    """Set the committed offsets of a group in topics or partitions. Without TOPIC, set them in all
    topics except Kafka's own.

    The command fails and sets nothing if a consumer of the group is using one of the partitions, or
    if the new offset is outside the log of a partition. The command also works while DATA is
    mounted. It fails in a broker's directory, or if another process writes DATA.
    """
    logs = resolve(words, needs="files")
    wanted = _parsed(start)
    if not group:
        raise click.UsageError("-g GROUP: the name is empty")
    check_address(logs)
    _refuse_brokers(logs)
    mount = mount_to_change(logs)
    given = [each for each in partitions_at(logs) if logs.places or each[0] not in INTERNAL_TOPICS]
    if mount is not None:
        offsets = _reset_through(mount, group, start, wanted, logs, given)
    else:
        with opened_to_change(logs.data_dir) as manager:
            offsets = _reset_here(manager, group, wanted, given)
    rows: list[dict[str, Value]] = [
        {"topic": topic, "partition": number, "offset": offset}
        for (topic, number), offset in offsets.items()
    ]
    out.json(rows)
    for row in rows:
        out.say(f"{row['topic']}:{row['partition']}: offset {row['offset']}")


def _parsed(start: str) -> Wanted:
    from kafkafs.tree.groups.positions import parse

    try:
        return parse(start, time.time_ns() // 1_000_000)
    except OSError as error:
        raise click.BadParameter(str(error.strerror)) from None


def _refuse_brokers(logs: Address) -> None:
    from storage.files import Files
    from storage.settings.broker_settings import is_brokers

    if is_brokers(Files(logs.data_dir), logs.data_dir):
        raise fail(
            f"{logs.data_dir}: this is a broker's directory. To set offsets, start the broker and "
            "use: kafka-consumer-groups --reset-offsets"
        )


def _reset_here(
    manager: LogManager, group: str, wanted: Wanted, given: Sequence[_Partition]
) -> dict[_Partition, int]:
    """Commit in a directory that no process has open.

    Errors: OSError, StorageError. Nothing was set, unless another topic was committed before.
    """
    from kafkafs.tree.files.view_file import ViewFile
    from kafkafs.tree.groups.positions import offset_of
    from storage.groups.offset_records import Committed

    tree = tree_of(manager)
    found = manager.groups.find(group)
    committed = {} if found is None else found.committed
    offsets: dict[_Partition, int] = {}
    for topic, number in given:
        node = find(tree, topic, str(number))
        assert isinstance(node, ViewFile)
        known = committed.get((topic, number))
        before = None if known is None else known.position
        offsets[topic, number] = offset_of(wanted, node.partition, before)
    manager.groups.prepare()
    for topic in dict(given):
        of = {number: Committed(each) for (name, number), each in offsets.items() if name == topic}
        manager.groups.commit(group, topic, of)
    return offsets


def _reset_through(
    mount: str, group: str, start: str, wanted: Wanted, logs: Address, given: Sequence[_Partition]
) -> dict[_Partition, int]:
    """Commit through the mount's daemon. Errors: ClickException, OSError."""
    from kafkafs.tree.files.group_names import file_name

    files = MountFiles(mount)
    directory = os.path.join(GROUPS, file_name(group))
    is_new = not os.path.exists(os.path.join(mount, directory))

    def facts(*names: str) -> dict[str, str]:
        lines = files.read(*names).splitlines()
        return dict(line.split(" ", 1) for line in lines if " " in line)

    holders = {} if is_new else _holders(files, directory)
    for topic, number in given:
        if (topic, number) in holders:
            raise fail(f"{topic}:{number}: claimed by {holders[topic, number]}; nothing was set")
        if is_new:
            known = {"position": "none", **facts(topic, ".meta", str(number), "offsets")}
        else:
            known = facts(directory, topic, str(number))
        _check_range(f"{topic}:{number}", known, wanted)
    with suppress(FileExistsError):
        os.mkdir(os.path.join(mount, directory))
    places = logs.places or [(topic, None) for topic, _ in given]
    whole = {topic for topic, number in places if number is None}
    names = dict.fromkeys(
        os.path.join(directory, topic, ".all" if topic in whole else str(number))
        for topic, number in given
    )
    for name in names:
        with (
            Request(mount, name).failing_as(f"{mount}: cannot set the offset"),
            open(os.path.join(mount, name), "w") as file,
        ):
            file.write(f"{start}\n")
    return {each: int(facts(directory, each[0], str(each[1]))["position"]) for each in given}


def _check_range(name: str, facts: Mapping[str, str], wanted: Wanted) -> None:
    """Raise ClickException if a partition has no such offset."""
    from kafkafs.tree.files.start_names import Offset
    from kafkafs.tree.groups.positions import Change

    offset = None
    if isinstance(wanted.where, Offset):
        offset = wanted.where.offset
    elif isinstance(wanted.where, Change):
        if facts["position"] == "none":
            raise fail(f"{name}: no offset is committed; nothing was set")
        offset = int(facts["position"]) + wanted.where.offsets
    first, end = facts["log_start"], facts["log_end"]
    if offset is not None and not int(first) <= offset <= int(end):
        raise fail(f"{name}: offset {offset} is outside of {first}..{end}; nothing was set")


def _holders(files: MountFiles, directory: str) -> dict[_Partition, str]:
    """Return the consumers that have claimed partitions, by partition."""
    found = {}
    for line in files.read(directory, ".claims").splitlines()[1:]:
        topic, number, state, whose = line.split(None, 3)
        if state != "wait":
            found[topic, int(number)] = whose.strip()
    return found
