"""A log's transactions: the open ones, the aborted ones, and the stable part of the log.

The last stable offset is the first one of the oldest open transaction (there are no replicas), and
each segment has the number of its bytes below it. As the log replaces its tuple of segments, this
module replaces the aborted transactions as a whole, so that another thread reads consistent ones.

Invariants: an aborted transaction is known before the last stable offset passes its records; a
segment's stable size is never ahead of the last stable offset.

Not here: the rules for producers (`producer_state`), the state after a restart
(`recovery.producers`), the markers that end transactions (`append`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from storage.errors import StorageError
from storage.index.txn_index import TxnEntry, aborted_within
from storage.log.state import LogState
from storage.record.header import Buffer
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.writer import BatchEntry
from storage.state.producer_state import ProducerUpdate

_last_offset = attrgetter("last_offset")


class _Aborted(NamedTuple):
    """Aborted transactions: first and last offset by producer, and the entries, both in the order
    of markers.
    """

    spans: dict[int, list[tuple[int, int]]]
    entries: list[TxnEntry]

    @classmethod
    def of(cls, entries: Iterable[TxnEntry]) -> _Aborted:
        made = cls({}, sorted(entries, key=_last_offset))
        for entry in made.entries:
            spans = made.spans.setdefault(entry.producer_id, [])
            spans.append((entry.first_offset, entry.last_offset))
        return made

    def add(self, entry: TxnEntry) -> None:
        """Add an entry, unless it is there.

        It comes after all others, unless another process writes the log: its file may have had
        later ones.
        """
        span = entry.first_offset, entry.last_offset
        spans = self.spans.get(entry.producer_id, [])
        number = bisect_left(spans, span)
        if spans[number : number + 1] != [span]:
            self.spans[entry.producer_id] = [*spans[:number], span, *spans[number:]]
            insort(self.entries, entry, key=_last_offset)


class _Known(NamedTuple):
    """The aborted transactions of the log's `segments`, and those of these and of retired ones;
    one object if they are the same.

    A cleaner keeps records below the log start, but not the entry that they were aborted: in its
    new segment they count as committed, while the segment that it replaced still has the entry.
    """

    segments: tuple[Segment, ...]
    retired: frozenset[Segment]
    in_log: _Aborted
    in_all: _Aborted

    @classmethod
    def nothing(cls) -> _Known:
        aborted = _Aborted.of(())
        return cls((), frozenset(), aborted, aborted)


class Transactions:
    """The transactions of one log. Offsets count records."""

    def __init__(self, log: LogState) -> None:
        self._log = log
        # A cache, valid while it has the log's own tuple of segments. The version changes with each
        # transaction added or taken back.
        self._aborted = _Known.nothing()
        self._aborted_version = 0
        self._aborted_lock = threading.Lock()
        # The start of open transactions: segment and position, by first offset.
        self._undecided: dict[int, tuple[Segment, int]] = {}

    # -- which were aborted --------------------------------------------------------------------

    def aborted(self) -> list[TxnEntry]:
        """Return the aborted transactions in the order of markers. Thread-safe. Errors: OSError."""
        return [entry for segment in self._log.segments for entry in segment.aborted]

    def is_aborted(self, producer_id: int, offset: int, segment: Segment | None = None) -> bool:
        """Return whether a transaction in which this producer wrote `offset` was aborted.

        `segment`: that of the record; None: any, also a retired one. Thread-safe; the first call
        reads the transaction indexes. Errors: OSError.
        """
        spans = self._known_for(segment).spans.get(producer_id)
        if spans is None:
            return False
        number = bisect_right(spans, offset, key=lambda span: span[0]) - 1
        return number >= 0 and offset <= spans[number][1]

    def aborted_across(self, offset: int, segment: Segment | None = None) -> list[TxnEntry]:
        """Return the aborted transactions that begin before `offset` and end there or later, in the
        order of their markers. Thread-safe. Errors: OSError.

        `segment`: as in `is_aborted`.
        """
        if offset >= self._log.log_end_offset:
            return []
        return aborted_within(self._known_for(segment).entries, offset, offset)

    def _known_for(self, segment: Segment | None) -> _Aborted:
        known = self._aborted
        if known.segments is not self._log.segments:
            known = self._load_aborted()
        is_in_log = segment is not None and segment not in known.retired
        return known.in_log if is_in_log else known.in_all

    def _load_aborted(self) -> _Known:
        version, segments = self._aborted_version, self._log.segments
        # A reader may still be in a removed segment.
        retired = frozenset(segment for _, segment in self._log.retired)
        of_segments = {entry for segment in segments for entry in segment.aborted}
        of_retired = {entry for segment in retired for entry in segment.aborted}
        in_log = _Aborted.of(of_segments)
        in_all = in_log if of_retired <= of_segments else _Aborted.of(of_segments | of_retired)
        known = _Known(segments, retired, in_log, in_all)
        with self._aborted_lock:
            if version == self._aborted_version:
                self._aborted = known
        return known

    def _add_aborted(self, entry: TxnEntry) -> None:
        """Add an entry of a transaction index."""
        with self._aborted_lock:
            self._aborted_version += 1
            self._aborted.in_log.add(entry)
            self._aborted.in_all.add(entry)

    def forget_from(self, segments: Iterable[Segment], offset: int) -> None:
        """Forget the aborted transactions in these segments, which have left the log, that end at
        `offset` or later: other records get the offsets. Call it after the log has its new
        segments, and before the listeners. Errors: OSError.
        """
        for segment in segments:
            if segment.next_offset > offset:
                segment.txn_index.forget_from(offset)
        self._read_again()

    def _read_again(self) -> None:
        """Drop the cache: another thread may have read entries that are removed now."""
        with self._aborted_lock:
            self._aborted_version += 1
            self._aborted = _Known.nothing()

    # -- the stable part -----------------------------------------------------------------------

    def append(
        self,
        active: Segment,
        batches: Buffer,
        entries: list[BatchEntry],
        now_ns: int,
        update: ProducerUpdate,
    ) -> int:
        """Append batches of producers to the active segment; return their position.

        The transactions that they abort are in the index before the batches are in the log. Errors:
        OSError from the disk, CorruptRecord if a marker leaves a transaction open whose start
        cannot be read; nothing is appended.
        """
        unplaced: int | None = None
        if any(batch.marker_type >= 0 for batch in update.batches):
            unplaced = update.first_undecided_offset
        # No read, which might fail, is needed when the batches are in the log.
        if unplaced is not None and self._place_of(unplaced) is not None:
            unplaced = None
        known = len(active.aborted) if update.aborted else 0
        try:
            for aborted in update.aborted:
                self._log.off_log_thread(active, active.txn_index.append, aborted)
            append = self._log.writer.append
            position = self._log.off_log_thread(active, append, batches, entries, now_ns)
        except (OSError, StorageError):
            if update.aborted:
                active.txn_index.truncate_to(known)
                self._read_again()
            raise
        if unplaced is not None and unplaced <= self._log.log_end_offset:
            # No earlier batch has this offset, so these have.
            self._undecided[unplaced] = active, position
        self.store_producers(active, position, update)
        return position

    def store_producers(self, segment: Segment, position: int, update: ProducerUpdate) -> None:
        """Store the new state of producers: their batches are in `segment` at `position`."""
        for aborted in update.aborted:
            self._add_aborted(aborted)
        for facts in update.batches:
            if facts.is_transactional_data:
                self._undecided.setdefault(facts.base_offset, (segment, position + facts.position))
        update.commit()
        self._undecided = {
            offset: place
            for offset in self._log.producers.undecided_offsets
            if (place := self._undecided.get(offset)) is not None
        }

    def update_stable_sizes(self, undecided: int | None, log_end: int) -> bool:
        """Set the stable sizes after an append, if the first undecided offset has changed.

        `undecided`: the first undecided offset before the append. `log_end`: the log end before it,
        or its first offset. Return whether the append has made other bytes stable than those that
        `Log.append_assigned` marks: an open transaction before them has ended, or they lie between
        `log_end` and a transaction that the append has opened.
        """
        now = self._log.producers.first_undecided_offset
        if now == undecided:
            return False
        self.stabilize()
        return undecided is not None or (now is not None and now > log_end)

    def stabilize(self, *, known: bool = True) -> None:
        """Compute every segment's stable size again.

        `known`: segments before a stable one are stable, too. Reads the log if the start of the
        oldest open transaction is not known. Errors: OSError, CorruptRecord.
        """
        undecided = self._log.producers.first_undecided_offset
        # It may lie before the log start: whether its text counts is not known yet.
        place = None if undecided is None else self._place_of(undecided)
        found: list[tuple[Segment, int]] = []
        for segment in reversed(self._log.segments):
            if place is not None and segment.base_offset > place[0].base_offset:
                found.append((segment, 0))
            elif place is not None and segment is place[0]:
                found.append((segment, place[1]))
            elif known and segment.size and segment.stable_size == segment.size:
                break
            else:
                found.append((segment, segment.size))
        # The earliest first: another thread must not measure text behind text that is not shown.
        for segment, size in reversed(found):
            segment.stable_size = size

    def _place_of(self, offset: int) -> tuple[Segment, int] | None:
        """Return segment and position of the first batch that reaches `offset`, if there is one.

        Reads the log if that is not known.
        """
        place = self._undecided.get(offset)
        if place is not None and place[0] in self._log.segments:
            return place
        first = self._log.segments[0]
        if offset <= first.base_offset and first.size:
            return first, 0
        for segment in self._log.segments_from(offset):
            position = SegmentReader(segment).position_of(offset)
            if position is not None:
                self._undecided[offset] = segment, position
                return segment, position
        return None

    def producers_replaced(self) -> None:
        """Take other producers of the log: forget the starts of their transactions, and set the
        stable size of every segment. Errors: OSError, CorruptRecord; nothing has changed.
        """
        before, self._undecided = self._undecided, {}
        try:
            self.stabilize(known=False)
        except (OSError, StorageError):
            self._undecided = before
            raise
