"""Finds the topics and partitions to consume in a mount, and opens their directories.

A topic's directory stays open, and names are looked up in it. So a name never leads to records of a
new topic that has the same name as a deleted one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.mount_files import patiently
from kafkafs.cli.common.mounts import mount_around

_NUMBER = re.compile("0|[1-9][0-9]{0,9}")


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


def sources_of(paths: Sequence[str]) -> Sources:
    """Return the topics and partitions of paths in one mount. Errors: ClickException."""
    mounts: set[str] = set()
    topics: dict[str, frozenset[int] | None] = {}
    for path in paths:
        mount, topic, number = _place(path)
        mounts.add(mount)
        known = topics.get(topic, frozenset())
        topics[topic] = None if number is None or known is None else known | {number}
    if not mounts:
        raise fail("there is no topic to consume")
    if len(mounts) > 1:
        raise fail(
            f"{' and '.join(sorted(mounts))} are different mounts; consume from one at a time"
        )
    return Sources(mounts.pop(), topics)


def _place(given: str) -> tuple[str, str, int | None]:
    """Return the mount, the topic and the partition, or None, of a path. Errors: ClickException."""
    mounted, path = mount_around(given)
    if mounted is None:
        hint = (
            ". To mount a data directory: kafkafs mount DATA MOUNT" if os.path.isdir(given) else ""
        )
        raise fail(f"{given}: not in a kafkafs mount{hint}")
    names = os.path.relpath(path, mounted.path).split(os.sep)
    try:
        is_directory = stat.S_ISDIR(patiently(lambda: os.stat(path)).st_mode)
    except OSError as error:
        raise fail(f"{given}: {error.strerror}") from None
    if len(names) == 1 and names[0][0] != "." and is_directory:
        return mounted.path, names[0], None
    if len(names) == 2 and _NUMBER.fullmatch(names[1]) and not is_directory:
        return mounted.path, names[0], int(names[1])
    raise fail(f"{given}: not a topic or partition, such as {mounted.path}/TOPIC")


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
        return sorted(int(name) for name in os.listdir(self.fd) if _NUMBER.fullmatch(name))

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
