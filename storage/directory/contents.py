"""Recognises a data directory, or other contents, before anything is written into a directory.

Kafka's files are partitions, the small files beside them (`meta.properties`, checkpoints, …) and
those of kafkafs. A directory whose name ends in a number is a partition only if it is empty or has
a file of a log: other programs use such names, too. A link with such a name counts for nothing.

No log is opened and no lock is taken.
"""

from __future__ import annotations

import contextlib
import os
from enum import Enum

from storage import paths
from storage.files import Files

# mkfs makes it in a new file system.
_FILE_SYSTEMS_OWN = frozenset({"lost+found"})
_FILES = frozenset(
    {
        *(paths.LOCK, paths.CLEAN_SHUTDOWN, paths.META_PROPERTIES),
        *(paths.RECOVERY_POINTS, paths.LOG_STARTS, paths.HIGH_WATERMARKS, paths.CLEANER_OFFSETS),
        *(paths.LEADER_EPOCH_CHECKPOINT, paths.PARTITION_METADATA),
    }
)
# The prefix of all files that kafkafs makes in a data directory.
_OURS = "kafkafs"


class Contents(Enum):
    """The kinds of contents of a directory."""

    NOTHING = "nothing"
    """No entry, or only those of a new file system."""
    PARTITIONS = "partitions"
    """Partitions, and perhaps other entries: a data directory."""
    SMALL_FILES = "small files"
    """Files of Kafka or kafkafs, and no partition: a data directory without topics."""
    LOG = "log"
    """Segments: the directory of one partition."""
    OTHERS = "others"
    """Only files that neither Kafka nor kafkafs creates."""


def contents_of(files: Files, path: str) -> Contents:
    """Return the kind of contents. Errors: OSError if it is no directory, or cannot be read."""
    entries = [entry for entry in files.listing(path) if entry[0] not in _FILE_SYSTEMS_OWN]
    if not entries:
        return Contents.NOTHING
    names = [name for name, kind in entries if kind != "directory"]
    if any(map(paths.is_log, names)):
        return Contents.LOG
    for name, kind in entries:
        is_named_so = kind == "directory" and paths.is_partition_directory(name)
        if is_named_so and _is_partition(files, os.path.join(path, name)):
            return Contents.PARTITIONS
    is_kafkas = any(name in _FILES or name.startswith(_OURS) for name in names) or any(
        kind == "directory" and (name in paths.BROKERS_OWN or paths.parse_aside_directory(name))
        for name, kind in entries
    )
    return Contents.SMALL_FILES if is_kafkas else Contents.OTHERS


def _is_partition(files: Files, directory: str) -> bool:
    """Return whether a directory with a partition's name is one, or may be."""
    names: list[str] = []
    # Opening the partition reports an unreadable directory.
    with contextlib.suppress(OSError):
        names = files.names(directory)
    return not names or any(
        name in _FILES or paths.is_log(name) or paths.base_offset_of(name) is not None
        for name in names
    )
