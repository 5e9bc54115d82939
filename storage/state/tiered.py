"""Finds the tiered topics of a broker's directory (KIP-405), whose files must not change.

A broker copies the closed segments of a tiered topic to remote storage and deletes them here. It
finds them again by `leader-epoch-checkpoint` and by the topic's line in
`log-start-offset-checkpoint`, which begin at the first remote offset. It deletes the remote
segments that these files do not cover.

A topic is tiered if `remote.storage.enable` says so (`Settings.is_tiered`). Where that is not
known, it is tiered if one of its partitions begins below its first local segment by either file.

Not here: refusing the writes (`Log.check_may_write`, `LogManager.check_may_write`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from storage import paths
from storage.errors import CorruptCheckpoint, ReadOnlyLog
from storage.files import Files
from storage.settings.settings import Settings
from storage.state import checkpoint_file

_BY_SETTING = "remote.storage.enable=true"
# How many partitions a line names.
_NAMED = 10


def why_read_only(data_dir: str, topic: str, why: str) -> str:
    """Return a line that says why nothing of a tiered topic is written, with a remedy."""
    return (
        f"{topic} is a tiered topic ({why}), so it is read-only. If no broker serves it any "
        f"more, unmount, then run: kafkafs config {data_dir} {topic} "
        "remote.storage.enable=false"
    )


def first_offset(checkpointed: int | None, epochs: Sequence[tuple[int, int]]) -> int | None:
    """Return the offset at which a log begins, also in remote storage; None: not known.

    `checkpointed`: its line in the checkpoint of log starts.
    """
    if checkpointed is not None:
        return checkpointed
    return epochs[0][1] if epochs else None


def remote_line(topic: str, ranges: Sequence[tuple[int, int, int]]) -> str | None:
    """Return a line about the offsets of a topic that are only in remote storage, or None.

    `ranges`: partition, log start, and the first offset here.
    """
    if not ranges:
        return None
    named = [f"partition {n} from {start} to {end - 1}" for n, start, end in ranges[:_NAMED]]
    more = len(ranges) - _NAMED
    rest = f" and {more} more" if more > 0 else ""
    return f"{topic}: these offsets are only in remote storage: {', '.join(named)}{rest}"


class TieredTopics:
    """The tiered topics of a data directory, each determined at its first use.

    Thread-safe. It reads a topic's files once, before this process changes them.
    """

    def __init__(self, files: Files, data_dir: str, settings: Settings) -> None:
        self._files = files
        self._data_dir = data_dir
        self._settings = settings
        self._whys: dict[str, str | None] = {}
        # The directory's partitions and its log starts at their first use.
        self._partitions: dict[str, list[int]] | None = None
        self._log_starts: dict[tuple[str, int], int] | None = None

    def why(self, topic: str) -> str | None:
        """Return why a topic is tiered, in a few words, or None."""
        if topic not in self._whys:
            self._whys[topic] = self._find_why(topic)
        return self._whys[topic]

    def line(self, topic: str) -> str | None:
        """Return `why_read_only` for a tiered topic, or None."""
        why = self.why(topic)
        return None if why is None else why_read_only(self._data_dir, topic, why)

    def check_may_write(self, topic: str) -> None:
        """Check that a topic is not tiered. Errors: ReadOnlyLog."""
        line = self.line(topic)
        if line is not None:
            raise ReadOnlyLog(line)

    def remote_line(self, topic: str) -> str | None:
        """Return `remote_line`, by the files of a tiered topic."""
        ranges = [
            (number, *found)
            for number in self._numbers(topic)
            if (found := self._only_remote(topic, number)) is not None
        ]
        return remote_line(topic, ranges)

    def _find_why(self, topic: str) -> str | None:
        if not self._settings.has_brokers_topics:
            return None
        numbers = self._numbers(topic)
        self._identify(topic, numbers)
        is_tiered = self._settings.is_tiered(topic)
        if is_tiered is not None:
            return _BY_SETTING if is_tiered else None
        for number in numbers:
            found = self._only_remote(topic, number)
            if found is not None:
                return (
                    f"its settings are unknown, and partition {number} begins at offset "
                    f"{found[0]}, below its first segment here, {found[1]}"
                )
        return None

    def _numbers(self, topic: str) -> list[int]:
        partitions = self._partitions
        if partitions is None or topic not in partitions:
            partitions = paths.partitions_in(self._files.listing(self._data_dir))
            self._partitions = partitions
        return partitions.get(topic, [])

    def _identify(self, topic: str, numbers: Sequence[int]) -> None:
        """Set the topic's id in the settings: the broker may have had another topic of the name."""
        for number in numbers:
            path = os.path.join(self._directory(topic, number), paths.PARTITION_METADATA)
            try:
                topic_id = checkpoint_file.read_partition_metadata(self._files, path)
            except (CorruptCheckpoint, OSError):
                continue
            if topic_id:
                self._settings.set_topic_id(topic, topic_id)
                return

    def _directory(self, topic: str, number: int) -> str:
        return os.path.join(self._data_dir, paths.partition_directory(topic, number))

    def checkpointed_log_start(self, topic: str, number: int) -> int | None:
        """Return the log start of a partition in the checkpoint, which is read once."""
        if self._log_starts is None:
            self._log_starts = {}
            path = os.path.join(self._data_dir, paths.LOG_STARTS)
            with contextlib.suppress(CorruptCheckpoint):
                self._log_starts = checkpoint_file.read_offsets(self._files, path)
        return self._log_starts.get((topic, number))

    def _only_remote(self, topic: str, number: int) -> tuple[int, int] | None:
        """Return the log start of a partition and its first offset here, if that is above it.

        Loading reports a partition that cannot be read.
        """
        directory = self._directory(topic, number)
        path = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        bases: list[int] = []
        epochs: list[tuple[int, int]] = []
        with contextlib.suppress(CorruptCheckpoint, OSError):
            names = [name for name, kind in self._files.listing(directory) if kind == "file"]
            bases = paths.log_bases(names)
            epochs = checkpoint_file.read_epochs(self._files, path)
        start = first_offset(self.checkpointed_log_start(topic, number), epochs)
        return (start, bases[0]) if bases and start is not None and start < bases[0] else None
