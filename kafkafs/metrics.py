"""Plain counters of a mount; `.kafkafs/metrics` shows them (`tree.directories.metrics_text`)."""

from __future__ import annotations

from collections import Counter

OPERATIONS = (
    *("lookup", "forget", "getattr", "setattr", "statfs", "getxattr", "listxattr"),
    *("opendir", "readdir", "releasedir", "fsyncdir", "mkdir", "rmdir", "create", "unlink"),
    *("open", "read", "write", "flush", "fsync", "release"),
    *("mknod", "symlink", "link", "rename", "readlink", "setxattr", "removexattr"),
)
"""The kernel's requests."""


class MountCounters:
    """Counts the kernel's requests, and their outcomes. Only the owner's thread changes it."""

    __slots__ = (
        *("adopted_bytes", "adopted_records", "bytes_read", "bytes_written", "errors"),
        *("owner_requests", "refused_appends", "requests", "retention_passes"),
    )

    def __init__(self) -> None:
        self.requests = dict.fromkeys(OPERATIONS, 0)
        """By operation."""
        self.errors: Counter[tuple[str, str]] = Counter()
        """By operation and name of the errno."""
        self.refused_appends: Counter[str] = Counter()
        """By the storage's error, or by the name of the system's errno."""
        self.owner_requests: Counter[tuple[str, str]] = Counter()
        """By the kind of a request to the directory's owner, and its outcome."""
        self.retention_passes = 0
        """Scheduled runs of retention over all topics."""
        self.adopted_records = 0
        self.adopted_bytes = 0
        self.bytes_read = 0
        self.bytes_written = 0
