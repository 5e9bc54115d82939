"""Decides which segments of a log are deleted: facts and settings in, a head of the log out.

No file, log or clock is touched here; `retain` gathers the facts and carries out the decision. The
rules are Kafka's (`UnifiedLog.deleteOldSegments`), in this order:

- **log start**: a segment whose successor begins at or below the log start has no readable record.
  Independent of cleanup.policy.
- if cleanup.policy has `delete`, and all deciding settings are known (`LogConfig.unknown`), the
  topic's policy decides about the rest. Kafka's is **size** (the log keeps at least
  retention.bytes) and then **time** (the newest record, or without timestamps the file, is older
  than retention.ms).

Only a head of the log is deleted, whatever a policy returns. Segments above the high watermark or
with records of a named restore point stay, and so does the last one if it is empty. If all other
segments expire, the caller rolls first.

A **policy** is a function `(facts, config, now_ms) -> [Doomed, …]`. Besides `kafka`, an installed
package can offer any as an entry point of the group `kafkafs.retention`. That is a function that
gets the text after the colon of `kafkafs.retention.policy=NAME:ARGUMENT` (empty without a colon)
and returns the policy, or raises ValueError with the valid form. `storage.retention.mtime` is an
example.

Offsets count records, sizes are in bytes, times in ms since 1970.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage.errors import InvalidConfig
from storage.settings.config import LONG_MAX, LogConfig
from storage.units import duration_in_words

GROUP = "kafkafs.retention"
"""The entry points that are policies."""


class SegmentFacts(NamedTuple):
    """The facts of one segment.

    `next_offset`: the base offset of the next segment; for the last one the log end.
    `largest_timestamp_ms`: of its records, or `mtime_ms` if none has a timestamp.
    """

    base_offset: int
    next_offset: int
    size: int
    largest_timestamp_ms: int
    mtime_ms: int
    is_active: bool


class LogFacts(NamedTuple):
    """The facts of one log: its segments in order, the last one is active. `kept_from`: named
    restore points of a mirror keep the records from this offset on.
    """

    segments: tuple[SegmentFacts, ...]
    log_start_offset: int
    high_watermark: int
    kept_from: int = LONG_MAX


class Doomed(NamedTuple):
    """A segment to delete, and the reason in words, with the numbers."""

    segment: SegmentFacts
    why: str


class Effect(NamedTuple):
    """The bytes of a log that one setting deletes: `size` now, `next_size` next.

    `next_ms`: the earliest time of the next deletion; `next_after`: the number of bytes to be
    appended before it. Without both, it cannot be predicted.
    """

    setting: str
    size: int
    next_size: int = 0
    next_ms: int | None = None
    next_after: int | None = None


Policy = Callable[[LogFacts, LogConfig, int], Sequence[Doomed]]


@dataclass(frozen=True, slots=True)
class Decision:
    """The segments to delete. `fault`: the error of the topic's policy, which is ignored."""

    doomed: tuple[Doomed, ...]
    fault: str | None = None


def decide(facts: LogFacts, config: LogConfig, now_ms: int) -> Decision:
    """Return the segments to delete now, oldest first; a policy's error becomes the `fault`."""
    doomed = _admitted(below_log_start(facts), facts)
    if config.unknown or "delete" not in config.cleanup_policy:
        return Decision(doomed)
    rest = facts._replace(segments=facts.segments[len(doomed) :])
    try:
        policy = find_policy(config.kafkafs_retention_policy)
        return Decision(doomed + _admitted(policy(rest, config, now_ms), rest))
    except Exception as error:
        kind = "" if isinstance(error, InvalidConfig) else f"{type(error).__name__}: "
        name = config.kafkafs_retention_policy
        return Decision(
            doomed, f"retention policy {name} failed, so it deletes nothing: {kind}{error}"
        )


def _admitted(doomed: Sequence[Doomed], facts: LogFacts) -> tuple[Doomed, ...]:
    """Return the deletable part of a policy's answer. Errors: ValueError if it is no head."""
    admitted: list[Doomed] = []
    if len(doomed) > len(facts.segments):
        raise ValueError(
            f"it returned {len(doomed)} segments, but there are only {len(facts.segments)}"
        )
    for segment, (named, why) in zip(facts.segments, doomed, strict=False):
        if named != segment:
            raise ValueError(
                f"it returned segment {named.base_offset}, but the oldest is {segment.base_offset}"
            )
        admitted.append(Doomed(segment, str(why)))
    for number, (segment, _) in enumerate(admitted):
        is_last_and_empty = segment is facts.segments[-1] and not segment.size
        end = min(facts.high_watermark, facts.kept_from)
        if segment.next_offset > end or is_last_and_empty:
            return tuple(admitted[:number])
    return tuple(admitted)


def oldest_while(facts: LogFacts, why: Callable[[SegmentFacts], str | None]) -> list[Doomed]:
    """Return segments from the oldest on, up to the first for which `why` gives no reason."""
    doomed: list[Doomed] = []
    for segment in facts.segments:
        reason = why(segment)
        if reason is None:
            break
        doomed.append(Doomed(segment, reason))
    return doomed


# -- Kafka's rules -------------------------------------------------------------------------------


def below_log_start(facts: LogFacts) -> list[Doomed]:
    """Return the segments whose successor begins at or below the log start."""
    start = facts.log_start_offset
    return oldest_while(
        facts._replace(segments=facts.segments[:-1]),
        lambda segment: (
            f"its last offset, {segment.next_offset - 1}, is below the log start offset, {start}"
            if segment.next_offset <= start
            else None
        ),
    )


def by_size(facts: LogFacts, config: LogConfig) -> list[Doomed]:
    """Return the segments without which the log still has retention.bytes."""
    limit = config.retention_bytes
    left = sum(segment.size for segment in facts.segments)
    if limit < 0 or left < limit:
        return []
    doomed: list[Doomed] = []
    for segment in facts.segments:
        left -= segment.size
        if left < limit:
            break
        doomed.append(Doomed(segment, f"{left} bytes remain without it, retention.bytes={limit}"))
    return doomed


def by_time(facts: LogFacts, config: LogConfig, now_ms: int) -> list[Doomed]:
    """Return the segments older than retention.ms; a later timestamp keeps all following ones."""
    limit = config.retention_ms
    if limit < 0:
        return []

    def why(segment: SegmentFacts) -> str | None:
        age_ms = now_ms - segment.largest_timestamp_ms
        if age_ms <= limit:
            return None
        what = f" ({duration_in_words(limit)})" if limit >= 1000 else ""
        return f"its newest record is {duration_in_words(age_ms)} old, retention.ms={limit}{what}"

    return oldest_while(facts, why)


def kafka(facts: LogFacts, config: LogConfig, now_ms: int) -> list[Doomed]:
    """Return the segments that expire by size, then those by time."""
    doomed = by_size(facts, config)
    rest = facts._replace(segments=facts.segments[len(doomed) :])
    return doomed + by_time(rest, config, now_ms)


def deletes_by_limits(config: LogConfig) -> bool:
    """Return whether `retention.bytes` and `retention.ms` have an effect if they are set."""
    is_kafkas = config.kafkafs_retention_policy == "kafka"
    return is_kafkas and "delete" in config.cleanup_policy and not config.unknown


def effects(facts: LogFacts, config: LogConfig, now_ms: int) -> list[Effect]:
    """Return the effect of each setting that is in force, as if it were the only one. Errors: those
    of `find_policy`; an installed policy may raise any other.
    """
    start = below_log_start(facts)
    found = []
    if start:
        found.append(Effect(f"log start {facts.log_start_offset}", _size(start)))
    if config.unknown or "delete" not in config.cleanup_policy:
        return found
    facts = facts._replace(segments=facts.segments[len(start) :])
    if config.kafkafs_retention_policy != "kafka":
        own = _admitted(find_policy(config.kafkafs_retention_policy)(facts, config, now_ms), facts)
        setting = f"kafkafs.retention.policy={config.kafkafs_retention_policy}"
        return [*found, Effect(setting, _size(own))]
    if config.retention_bytes >= 0:
        found.append(_size_effect(facts, config))
    if config.retention_ms >= 0:
        found.append(_time_effect(facts, config, now_ms))
    return found


def _size_effect(facts: LogFacts, config: LogConfig) -> Effect:
    limit = config.retention_bytes
    doomed = _admitted(by_size(facts, config), facts)
    setting, size = f"retention.bytes={limit}", _size(doomed)
    left = facts.segments[len(doomed) :]
    # The final size of the active segment is not known.
    if len(left) < 2 or left[0].next_offset > facts.kept_from:
        return Effect(setting, size)
    missing = limit + left[0].size - sum(segment.size for segment in left)
    return Effect(setting, size, left[0].size, next_after=max(missing, 1))


def _time_effect(facts: LogFacts, config: LogConfig, now_ms: int) -> Effect:
    limit = config.retention_ms
    doomed = _admitted(by_time(facts, config, now_ms), facts)
    setting, size = f"retention.ms={limit}", _size(doomed)
    left = facts._replace(segments=facts.segments[len(doomed) :])
    is_empty = not any(segment.size for segment in left.segments)
    if is_empty or left.segments[0].next_offset > facts.kept_from:
        return Effect(setting, size)
    next_ms = max(left.segments[0].largest_timestamp_ms + limit + 1, now_ms)
    following = _admitted(by_time(left, config, next_ms), left)
    return Effect(setting, size, _size(following), next_ms=next_ms)


def _size(doomed: Sequence[Doomed]) -> int:
    return sum(segment.size for segment, _ in doomed)


# -- policies by name ----------------------------------------------------------------------------


@functools.lru_cache
def find_policy(text: str) -> Policy:
    """Return the policy for `NAME` or `NAME:ARGUMENT`. Errors: InvalidConfig if it does not exist
    or refuses the argument.
    """
    name, colon, argument = text.partition(":")
    if name == "kafka":
        if colon:
            raise InvalidConfig(f"retention policy {text}: kafka takes no argument")
        return kafka
    factory = _factory(name)
    try:
        policy = factory(argument)
    except ValueError as error:
        raise InvalidConfig(f"retention policy {text}: {argument!r} is not {error}") from None
    except Exception as error:
        raise InvalidConfig(f"retention policy {text}: {type(error).__name__}: {error}") from error
    if not callable(policy):
        raise InvalidConfig(f"retention policy {text} does not return a function")
    return policy


def _factory(name: str) -> Callable[[str], Policy]:
    """Return the function of the entry point of that name."""
    # The import takes some milliseconds, which Kafka's policy does not need.
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        names = sorted({"kafka", *entry_points(group=GROUP).names})
        raise InvalidConfig(f"unknown retention policy {name!r}; available: {', '.join(names)}")
    if len(found) > 1:
        raise InvalidConfig(f"retention policy {name} is ambiguous: {', '.join(sorted(found))}")
    try:
        factory: Callable[[str], Policy] = found.popitem()[1].load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidConfig(f"retention policy {name} cannot be loaded: {reason}") from error
    return factory


def check_policy(config: LogConfig) -> None:
    """Check that the policy of the settings exists. Errors: InvalidConfig."""
    find_policy(config.kafkafs_retention_policy)
