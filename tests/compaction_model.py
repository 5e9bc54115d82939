"""A model of Kafka's `LogCleaner`: it cleans decoded batches, with dicts.

The model is slow and simple on purpose, and shares no code with the product's cleaner. Its input
is the segments with their batches, the state of producers, the aborted transactions, the settings
and the time. Its result has the batches and records of every new segment, and the entries of the
segment's transaction index.

Rules: `LogCleanerManager.cleanableOffsets`, `Cleaner` (`buildOffsetMap`, `groupSegmentsBySize`,
`cleanInto`), `CleanedTransactionMetadata`, `MemoryRecords.filterTo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

ABORT, COMMIT = 0, 1
MAX_SPAN = 2**31 - 1


class ModelRecord(NamedTuple):
    """A record as a reader gets it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ModelBatch(NamedTuple):
    """A batch, decoded.  ``marker``: of a control batch the type of its record, None without one.

    Without a producer its three fields are -1; ``horizon`` is None where none is set.
    """

    base_offset: int
    last_offset: int
    records: tuple[ModelRecord, ...]
    max_timestamp: int
    magic: int = 2
    codec: int = 0
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False
    marker: int | None = None
    append_time: bool = False
    horizon: int | None = None


class Aborted(NamedTuple):
    """An entry of a transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int


class ModelSegment(NamedTuple):
    """A segment: sizes in bytes (of the indexes those of their entries), times in ms."""

    base_offset: int
    batches: tuple[ModelBatch, ...]
    size: int
    index_size: int
    time_index_size: int
    largest_timestamp: int
    mtime_ms: int
    aborted: tuple[Aborted, ...] = ()


class ModelLog(NamedTuple):
    """The last segment is active.  ``producers``: (last data offset or -1, epoch) by id."""

    segments: tuple[ModelSegment, ...]
    log_start: int
    log_end: int
    decided_end: int
    producers: dict[int, tuple[int, int]]

    @property
    def aborted(self) -> list[Aborted]:
        """The aborted transactions that a cleaning uses: none that ended below the log start."""
        return [
            entry
            for segment in self.segments
            for entry in segment.aborted
            if entry.last_offset >= self.log_start
        ]


class Rules(NamedTuple):
    """The settings that a cleaning asks for."""

    segment_bytes: int
    segment_index_bytes: int = 10 << 20
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    min_cleanable_ratio: float = 0.5


class Range(NamedTuple):
    """The cleanable part of a log: whole segments below `first_uncleanable`.

    The map of keys is built from `first_dirty` on.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, rules: Rules) -> bool:
        return (self.overdue and self.cleanable_bytes > 0) or self.ratio > rules.min_cleanable_ratio


class KeyMap(NamedTuple):
    """The latest offset of each key, and up to where the log was read for it."""

    offsets: dict[bytes, int]
    latest_offset: int
    full: bool


class Outcome(NamedTuple):
    """``first_dirty`` of the next cleaning, how many segments are replaced, and of each new one
    (base, batches, aborted).
    """

    first_dirty: int
    replaced: int
    segments: list[tuple[int, list[ModelBatch], list[Aborted]]]
    keys: KeyMap

    def content(self, log: ModelLog) -> tuple[ModelBatch, ...]:
        """Every batch of the log that was cleaned, afterwards."""
        left = [batch for _, batches, _ in self.segments for batch in batches]
        left += [batch for segment in log.segments[self.replaced :] for batch in segment.batches]
        return tuple(left)


# -- which range -----------------------------------------------------------------------------------


def cleanable(log: ModelLog, checkpoint: int | None, rules: Rules, now_ms: int) -> Range:
    """The range that can be cleaned now; ``checkpoint``: where the last cleaning ended."""
    dirty = log.log_start if checkpoint is None else checkpoint
    if not log.log_start <= dirty <= log.log_end:
        dirty = log.log_start
    sealed = log.segments[:-1]
    active = log.segments[-1].base_offset
    ends = [segment.base_offset for segment in log.segments[1:]]
    bound = min(log.decided_end, active)
    for segment, end in zip(sealed, ends, strict=True):
        too_young = segment.largest_timestamp > now_ms - rules.min_compaction_lag_ms
        if rules.min_compaction_lag_ms > 0 and end > dirty and too_young:
            bound = min(bound, segment.base_offset)
            break
    bound = max(bound, dirty)
    whole = [s.base_offset for s, end in zip(sealed, ends, strict=True) if end > bound]
    bound = whole[0] if whole else active
    firsts = [
        segment.batches[0].max_timestamp
        for segment, end in zip(sealed, ends, strict=True)
        if end > dirty and segment.batches and segment.batches[0].max_timestamp > 0
    ]
    return Range(
        dirty,
        bound,
        sum(segment.size for segment in log.segments if segment.base_offset < dirty),
        sum(
            segment.size
            for segment, end in zip(sealed, ends, strict=True)
            if end > dirty and segment.base_offset < bound
        ),
        bool(firsts) and min(firsts) < now_ms - rules.max_compaction_lag_ms,
    )


# -- transactions ----------------------------------------------------------------------------------


class Transactions:
    """Which transactions are open at a place of the log, in one pass over it."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._coming = sorted(set(aborted), key=lambda entry: entry.first_offset)
        self._aborted: dict[int, tuple[Aborted, bool]] = {}
        self._others: set[int] = set()

    def _reach(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            entry = self._coming.pop(0)
            self._aborted.setdefault(entry.producer_id, (entry, False))

    def data_is_aborted(self, batch: ModelBatch) -> bool:
        """Whether a data batch, the next one, belongs to an aborted transaction."""
        self._reach(batch.last_offset)
        if not batch.transactional:
            return False
        if batch.producer_id in self._aborted:
            self._aborted[batch.producer_id] = (self._aborted[batch.producer_id][0], True)
            return True
        self._others.add(batch.producer_id)
        return False

    def marker_can_go(self, batch: ModelBatch) -> tuple[bool, Aborted | None]:
        """Whether a control batch, the next one, ends nothing any more; else what it aborts."""
        self._reach(batch.last_offset)
        if not batch.records:
            return True, None
        if batch.marker == ABORT:
            entry, seen = self._aborted.pop(batch.producer_id, (None, False))
            return (False, entry) if seen else (True, None)
        if batch.marker == COMMIT:
            seen = batch.producer_id in self._others
            self._others.discard(batch.producer_id)
            return not seen, None
        return False, None


# -- the map ---------------------------------------------------------------------------------------


def build_map(log: ModelLog, where: Range, usable: int) -> KeyMap:
    """Each key's latest offset in the dirty range, up to where ``usable`` keys reach.

    Where nothing is dirty, what was cleaned before is looked at once more.
    """
    offsets: dict[bytes, int] = {}
    latest = min(where.first_dirty, where.first_uncleanable) - 1
    transactions = Transactions(
        entry
        for entry in log.aborted
        if entry.last_offset >= where.first_dirty and entry.first_offset < where.first_uncleanable
    )
    sealed = log.segments[:-1]
    for number, segment in enumerate(sealed):
        end = log.segments[number + 1].base_offset
        if end <= where.first_dirty or segment.base_offset >= where.first_uncleanable:
            continue
        for batch in segment.batches:
            if batch.control:
                transactions.marker_can_go(batch)
            elif not transactions.data_is_aborted(batch):
                for record in batch.records:
                    if record.key is not None and record.offset >= where.first_dirty:
                        if len(offsets) == usable:
                            return KeyMap(offsets, latest, True)
                        offsets[record.key] = latest = record.offset
            if batch.last_offset >= where.first_dirty:
                latest = batch.last_offset
        latest = end - 1
    return KeyMap(offsets, latest, False)


# -- groups ----------------------------------------------------------------------------------------


def group(
    segments: Sequence[ModelSegment], rules: Rules, first_uncleanable: int
) -> list[list[ModelSegment]]:
    """Segments that are cleaned into one."""
    groups: list[list[ModelSegment]] = []
    for number, segment in enumerate(segments):
        following = segments[number + 1 : number + 2]
        last = (following[0].base_offset if following else first_uncleanable) - 1
        if groups:
            members = [*groups[-1], segment]
            if (
                sum(each.size for each in members) <= rules.segment_bytes
                and sum(each.index_size for each in members) <= rules.segment_index_bytes
                and sum(each.time_index_size for each in members) <= rules.segment_index_bytes
                and (not segment.size or last - members[0].base_offset <= MAX_SPAN)
            ):
                groups[-1] = members
                continue
        groups.append([segment])
    return groups


# -- what stays ------------------------------------------------------------------------------------


def clean(log: ModelLog, where: Range, rules: Rules, now_ms: int, usable: int = 1 << 62) -> Outcome:
    """Clean the log once.  ``usable``: how many keys the map has room for."""
    keys = build_map(log, where, usable)
    end = keys.latest_offset + 1
    segments = [segment for segment in log.segments[:-1] if segment.base_offset < end]
    already_clean = [s for s in log.segments if s.base_offset < where.first_dirty]
    legacy_horizon = already_clean[-1].mtime_ms - rules.delete_retention_ms if already_clean else 0
    transactions = Transactions(log.aborted)
    # The next cleaning never starts at a lower offset, even if this map ends before `first_dirty`.
    outcome = Outcome(max(end, where.first_dirty), len(segments), [], keys)
    for members in group(segments, rules, where.first_uncleanable):
        kept: list[ModelBatch] = []
        aborted: list[Aborted] = []
        for segment in members:
            legacy = segment.mtime_ms > legacy_horizon
            for batch in segment.batches:
                may_be_dropped, entry = False, None
                if batch.control:
                    may_be_dropped, entry = transactions.marker_can_go(batch)
                else:
                    may_be_dropped = transactions.data_is_aborted(batch)
                if entry is not None:
                    aborted.append(entry)
                left = _clean_batch(log, batch, may_be_dropped, legacy, keys, where, rules, now_ms)
                if left is not None:
                    kept.append(left)
        outcome.segments.append((members[0].base_offset, kept, aborted))
    return outcome


def _clean_batch(
    log: ModelLog,
    batch: ModelBatch,
    may_be_dropped: bool,
    legacy_tombstones: bool,
    keys: KeyMap,
    where: Range,
    rules: Rules,
    now_ms: int,
) -> ModelBatch | None:
    """Return the batch with the records that stay, or None if the whole batch is removed."""
    over = batch.horizon is not None and batch.horizon <= now_ms
    discard = may_be_dropped and (over or not batch.control)

    def stays(record: ModelRecord) -> bool:
        if batch.control or record.offset > keys.latest_offset:
            return True
        if record.key is None or record.offset < keys.offsets.get(record.key, -1):
            return False
        return record.value is not None or (legacy_tombstones if batch.magic < 2 else not over)

    kept = () if discard else tuple(filter(stays, batch.records))
    if not kept:
        last_offset, epoch = log.producers.get(batch.producer_id, (-1, None))
        if batch.magic < 2:
            return None
        if last_offset >= 0:
            is_last = batch.last_offset == last_offset
        else:
            is_last = batch.control and batch.producer_epoch == epoch
        if (batch.producer_id >= 0 and is_last) or batch.last_offset + 1 == log.log_end:
            # Whatever it was, an empty batch has no codec, no horizon, and its times' largest.
            return batch._replace(records=(), codec=0, horizon=None, marker=None)
        return None
    horizon = batch.horizon
    if horizon is None and (
        (batch.control and may_be_dropped) or any(r.value is None for r in kept)
    ):
        horizon = now_ms + rules.delete_retention_ms
    if kept == batch.records and horizon == batch.horizon and batch.magic == 2:
        return batch
    return batch._replace(
        records=kept,
        horizon=horizon,
        magic=2,
        base_offset=batch.base_offset if batch.magic == 2 else kept[0].offset,
        last_offset=batch.last_offset if batch.magic == 2 else kept[-1].offset,
        max_timestamp=batch.max_timestamp
        if batch.append_time
        else max(record.timestamp for record in kept),
    )
