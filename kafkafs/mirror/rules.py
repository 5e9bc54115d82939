"""Decides by facts of an answer and of our log what a mirror does next. Nothing is touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka_client.errors import BrokerError, ClientError
from kafka_client.requests import Offset, TopicSettings
from storage.errors import CorruptRecord
from storage.record.header import parse_header
from storage.state.gaps_file import Gap, in_force

OFFSET_OUT_OF_RANGE: Final = 1
# Unknown topics and partitions, and a missing permission.
_NOT_LISTED: Final = frozenset({3, 29, 100})
# How often damaged records are read again before the partition waits.
_ATTEMPTS: Final = 3
# The kinds of gaps in which our log has no records.
_WITHOUT_RECORDS: Final = frozenset({"deleted", "missing", "damaged"})
# An outage that may hide tombstones if the setting of the topic cannot be read, and the largest
# error of the time at which a copy was last complete.
_UNKNOWN_RETENTION_MS: Final = 60_000
_MARGIN_MS: Final = 20_000
# A longer round is a stop of the process, and for how long after it answers may be old. (After 10
# seconds without an answer, a partition waits.)
_STOP_MS: Final = 10_000
_OLD_ANSWERS_MS: Final = 30_000


class Hole(NamedTuple):
    """Offsets without records, as a kind of gap. `last` is inclusive."""

    kind: str
    first: int
    last: int


class Skip(NamedTuple):
    """Fetch from `offset` on. `damaged`: the offsets below it were skipped on request."""

    offset: int
    damaged: bool = False


class Truncate(NamedTuple):
    """Remove our records from `offset` on: the leader has others."""

    offset: int


class BeginAt(NamedTuple):
    """Let our log without records begin at a lower offset."""

    offset: int


class Compare(NamedTuple):
    """Ask for the log start of the leader, and where our last epoch ends there."""


class Again(NamedTuple):
    """Fetch the same offset again."""


class Wait(NamedTuple):
    """Copy nothing of the partition until the reason is removed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a source topic that decide about its gaps; None: they cannot be read."""

    is_compacted: bool | None = None
    delete_retention_ms: int | None = None

    @classmethod
    def of(cls, found: TopicSettings) -> Policy:
        policy = found.in_force.get("cleanup.policy")
        retention = found.in_force.get("delete.retention.ms", "")
        return cls(
            None if policy is None else "compact" in policy,
            int(retention) if retention.isdecimal() else None,
        )


def on_records(
    holes: Iterable[tuple[int, int]],
    known: Sequence[Gap],
    source_start: int,
    policy: Policy,
    *,
    accept_loss: bool,
) -> Sequence[Hole] | Wait:
    """Return the gaps to name before batches are appended. `holes`: the ranges of offsets before
    and between them; `known`: the gaps of our log; `source_start`: the log start of the leader.
    """
    named: list[Hole] = []
    holes = list(holes)
    # A topic that was compacted may have a gap before each batch.
    known = [gap for gap in in_force(known) if gap.last >= holes[0][0]] if holes else []
    for first, last in holes:
        first = _unnamed(first, last, known)
        if first < min(source_start, last + 1):
            named.append(Hole("deleted", first, min(source_start - 1, last)))
            first = named[-1].last + 1
        if first > last or policy.is_compacted:
            continue
        if policy.is_compacted is None and not accept_loss:
            return Wait(
                f"offsets {first} to {last} are missing, and cleanup.policy cannot be read "
                "(DESCRIBE_CONFIGS), which would tell whether the topic is compacted"
            )
        named.append(Hole("missing", first, last))
    return named


def without_records(end: int, position: int, known: Sequence[Gap]) -> Hole | None:
    """Return the gap between our log end and the position, if the source has nothing after it."""
    first = _unnamed(end, position - 1, in_force(known))
    return Hole("deleted", first, position - 1) if first < position else None


def _unnamed(first: int, last: int, known: Sequence[Gap]) -> int:
    """Return the first offset of a range from which on it is in no gap that is known."""
    for gap in sorted(known, key=lambda gap: gap.first):
        if gap.kind in _WITHOUT_RECORDS and gap.first <= first <= gap.last:
            first = min(gap.last, last) + 1
    return first


def on_error(
    error: Exception, position: int, next_offset: int, attempts: int, *, accept_loss: bool
) -> Skip | Compare | Again | Wait:
    """Decide about an error of a partition. `next_offset`: the offset after damaged records;
    `attempts`: how often they were read.
    """
    if isinstance(error, BrokerError) and error.code == OFFSET_OUT_OF_RANGE:
        return Compare()
    if isinstance(error, CorruptRecord):
        if attempts < _ATTEMPTS:
            return Again()
        if accept_loss:
            return Skip(max(next_offset, position + 1), damaged=True)
        return Wait(f"{error}. To skip it: --accept-loss")
    return Wait(reason_of(error))


def reason_of(error: Exception) -> str:
    """Return why a partition waits."""
    if not isinstance(error, BrokerError):
        return str(error)
    if error.code not in _NOT_LISTED:
        return str(error.name)
    return f"{error.name}: the topic was deleted, or it may not be read. Its copy stays"


def on_comparison(
    end: int,
    position: int,
    epochs: Sequence[tuple[int, int]],
    earliest: Offset | ClientError,
    latest: Offset | ClientError,
    epoch_end: Offset | ClientError | None,
    *,
    is_empty: bool = False,
) -> Skip | Truncate | BeginAt | Again | Wait:
    """Decide where to read on after the leader has refused a position.

    `end`, `epochs`, `is_empty`: our log's; `earliest`, `latest`: the leader's; `epoch_end`: the end
    of our last epoch there, None if we have none.
    """
    for each in (earliest, latest, epoch_end):
        if isinstance(each, ClientError):
            return Wait(reason_of(each))
    assert isinstance(earliest, Offset)
    assert isinstance(latest, Offset)
    if position < earliest.offset:
        return Skip(earliest.offset)
    if isinstance(epoch_end, Offset) and end > earliest.offset:
        if epoch_end.offset < 0:
            return Wait(f"the leader does not know epoch {epochs[-1][0]}, which our log has")
        found = on_divergence(end, epochs, epoch_end.leader_epoch, epoch_end.offset)
        if isinstance(found, Truncate):
            return found
    if end <= latest.offset < position:
        # Another leader than the one that had no records up to the position.
        return Skip(max(end, earliest.offset))
    if is_empty and latest.offset < end:
        # After an unclean election, the next records there are newer than the start of the copy.
        return BeginAt(latest.offset)
    if position > latest.offset:
        return Wait(f"our log ends at offset {end}, that of the leader at offset {latest.offset}")
    return Again()


def on_divergence(
    end: int, epochs: Sequence[tuple[int, int]], epoch: int, epoch_end: int
) -> Truncate | Wait:
    """Decide where our log and the leader's part: it has no epoch above `epoch` of those up to our
    last one, and that one ends at `epoch_end`.
    """
    ours = next((start for each, start in epochs if each > epoch), end)
    offset = min(ours, epoch_end)
    if epoch < 0 or not 0 <= offset < end:
        return Wait(
            f"the leader reports another history, but not from where on: epoch {epoch} ends at "
            f"offset {epoch_end}, our log at offset {end}"
        )
    return Truncate(offset)


def is_same_batch(ours: bytes, theirs: memoryview, policy: Policy) -> bool:
    """Return whether the first batch of the leader from an offset on is ours, or may have been. A
    cleaner removes batches and records of batches.
    """
    if theirs[: len(ours)] == ours:
        return True
    if not (policy.is_compacted and theirs):
        return False
    before, after = parse_header(ours), parse_header(theirs)
    return before.base_offset < after.base_offset or all(
        getattr(before, name) == getattr(after, name)
        for name in ("base_offset", "last_offset", "producer_id", "producer_epoch", "base_sequence")
    )


def may_show_deleted(policy: Policy, at_end_ms: int, now_ms: int) -> bool:
    """Return whether tombstones may have been removed while a copy was not complete. Nobody knows
    if the clock was set back.
    """
    if policy.is_compacted is False:
        return False
    limit_ms = policy.delete_retention_ms
    limit_ms = _UNKNOWN_RETENTION_MS if limit_ms is None else limit_ms
    away_ms = now_ms - at_end_ms
    # With a lower limit, each batch that is copied a moment late would be a gap.
    return away_ms > max(limit_ms - _MARGIN_MS, _MARGIN_MS) or away_ms < -_MARGIN_MS


class Rounds:
    """Finds by the wall clock when the process was stopped or suspended.

    A leader sends nothing about a partition without new records. So a copy stays complete while
    the rounds of the mirror go on; but the answers of the first rounds after a stop are old ones,
    or tell of the time of the stop.
    """

    def __init__(self) -> None:
        self._last_ms: int | None = None
        self._stopped_ms, self._going_ms = 0, -_OLD_ANSWERS_MS

    def begin(self, now_ms: int) -> None:
        """Note that a round begins."""
        last_ms, self._last_ms = self._last_ms, now_ms
        if last_ms is not None and abs(now_ms - last_ms) > _STOP_MS:
            if not self._has_old_answers(last_ms):
                self._stopped_ms = last_ms
            self._going_ms = now_ms

    def complete_until_ms(self, at_end_ms: int, now_ms: int) -> int:
        """Return the last time at which a complete copy is known to have been so. `at_end_ms`: when
        an answer last showed it.
        """
        if self._has_old_answers(now_ms) and not self._going_ms <= at_end_ms <= now_ms:
            return self._stopped_ms
        return now_ms

    def _has_old_answers(self, now_ms: int) -> bool:
        return 0 <= now_ms - self._going_ms < _OLD_ANSWERS_MS
