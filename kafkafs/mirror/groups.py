"""Mirrors the committed offsets of groups.

If the client may read `__consumer_offsets`, the mirror copies that topic like any other, from its
start on. Else the mirror asks for the offsets of all groups every 30 seconds, and commits those
that have changed in a topic `__consumer_offsets` of its own. The answers have no times of commits,
so the commits here have the times of the answers. Groups and offsets that the cluster deletes stay:
a group that may not be described any more looks as if it were deleted.

A directory never changes from one way to the other, as both write the same topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafka_client import requests
from kafka_client.cluster import Cluster
from kafka_client.errors import ClientError
from kafka_client.requests import CommittedOffsets
from storage import paths
from storage.errors import StorageError
from storage.groups.offset_records import Committed
from storage.manager import LogManager


class GroupFacts(NamedTuple):
    """The answers of a cluster about groups. `may_read`: as `requests.may_read` of their topic;
    None also if that is not known. `offsets`: of all groups.
    """

    may_read: bool | None
    offsets: Mapping[str, CommittedOffsets | ClientError] | ClientError


def ask(cluster: Cluster) -> GroupFacts:
    """Ask a cluster."""
    may_read = None
    try:
        may_read = requests.may_read(cluster, paths.CONSUMER_OFFSETS)
        return GroupFacts(may_read, requests.fetch_all_committed(cluster))
    except ClientError as error:
        return GroupFacts(may_read, error)


def commit_all(
    manager: LogManager, found: Mapping[str, CommittedOffsets | ClientError]
) -> dict[str, str]:
    """Commit the changed offsets of groups in partitions that are here; return why offsets of
    groups could not be read or committed.
    """
    failed = {}
    for name, offsets in found.items():
        if isinstance(offsets, ClientError):
            failed[name] = str(offsets)
            continue
        try:
            reasons = _commit(manager, name, offsets)
        except (OSError, StorageError) as error:
            reasons = [str(error)]
        if reasons:
            failed[name] = ", ".join(reasons)
    return failed


def _commit(manager: LogManager, name: str, found: CommittedOffsets) -> list[str]:
    """Commit those of a group's offsets that differ from ours; return why offsets could not be read
    or committed. Errors: those of `Groups.find`.
    """
    group = manager.groups.find(name)
    reasons = []
    changed: dict[str, dict[int, Committed]] = {}
    for each, offset in found.items():
        topic = manager.topics.get(each.topic)
        if topic is None or each.partition not in topic.partitions:
            continue
        if isinstance(offset, ClientError):
            reasons.append(str(offset))
            continue
        known = None if group is None else group.committed.get(each)
        if known is None or known[:3] != offset:
            changed.setdefault(each.topic, {})[each.partition] = Committed(*offset)
    for topic_name, offsets in changed.items():
        try:
            manager.groups.commit(name, topic_name, offsets)
        except (OSError, StorageError) as error:
            reasons.append(f"{topic_name}: {error}")
    return reasons
