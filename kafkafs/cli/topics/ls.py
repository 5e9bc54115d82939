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
from kafkafs.cli.common.output import Output, objects, output_options
from kafkafs.cli.common.serving import check_served
from kafkafs.cli.topics.facts import notes_of, partitions, settings_of
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

_Limits = Mapping[str, str] | None
"""retention.ms and retention.bytes as they are written; None if they cannot be read."""


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
        notes = notes_of(logs, now.notes)
        if logs.places:
            facts = partitions(files, logs)
            columns: Sequence[str] = _PARTITION_COLUMNS
            rows = [[each[name] for name in columns] for each in facts]
            limits: dict[str, _Limits] = {}
        else:
            hidden = frozenset() if internal else INTERNAL_TOPICS
            limits = {topic: _limits(files, topic) for topic in now.facts if topic not in hidden}
            columns, rows = _table(now, before, limits, out)
    _print(columns, rows, limits, notes, out)


def _print(
    columns: Sequence[str],
    rows: Sequence[Sequence[Value]],
    limits: Mapping[str, _Limits],
    notes: Sequence[str],
    out: Output,
) -> None:
    if out.as_json:
        found = objects(columns, rows)
        for each in found if limits else []:
            each |= _limit_numbers(limits[str(each["topic"])])
        out.json({"partitions" if "partition" in columns else "topics": found, "notes": notes})
        return
    out.table(columns, rows)
    for note in notes:
        out.say(f"# {note}")


def _list_cluster(logs: ClusterAddress, client: Client, out: Output, *, internal: bool) -> None:
    from kafkafs.cli.clusters import facts

    with client.connected(logs.brokers) as cluster:
        found = facts.partitions(cluster, logs, out.report, internal=internal)
        topics = dict.fromkeys(str(each["topic"]) for each in found)
        settings = {} if logs.places else facts.settings_of(cluster, topics, out.report)
    limits = {
        topic: None if known is None else _limits_in(known.in_force)
        for topic, known in settings.items()
    }
    if logs.places:
        columns: Sequence[str] = _CLUSTER_PARTITION_COLUMNS
        rows = [[each[name] for name in columns] for each in found]
    else:
        columns, rows = _CLUSTER_COLUMNS, []
        records: dict[str, list[Value]] = {topic: [] for topic in settings}
        for each in found:
            records[str(each["topic"])].append(each["records"])
        for topic, known in settings.items():
            total = sum(int(number) for number in records[topic] if number is not None)
            policy = None if known is None else known.in_force.get("cleanup.policy")
            row: list[Value] = [topic, len(records[topic])]
            row.append(None if None in records[topic] else total)
            rows.append([*row, policy, _retention(limits[topic], out)])
    _print(columns, rows, limits, [], out)
    end(failed=out.has_failed)


class _Listing(NamedTuple):
    """The content of `.kafkafs/topics`: facts by topic and name, notes; and when it was read."""

    facts: Mapping[str, Mapping[str, str]]
    notes: Sequence[str]
    read_s: float


def _listing(files: MountFiles) -> _Listing:
    rows, notes = files.table(".kafkafs", "topics")
    return _Listing({row["topic"]: row for row in rows}, notes, time.monotonic())


def _table(
    now: _Listing, before: _Listing | None, limits: Mapping[str, _Limits], out: Output
) -> tuple[Sequence[str], list[list[Value]]]:
    rows: list[list[Value]] = []
    for topic, limit in limits.items():
        facts = now.facts[topic]
        last = int(facts["last_append"])
        row: list[Value] = [topic, int(facts["partitions"]), int(facts["offsets"])]
        row += [Size(int(facts["bytes"])), TimeMs(last) if last >= 0 else None]
        row += [facts["cleanup.policy"], _retention(limit, out)]
        if before is not None:
            row += _rates(now, before, topic)
        rows.append(row)
    return (*_COLUMNS, *(() if before is None else _RATES)), rows


def _rates(now: _Listing, before: _Listing, topic: str) -> list[Value]:
    """Records and bytes that were appended a second; None where more was deleted meanwhile."""
    known = before.facts.get(topic)
    if known is None:
        return [None, None]
    elapsed_s = now.read_s - before.read_s
    grown = [int(now.facts[topic][name]) - int(known[name]) for name in ("offsets", "bytes")]
    return [None if each < 0 else round(each / elapsed_s) for each in grown]


def _retention(limits: _Limits, out: Output) -> str | None:
    """The time or the size that retention keeps, both, or all; None if that is not known."""
    if limits is None:
        return None
    kept = []
    if limits["retention.ms"] != _NOT_SET:
        limit = limits["retention.ms"]
        kept.append(duration_text(int(limit)) if limit.isdecimal() else limit)
    if limits["retention.bytes"] != _NOT_SET:
        size = limits["retention.bytes"]
        kept.append(out.text(Size(size)) if size.isdecimal() else size)
    return "+".join(dict.fromkeys(kept)) or "all"


def _limits(files: MountFiles, topic: str) -> _Limits:
    """Read the settings of retention of a topic."""
    try:
        return _limits_in(settings_of(files, topic)[0])
    except OSError:
        return None


def _limits_in(in_force: Mapping[str, str]) -> _Limits:
    return {name: in_force.get(name, _NOT_SET) for name in ("retention.ms", "retention.bytes")}


def _limit_numbers(limits: _Limits) -> dict[str, int | None]:
    """For programs: -1 is no limit, None is not known."""
    numbers = {}
    for name in ("retention.ms", "retention.bytes"):
        text = "" if limits is None else limits[name]
        is_number = text == _NOT_SET or text.isdecimal()
        numbers[name.replace(".", "_")] = int(text) if is_number else None
    return numbers
