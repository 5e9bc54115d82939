"""`kafkafs describe`: the partitions of topics, and the settings that are set on them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, check_address, logs_argument
from kafkafs.cli.common.clusters import Client, ClusterAddress, cluster_options
from kafkafs.cli.common.ending import end
from kafkafs.cli.common.mount_files import opened_files
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.topics.facts import (
    MIRROR_COLUMNS,
    gap_facts,
    gap_text,
    gaps_of,
    mirror_of,
    notes_of,
    partitions,
    settings_of,
)
from kafkafs.quantities import Value
from storage.paths import INTERNAL_TOPICS

if TYPE_CHECKING:
    from storage.state.gaps_file import Gap

_COLUMNS = (
    *("topic", "partition", "log_start", "log_end", "high_watermark", "segments", "size"),
    *("first_timestamp", "last_timestamp"),
)
_CLUSTER_COLUMNS = (
    *("topic", "partition", "log_start", "high_watermark", "last_stable", "records"),
    *("leader", "replicas", "isr"),
)


@click.command(
    "describe",
    epilog=examples(
        "kafkafs describe data orders",
        "kafkafs describe mnt/orders/0",
        "kafkafs describe --json data orders:0 payments",
        "kafkafs describe kafka://broker:9092/orders",
    ),
)
@logs_argument(needs="files", clusters=True)
@cluster_options
@output_options(
    "`partitions`, `gaps` (of a mirror), `settings` (of each topic), `source_settings` (of a "
    "mirror) and `notes`",
    times=True,
    sizes=True,
)
def command(logs: Address | ClusterAddress, client: Client, out: Output) -> None:
    """Show the partitions of topics, and the settings that are set on the topics.

    log_start is the offset of the first record. log_end is the offset that the next record gets.
    high_watermark is the offset up to which all in-sync replicas have the log. Without TOPIC,
    describe shows all topics except Kafka's own. describe also works while the directory is in use.

    After the table, describe prints a line `TOPIC:N gap KIND FIRST LAST TIME` for each gap of a
    mirror. Then it prints a line `TOPIC NAME=VALUE` for each setting that is set on a topic. The
    last lines are the same notes as in `kafkafs ls`, and begin with #.

    In the mirror of a cluster, describe also shows how many records the mirror has not copied yet
    (lag), and when it last had all records of the cluster (complete_at). A line `TOPIC source
    NAME=VALUE` is a setting that is set on the topic in the cluster. The mirror does not apply it.

    For a cluster, kafka://HOST:PORT/TOPIC, describe also shows the leader, replicas, in-sync
    replicas and last_stable: the offset where the oldest open transaction begins. It does not show
    log_end, segments, sizes and times.
    """
    if isinstance(logs, ClusterAddress):
        _describe_cluster(logs, client, out)
        return
    client.check_unused()
    check_address(logs)
    with opened_files(logs, os.path.join(".kafkafs", "topics")) as files:
        mirror = mirror_of(logs)
        found = [
            each
            for each in partitions(files, logs, mirror)
            if logs.places or each["topic"] not in INTERNAL_TOPICS
        ]
        places = [(str(each["topic"]), str(each["partition"])) for each in found]
        gaps = [(*place, gap) for place in places for gap in gaps_of(files, *place)]
        topics = dict.fromkeys(topic for topic, _ in places)
        notes = notes_of(logs, files.table(".kafkafs", "topics")[1], mirror)
        known = {topic: settings_of(files, topic, notes) for topic in topics}
        settings = {topic: each[1] for topic, each in known.items() if each is not None}
    of_source = {} if mirror is None else mirror.settings
    of_source = {topic: given for topic, given in of_source.items() if topic in topics}
    columns = _COLUMNS if mirror is None else (*_COLUMNS, *MIRROR_COLUMNS)
    rows = [{name: each[name] for name in columns} for each in found]
    _print(out, columns, rows, gaps, settings, of_source, notes)


def _describe_cluster(logs: ClusterAddress, client: Client, out: Output) -> None:
    from kafkafs.cli.clusters import facts

    with client.connected(logs.brokers) as cluster:
        found = facts.partitions(cluster, logs, out.report, internal=False)
        topics = dict.fromkeys(str(each["topic"]) for each in found)
        known = facts.settings_of(cluster, topics, out.report)
    settings = {topic: each.set_here for topic, each in known.items() if each is not None}
    _print(out, _CLUSTER_COLUMNS, found, [], settings, {}, [])
    end(failed=out.has_failed)


def _print(
    out: Output,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Value]],
    gaps: Sequence[tuple[str, str, Gap]],
    settings: Mapping[str, Mapping[str, str]],
    of_source: Mapping[str, Mapping[str, str]],
    notes: Sequence[str],
) -> None:
    listed = [
        {"topic": topic, "partition": int(number), **gap_facts(gap)} for topic, number, gap in gaps
    ]
    result = {"partitions": rows, "gaps": listed, "settings": settings}
    out.json({**result, "source_settings": of_source, "notes": notes})
    if not out.as_json:
        out.table(columns, [[row[name] for name in columns] for row in rows])
    for topic, number, gap in gaps:
        out.say(f"{topic}:{number} gap {gap_text(gap, out)}")
    for where, found in (("", settings), (" source", of_source)):
        for topic, given in found.items():
            for name, value in given.items():
                out.say(f"{topic}{where} {name}={value}")
    for note in notes:
        out.say(f"# {note}")
