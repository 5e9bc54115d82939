"""Asks for metadata, the starts of new copies, the settings of topics and groups on a thread, so
that a silent broker delays no record of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Set
from concurrent.futures import Future
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from kafka_client.cluster import Cluster, Metadata, TopicPartition
from kafka_client.connection import in_background, result_of
from kafka_client.errors import ClientError
from kafka_client.requests import TopicSettings, describe_topic_configs
from kafkafs.mirror import groups, topics
from kafkafs.mirror.groups import GroupFacts

T = TypeVar("T")


class Found(NamedTuple):
    """The metadata of all topics, the starts of new copies, the settings of their topics and of
    the given ones, and the groups unless `look_up` was called without them.
    """

    metadata: Metadata
    starts: Mapping[TopicPartition, int | ClientError]
    settings: Mapping[str, TopicSettings | ClientError]
    groups: GroupFacts | None


class Lookups(Generic[T]):
    """One lookup at a time, over connections of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster.for_thread()
        self._future: Future[T] | None = None

    def close(self) -> None:
        """Close the connections, after the lookup that may be under way."""
        if self._future is None:
            self._cluster.close()
        else:
            self._future.add_done_callback(lambda _: self._cluster.close())

    @property
    def is_under_way(self) -> bool:
        return self._future is not None

    def begin(self, ask: Callable[[Cluster], T]) -> None:
        """Call a function with the cluster on the thread."""
        self._future = in_background(partial(ask, self._cluster))

    def take(self) -> T | ClientError | None:
        """Return what was found, once; None before."""
        if self._future is None or not self._future.done():
            return None
        future, self._future = self._future, None
        try:
            return result_of(future)
        except ClientError as error:
            return error


def look_up(
    patterns: Sequence[str],
    known: Container[tuple[str, int]],
    names: Set[str],
    with_groups: bool,
    cluster: Cluster,
) -> Found:
    """Ask a cluster. `known`: the partitions that have a copy. `names`: also ask for the
    settings of these topics.
    """
    of_groups = groups.ask(cluster) if with_groups else None
    metadata = cluster.refresh()
    new = topics.without_copies(metadata, patterns, known)
    settings = settings_of(cluster, sorted(names | {each.topic for each in new}))
    return Found(metadata, topics.start_offsets(cluster, new), settings, of_groups)


def settings_of(
    cluster: Cluster, names: Sequence[str]
) -> Mapping[str, TopicSettings | ClientError]:
    """Return the settings of topics, or why they cannot be read."""
    try:
        found = describe_topic_configs(cluster, names)
    except ClientError as error:
        return dict.fromkeys(names, error)
    return {name: found[name] for name in names if name in found}
