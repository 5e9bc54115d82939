"""Chooses the topics of a mirror, and begins or renames their copies in the data directory.

The functions that change the directory run while its lock is held and its logs are closed.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from kafka_client.cluster import LEADER_NOT_AVAILABLE, Cluster, Metadata, Topic, TopicPartition
from kafka_client.errors import BrokerError, ClientError
from kafka_client.fetch import NO_TOPIC_ID
from kafka_client.requests import EARLIEST, LATEST, Offset, list_offsets
from storage import paths
from storage.directory.checkpoints import CHECKPOINTS
from storage.errors import StorageError
from storage.files import Files
from storage.settings.settings import SETTINGS_FILE
from storage.state import checkpoint_file, mirror_file, point_file
from storage.state.mirror_file import NO_ID, MirrorFile, kept_name

# A copy is kept for ever unless the user changes this.
_SETTINGS: Final = b"log.retention.ms=-1\nlog.retention.bytes=-1\n"


class MirrorRefused(StorageError):  # noqa: N818
    """A directory that is not, and cannot become, a mirror of this cluster."""


def is_wanted(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the patterns choose a topic. An internal one must be given by its name."""
    return any(
        name == pattern or (name not in paths.INTERNAL_TOPICS and fnmatchcase(name, pattern))
        for pattern in patterns
    )


def wanted(metadata: Metadata, patterns: Sequence[str]) -> dict[str, Topic]:
    """Return the chosen topics that may be read, with partitions from 0 on."""
    return {
        name: topic
        for name, topic in metadata.topics.items()
        if not topic.error
        and is_wanted(name, patterns)
        and max(topic.partitions, default=0) + 1 == len(topic.partitions)
    }


def id_text(topic_id: bytes) -> str:
    """Return Kafka's text of a topic id, `NO_ID` if the cluster has none."""
    if topic_id == NO_TOPIC_ID:
        return NO_ID
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def is_another(status: MirrorFile, topic: Topic) -> bool:
    """Return whether a topic has another id than its copy; not if one of them is not known."""
    known_id = status.ids.get(topic.name, NO_ID)
    return topic.id != NO_TOPIC_ID and known_id not in (NO_ID, id_text(topic.id))


def has_leader(metadata: Metadata, partition: TopicPartition) -> bool:
    """Return whether a partition can be read now."""
    topic = metadata.topics.get(partition.topic)
    if topic is None or topic.error or partition.partition not in topic.partitions:
        return False
    return topic.partitions[partition.partition].leader in metadata.brokers


def without_copies(
    metadata: Metadata, patterns: Sequence[str], known: Container[tuple[str, int]]
) -> list[TopicPartition]:
    """Return the partitions of chosen topics that are not in `known`."""
    return [
        TopicPartition(name, number)
        for name, topic in wanted(metadata, patterns).items()
        for number in sorted(topic.partitions)
        if (name, number) not in known
    ]


def start_offsets(
    cluster: Cluster, new: Iterable[TopicPartition], start: int = EARLIEST
) -> dict[TopicPartition, int | ClientError]:
    """Return where new copies begin. `start`: EARLIEST, LATEST, or a time in ms. The topic of
    committed offsets is copied from its beginning.

    A partition without a leader has a start later, unless its start is relative to now. Errors:
    ClientError.
    """
    starts = {each: EARLIEST if each.topic == paths.CONSUMER_OFFSETS else start for each in new}
    asked = {
        each: start
        for each, start in starts.items()
        if start != EARLIEST or has_leader(cluster.metadata, each)
    }
    found = list_offsets(cluster, asked)
    # No record is as young as that.
    late = [each for each, offset in found.items() if isinstance(offset, Offset) and offset[0] < 0]
    found |= list_offsets(cluster, dict.fromkeys(late, LATEST))
    offsets: dict[TopicPartition, int | ClientError] = {}
    for each in starts:
        offset = found.get(each, BrokerError(LEADER_NOT_AVAILABLE, ""))
        if isinstance(offset, ClientError) and starts[each] != EARLIEST:
            raise offset
        offsets[each] = offset.offset if isinstance(offset, Offset) else offset
    return offsets


# -- the directory ---------------------------------------------------------------------------------


def begin(files: Files, data_dir: str) -> None:
    """Prepare a directory that becomes a mirror. Errors: MirrorRefused, OSError."""
    entries = files.listing(data_dir)
    names = {name for name, _ in entries}
    if paths.partitions_in(entries) or paths.META_PROPERTIES in names:
        reason = "this directory has topics. A mirror begins in a new directory"
        raise MirrorRefused(reason, path=data_dir)
    if SETTINGS_FILE not in names:
        files.replace_atomically(os.path.join(data_dir, SETTINGS_FILE), _SETTINGS)


def created_again(
    files: Files, data_dir: str, status: MirrorFile, topics: Mapping[str, Topic]
) -> list[str]:
    """Return the topics that have another id than their copies, if these can be renamed."""
    kept = {
        name: kept_name(name, status.ids[name])
        for name, topic in topics.items()
        if is_another(status, topic)
    }
    if not kept:
        return []
    here = paths.partitions_in(files.listing(data_dir))
    # If a broker has listed a deleted topic again, its first copy already has the name.
    return [
        name
        for name, new in kept.items()
        if paths.is_topic_name(new) and not set(here.get(name, ())) & set(here.get(new, ()))
    ]


def take_ids(files: Files, data_dir: str, status: MirrorFile, ids: Mapping[str, str]) -> None:
    """Give topics, and restore points with them, the ids that the cluster has given them since.

    The partitions lose the ids that they have, and get those of the mirror when they are opened. So
    those of one topic never have different ids. `status` is written last: the call after a kill
    completes it. Durable. Errors: OSError.
    """
    point_file.set_ids(files, data_dir, ids)
    here = paths.partitions_in(files.listing(data_dir))
    for item in ((name, number) for name in ids for number in here.get(name, ())):
        directory = _directory(data_dir, *item)
        with contextlib.suppress(FileNotFoundError):
            files.unlink(os.path.join(directory, paths.PARTITION_METADATA))
        files.sync_directory(directory)
    status.ids |= ids
    mirror_file.write(files, data_dir, status)


def set_aside(files: Files, data_dir: str, status: MirrorFile, topic: str) -> str:
    """Rename the copy of a topic that was created again; return the name that it has now.

    A call after a kill completes it: the lines of the checkpoints come first, and the id in
    `status`, which is changed but not written, stays until all partitions are renamed.
    """
    topic_id = status.ids[topic]
    kept = kept_name(topic, topic_id)
    numbers = [
        number
        for number in paths.partitions_in(files.listing(data_dir)).get(topic, ())
        if checkpoint_file.read_partition_metadata(
            files, os.path.join(_directory(data_dir, topic, number), paths.PARTITION_METADATA)
        )
        in (topic_id, None)
    ]
    for name in CHECKPOINTS:
        path = os.path.join(data_dir, name)
        lines = checkpoint_file.read_offsets(files, path)
        moved = {
            (kept, number): lines[topic, number] for number in numbers if (topic, number) in lines
        }
        if moved:
            checkpoint_file.write_offsets(files, path, lines | moved)
    for number in numbers:
        files.rename(_directory(data_dir, topic, number), _directory(data_dir, kept, number))
    files.sync_directory(data_dir)
    del status.ids[topic]
    status.settings.pop(topic, None)
    for item in [item for item in status.partitions if item[0] == topic]:
        del status.partitions[item]
    return kept


def _directory(data_dir: str, topic: str, number: int) -> str:
    return os.path.join(data_dir, paths.partition_directory(topic, number))
