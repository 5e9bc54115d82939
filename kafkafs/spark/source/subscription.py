"""The partitions that a query reads, with their present starts and ends.

The first `refresh` opens the data directory with the wanted topics. Later calls update it, which
costs almost nothing if nothing has changed.

With isolation read_committed a log ends at its last stable offset, else at its high watermark. A
partition was *recreated* if its topic id or its directory has changed. A process notices this if it
has seen both.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.location import location_of
from kafkafs.spark.option_values import InvalidOption, did_you_mean
from kafkafs.spark.source import offsets
from kafkafs.spark.source.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from kafkafs.spark.source.options import Limit, SourceOptions
from storage.errors import SegmentGone, UnknownTopicOrPartition
from storage.log.log import Log
from storage.paths import partitions_in
from storage.state.checkpoint_file import stand_in_topic_id

_log = logging.getLogger(__name__)

# The number of further searches for a time if segments are deleted or replaced meanwhile.
_TRIES = 5


class SubscribedLogs:
    """See the module. For one thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._has_warned = False
        self._opened: FollowedDirectory | None = None
        self.location = location_of(options.path)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def refresh(self, *, at_once: bool = False) -> None:
        """Open or update the directory (`FollowedDirectory.refresh`). StorageError, OSError."""
        if self._opened is None:
            self._opened = FollowedDirectory(
                self.location,
                self._options.subscription.wants,
                until_high_watermark=self._options.until_high_watermark,
            )
        else:
            self._opened.refresh(at_once=at_once)

    @property
    def opening(self) -> object:
        """An object that changes when the directory is opened again."""
        return None if self._opened is None else self._opened.manager

    def logs(self) -> dict[TopicPartition, Log]:
        """Return the logs of the wanted partitions that exist.

        FaultyPartition if one of them cannot be opened: it is not missing.
        """
        if self._opened is None:
            self.refresh()
            assert self._opened is not None
        wants = self._options.subscription.wants_partition
        topics = self._opened.manager.topics
        topics.check_open(lambda *name: wants(TopicPartition(*name)))
        return {
            name: log
            for log in topics.logs()
            if wants(name := TopicPartition(log.topic, log.partition))
        }

    def ids(self) -> dict[str, str]:
        """Return the ids of the wanted topics that have one on the disk."""
        if self._opened is None:
            self.refresh()
            assert self._opened is not None
        manager = self._opened.manager
        return {
            topic.name: topic.id
            for topic in manager.topics.values()
            if topic.partitions and topic.id != _stand_in(manager.path, topic.name)
        }

    def all_logs(self) -> dict[TopicPartition, Log]:
        """Return `logs`, and log one warning if a partition of the option `assign` is missing.

        The query reads the other partitions, as with Kafka's source. UnknownTopicOrPartition if a
        topic is missing.
        """
        found = self.logs()
        assert self._opened is not None
        partitions = self._options.subscription.partitions or frozenset()
        topics = self._options.subscription.topics or {name.topic for name in partitions}
        missing = topics - {log.topic for log in self._opened.manager.logs()}
        if missing:
            there = partitions_in(self.location.files().listing(self.location.path))
            wanted = sorted(missing)
            hint = next(filter(None, (did_you_mean(name, there) for name in wanted)), "")
            raise UnknownTopicOrPartition(
                f"there is no topic {', '.join(map(repr, wanted))}{hint}", path=str(self.location)
            )
        left_out = partitions - found.keys()
        if left_out and not self._has_warned:
            self._has_warned = True
            names = ", ".join(map(str, sorted(left_out)))
            _log.warning("partitions in 'assign' that do not exist are ignored: %s", names)
        return found

    def end(self, log: Log) -> int:
        """Return the offset up to which the query may read."""
        if self._options.isolation == "read_committed":
            return log.last_stable_offset
        return log.high_watermark

    def latest(self) -> Offsets:
        """Return the ends of the wanted partitions that exist."""
        return {name: self.end(log) for name, log in self.logs().items()}

    def resolve(
        self, limit: Limit, *, is_start: bool, ends: Mapping[TopicPartition, int] | None = None
    ) -> Offsets:
        """Return the offset of `limit` in each partition. `ends`: use these ends, not `latest`.

        InvalidOption if the limit does not name all partitions, or a partition has no record at or
        after its time.
        """
        for _ in range(_TRIES):
            try:
                return self._resolve(limit, is_start=is_start, ends=ends)
            except SegmentGone:
                # The writer has deleted or cleaned the segment with this time since the last look.
                self.refresh(at_once=True)
        return self._resolve(limit, is_start=is_start, ends=ends)

    def _resolve(
        self, limit: Limit, *, is_start: bool, ends: Mapping[TopicPartition, int] | None
    ) -> Offsets:
        logs = self.all_logs()
        side = "start" if is_start else "end"
        if limit.offset is not None:
            found: Mapping[TopicPartition, int] = dict.fromkeys(logs, limit.offset)
        elif limit.offsets is not None:
            _check_all_named(limit.offsets, logs, f"{side} offsets", _SENTINELS)
            found = limit.offsets
        else:
            if limit.timestamps is not None:
                _check_all_named(limit.timestamps, logs, f"timestamp based {side} offsets", "")
            found = self._by_timestamps(limit, logs, is_start=is_start)
        result = {}
        for name, offset in found.items():
            if offset == EARLIEST:
                offset = logs[name].log_start_offset
            elif offset == LATEST:
                known = None if ends is None else ends.get(name)
                offset = self.end(logs[name]) if known is None else known
            result[name] = offset
        return result

    def _by_timestamps(
        self, limit: Limit, logs: Mapping[TopicPartition, Log], *, is_start: bool
    ) -> Offsets:
        times = limit.timestamps
        if times is None:
            assert limit.timestamp is not None
            times = dict.fromkeys(logs, limit.timestamp)
        result = {}
        for name, timestamp in times.items():
            match = logs[name].reader.offset_for_timestamp(timestamp, self._options.isolation)
            if match is None and is_start and limit.error_without_match:
                raise InvalidOption(
                    f"No offset matched from request of topic-partition {name} and timestamp "
                    f"{timestamp}."
                )
            result[name] = LATEST if match is None else match[1]
        return result


# A query needs the ids often.
_stand_in = functools.lru_cache(maxsize=10_000)(stand_in_topic_id)

_SENTINELS = " Use -1 for latest, -2 for earliest."


def _check_all_named(
    given: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, Log], what: str, hint: str
) -> None:
    if given.keys() != logs.keys():
        raise InvalidOption(
            f"Partitions specified for {what} don't match what are assigned; all of them must be "
            f"specified.{hint} Specified: {offsets.names(given)} Assigned: {offsets.names(logs)}"
        )
