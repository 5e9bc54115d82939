"""`kafkafs groups ls`: lists consumer groups with their lag."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import CLUSTER, allow_empty_option, resolve_directory
from kafkafs.cli.common.clusters import Client, cluster_address, cluster_options, is_cluster
from kafkafs.cli.common.ending import did_you_mean, end, fail
from kafkafs.cli.common.mount_files import opened_files
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.words import Group, Logs, words_argument
from kafkafs.quantities import TimeMs, Value

_COLUMNS = ("group", "partitions", "lag", "last_commit")
_CLUSTER_COLUMNS = ("group", "state", "partitions", "lag")
_CLUSTER_OFFSET_COLUMNS = ("group", "topic", "partition", "offset", "high_watermark", "lag")
_OFFSET_COLUMNS = ("group", "topic", "partition", "offset", "high_watermark", "lag", "committed")


@click.command(
    "ls",
    epilog=examples(
        "kafkafs groups ls data",
        "kafkafs groups ls mnt billing",
        "kafkafs groups ls kafka://broker:9092 billing",
    ),
)
@words_argument(f"DATA|{CLUSTER} [GROUP]...", Logs(Group()))
@allow_empty_option
@cluster_options
@output_options("`notes`, and `groups` (with GROUP: `offsets`)", times=True)
def command(words: Sequence[str], client: Client, out: Output) -> None:
    """List groups with their number of committed offsets, their lag, and the time of the last
    commit. With GROUP, list the partitions of the group, with committed offset, high watermark, lag
    and time of the commit.

    The lag is the high watermark minus the committed offset, as in kafka-consumer-groups. The
    directory may be in use, also by a broker. If the directory does not have all partitions of
    __consumer_offsets, a line that begins with # says so. Other brokers may then have more groups.

    For a cluster, kafka://HOST:PORT, the command lists the state of each group, but no times of
    commits.
    """
    if is_cluster(words[0]):
        _list_cluster(words, client, out)
        return
    client.check_unused()
    from kafkafs.tree.files.group_names import NOT_SHOWN, file_name, group_name, is_shown
    from storage.paths import GROUPS

    logs, wanted = resolve_directory(words[:1], needs="files"), words[1:]
    with opened_files(logs, os.path.join(GROUPS, ".lag")) as files:
        # A blank would be the end of the column.
        known = {name.replace(" ", "%20"): group_name(name) or name for name in files.names(GROUPS)}
        lags, lines = files.table(GROUPS, ".lag")
    for group in wanted:
        if not is_shown(group):
            raise fail(NOT_SHOWN)
        if file_name(group).replace(" ", "%20") not in known:
            raise fail(f"there is no group {group!r}{did_you_mean(group, known.values())}")
    offsets = [_offset(known.get(each["group"], each["group"]), each) for each in lags]
    notes = [line for line in lines if not line.startswith("lag ")]
    if wanted:
        columns: Sequence[str] = _OFFSET_COLUMNS
        rows = [each for each in offsets if each["group"] in wanted]
    else:
        columns = _COLUMNS
        of_group: dict[str, list[dict[str, Value]]] = {}
        for each in offsets:
            of_group.setdefault(str(each["group"]), []).append(each)
        rows = [_summary(group, of_group.get(group, [])) for group in sorted(known.values())]
    out.listing("offsets" if wanted else "groups", columns, rows, notes)


def _list_cluster(words: Sequence[str], client: Client, out: Output) -> None:
    from kafka_client.requests import list_groups
    from kafkafs.cli.clusters import facts

    address, wanted = cluster_address(words[:1]), words[1:]
    if address.places:
        raise click.UsageError("give a cluster without a topic: kafka://HOST:PORT [GROUP]...")
    with client.connected(address.brokers) as cluster:
        states = list_groups(cluster)
        found = facts.committed_offsets(cluster, wanted or sorted(states), out.report)
    for group, offsets in found.items():
        if group not in states and not offsets:
            raise fail(f"there is no group {group!r}{did_you_mean(group, states)}")
    if wanted:
        columns: Sequence[str] = _CLUSTER_OFFSET_COLUMNS
        rows = [each for offsets in found.values() for each in offsets or ()]
    else:
        columns = _CLUSTER_COLUMNS
        rows = []
        for group, offsets in found.items():
            lags = [None] if offsets is None else [each["lag"] for each in offsets]
            row: dict[str, Value] = {"group": group, "state": states[group]}
            row["partitions"] = None if offsets is None else len(offsets)
            row["lag"] = None if None in lags else sum(int(lag) for lag in lags if lag is not None)
            rows.append(row)
    out.listing("offsets" if wanted else "groups", columns, rows)
    end(failed=out.has_failed)


def _offset(group: str, facts: Mapping[str, str]) -> dict[str, Value]:
    """A committed offset; None for what its log would say and is not here."""

    def number(name: str) -> int | None:
        return int(facts[name]) if facts[name].lstrip("-").isdecimal() else None

    committed = number("committed")
    return {
        "group": group,
        "topic": facts["topic"],
        "partition": number("partition"),
        "offset": number("position"),
        "high_watermark": number("high_watermark"),
        "lag": number("lag"),
        "committed": None if committed is None else TimeMs(committed),
    }


def _summary(group: str, offsets: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    lags = [int(each["lag"]) for each in offsets if each["lag"] is not None]
    times = [each["committed"] for each in offsets if isinstance(each["committed"], TimeMs)]
    return {
        "group": group,
        "partitions": len(offsets),
        "lag": sum(lags),
        "last_commit": max(times, default=None),
    }
