"""The leader epochs of a log, each with the base offset of its first batch (Kafka's
`LeaderEpochFileCache`).

They change in memory; the next flush writes them to `leader-epoch-checkpoint`. Until then a
recovery takes them from the batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from storage import paths
from storage.files import Files
from storage.record.header import MAGIC, BatchHeader
from storage.state import checkpoint_file


class LeaderEpochs:
    """The leader epochs of one log. `entries`: (epoch, offset), both rising; a change makes another
    list.

    `latest`: the epoch of new batches, 0 without any. `is_unflushed`: the file lacks the last
    change.
    """

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        self.latest = entries[-1][0] if entries else 0
        self.is_unflushed = False

    def assign(self, batches: Iterable[BatchHeader]) -> None:
        """Add the epochs of appended batches. A batch of v0 or v1 has no epoch, and drops those of
        earlier ones (`UnifiedLog.append`).
        """
        entries = list(self.entries)
        for batch in batches:
            if batch.magic < MAGIC:
                entries.clear()
            elif batch.leader_epoch > (entries[-1][0] if entries else -1):
                checkpoint_file.begin_epoch(entries, batch.leader_epoch, batch.base_offset)
        self._set(entries)

    def truncate_from_start(self, offset: int) -> None:
        """Drop the epochs below the new log start."""
        past = [epoch for epoch, start in self.entries if start <= offset]
        if past:
            self._set([(past[-1], offset), *self.entries[len(past) :]])

    def truncate_from_end(self, offset: int) -> None:
        """Drop the epochs that begin at or after the new log end."""
        self._set([entry for entry in self.entries if entry[1] < offset])

    def _set(self, entries: list[tuple[int, int]]) -> None:
        if entries != self.entries:
            self.entries = entries
            self.latest = entries[-1][0] if entries else 0
            self.is_unflushed = True

    def write(self, files: Files, directory: str, entries: list[tuple[int, int]]) -> None:
        """Write `entries` as they were when the flush began. Thread-safe. Errors: OSError."""
        path = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        checkpoint_file.write_epochs(files, path, entries)

    def written(self, entries: list[tuple[int, int]]) -> None:
        """Note that `entries` are durable."""
        if entries == self.entries:
            self.is_unflushed = False
