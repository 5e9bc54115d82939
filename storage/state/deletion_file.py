"""The record of a topic that was deleted and can be undeleted: `kafkafs.deletion`, a file of JSON.

The file lies in the directory of the topic's first partition, and names the directories of all of
them, which have Kafka's `-delete` names then. It is written before the first directory is renamed.
Renaming that directory deletes the topic, and renaming it back undeletes it: while it has its
`-delete` name, the other partitions are deleted too, whatever their names are. In a directory with
a partition's name the file does not count. It is removed first when the topic is finally deleted.

`recovery_point`, `log_start` and `cleaned` are the partition's lines of the offset checkpoints,
which have no lines of deleted topics; None: it had none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files


class DeletedPartition(NamedTuple):
    """A partition of a deleted topic. `directory`: its name while it is deleted."""

    number: int
    directory: str
    recovery_point: int | None
    log_start: int | None
    cleaned: int | None


class Deletion(NamedTuple):
    """A deleted topic. Times are in ms since 1970. From `due_ms` on the files may be removed.

    `partitions`: the directory of the first one has the file.
    """

    topic: str
    id: str
    deleted_ms: int
    due_ms: int
    partitions: tuple[DeletedPartition, ...]


def write(files: Files, directory: str, deletion: Deletion) -> None:
    """Write the file into the first partition's directory; durable. Errors: OSError."""
    fields = deletion._asdict() | {"partitions": [each._asdict() for each in deletion.partitions]}
    files.replace_atomically(path_in(directory), json.dumps(fields).encode() + b"\n")


def read(files: Files, directory: str) -> Deletion | None:
    """Return the record in this directory, or None. Errors: CorruptCheckpoint, OSError."""
    path = path_in(directory)
    try:
        return _parsed(json.loads(files.read_whole(path)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpoint(f"invalid content: {error!r}", path=path) from None


def path_in(directory: str) -> str:
    """Return the path of the file of this directory."""
    return os.path.join(directory, paths.DELETION)


def _parsed(fields: Mapping[str, Any]) -> Deletion:
    """Return the record of parsed fields. Errors: ValueError, TypeError, KeyError."""
    topic, topic_id = fields["topic"], fields["id"]
    if not (isinstance(topic, str) and paths.is_topic_name(topic) and isinstance(topic_id, str)):
        raise ValueError("topic")
    partitions = tuple(_partition(topic, each) for each in fields["partitions"])
    if not partitions:
        raise ValueError("partitions")
    return Deletion(
        topic, topic_id, _number(fields["deleted_ms"]), _number(fields["due_ms"]), partitions
    )


def _partition(topic: str, fields: Mapping[str, Any]) -> DeletedPartition:
    directory, number = fields["directory"], _number(fields["number"])
    aside = paths.parse_aside_directory(directory)
    if (
        aside is None
        or "/" in directory
        or (aside.partition, aside.kind) != (number, "delete")
        or not topic.startswith(aside.topic)
    ):
        raise ValueError("directory")
    offsets = (fields[name] for name in ("recovery_point", "log_start", "cleaned"))
    return DeletedPartition(
        number, directory, *(None if offset is None else _number(offset) for offset in offsets)
    )


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("number")
    return value
