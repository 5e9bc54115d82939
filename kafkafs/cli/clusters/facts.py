"""Facts of a cluster for `ls`, `describe` and `groups`. A fact that cannot be read is None."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import ClientError
from kafka_client.requests import (
    EARLIEST,
    LATEST,
    TopicSettings,
    describe_topic_configs,
    fetch_committed,
)
from kafkafs.cli.common.clusters import ClusterAddress, offsets_of, partitions_of, reason_of
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
    # In later metadata, a topic that is deleted meanwhile has no partitions.
    topics = cluster.metadata.topics
    starts = offsets_of(cluster, found, EARLIEST, report)
    ends = offsets_of(cluster, list(starts), LATEST, report)
    stable = offsets_of(cluster, list(ends), LATEST, report, committed=True)
    rows: list[dict[str, Value]] = []
    for each in found:
        start, end = starts.get(each), ends.get(each)
        partition = topics[each.topic].partitions[each.partition]
        rows.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "log_start": start,
                "high_watermark": end,
                "last_stable": stable.get(each),
                "records": None if start is None or end is None else end - start,
                "leader": partition.leader,
                "replicas": ",".join(map(str, partition.replicas)),
                "isr": ",".join(map(str, partition.isr)),
            }
        )
    return rows


def settings_of(
    cluster: Cluster, topics: Iterable[str], report: Report
) -> dict[str, TopicSettings | None]:
    """Return the settings of topics."""
    settings: dict[str, TopicSettings | None] = dict.fromkeys(topics)
    for topic, each in describe_topic_configs(cluster, settings).items():
        if isinstance(each, ClientError):
            report(each)
        elif topic in settings:
            settings[topic] = each
    return settings


def committed_offsets(
    cluster: Cluster, groups: Iterable[str], report: Report
) -> dict[str, list[dict[str, Value]] | None]:
    """Return the committed offsets of groups."""
    committed = {group: _committed_by(cluster, group, report) for group in groups}
    partitions = {each for offsets in committed.values() for each in offsets or ()}
    ends = offsets_of(cluster, sorted(partitions), LATEST, report)
    return {
        group: None
        if offsets is None
        else [
            {
                "group": group,
                "topic": each.topic,
                "partition": each.partition,
                "offset": offset,
                "high_watermark": (end := ends.get(each)),
                "lag": None if end is None else max(end - offset, 0),
            }
            for each, offset in offsets.items()
        ]
        for group, offsets in committed.items()
    }


def _committed_by(cluster: Cluster, group: str, report: Report) -> dict[TopicPartition, int] | None:
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
    return found
