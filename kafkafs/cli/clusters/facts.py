"""Facts of a cluster for `ls`, `describe` and `groups`. A fact that cannot be read is None."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import ClientError
from kafka_client.requests import (
    DYNAMIC_TOPIC_CONFIG,
    EARLIEST,
    LATEST,
    Offset,
    describe_topic_configs,
    fetch_committed,
    list_offsets,
)
from kafkafs.cli.common.clusters import ClusterAddress, partitions_of, reason_of
from kafkafs.quantities import Value
from storage.paths import INTERNAL_TOPICS

Report = Callable[[object], None]


def partitions(
    cluster: Cluster, address: ClusterAddress, report: Report, *, internal: bool = True
) -> list[dict[str, Value]]:
    """Return the facts of the partitions that the address names."""
    found = [
        each
        for each, _ in partitions_of(cluster, address, report)
        if address.places or internal or each.topic not in INTERNAL_TOPICS
    ]
    starts = _offsets(cluster, found, EARLIEST, report)
    ends = _offsets(cluster, found, LATEST, report)
    stable = _offsets(cluster, found, LATEST, report, committed=True)
    rows: list[dict[str, Value]] = []
    for each in found:
        start, end = starts[each], ends[each]
        partition = cluster.metadata.topics[each.topic].partitions[each.partition]
        rows.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "log_start": start,
                "high_watermark": end,
                "last_stable": stable[each],
                "records": None if start is None or end is None else end - start,
                "leader": partition.leader,
                "replicas": ",".join(map(str, partition.replicas)),
                "isr": ",".join(map(str, partition.isr)),
            }
        )
    return rows


def _offsets(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    which: int,
    report: Report,
    *,
    committed: bool = False,
) -> dict[TopicPartition, int | None]:
    found = list_offsets(cluster, dict.fromkeys(partitions, which), committed=committed)
    return {each: _checked(each, found[each], report) for each in partitions}


def _checked(each: TopicPartition, found: Offset | ClientError, report: Report) -> int | None:
    if isinstance(found, Offset):
        return found.offset
    report(reason_of(each, found))
    return None


class TopicSettings(NamedTuple):
    in_force: Mapping[str, str]
    set_here: Mapping[str, str]


def settings_of(
    cluster: Cluster, topics: Iterable[str], report: Report
) -> dict[str, TopicSettings | None]:
    """Return the settings of topics. The value of a secret is left out."""
    names = list(topics)
    found = describe_topic_configs(cluster, names) if names else {}
    settings: dict[str, TopicSettings | None] = {}
    for topic in names:
        each = found.get(topic)
        if isinstance(each, ClientError):
            report(each)
        if each is None or isinstance(each, ClientError):
            settings[topic] = None
            continue
        given = {name: setting.value for name, setting in each.items() if setting.value is not None}
        here = {name for name in given if each[name].source == DYNAMIC_TOPIC_CONFIG}
        settings[topic] = TopicSettings(given, {name: given[name] for name in sorted(here)})
    return settings


def committed_offsets(
    cluster: Cluster, group: str, report: Report
) -> list[dict[str, Value]] | None:
    """Return the committed offsets of a group."""
    try:
        committed = fetch_committed(cluster, group)
    except ClientError as error:
        report(error)
        return None
    found: dict[TopicPartition, int] = {}
    for each, offset in sorted(committed.items()):
        if isinstance(offset, ClientError):
            report(reason_of(each, offset))
        elif offset.offset >= 0:
            found[each] = offset.offset
    ends = _offsets(cluster, list(found), LATEST, report)
    return [
        {
            "group": group,
            "topic": each.topic,
            "partition": each.partition,
            "offset": offset,
            "high_watermark": (end := ends[each]),
            "lag": None if end is None else max(end - offset, 0),
        }
        for each, offset in found.items()
    ]
