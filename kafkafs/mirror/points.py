"""Takes restore points (`storage.state.point_file`): one a minute, and one at the end of a run.

First the cluster is asked, on a thread. The order makes sure that no group is ahead of its records:

1. the log ends: in the topic of groups, the commits of transactions that ended below count
2. the committed offsets of all groups, also if their topic is copied
3. the last stable offsets: the ends of the point
4. the log ends again: up to there, our logs have a part of each transaction that the ends may cut

The point is then pending until our logs have all of that. It is flushed and written if no partition
is missing; a point that is late, incomplete or cuts a transaction says so. Records of the topic of
groups are in no point, so that it can be compacted at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kafka_client.cluster import UNKNOWN_TOPIC, Cluster, Metadata, Topic, TopicPartition
from kafka_client.errors import ClientError
from kafka_client.requests import (
    LATEST,
    CommittedOffsets,
    Offset,
    TopicSettings,
    fetch_all_committed,
    list_offsets,
)
from kafkafs.mirror.cuts import Sides, cut_partition
from kafkafs.mirror.facts import Copy, Facts
from kafkafs.mirror.lookups import Lookups, settings_of
from kafkafs.mirror.topics import id_text, without_copies
from storage import paths
from storage.manager import LogManager
from storage.state import point_file
from storage.state.mirror_file import NO_ID
from storage.state.point_file import INVALID, SPLIT, VALID, Point, Position, Range

_EACH_MS: Final = 60_000
# From the request for the ends until our logs have them: later, the cleaner of the cluster may have
# removed a key whose newer record lies above the end.
_IN_TIME_MS: Final = 60_000
# How often a point is taken until it cuts no transaction, and the pause before the next attempt.
_ATTEMPTS: Final = 5
_PAUSE_MS: Final = 200

_Offsets = Mapping[TopicPartition, Offset | ClientError]


class Asked(NamedTuple):
    """The answers of the cluster. `asked_ms`: the time of the request for the ends (monotonic)."""

    before: _Offsets
    groups: Mapping[str, CommittedOffsets | ClientError]
    time_ms: int
    asked_ms: int
    ends: _Offsets
    log_ends: _Offsets
    metadata: Metadata
    settings: Mapping[str, TopicSettings | ClientError]


def _ask(
    partitions: Sequence[TopicPartition], now: Callable[[], tuple[int, int]], cluster: Cluster
) -> Asked:
    latest = dict.fromkeys(partitions, LATEST)
    before = list_offsets(cluster, latest)
    groups = fetch_all_committed(cluster)
    time_ms, asked_ms = now()
    ends = list_offsets(cluster, latest, committed=True)
    log_ends = list_offsets(cluster, latest)
    metadata = cluster.refresh()
    settings = settings_of(cluster, sorted({each.topic for each in partitions}))
    return Asked(before, groups, time_ms, asked_ms, ends, log_ends, metadata, settings)


class Points:
    """The points of a session."""

    def __init__(self, manager: LogManager, asking: Lookups[Asked], facts: Facts) -> None:
        self._manager = manager
        self._asking = asking
        self._facts = facts
        self._status = facts.status
        self._copies = facts.copies
        self._pending: Asked | None = None
        self._attempts = 0
        # When the next attempt begins. Earlier answers are not used.
        self._again_ms: int | None = None
        self._next_ms = manager.monotonic_ms() + _EACH_MS

    @property
    def is_under_way(self) -> bool:
        return self._asking.is_under_way or self._pending is not None or self._again_ms is not None

    def run(self, topics: Mapping[str, Topic]) -> None:
        """Go on with the point that is due or pending. `topics`: those of the cluster."""
        now_ms = self._manager.monotonic_ms()
        if now_ms >= self._next_ms and not self.is_under_way:
            self.begin(topics)
        found = self._asking.take()
        if self._again_ms is not None:
            if now_ms >= self._again_ms and not self._asking.is_under_way:
                self._again_ms = None
                self._begin(topics)
            return
        if isinstance(found, ClientError):
            self._facts.add_fault("point", f"no restore point can be taken: {found}")
        elif found is not None:
            self._pending = found
        if self._pending is not None and self._is_reached(self._pending):
            pending, self._pending = self._pending, None
            point = self._point(pending)
            if point.state == SPLIT and self._attempts > 0:
                self._try_again()
                return
            with self._manager.duties.attempt("restore point"):
                self._write(point)
            if self._facts.point is None or self._facts.point[1] is not point:
                self._facts.add_fault("point", "the restore point could not be written")

    def begin(self, topics: Mapping[str, Topic]) -> None:
        """Begin a point now. Partitions of topics that the cluster does not list are left out."""
        self._next_ms = self._manager.monotonic_ms() + _EACH_MS
        self._attempts = _ATTEMPTS - 1
        self._begin(topics)

    def _begin(self, topics: Mapping[str, Topic]) -> None:
        listed = {name for name, topic in topics.items() if topic.error != UNKNOWN_TOPIC}
        asked = [each for each in self._copies if each.topic in listed]
        manager = self._manager
        self._asking.begin(
            partial(_ask, asked, lambda: (manager.clock_ms(), manager.monotonic_ms()))
        )

    def drop(self) -> None:
        """Give up the point that is under way: the cluster has lost records that it may have."""
        if self.is_under_way:
            self._try_again()

    def _try_again(self) -> None:
        self._pending = None
        self._attempts -= 1
        self._again_ms = self._manager.monotonic_ms() + _PAUSE_MS

    def _is_reached(self, asked: Asked) -> bool:
        """Return whether each log has what the point needs, or waits."""
        late = self._late_ms(asked) > _IN_TIME_MS
        for each, end in asked.log_ends.items():
            copy, stable = self._copies[each], asked.ends[each]
            if copy.reason or not isinstance(end, Offset) or not isinstance(stable, Offset):
                continue
            if copy.position < end.offset:
                # After an unclean election, the cluster may not have these records any more.
                if not (copy.is_at_end and late):
                    return False
                continue
            # A copy that is complete ends the transactions whose markers the cluster has no more.
            if _has_open(copy, stable) and not (copy.is_at_end or late):
                return False
        return True

    def _late_ms(self, asked: Asked) -> int:
        return self._manager.monotonic_ms() - asked.asked_ms

    def _write(self, point: Point) -> None:
        """Errors: OSError, StorageError."""
        manager, facts = self._manager, self._facts
        for item, (_, end) in point.partitions.items():
            log = manager.log(*item)
            if (log.flushed_end or 0) < end:
                log.flush()
        facts.point = point_file.write(manager.files, manager.path, point), point
        if point.state == VALID:
            facts.end_fault("point")
        else:
            reason = f"the last restore point is {point.state}; `kafkafs points` has the reason"
            facts.add_fault("point", reason)
        with manager.duties.attempt("removal of old restore points"):
            point_file.thin(manager.files, manager.path, manager.clock_ms())

    def _point(self, asked: Asked) -> Point:
        """Return the point, with its state."""
        point = Point(asked.time_ms, self._status.cluster)
        ends: dict[TopicPartition, int] = {}
        faults: list[str] = []
        for each in asked.ends:
            end = self._end_of(each, asked)
            if isinstance(end, str):
                faults.append(end)
            else:
                ends[each] = end
            if each.topic != paths.CONSUMER_OFFSETS:
                log = self._copies[each].log
                start = log.log_start_offset
                stable = min(ends.get(each, log.last_stable_offset), log.log_end_offset)
                point.partitions[each] = Range(start, max(start, stable))
                point.ids[each.topic] = self._status.ids[each.topic]
        for each in without_copies(asked.metadata, self._facts.patterns, asked.ends):
            faults.append(f"{each} was not copied yet")
        point.groups = dict(_committed(asked.groups, point, faults))
        if (late_ms := self._late_ms(asked)) > _IN_TIME_MS:
            faults.append(f"the copy reached the ends after {late_ms // 1000} s")
        settings = {name: self._settings_of(name, asked) for name in point.ids}
        point.settings = {name: found for name, found in settings.items() if found}
        split = self._why_split(asked, ends)
        point.state = INVALID if faults else SPLIT if split else VALID
        point.reason = _list(faults or ([split] if split else []) or [*self._notes(point, asked)])
        return point

    def _end_of(self, each: TopicPartition, asked: Asked) -> int | str:
        """Return the end of a partition in the point, or why the point has not all its records."""
        copy, log_end = self._copies[each], asked.log_ends[each]
        of_groups = each.topic == paths.CONSUMER_OFFSETS
        end = asked.before[each] if of_groups else asked.ends[each]
        topic = asked.metadata.topics.get(each.topic)
        if copy.reason or not isinstance(end, Offset):
            return f"{each} waits: {copy.reason or end}"
        if not isinstance(log_end, Offset):
            return f"{each} waits: {log_end}"
        if topic is None or self._status.ids[each.topic] not in (NO_ID, id_text(topic.id)):
            return f"{each.topic} was deleted meanwhile"
        if _is_lost(copy, end, log_end):
            return f"the cluster has lost records of {each}"
        if _has_open(copy, asked.ends[each]):
            return f"{each} has an open transaction that has ended in the cluster"
        return end.offset

    def _settings_of(self, topic: str, asked: Asked) -> dict[str, str]:
        """Return the settings of a topic; those that are known already if they cannot be read."""
        found = asked.settings.get(topic)
        if isinstance(found, TopicSettings):
            return dict(found.set_here)
        return dict(self._status.settings.get(topic, {}))

    def _notes(self, point: Point, asked: Asked) -> Iterator[str]:
        """Yield what a valid point does not have."""
        unlisted = {each.topic for each in self._copies} - {each.topic for each in asked.ends}
        for name in sorted(unlisted):
            yield f"without {name}, which the cluster does not list"
        if not asked.groups and any(
            each.topic == paths.CONSUMER_OFFSETS and copy.log.size
            for each, copy in self._copies.items()
        ):
            yield "without groups: the cluster lists none that this client may describe"
        for name in point.ids:
            if not isinstance(asked.settings.get(name), TopicSettings):
                yield f"the settings of {name} cannot be read"

    def _why_split(self, asked: Asked, ends: Mapping[TopicPartition, int]) -> str:
        """Return how the ends cut a transaction; "": they do not."""
        for each, end in ends.items():
            markers = self._copies[each].markers
            if not markers.is_known(end):
                return f"the transactions next to {each}:{end} are too many, or before this run"
            divided = markers.divided_at(end)
            # An end in the topic of groups is no last stable offset.
            if divided is not None and each.topic != paths.CONSUMER_OFFSETS:
                return f"a transaction of producer {divided} has records beyond {each}:{end}"
        of_groups = [each for each in ends if each.topic == paths.CONSUMER_OFFSETS]
        # A transaction that ended while the groups were read may be in their offsets, or not.
        for found in (asked.before, asked.log_ends):
            if cut := self._why_cut(asked, {**ends, **_offsets(found, of_groups)}):
                return cut
        if asked.groups and not of_groups:
            first, last = _offsets(asked.before, ends), _offsets(asked.log_ends, ends)
            for each in ends:
                if each not in first or self._copies[each].markers.has_commit(
                    first[each], last[each]
                ):
                    return f"a transaction ended in {each} while the groups were read"
        return ""

    def _why_cut(self, asked: Asked, ends: Mapping[TopicPartition, int]) -> str:
        """Return which transaction ends later in a partition than in others; "": none."""
        producers: dict[int, dict[TopicPartition, Sides]] = {}
        log_ends = _offsets(asked.log_ends, ends)
        for each, end in ends.items():
            for producer_id, sides in self._copies[each].markers.sides(end, log_ends[each]).items():
                producers.setdefault(producer_id, {})[each] = sides
        for producer_id, found in producers.items():
            if (cut := cut_partition(found)) is not None:
                return f"a transaction of producer {producer_id} ends later in {cut}"
        return ""


def _offsets(found: _Offsets, of: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offsets of partitions that have one."""
    return {each: end.offset for each in of if isinstance(end := found[each], Offset)}


def _is_lost(copy: Copy, *ends: Offset) -> bool:
    """Return whether the cluster has lost records below ends that it has given: our log has not as
    many, or those of a later leader.
    """
    entries = copy.log.epochs.entries
    return any(
        copy.position < end.offset
        or any(0 <= end.leader_epoch < epoch for epoch, first in entries if first < end.offset)
        for end in ends
    )


def _has_open(copy: Copy, end: Offset | ClientError) -> bool:
    """Return whether a transaction is open in our log, below a last stable offset."""
    undecided = copy.log.producers.first_undecided_offset
    return undecided is not None and isinstance(end, Offset) and undecided < end.offset


def _committed(
    found: Mapping[str, CommittedOffsets | ClientError], point: Point, faults: list[str]
) -> Iterator[tuple[str, dict[tuple[str, int], Position]]]:
    """Yield the committed offsets of groups; add those that cannot be read to the faults."""
    for name, offsets in found.items():
        if isinstance(offsets, ClientError):
            faults.append(f"group {name!r} cannot be read: {offsets}")
            continue
        positions: dict[tuple[str, int], Position] = {}
        for each, offset in offsets.items():
            if not isinstance(offset, ClientError):
                if offset.offset >= 0:
                    positions[each] = Position(*offset)
            elif each in point.partitions:
                faults.append(f"group {name!r} cannot be read: {offset}")
        if positions:
            yield name, positions


def _list(reasons: Sequence[str]) -> str:
    """Return the first reasons."""
    more = [f"{len(reasons) - 3} more"] if len(reasons) > 3 else []
    return "; ".join([*reasons[:3], *more])
