"""Finds the topics and partitions to consume in a mount, and opens their directories.

A topic's directory stays open, and names are looked up in it. So a name never leads to records of a
new topic that has the same name as a deleted one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.mount_files import (
    mounted_places,
    partitions_among,
    path_of,
    patiently,
    resolve_mounted,
)


class Partition(NamedTuple):
    """A partition. If a topic is deleted and created again, the new topic has another id."""

    topic: str
    number: int
    topic_id: str

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.number}"


class Sources(NamedTuple):
    """The partitions of each topic that the command line names; None: all partitions."""

    mount: str
    topics: dict[str, frozenset[int] | None]


def sources_of(words: Sequence[str]) -> Sources:
    """Return the topics and partitions that the words name. Errors: ClickException, OSError."""
    address = resolve_mounted(words)
    if address is None:
        hint = ""
        if os.path.isdir(words[0]):
            hint = ". To mount a data directory: kafkafs mount DATA MOUNT"
        raise fail(f"{words[0]}: not in a kafkafs mount{hint}")
    assert address.mount is not None
    topics: dict[str, frozenset[int] | None] = {}
    for topic, number in mounted_places(address):
        patiently(partial(os.stat, path_of(address.mount, topic, number)))
        known = topics.get(topic, frozenset())
        topics[topic] = None if number is None or known is None else known | {number}
    if not topics:
        raise fail("there is no topic to consume")
    return Sources(address.mount, topics)


class TopicDirectory:
    """An open directory of a topic."""

    def __init__(self, mount: str, topic: str) -> None:
        """Open the directory. Errors: OSError."""
        self.name = topic
        self.fd = os.open(os.path.join(mount, topic), os.O_RDONLY | os.O_DIRECTORY)
        self.id = self._id()

    def _id(self) -> str:
        """Return the topic's id; "" if it has none, as topics of old brokers."""
        for number in self.numbers():
            with suppress(OSError):
                for line in self.read(f".raw/{number}/partition.metadata").decode().splitlines():
                    name, _, value = line.partition(":")
                    if name == "topic_id":
                        return value.strip()
        return ""

    def numbers(self) -> list[int]:
        """Return the numbers of the partitions. Errors: OSError."""
        return partitions_among(os.listdir(self.fd))

    def open(self, name: str) -> int:
        """Open a file in the directory for reading, without blocking. Errors: OSError."""
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=self.fd)

    def read(self, name: str) -> bytes:
        """Return the contents of a small file. Errors: OSError."""
        fd = self.open(name)
        try:
            return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
        finally:
            os.close(fd)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.fd)


class Directories:
    """The directories of the topics that are consumed, each opened once."""

    def __init__(self, sources: Sources) -> None:
        self.mount = sources.mount
        self._sources = sources
        self._open: dict[tuple[str, str], TopicDirectory] = {}

    def of(self, partition: Partition) -> TopicDirectory:
        """Return the directory of a partition's topic.

        Errors: OSError, also if the topic was deleted and created again.
        """
        key = partition.topic, partition.topic_id
        found = self._open.get(key)
        if found is None:
            made = TopicDirectory(self._sources.mount, partition.topic)
            if made.id != partition.topic_id:
                made.close()
                raise FileNotFoundError(2, "the topic was deleted and created again")
            found = self._open[key] = made
        return found

    def present(self) -> list[Partition]:
        """Return the partitions that exist now and that `sources` names. Errors: OSError."""
        found = []
        for topic, wanted in self._sources.topics.items():
            try:
                directory = TopicDirectory(self._sources.mount, topic)
            except FileNotFoundError:
                continue
            known = self._open.get((topic, directory.id))
            if known is None:
                self._open[topic, directory.id] = known = directory
            else:
                directory.close()
            found += [
                Partition(topic, number, known.id)
                for number in known.numbers()
                if wanted is None or number in wanted
            ]
        return found
