"""Plans the end of each batch of a streaming query, and the ranges that it reads.

Spark's checkpoint has the end of each batch, but not the start of the first batch. If a query stops
in its first batch, Spark requests the start again. So if the start depends on the moment
(`latest`), the first batch is empty: it ends at its start, which Spark writes down before it reads.

If the id of a topic differs from that of the start, the topic was recreated. The unread rest of the
old log is lost, and the query reads the new log from its start. Topics of an old broker have no
ids. For them an end below the start means the same. If the new log is as long as the old one, the
plan gives such an end, so that a restarted query sees it, too.

A topic with an id may come back: a user restores it, or a broker copies the lost end of its log
again. So loss is reported before an end is given. With `failOnDataLoss=false` the end of a missing
or shorter log is its start, and the query later continues there.

The query reads partitions that appear while it runs from their start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.source import offsets, planning
from kafkafs.spark.source.data_loss import LossPolicy
from kafkafs.spark.source.offsets import LATEST, OffsetRange, Offsets, Reached, TopicPartition
from kafkafs.spark.source.options import Limit, SourceOptions
from kafkafs.spark.source.subscription import SubscribedLogs
from storage import clock
from storage.log.log import Log


class StreamPlan:
    """See the module. For one thread."""

    def __init__(
        self,
        options: SourceOptions,
        monotonic_ms: Callable[[], int] = clock.monotonic_ms,
    ) -> None:
        self._options = options
        self._monotonic_ms = monotonic_ms
        self._subscribed = SubscribedLogs(options)
        self._policy = LossPolicy(options.fail_on_data_loss)
        self._seen: dict[TopicPartition, Log] = {}
        self._ids: dict[str, str] = {}
        self._opening: object = None
        self._initial: Reached | None = None
        self._has_begun = False
        self._has_informed = False
        # The first batch does not wait for more records.
        self._triggered_ms = -options.max_delay_ms
        self._target: Offsets | None = None
        self.latest: Offsets = {}
        """The ends at the last call of `next_end`."""

    def close(self) -> None:
        self._subscribed.close()

    # -- where a query starts ------------------------------------------------------------------

    def initial(self) -> Reached:
        """Return the query's start; it is the same in each call. InvalidOption, StorageError."""
        if self._initial is None:
            self._subscribed.refresh()
            found = self._subscribed.resolve(
                self._options.starting, is_start=True, ends=self._target
            )
            if self._target is not None:
                now = self._subscribed.latest()
                for name, start in found.items():
                    # A start by time may lie past the target: then nothing is new yet.
                    if name not in self._target or self._target[name] < start <= now[name]:
                        self._target[name] = start
            self._look()
            self._initial = Reached(found, self._ids)
        return self._initial

    def stop_at_latest(self) -> None:
        """Plan no further than the present ends of the logs."""
        self._subscribed.refresh(at_once=True)
        self._target = self._subscribed.latest()

    # -- how far a query is ------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The data directory's path within its file system."""
        return self._subscribed.location.path

    def done(self, start: Reached) -> Offsets:
        """Return the offsets before which all records are read when a batch begins at `start`.

        They are those of the topics that existed at the last call of `next_end`. At the start of
        the query there are none.
        """
        if start == self._initial:
            return {}
        return {
            name: offset
            for name, offset in start.offsets.items()
            if name in self._seen and not _differ(start.ids, self._ids, name)
        }

    # -- how far a batch goes ------------------------------------------------------------------

    def next_end(self, start: Reached, *, is_limited: bool) -> Reached:
        """Return the end of a batch that begins at `start`, or `start` if nothing is new.

        `is_limited`: apply the options for the number of offsets in a batch.
        """
        self._subscribed.refresh()
        known = self._seen
        recreated = self._look()
        self.latest = self._subscribed.latest()
        if not self._has_begun:
            self._has_begun = True
            if start == self._initial and _moves(self._options.starting):
                return start
        target = self.latest if self._target is None else self._target
        first, end = dict(start.offsets), dict(target)
        same = self._same_topics(start)
        deleted = {name for name in first.keys() - self._seen.keys() if name.topic in same}
        if deleted:
            self._policy.report(None, _deleted(deleted))
        missing = {name for name in first.keys() - end.keys() if name.topic in same}
        end |= {name: first[name] for name in deleted | missing}
        for name in end.keys() & first.keys() & self._seen.keys():
            if _differ(start.ids, self._ids, name):
                first[name], end[name] = self._seen[name].log_start_offset, self.latest[name]
                target[name] = end[name]
            elif name in recreated and 0 < first[name] <= end[name]:
                end[name] = first[name] - 1
            elif (
                end[name] < first[name]
                and name not in recreated
                and (name.topic in same or (name in known and not self._policy.fail))
            ):
                # The log has become shorter: wait until it is as long as before.
                self._policy.report(name, _changed(name, first[name], end[name]))
                end[name] = first[name]
        if is_limited:
            for name in end.keys() - first.keys():
                log = self._seen.get(name)
                first[name] = end[name] if log is None else log.log_start_offset
            if self._is_delayed(first, end):
                return start
            most = self._options.max_offsets
            end = end if most is None else offsets.limited(first, end, most)
        return Reached(end, {**start.ids, **self._ids})

    def _same_topics(self, start: Reached) -> set[str]:
        """Return the topics that have the id that they had before, or are missing."""
        unknown = start.ids.keys() - self._ids.keys()
        there = {name.topic for name in self._seen} if unknown else set()
        same = {topic for topic, known in start.ids.items() if self._ids.get(topic) == known}
        return same | (unknown - there)

    def _look(self) -> set[TopicPartition]:
        """Look at the logs; return those without an id that were recreated since the last call."""
        logs, ids = self._subscribed.logs(), self._subscribed.ids()
        recreated = self._recreated_since(logs, ids)
        self._opening, self._seen, self._ids = self._subscribed.opening, logs, ids
        return recreated

    def _recreated_since(
        self, logs: Mapping[TopicPartition, Log], ids: Mapping[str, str]
    ) -> set[TopicPartition]:
        """Return the logs that were recreated, by their directories.

        This is for topics that have no id now, or had none at the last `_look`.
        """
        if self._opening is not self._subscribed.opening:
            return set()
        seen = self._seen
        return {
            name
            for name in logs.keys() & seen.keys()
            if logs[name] is not seen[name] and not (name.topic in self._ids and name.topic in ids)
        }

    def _is_delayed(self, start: Offsets, end: Offsets) -> bool:
        """Return whether to wait for more records: there are too few, and the delay is not over."""
        least = self._options.min_offsets
        if least is None or self._target is not None or any(end[n] < start[n] for n in end):
            return False
        now_ms = self._monotonic_ms()
        is_over = now_ms - self._triggered_ms >= self._options.max_delay_ms
        if not is_over and sum(end[name] - start[name] for name in end) < least:
            return True
        self._triggered_ms = now_ms
        return False

    # -- what it reads -------------------------------------------------------------------------

    def partitions(self, start: Reached, end: Reached) -> list[InputPartition]:
        """Return the tasks of a batch. DataLoss, StorageError, OSError."""
        is_first_again = not self._has_begun and start == self._initial
        self._has_begun = True
        if is_first_again and _moves(self._options.starting):
            return []
        self._subscribed.refresh()
        logs, ids = self._subscribed.logs(), self._subscribed.ids()
        recreated = self._recreated_since(logs, ids)
        lost = start.offsets.keys() - end.offsets.keys()
        if lost and not is_first_again:
            self._policy.report(None, _deleted(lost))
        ranges = []
        for name, behind in end.offsets.items():
            if name in recreated or _differ(end.ids, ids, name):
                # Recreated after the batch was planned: the next batch reads it.
                self._policy.report(name, _recreated(name))
                continue
            log, begins = logs.get(name), start.offsets.get(name)
            if begins is not None and log is not None and _differ(start.ids, end.ids, name):
                self._policy.report(name, _recreated(name))
                begins = log.log_start_offset
            ranges.append(self._range(name, begins, behind, log))
        informs = not self._has_informed and any(each.size > 0 for each in ranges)
        self._has_informed |= informs
        return planning.plan(self._options, self._subscribed, ranges, self._policy, informs=informs)

    def _range(
        self, name: TopicPartition, start: int | None, end: int, log: Log | None
    ) -> OffsetRange:
        """Return the range that a batch reads of a partition, and report the lost part."""
        if start is None:
            if log is None:
                self._policy.report(
                    name, f"Cannot find initial offsets for partition {name}. It may be deleted."
                )
                return OffsetRange(name, end, end)
            start = log.log_start_offset
            if start > 0:
                self._policy.report(
                    name, f"Added partition {name} starts from {start} instead of 0."
                )
        elif end < start:
            self._policy.report(name, _changed(name, start, end))
            if log is None:
                return OffsetRange(name, end, end)
            start = log.log_start_offset
        return OffsetRange(name, start, end)


def _moves(starting: Limit) -> bool:
    """Return whether a second request for the start may have another result."""
    if starting.offset is not None:
        return starting.offset == LATEST
    if starting.offsets is not None:
        return LATEST in starting.offsets.values()
    return not starting.error_without_match


def _differ(before: Mapping[str, str], now: Mapping[str, str], name: TopicPartition) -> bool:
    """Return whether the ids show that a partition's topic was recreated."""
    known, found = before.get(name.topic), now.get(name.topic)
    return None not in (known, found) and known != found


def _deleted(names: Iterable[TopicPartition]) -> str:
    return f"Partitions {offsets.names(names)} have been deleted."


def _recreated(name: TopicPartition) -> str:
    return f"The topic of partition {name} was recreated."


def _changed(name: TopicPartition, start: int, end: int) -> str:
    return (
        f"Partition {name}'s offset was changed from {start} to {end}: its topic was recreated, "
        "the end of its log was lost, or the start offset was too high."
    )
