"""Which data directory a job is for, and which of its partitions, as its user names them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from storage import paths
from storage.errors import InvalidConfig, UnknownTopicOrPartition
from storage.files import Files

if TYPE_CHECKING:
    from kafkafs.spark.place.opened import Location


def data_location(path: str) -> Location:
    """Where a data directory is.  InvalidConfig for what names none, FileNotFoundError, OSError."""
    from kafkafs.spark.place.opened import check_directory, location_of

    try:
        where = location_of(path)
    except ValueError as error:
        raise InvalidConfig(str(error)) from None
    check_directory(where, where.files())
    return where


def data_name(path: str) -> str:
    """What to write down of where a data directory is: the same from wherever it is named, and
    without secrets.
    """
    where = data_location(path)
    if where.is_local:
        return os.path.realpath(where.path)
    query = dict(parse_qsl(urlsplit(where.option).query))
    store = query.get("endpoint_override")
    return f"{where}?endpoint_override={store}" if store else str(where)


class Choice(NamedTuple):
    """These topics, or of a topic this partition; without any name everything."""

    places: tuple[tuple[str, int | None], ...] = ()

    def wants_topic(self, topic: str) -> bool:
        """Whether something of the topic is meant."""
        return not self.places or any(name == topic for name, _ in self.places)

    def wants(self, topic: str, partition: int) -> bool:
        """Whether this partition is meant."""
        return not self.places or any(
            name == topic and number in (None, partition) for name, number in self.places
        )

    def check(self, files: Files, path: str) -> None:
        """UnknownTopicOrPartition where a name stands for nothing.  OSError."""
        there = {
            parsed
            for name, is_directory in files.scan(path)
            if is_directory and (parsed := paths.parse_partition_directory(name)) is not None
        }
        for topic, partition in self.places:
            if not any(name == topic and partition in (None, number) for name, number in there):
                what = f"no topic {topic!r}"
                if partition is not None:
                    what = f"no partition {partition} of topic {topic!r}"
                raise UnknownTopicOrPartition(f"there is {what}", path=path)

    def location_of(self, path: str) -> Location:
        """The data directory, which has all that is named.  As `data_location` and `check`."""
        where = data_location(path)
        self.check(where.files(), where.path)
        return where


EVERYTHING = Choice()
