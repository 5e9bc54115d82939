"""Does to a log that is open for reading what another process, its writer, has done to its files.

Each of these changes the log at once, on the owner's thread; listeners hear of it.

Not here: finding out what the writer has done (``follow``, ``follow_tail``).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage import paths
from storage.log.log import Log
from storage.recovery.loading import Origin
from storage.recovery.recovery import Recovered
from storage.segment.segment import Segment
from storage.state.producer_state import ProducerBatch, ProducerState, ProducerUpdate


def append(
    log: Log, segment: Segment, position: int, data: bytes, producers: Sequence[ProducerBatch]
) -> None:
    """The writer has appended ``data``, whole batches, to ``segment``, which has taken them.

    ``producers``: those of the batches that have one, with positions in the segment's file.
    """
    assert log.read_only
    undecided = log.producers.first_undecided_offset
    if producers:
        update = ProducerUpdate(log.producers)
        for facts in producers:
            update.add(facts)
        for aborted in update.aborted:
            segment.files.txn_index.observe(aborted)
        log.transactions.store_producers(segment, 0, update)
    if undecided is None and log.producers.first_undecided_offset is None:
        segment.stable_size = segment.size
    log_end, log.log_end_offset = log.log_end_offset, segment.next_offset
    stabilized = bool(producers) and log.transactions.update_stable_sizes(undecided, log_end)
    for listener in log.listeners:
        listener.appended(log, segment, position, data)
    if stabilized:
        for listener in log.listeners:
            listener.stabilized(log)


def move_log_start(log: Log, offset: int) -> None:
    """The writer has deleted the records below ``offset``."""
    assert log.read_only
    log.log_start_offset = offset
    log.log_start_moved()


def replace_head(
    log: Log,
    count: int,
    segments: Sequence[Segment],
    retired: Sequence[Segment],
    due_ms: int,
    producers: ProducerState | None = None,
) -> None:
    """``segments`` take the place of the first ``count``; ``retired`` go at ``due_ms``.

    ``producers``: as of the log end, where not all of ``segments`` had been read before.
    """
    assert log.read_only
    log.retired = [*log.retired, *((due_ms, segment) for segment in retired)]
    log.segments = (*segments, *log.segments[count:])
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    if producers is not None:
        _replace_producers(log, producers)
    elif log.producers.first_undecided_offset is not None:
        log.transactions.stabilize()


def replace_end(log: Log, segments: tuple[Segment, ...], recovered: Recovered) -> None:
    """The writer has cut the log: ``segments`` have been loaded anew."""
    assert log.read_only
    log.segments = segments
    log.log_end_offset = log.active.next_offset
    log.counters.truncations += 1
    _replace_producers(log, recovered.producers)


def _replace_producers(log: Log, producers: ProducerState) -> None:
    log.producers = producers
    log.transactions.replaced()


def origin_of(log: Log, now_ns: int) -> Origin:
    """How segments of the log are loaded: the writer lives, so its indexes can be trusted."""
    return Origin(
        log.files,
        log.directory,
        log.config,
        clean=True,
        recovery_point=0,
        log_start=0,
        writable=False,
        now_ms=now_ns // 1_000_000,
        may_be_cleaned=log.may_be_cleaned,
        booked_to=paths.MAX_OFFSET if log.is_booked else None,
    )
