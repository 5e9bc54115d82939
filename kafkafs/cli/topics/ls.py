"""`kafkafs ls`: lists topics, or the partitions of some, with sizes, retention and faults."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, check_address, logs_argument
from kafkafs.cli.common.clusters import Client, ClusterAddress, cluster_options
from kafkafs.cli.common.ending import end
from kafkafs.cli.common.mount_files import MountFiles, opened_files
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.serving import check_served
from kafkafs.cli.topics.facts import lags_of, mirror_of, notes_of, partitions, settings_of
from kafkafs.quantities import Size, TimeMs, Value
from storage.paths import INTERNAL_TOPICS
from storage.units import duration_text

_COLUMNS = ("topic", "partitions", "records", "size", "last_append", "cleanup_policy", "retention")
_PARTITION_COLUMNS = ("topic", "partition", "records", "size", "last_timestamp")
_CLUSTER_COLUMNS = ("topic", "partitions", "records", "cleanup_policy", "retention")
_CLUSTER_PARTITION_COLUMNS = ("topic", "partition", "records")
_RATES = ("records_per_s", "bytes_per_s")
_RATE_S = 1.0
_NOT_SET = "-1"


@click.command(
    "ls",
    epilog=examples("kafkafs ls data", "kafkafs ls mnt --rates", "kafkafs ls kafka://broker:9092"),
)
@logs_argument(needs="files", clusters=True)
@click.option(
    "--internal", is_flag=True, help="Also list Kafka's own topics, such as __consumer_offsets."
)
@click.option(
    "--rates",
    is_flag=True,
    help=(
        "For the topics of a mount: print the records and bytes appended per second. ls measures "
        "them for one second."
    ),
)
@cluster_options
@output_options(
    "`topics` or, with TOPIC, `partitions`; and `notes`. In retention_ms and retention_bytes, -1 "
    "means no limit, and null means not known",
    times=True,
    sizes=True,
)
def command(
    logs: Address | ClusterAddress, internal: bool, rates: bool, client: Client, out: Output
) -> None:
    """List topics with their size, numbers of partitions and records, time of the last append,
    cleanup policy and retention. With TOPIC, list the partitions of the topic, with their size,
    number of records, and timestamp of the last record.

    The directory may be in use. ls calculates the number of records from the offsets, so it also
    counts records that compaction has removed. The column `retention` shows how much retention
    keeps: a time (7d), a size (10.0GiB), both (7d+10.0GiB), or `all`.

    The last lines are notes, and begin with #. They name partitions that cannot be opened, lost
    records, and the deleted topics that you can undelete, with their ids. They also name topics
    whose settings are not known: kafkafs deletes nothing from these topics.

    In the mirror of a cluster, the column `lag` shows how many records the mirror has not copied
    yet. These numbers are at most 10 seconds old while the mirror runs.

    For a cluster, kafka://HOST:PORT, ls shows no sizes and no times.
    """
    if rates and logs.places:
        raise click.UsageError("--rates takes no TOPIC")
    if rates and (isinstance(logs, ClusterAddress) or logs.mount is None):
        raise click.UsageError(
            "--rates requires a mount: nothing is appended while DATA is not mounted"
        )
    if isinstance(logs, ClusterAddress):
        _list_cluster(logs, client, out, internal=internal)
        return
    client.check_unused()
    check_address(logs)
    if rates and logs.mount is not None:
        check_served(logs.mount)
    with opened_files(logs, os.path.join(".kafkafs", "topics")) as files:
        before = _listing(files) if rates else None
        if before is not None:
            time.sleep(_RATE_S)
        now = _listing(files)
        mirror = mirror_of(logs)
        notes = notes_of(logs, now.notes, mirror)
        columns: Sequence[str] = () if mirror is None else ("lag",)
        if logs.places:
            columns = (*_PARTITION_COLUMNS, *columns)
            found = partitions(files, logs, mirror)
            rows = [{name: each[name] for name in columns} for each in found]
        else:
            columns = (*_COLUMNS, *columns, *(_RATES if rates else ()))
            hidden = frozenset() if internal else INTERNAL_TOPICS
            lags = None if mirror is None else lags_of(mirror)
            rows = [
                _row(files, topic, now, before, notes, out)
                | ({} if lags is None else {"lag": lags.get(topic)})
                for topic in now.facts
                if topic not in hidden
            ]
    out.listing("partitions" if logs.places else "topics", columns, rows, notes)


def _list_cluster(logs: ClusterAddress, client: Client, out: Output, *, internal: bool) -> None:
    from kafkafs.cli.clusters import facts

    with client.connected(logs.brokers) as cluster:
        found = facts.partitions(cluster, logs, out.report, internal=internal)
        topics = dict.fromkeys(str(each["topic"]) for each in found)
        settings = {} if logs.places else facts.settings_of(cluster, topics, out.report)
    rows: list[dict[str, Value]]
    if logs.places:
        columns: Sequence[str] = _CLUSTER_PARTITION_COLUMNS
        rows = [{name: each[name] for name in columns} for each in found]
    else:
        columns, rows = _CLUSTER_COLUMNS, []
        records_of: dict[str, list[Value]] = {topic: [] for topic in settings}
        for each in found:
            records_of[str(each["topic"])].append(each["records"])
        for topic, known in settings.items():
            in_force = None if known is None else known.in_force
            records = records_of[topic]
            kept, limits = _retention(in_force, out)
            total = sum(int(number) for number in records if number is not None)
            row: dict[str, Value] = {"topic": topic, "partitions": len(records)}
            row["records"] = None if None in records else total
            row["cleanup_policy"] = None if in_force is None else in_force.get("cleanup.policy")
            rows.append({**row, "retention": kept, **limits})
    out.listing("partitions" if logs.places else "topics", columns, rows)
    end(failed=out.has_failed)


class _Listing(NamedTuple):
    """The content of `.kafkafs/topics`: facts by topic and name, notes; and when it was read."""

    facts: Mapping[str, Mapping[str, str]]
    notes: Sequence[str]
    read_s: float


def _listing(files: MountFiles) -> _Listing:
    rows, notes = files.table(".kafkafs", "topics")
    return _Listing({row["topic"]: row for row in rows}, notes, time.monotonic())


def _row(
    files: MountFiles,
    topic: str,
    now: _Listing,
    before: _Listing | None,
    notes: list[str],
    out: Output,
) -> dict[str, Value]:
    facts = now.facts[topic]
    last = int(facts["last_append"])
    settings = settings_of(files, topic, notes)
    kept, limits = _retention(None if settings is None else settings[0], out)
    return {
        "topic": topic,
        "partitions": int(facts["partitions"]),
        "records": int(facts["offsets"]),
        "size": Size(int(facts["bytes"])),
        "last_append": TimeMs(last) if last >= 0 else None,
        "cleanup_policy": facts["cleanup.policy"],
        "retention": kept,
        **({} if before is None else _rates(now, before, topic)),
        **limits,
    }


def _rates(now: _Listing, before: _Listing, topic: str) -> dict[str, Value]:
    """Records and bytes that were appended a second; None where more was deleted meanwhile."""
    known = before.facts.get(topic)
    rates: dict[str, Value] = dict.fromkeys(_RATES)
    for name, fact in zip(_RATES, ("offsets", "bytes"), strict=True):
        grown = -1 if known is None else int(now.facts[topic][fact]) - int(known[fact])
        if grown >= 0:
            rates[name] = round(grown / (now.read_s - before.read_s))
    return rates


def _retention(
    in_force: Mapping[str, str] | None, out: Output
) -> tuple[str | None, dict[str, Value]]:
    """Return how much retention keeps by the settings in force; None: these are not known.

    The result is a text, the time or the size or both, and the limits as numbers: -1 is no limit,
    None is not known.
    """
    numbers: dict[str, Value] = {"retention_ms": None, "retention_bytes": None}
    if in_force is None:
        return None, numbers
    kept: dict[str, None] = {}
    for name in numbers:
        limit = in_force.get(name.replace("_", "."), _NOT_SET)
        if limit == _NOT_SET:
            numbers[name] = int(limit)
        elif not limit.isdecimal():
            kept[limit] = None
        else:
            numbers[name] = number = int(limit)
            kept[duration_text(number) if name == "retention_ms" else out.text(Size(number))] = None
    return "+".join(kept) or "all", numbers
