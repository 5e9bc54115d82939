"""The files of settings: lines of `name=value`, in a subset of Java's properties.

White space around either is dropped; blank lines, and those that begin with `#` or `!`, are
ignored; there are no escapes. InvalidConfig names the file and the wrong line.

A topic's file, `kafkafs-topic.properties`, lies in the directory of the topic's partition 0 (if
that is not here, of the lowest one that is), where a broker ignores it. So its cost does not depend
on the number of topics, and it is deleted with its topic. Written by us, replaced atomically::

    retention.ms=1000           an override, by Kafka's topic name
    owner=UID:GID:MODE          set by chown and chmod of the topic; the mode is octal
    PARTITION/owner=…           of one of its partitions
    partitions/owner=…          of the partitions without such a line

Not here: the list of names (`config`), the precedence (`settings`).
"""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from storage.errors import InvalidConfig, UnusableFile
from storage.files import Files
from storage.settings.config import TOPIC_SETTINGS, Setting, format_value, no_such_setting

TOPIC_FILE = "kafkafs-topic.properties"

_HEADER = "# Written by kafkafs, which replaces this file.\n"
_OWNER = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-7]{3,4})")
_NOBODY = 2**32 - 1  # chown's "leave it as it is"
_DIGITS = 10
_OTHERS = "partitions"
# Errors whose cause may be one file, or its directory.
_ITS_OWN = frozenset({errno.EIO, errno.EACCES, errno.EPERM, errno.ENOTDIR})

TopicOwner = tuple[int, int, int]
"""(uid, gid, mode)"""
OTHER_PARTITIONS = -1
"""In the place of a partition's number: those without an owner of their own."""


class Line(NamedTuple):
    """A line with a setting, of the file at `path`."""

    path: str
    number: int
    name: str
    value: str

    def error(self, reason: str) -> InvalidConfig:
        return InvalidConfig(f"line {self.number}: {reason}", path=self.path)


def read_lines(files: Files, path: str) -> list[Line]:
    """Return the lines of a file. Errors: InvalidConfig, FileNotFoundError, OSError."""
    try:
        text = files.read_whole(path).decode()
    except UnusableFile as error:
        raise InvalidConfig(str(error.strerror), path=path) from None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"not UTF-8 at byte {error.start}", path=path) from None
    return list(_lines(text, path))


def _lines(text: str, path: str) -> Iterator[Line]:
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"line {number}: {line!r} is not name=value", path=path)
        yield Line(path, number, name.strip(), value.strip())


def parse(setting: Setting, name: str, text: str, line: Line | None = None) -> Any:
    """Return the value of a setting's text, from `line` if it has one. Errors: InvalidConfig."""
    try:
        return setting.parse(text)
    except ValueError as error:
        reason = f"{name}={text} is not {error}"
        raise (InvalidConfig(reason) if line is None else line.error(reason)) from None


# -- a topic's file --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicFile:
    """The content of a topic's file. `owners`: by partition or OTHER_PARTITIONS; None: the topic's.
    `fault`: why the file is ignored.
    """

    overrides: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    owners: Mapping[int | None, TopicOwner] = field(default_factory=lambda: MappingProxyType({}))
    fault: InvalidConfig | None = None

    def partition_owner(self, partition: int) -> TopicOwner | None:
        """Return (uid, gid, mode) of a partition, by default its topic's; None if no owner was ever
        set.

        The x bits of a topic's mode mean nothing for a file. The w bits of a sticky one let others
        make files of their own, not write to these.
        """
        found = self.owners.get(partition) or self.owners.get(OTHER_PARTITIONS)
        if found is None and None in self.owners:
            uid, gid, mode = self.owners[None]
            found = uid, gid, mode & (0o644 if mode & stat.S_ISVTX else 0o666)
        return found

    def with_owner(self, partition: int | None, owner: TopicOwner) -> TopicFile:
        """Return a copy with another owner of a partition, OTHER_PARTITIONS or, if None, the
        topic.
        """
        return replace(self, owners={**self.owners, partition: owner})

    def text(self) -> str:
        """Return the file's content."""
        values = {name: format_value(value) for name, value in self.overrides.items()}
        for partition, (uid, gid, mode) in self.owners.items():
            name = "owner" if partition is None else f"{_called(partition)}/owner"
            values[name] = f"{uid}:{gid}:{mode:04o}"
        return _HEADER + "".join(f"{name}={value}\n" for name, value in sorted(values.items()))


def read_topic_file(files: Files, path: str) -> TopicFile:
    """Return a topic file's content. Errors: InvalidConfig, FileNotFoundError, OSError."""
    try:
        lines = read_lines(files, path)
    except OSError as error:
        if error.errno in _ITS_OWN:
            raise InvalidConfig(str(error.strerror), path=path) from None
        raise
    overrides: dict[str, Any] = {}
    owners: dict[int | None, TopicOwner] = {}
    for line in lines:
        partition, slash, last = line.name.rpartition("/")
        is_others = partition == _OTHERS
        if last == "owner" and (not slash or is_others or partition.isdecimal()):
            owner = _read_owner(line)
            if len(partition) > _DIGITS:
                raise line.error(f"{line.name}={line.value}: too large")
            number = OTHER_PARTITIONS if is_others else int(partition) if slash else None
            owners[number] = owner
        elif line.name in TOPIC_SETTINGS:
            overrides[line.name] = parse(TOPIC_SETTINGS[line.name], line.name, line.value, line)
        else:
            raise line.error(no_such_setting(line.name, TOPIC_SETTINGS))
    return TopicFile(overrides, owners)


def _called(partition: int) -> str:
    return _OTHERS if partition == OTHER_PARTITIONS else str(partition)


def parse_owner(text: str) -> TopicOwner:
    """Parse UID:GID:MODE. Errors: ValueError with the reason."""
    owner = _OWNER.fullmatch(text)
    if owner is None:
        raise ValueError(f"{text!r} is not UID:GID:MODE")
    uid, gid, mode = int(owner[1]), int(owner[2]), int(owner[3], 8)
    if max(uid, gid) >= _NOBODY:
        raise ValueError(f"{text}: too large")
    return uid, gid, mode


def _read_owner(line: Line) -> TopicOwner:
    try:
        return parse_owner(line.value)
    except ValueError as error:
        raise line.error(str(error)) from None
