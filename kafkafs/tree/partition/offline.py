"""What a command does for readers while nothing is mounted.

Whoever deletes or rewrites records of an unmounted directory has to leave a history behind that
fits: a new nonce for who reads the head of a log, and for who follows `.follow` the same inode and
positions as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kafkafs.config import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.partition.partitions import Partitions
from storage.directory.manager import LogManager


@contextlib.contextmanager
def keeping_history(manager: LogManager) -> Iterator[None]:
    """Write down, for as long as the block lasts, what becomes of the past of the logs."""
    partitions = Partitions(MountContext(manager, MountOptions()))
    try:
        yield
    finally:
        manager.listeners.remove(partitions)
        partitions.stop()
