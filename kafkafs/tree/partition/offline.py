"""Keeps the histories of an unmounted directory while a command deletes or rewrites records.

The next mount then shows the changed logs under new nonces, and `.follow` with the same inode and
positions as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kafkafs.tree.context import MountContext
from kafkafs.tree.partition.partitions import Partitions
from storage.directory.manager import LogManager


@contextlib.contextmanager
def keeping_history(manager: LogManager) -> Iterator[None]:
    """Write each change of the logs' past into their histories while the block runs."""
    partitions = Partitions(MountContext(manager))
    try:
        yield
    finally:
        manager.listeners.remove(partitions)
        partitions.stop()
