"""Plain counters of a mount; `.kafkafs/metrics` shows them (`tree.directories.metrics_text`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from storage.counters import Durations

OPERATIONS = (
    *("lookup", "forget", "getattr", "setattr", "statfs", "getxattr", "listxattr"),
    *("opendir", "readdir", "releasedir", "fsyncdir", "mkdir", "rmdir", "create", "unlink"),
    *("open", "read", "write", "poll", "flush", "fsync", "release"),
    *("mknod", "symlink", "link", "rename", "readlink", "setxattr", "removexattr"),
)
"""The kernel's requests."""


@dataclass(slots=True, eq=False)
class Traffic:
    """Of a partition's files in one view. Only the owner's thread changes it."""

    bytes_read: int = 0
    """Of text, or of the files' bytes, that reads were answered with."""


@dataclass(slots=True)
class MountCounters:
    """Counts the kernel's requests, and their outcomes. Only the owner's thread changes it."""

    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OPERATIONS, 0))
    """By operation."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By operation and name of the errno."""
    refused_appends: Counter[str] = field(default_factory=Counter)
    """By the storage's error, or by the name of the system's errno."""
    owner_requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the kind of a request to the directory's owner, and its outcome."""
    fsyncs: Durations = field(default_factory=Durations)
    """Requests that waited for the disk: fsync, and writes with O_SYNC or past flush.messages."""
    retention_passes: int = 0
    """Scheduled runs of retention over all topics."""
    adopted_records: int = 0
    adopted_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
