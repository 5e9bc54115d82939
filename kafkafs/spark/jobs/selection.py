"""The data directory and the partitions that the user chooses for a job."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from kafkafs.spark.location.location import Location, check_directory, location_of
from storage import paths
from storage.errors import InvalidConfig, UnknownTopicOrPartition
from storage.log.log import Log
from storage.manager import LogManager


def data_location(path: str) -> Location:
    """Return the place of the data directory `path`. InvalidConfig, OSError."""
    try:
        where = location_of(path)
    except ValueError as error:
        raise InvalidConfig(str(error)) from None
    check_directory(where, where.files())
    return where


def data_name(path: str) -> str:
    """Return a lasting name of the data directory `path`: absolute, and without secrets."""
    where = data_location(path)
    if where.is_local:
        return os.path.realpath(where.path)
    query = dict(parse_qsl(urlsplit(where.option).query))
    store = query.get("endpoint_override")
    return f"{where}?endpoint_override={store}" if store else str(where)


class Selection(NamedTuple):
    """Topics, or single partitions of topics; without `places`, all of them."""

    places: tuple[tuple[str, int | None], ...] = ()

    def wants_topic(self, topic: str) -> bool:
        """Return whether any partition of the topic is chosen."""
        return not self.places or any(name == topic for name, _ in self.places)

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether this partition is chosen."""
        return not self.places or any(
            name == topic and number in (None, partition) for name, number in self.places
        )

    def check(self, where: Location) -> Location:
        """Raise UnknownTopicOrPartition if a chosen topic or partition is missing. OSError."""
        there = paths.partitions_in(where.files().listing(where.path))
        for topic, partition in self.places:
            if topic not in there or (partition is not None and partition not in there[topic]):
                what = f"no topic {topic!r}"
                if partition is not None:
                    what = f"no partition {partition} of topic {topic!r}"
                raise UnknownTopicOrPartition(f"there is {what}", path=where.path)
        return where

    def location_of(self, path: str) -> Location:
        """Return the place of the data directory `path`, after `data_location` and `check`."""
        return self.check(data_location(path))

    def logs(self, manager: LogManager) -> list[Log]:
        """Return the chosen logs, by topic and partition. FaultyPartition."""
        manager.topics.check_open(self.wants)
        logs = (log for log in manager.logs() if self.wants(log.topic, log.partition))
        return sorted(logs, key=lambda log: (log.topic, log.partition))


EVERYTHING = Selection()
