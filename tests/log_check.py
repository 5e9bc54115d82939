"""Read a whole log and name every fault in it: batches, CRCs, offsets, indexes, snapshots.

Tests of a log end with this check. It compares indexes and snapshots with those that recovery
would build. That is correct for logs that this project has written: brokers before 4.1 index
differently. Only snapshots know the producers whose batches a cleaner has removed. So the check
trusts the snapshots of a log that may have been cleaned.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from storage import LogManager, paths
from storage.errors import CorruptCheckpoint, StorageError
from storage.files import Files
from storage.index.txn_index import TxnEntry
from storage.kafka07.segment import Segment07
from storage.log.log import Log
from storage.record._batch import Rebuild
from storage.record.control import ABORT
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.walk import Walk, sealed_times
from storage.state.producer_state import Producer, ProducerBatch, ProducerState


def check(manager: LogManager) -> list[str]:
    """Read every partition whole and name every fault."""
    return [fault for log in manager.logs() for fault in check_log(log)]


def check_log(log: Log) -> list[str]:
    """Read the whole partition and name every fault: batches, offsets, indexes, bounds."""
    faults: list[str] = []
    if not log.segments[0].base_offset <= log.log_start_offset <= log.log_end_offset:
        faults.append(f"{log.directory}: log start {log.log_start_offset} outside the log")
    if not log.durability.recovery_point <= log.log_end_offset:
        faults.append(f"{log.directory}: recovery point {log.durability.recovery_point} > log end")
    whole = LogCheck(
        log.files,
        log.directory,
        log.config.index_interval_bytes,
        cleaned=log.may_have_gaps,
        log_start=log.log_start_offset,
    )
    return faults + whole.run(log.segments, log.log_end_offset, log.producers)


def faults_07(segment: Segment07, end: int) -> list[str]:
    """Read all of it: what is wrong with its entries, or with its end, which is ``end``."""
    position, reason = segment.check(lambda size: None)
    if position < segment.size:
        return [f"{segment.log_path}: position {position}: {reason}"]
    if segment.next_offset != end:
        return [f"{segment.log_path}: ends at {segment.next_offset}, not at {end}"]
    return []


class LogCheck:
    """One check of a log; reading its segments in order adds to `faults`."""

    def __init__(
        self, files: Files, directory: str, interval: int, *, cleaned: bool, log_start: int
    ) -> None:
        """`interval`: index.interval.bytes; `cleaned`: a cleaner may have removed records.

        `log_start`: a cleaner keeps no entries of transactions that ended below this offset.
        """
        self.faults: list[str] = []
        self._files = files
        self._directory = directory
        self._interval = interval
        self._cleaned = cleaned
        self._log_start = log_start
        # The state of producers after the batches read so far; None while it is unknown.
        self._state: ProducerState | None = None
        # The same state without snapshots: it has only transactions whose batches are still there.
        self._seen = ProducerState()
        self._snapshots: list[int] = []
        self._base = 0

    def run(self, segments: Sequence[Segment], end: int, producers: ProducerState) -> list[str]:
        """The faults of these segments, whose log ends at ``end`` with these producers."""
        if isinstance(segments[0], Segment07):
            following = [*(segment.base_offset for segment in segments[1:]), end]
            for segment, bound in zip(segments, following, strict=True):
                assert isinstance(segment, Segment07)
                self.faults += faults_07(segment, bound)
            return self.faults
        base = self._base = segments[0].base_offset
        self._snapshots = self._find_snapshots(base)
        if base == 0:
            self._state = ProducerState()
        following = [*(segment.base_offset for segment in segments[1:]), end]
        for segment, bound in zip(segments, following, strict=True):
            self._pass_snapshots(segment.base_offset)
            try:
                self._check_segment(segment, bound)
            except StorageError as error:
                self.faults.append(str(error))
        self._pass_snapshots(end)
        self.faults += [
            f"{self._path(offset)}: speaks of offsets beyond the log's end {end}"
            for offset in self._snapshots
        ]
        if self._state is not None:
            self._compare(self._state, producers, f"{self._directory}: the known producers")
        return self.faults

    # -- one segment ---------------------------------------------------------------------------

    def _check_segment(self, segment: Segment, end: int) -> None:
        rebuild = Rebuild(segment.base_offset, self._interval)
        walk = Walk(SegmentReader(segment).read, 0, segment.size)
        for data in walk:
            walk.position += rebuild.feed(data, len(data), walk.position)
        if rebuild.fault is not None or rebuild.position != segment.size:
            reason = rebuild.fault or "an incomplete batch"
            self.faults.append(f"{segment.log_path}: position {rebuild.position}: {reason}")
        if rebuild.next_offset > end:
            self.faults.append(f"{segment.log_path}: ends at {rebuild.next_offset}, beyond {end}")
        self._check_indexes(segment, rebuild)
        self._check_transactions(segment, list(map(ProducerBatch._make, rebuild.producers)))

    def _check_indexes(self, segment: Segment, rebuild: Rebuild) -> None:
        if segment.offset_index.data() != bytes(rebuild.offset_entries):
            self.faults.append(f"{segment.file_path(paths.INDEX)}: differs from a rebuilt index")
        entries, final = bytes(rebuild.time_entries), sealed_times(rebuild)
        # An active segment that was closed has the final entry too, until it is written again.
        expected = (final,) if segment.sealed else (entries, final)
        if segment.time_index.data() not in expected:
            path = segment.file_path(paths.TIMEINDEX)
            self.faults.append(f"{path}: differs from a rebuilt index")

    def _check_transactions(self, segment: Segment, batches: list[ProducerBatch]) -> None:
        """Compare the transaction index, and the snapshots within, with what the batches say."""
        aborted = []
        left = []
        for batch in batches:
            self._pass_snapshots(batch.base_offset)
            if self._state is not None and (entry := self._state.apply(batch)) is not None:
                aborted.append(entry)
            if (entry := self._seen.apply(batch)) is not None:
                left.append(entry)
        markers = {batch.last_offset for batch in batches if batch.marker_type == ABORT}
        if self._state is None or self._is_indexed(segment, aborted, left, markers):
            return
        path = segment.file_path(paths.TXNINDEX)
        self.faults.append(f"{path}: has {list(segment.aborted)}, the log says {aborted}")

    def _is_indexed(
        self,
        segment: Segment,
        aborted: Sequence[TxnEntry],
        left: Sequence[TxnEntry],
        markers: Collection[int],
    ) -> bool:
        """Return whether a transaction index has the right entries.

        `aborted`: the aborted transactions that the segment's markers end, by the snapshots and the
        batches. `left`: the same by the batches alone. `markers`: the offsets of the abort markers
        in the segment.
        """
        base = self._base
        if self._cleaned:
            said = [
                entry
                for entry in left
                if entry.first_offset >= base and entry.last_offset >= self._log_start
            ]
            return _can_be_left(segment.aborted, said, markers, self._log_start)
        # Transactions that began in deleted segments are unknown.
        found = [entry for entry in segment.aborted if entry.first_offset >= base]
        said = [entry for entry in aborted if entry.first_offset >= base]
        return len(found) == len(said) and all(
            one[:3] == other[:3]
            and (
                one.last_stable_offset == other.last_stable_offset or one.last_stable_offset < base
            )
            for one, other in zip(found, said, strict=True)
        )

    # -- snapshots -----------------------------------------------------------------------------

    def _find_snapshots(self, base: int) -> list[int]:
        """The offsets of the snapshots that count, rising."""
        found = [
            offset
            for name in self._files.names(self._directory)
            if name.endswith(paths.SNAPSHOT) and (offset := paths.base_offset_of(name)) is not None
        ]
        return sorted(offset for offset in found if offset >= base)

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, paths.file_name(offset, paths.SNAPSHOT))

    def _pass_snapshots(self, offset: int) -> None:
        """Everything below ``offset`` was seen: look into the snapshots up to there."""
        while self._snapshots and self._snapshots[0] <= offset:
            path = self._path(self._snapshots.pop(0))
            if not self._files.exists(path):
                continue  # replaced by a newer one meanwhile
            try:
                snapshot = ProducerState.decode(self._files.read_whole(path), path=path)
            except CorruptCheckpoint as error:
                self.faults.append(str(error))
                continue
            if self._state is not None and not self._cleaned:
                self._compare(self._state, snapshot, path)
            self._state = snapshot

    def _compare(self, said: ProducerState, known: ProducerState, what: str) -> None:
        """Compare with `said`, the state by the batches; `known` may lack expired producers."""
        for producer in said:
            if producer.in_transaction and known.by_id.get(producer.producer_id) is None:
                self.faults.append(f"{what}: producer {producer.producer_id} is missing")
        for producer in known:
            other = said.by_id.get(producer.producer_id)
            if other is None or _facts(other) != _facts(producer):
                self.faults.append(f"{what}: {_facts(producer)} where the log says {other}")


def _can_be_left(
    found: Sequence[TxnEntry],
    said: Sequence[TxnEntry],
    markers: Collection[int],
    log_start: int,
) -> bool:
    """Return whether a cleaned segment may have the entries `found` in its transaction index.

    `said`: the aborted transactions by the remaining batches. A cleaner may have removed the first
    batches of a transaction, or all except its marker (`markers`). If the transaction was aborted
    below the log start, its marker may be removed, too. Then its batches look like part of the
    producer's next transaction.
    """
    first = {entry.last_offset: entry.first_offset for entry in found}
    return set(first) <= set(markers) and all(
        first.get(entry.last_offset, entry.last_offset) <= entry.first_offset
        or (entry.first_offset < log_start and entry.last_offset in first)
        for entry in said
    )


def _facts(producer: Producer) -> tuple[int, ...]:
    return (
        producer.producer_id,
        producer.epoch,
        producer.last_sequence,
        producer.last_offset,
        producer.transaction_first_offset,
    )
