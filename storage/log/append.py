"""Appends batches of producers, batches that keep their offsets, and markers that end transactions.

Invariants: a refused append changes nothing; the offsets of one append have no gap between batches
(`UnifiedLog.append`), except in `append_as_follower` and `append_with_offsets`, which keep the
offsets of the batches.

Not here: the rules for batches (`validator`) and producers (`producer_state`), the append of
batches that this process made (`Log.append`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from storage import paths
from storage.errors import InvalidRecord, InvalidTxnState
from storage.log.assign import check_last_offset, with_offsets
from storage.log.log import Log
from storage.log.truncate import start_at
from storage.log.validator import ValidatedBatch, validated, without_conversion
from storage.record._batch import walk_batches
from storage.record.control import ABORT, Marker, parse_marker
from storage.record.header import BatchHeader, Buffer, parse_header, size_at
from storage.segment.segment import MAX_OFFSET_SPAN
from storage.segment.writer import BatchEntry
from storage.state.producer_state import ProducerBatch, ProducerUpdate


class Appended(NamedTuple):
    """One batch of `append_batches`, and its offsets in the log.

    `duplicate`: its producer had written it before; nothing was written, and the offsets are the
    earlier ones.
    """

    base_offset: int
    last_offset: int
    duplicate: bool


def append_batches(
    log: Log,
    batches: Buffer,
    *,
    now_ns: int,
    trusted: dict[int, int] | None = None,
    defer_flush: bool = False,
    checked: Iterable[ValidatedBatch] | None = None,
    in_place: bool = False,
) -> list[Appended]:
    """Append whole batches from elsewhere, of any format and kind, with new offsets.

    `validator.validated` has the rules for a batch, `producer_state` those for a producer's next
    one: a duplicate is not written again, an old epoch and a gap in the sequences are refused. A
    gap is accepted if the producer's previous batch in the log came from the same caller.
    `trusted` is the caller's memory for that: by producer id, the last offset of the last batch
    that the caller appended. It is updated.

    `checked`: the result of `validated` for these batches and the current settings. A caller may
    compute it in another thread, as it takes as long as decoding the batches. `in_place`: `batches`
    is a bytearray with the bytes of `checked`, and may be changed: it is written without a copy.
    Errors: InvalidRecord and its kinds (OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState,
    InvalidTimestamp), RecordTooLarge, OSError; nothing is appended.
    """
    log.check_writable()
    log.files.check_room()
    outcome: list[Appended] = []
    parts: list[Buffer] = []
    size = 0
    update = ProducerUpdate(log.producers)
    # Replaces the caller's memory if all is appended. Without a memory, no gap is accepted.
    memory = None if trusted is None else dict(trusted)
    if checked is None:
        checked = validated(batches, log.config, now_ns // 1_000_000)
    for batch in checked:
        written = update.batches
        next_offset = written[-1].last_offset + 1 if written else log.log_end_offset
        new = _producer_batch(batch.header, next_offset, size, batch.marker)
        duplicate = _check_producer(update, new, memory)
        outcome.append(duplicate or Appended(new.base_offset, new.last_offset, False))
        if duplicate is None:
            update.add(new)
            parts.append(batch.data)
            size += len(batch.data)
            if new.last_offset - log.log_end_offset > MAX_OFFSET_SPAN:
                # One segment would get all of them.
                reason = f"the batches span more than {MAX_OFFSET_SPAN} offsets"
                raise InvalidRecord(f"{reason}: append fewer batches at a time")
    if update.batches:
        if in_place and len(parts) == len(outcome):
            assert isinstance(batches, bytearray)
            data = batches
        else:
            data = bytearray().join(parts)
        assigned = with_offsets(data, log.log_end_offset, log.epochs.latest, update)
        log.append_assigned(assigned, now_ns)
    if trusted is not None and memory is not None:
        trusted.update(memory)
    if update.batches and not defer_flush and log.durability.flush_due:
        log.flush()
    return outcome


def _check_producer(
    update: ProducerUpdate, batch: ProducerBatch, memory: dict[int, int] | None
) -> Appended | None:
    """Check the rules for a producer's next batch, and update the caller's `memory`.

    Return the earlier append if the batch is a duplicate, else None. Errors: those of
    `Producer.check`.
    """
    if not batch.counts:
        return None
    producer = update.get(batch.producer_id)
    follows = False
    if producer is not None:
        if batch.marker_type < 0 and (earlier := producer.duplicate(batch)) is not None:
            if memory is not None and earlier is producer.batches[-1]:
                memory[batch.producer_id] = earlier.last_offset
            return Appended(earlier.first_offset, earlier.last_offset, True)
        # A batch of another caller, or one that only a snapshot has, breaks the chain.
        follows = memory is not None and memory.get(batch.producer_id) == producer.last_offset
        producer.check(batch, follows=follows)
    if memory is not None:
        if batch.marker_type < 0:
            memory[batch.producer_id] = batch.last_offset
        elif producer is None or (follows and batch.producer_epoch != producer.epoch):
            # The chain continues, though a new epoch has no batch yet.
            memory[batch.producer_id] = -1
    return None


def abort_transaction(log: Log, producer_id: int, now_ns: int) -> int:
    """Write the ABORT marker of an open transaction (`end_transaction`)."""
    return end_transaction(log, producer_id, ABORT, now_ns)


def end_transaction(log: Log, producer_id: int, kind: int, now_ns: int) -> int:
    """Write the marker of an open transaction, ABORT or COMMIT; return its offset.

    The caller checks `flush_due`. Errors: InvalidTxnState if the producer is unknown or has none
    open; those of `check_writable`; OSError from the disk.
    """
    log.check_writable()
    producer = log.producers.by_id.get(producer_id)
    if producer is None or not producer.in_transaction:
        reason = "unknown producer" if producer is None else "no transaction is open"
        raise InvalidTxnState(reason, producer_id, path=log.directory)
    offset = log.log_end_offset
    batch = producer.marker(kind, offset, now_ns // 1_000_000, log.epochs.latest)
    update = ProducerUpdate(log.producers)
    update.add(_producer_batch(parse_header(batch), offset, 0, parse_marker(batch)))
    assigned = with_offsets(batch, offset, log.epochs.latest, update)
    return log.append_assigned(assigned, now_ns)


class Part(NamedTuple):
    """Sound batches that one segment can have, and the fields of those with a producer."""

    data: memoryview
    entries: list[BatchEntry]
    headers: list[BatchHeader]
    producers: list[ProducerBatch]


def append_as_follower(log: Log, batches: Buffer, now_ns: int) -> None:
    """Append whole batches of any format as they are, with their offsets, epochs and producers.

    Only CRCs, headers and markers are checked. Each batch must follow the previous one, gaps of
    offsets and of sequences are allowed (`UnifiedLog.appendAsFollower`). The first batch of a log
    without records may begin below the log start, which it contains. The log rolls as often as
    segment.bytes and the offsets require. The caller checks `flush_due`. Errors: those of
    `parse_as_follower`; nothing is appended. Those of `append_parts`.
    """
    append_parts(log, parse_as_follower(log, batches), now_ns)


def parse_as_follower(log: Log, batches: Buffer) -> list[Part]:
    """Check and parse batches for `append_parts`, which must follow at once.

    Errors: InvalidRecord, CorruptRecord for a marker; those of `check_writable`.
    """
    log.check_writable()
    log.files.check_room()
    view = memoryview(batches)
    parts: list[Part] = []
    at, end = 0, log.log_end_offset
    if not log.size:
        end = min(end, max(_base_offset(view), 0))
    while at < len(view):
        rest = view[at:]
        taken, end = _walk_part(log, rest, end, at)
        parts.append(_parsed(rest[:taken]))
        at += taken
    return parts


def append_parts(log: Log, parts: list[Part], now_ns: int) -> None:
    """Append parsed batches. Errors: InvalidRecord, if the first batch ends below the log start;
    OSError; nothing is appended. Those of `Log.append_assigned`: the batches of earlier segments
    may be appended.
    """
    if parts and not log.size:
        _begin_with(log, parts[0].headers[0], now_ns)
    for part in parts:
        update = ProducerUpdate(log.producers) if part.producers else None
        for batch in part.producers:
            assert update is not None
            update.add(batch)
        first = part.headers[0].base_offset
        log.append_assigned((part.data, part.entries, first, update), now_ns)
        log.epochs.assign(part.headers)


def holes(parts: list[Part], end: int) -> list[tuple[int, int]]:
    """Return the ranges of offsets without records between `end` and parsed batches, and between
    these. Both offsets are inclusive.
    """
    found: list[tuple[int, int]] = []
    for part in parts:
        for header, (_, _, last, _) in zip(part.headers, part.entries, strict=True):
            # (A wrapper of v0 or v1 has its last offset only.)
            if header.base_offset > end and not header.is_wrapper:
                found.append((end, header.base_offset - 1))
            end = last + 1
    return found


def _begin_with(log: Log, first: BatchHeader, now_ns: int) -> None:
    """Let the first segment of a log without records begin early enough for its first batch."""
    if first.last_offset < log.log_start_offset:
        reason = f"the batch ends at offset {first.last_offset}, below the log start"
        raise InvalidRecord(reason, path=log.directory, offset=first.base_offset)
    if first.base_offset < log.active.base_offset:
        start_at(log, first.base_offset, now_ns // 1_000_000)


def _walk_part(log: Log, batches: memoryview, end: int, position: int) -> tuple[int, int]:
    """Return the size of the first batches that one segment can have, and the offset after them.

    `end`: the log end before them; `position`: theirs in the append. Errors: InvalidRecord.
    """
    size, largest = len(batches), log.config.segment_bytes
    if size > largest:
        # A larger batch gets a segment of its own.
        size = min(size, max(largest, size_at(batches, 0)))
    first = _base_offset(batches)
    # The base offset that `Log._prepare_segment` chooses for a new segment.
    for base in (end, first):
        # The walk ends before a batch that is too far from `base`.
        taken, _, _, after, fault, _ = walk_batches(batches, size, base, end, paths.MAX_OFFSET)
        if taken:
            return taken, after
    reason = fault or "the batch is truncated"
    raise InvalidRecord(reason, path=log.directory, position=position, offset=first)


def _base_offset(batches: memoryview) -> int:
    return int.from_bytes(batches[:8], "big", signed=True)


def _parsed(batches: memoryview) -> Part:
    """Parse the headers and markers of sound batches. Errors: CorruptRecord."""
    part = Part(batches, [], [], [])
    at = 0
    while at < len(batches):
        header = parse_header(batches, at)
        part.entries.append((at, header.size, header.last_offset, header.max_timestamp))
        part.headers.append(header)
        if header.producer_id >= 0:
            # A cleaner leaves a control batch without a record in the place of a marker.
            is_marker = header.is_control and header.records_count
            marker = parse_marker(batches, at) if is_marker else None
            part.producers.append(_producer_batch(header, header.base_offset, at, marker))
        at += header.size
    return part


def append_with_offsets(
    log: Log, batches: Buffer, *, now_ns: int, checked: Iterable[ValidatedBatch] | None = None
) -> None:
    """Append whole batches from elsewhere with their offsets, epochs and producers. A new log
    begins at the first offset.

    `validator.validated` has the rules for a batch, with settings `without_conversion`; each must
    follow the previous one, gaps are allowed. `checked`: as in `append_batches`. The caller checks
    `flush_due`. Errors: InvalidRecord, RecordTooLarge; nothing is appended. Those of
    `Log.append_assigned`: as in `append_as_follower`.
    """
    log.check_writable()
    if checked is None:
        checked = validated(batches, without_conversion(log.config), now_ns // 1_000_000)
    joined = bytearray()
    end = log.log_end_offset
    for data, header, _ in checked:
        if header.base_offset < end:
            reason = f"batch starts at offset {header.base_offset}"
            raise InvalidRecord(f"{reason}, but the previous batch ends at {end - 1}")
        end = header.last_offset + 1
        joined += data
    check_last_offset(log.log_end_offset, end - 1)
    is_first = log.is_new
    try:
        append_as_follower(log, joined, now_ns)
    finally:
        if is_first and not log.is_new and (base_offset := parse_header(joined).base_offset) > 0:
            log.begin_at(base_offset)


def _producer_batch(
    header: BatchHeader, base_offset: int, position: int, marker: Marker | None
) -> ProducerBatch:
    """Return the producer's fields of a v2 batch at `position` (in bytes of the append)."""
    return ProducerBatch(
        base_offset,
        base_offset + header.last_offset_delta,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.attributes,
        header.max_timestamp,
        position,
        -1 if marker is None else marker.type,
        -1 if marker is None else marker.coordinator_epoch,
    )
