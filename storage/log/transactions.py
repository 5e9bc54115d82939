"""What a log knows of transactions: which are open, which were aborted, up to where it is stable.

The last stable offset is the first one of the oldest open transaction (there are no replicas), and
each segment knows how many of its bytes lie below it.  The tuple of segments is replaced as a
whole, so that whoever asks from another thread has a consistent one; so is what is known of aborted
transactions.

Invariants: an aborted transaction is known before the last stable offset passes its records; a
segment's stable size is never ahead of the last stable offset.

Not here: what producers may do (``producer_state``), how a restart finds all this (``replay``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from storage import paths
from storage.files import Files
from storage.index.txn_index import TxnEntry
from storage.segment.segment import Segment
from storage.state.producer_state import ProducerBatch, ProducerState, StagedBatches


class TransactionalLog:
    """The part of a log that keeps its producers' transactions.  Offsets count records."""

    files: Files
    directory: str
    segments: tuple[Segment, ...]
    # Those that have left the log and can still be read, each with when it may go, in ms.
    retired: list[tuple[int, Segment]]
    log_start_offset: int
    log_end_offset: int
    producers: ProducerState
    # Up to where the newest snapshot of the producers on disk speaks; -1: there is none.
    snapshot_offset: int
    closed: bool
    read_only: bool

    def __init__(self) -> None:
        # Of some segments, unless they are others by now: (first, last offset) of every aborted
        # transaction, by producer, in rising order.  The number changes with each one added.
        self._aborted: tuple[tuple[Segment, ...], dict[int, list[tuple[int, int]]]] = ((), {})
        self._aborted_version = 0
        self._aborted_lock = threading.Lock()
        # Where open transactions begin: segment and position, by first offset.
        self._undecided: dict[int, tuple[Segment, int]] = {}
        # Snapshots that the next flush has to make durable, by offset.
        self.unsynced_snapshots: set[int] = set()

    # -- bounds --------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Without replicas the log end."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; where none is open, the log end."""
        first = self.producers.first_undecided_offset
        return self.log_end_offset if first is None else max(first, self.log_start_offset)

    @staticmethod
    def _segment_number(segments: tuple[Segment, ...], offset: int) -> int:
        return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1

    def _segments_from(self, offset: int) -> Iterable[Segment]:
        segments = self.segments
        return segments[max(self._segment_number(segments, offset), 0) :]

    # -- transactions --------------------------------------------------------------------------

    def aborted_transactions(self) -> list[TxnEntry]:
        """Every aborted transaction of the segments, in the order of their markers.

        Any thread may ask.  OSError from the disk.
        """
        return [entry for segment in self.segments for entry in segment.aborted]

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a transaction that this producer wrote ``offset`` in has been aborted.

        Any thread may ask; the first to do so reads the transaction indexes (OSError).
        """
        segments, aborted = self._aborted
        if segments is not self.segments:
            aborted = self._load_aborted()
        spans = aborted.get(producer_id)
        if spans is None:
            return False
        number = bisect_right(spans, offset, key=lambda span: span[0]) - 1
        return number >= 0 and offset <= spans[number][1]

    def _load_aborted(self) -> dict[int, list[tuple[int, int]]]:
        version, segments = self._aborted_version, self.segments
        # Who still reads what has left the log asks of that too.
        left = [segment for _, segment in self.retired]
        entries = {entry for segment in (*left, *segments) for entry in segment.aborted}
        aborted: dict[int, list[tuple[int, int]]] = {}
        for entry in sorted(entries, key=lambda entry: entry.last_offset):
            spans = aborted.setdefault(entry.producer_id, [])
            spans.append((entry.first_offset, entry.last_offset))
        with self._aborted_lock:
            if version == self._aborted_version:
                self._aborted = segments, aborted
        return aborted

    def _remember_aborted(self, entry: TxnEntry) -> None:
        """This entry was added to a transaction index.

        Behind all others, unless another process writes it: its file may have told of later ones.
        """
        span = entry.first_offset, entry.last_offset
        with self._aborted_lock:
            self._aborted_version += 1
            _, aborted = self._aborted
            spans = aborted.get(entry.producer_id, [])
            number = bisect_left(spans, span)
            if spans[number : number + 1] != [span]:
                aborted[entry.producer_id] = [*spans[:number], span, *spans[number:]]

    def _forget_aborted(self) -> None:
        """An entry has been taken back that another thread may have read."""
        with self._aborted_lock:
            self._aborted_version += 1
            self._aborted = (), {}

    # -- what is stable ------------------------------------------------------------------------

    def _take_over(
        self,
        segment: Segment,
        position: int,
        staged: StagedBatches,
        written: Sequence[ProducerBatch],
    ) -> None:
        """Batches of producers are in ``segment`` from ``position`` on."""
        for aborted in staged.aborted:
            self._remember_aborted(aborted)
        for facts in written:
            if facts.is_transactional_data:
                self._undecided.setdefault(facts.base_offset, (segment, position + facts.position))
        staged.commit()
        self._undecided = {
            first: place
            for first in self.producers.undecided_offsets
            if (place := self._undecided.get(first)) is not None
        }

    def _settle(self, undecided: int | None, log_end: int) -> bool:
        """Keep the stable sizes right; before, the first undecided offset was ``undecided``.

        Whether data is stable now that was held back, or that came, behind the log end of before,
        together with a transaction that is open.
        """
        now = self.producers.first_undecided_offset
        if now == undecided:
            return False
        self.stabilize()
        return undecided is not None or (now is not None and now > log_end)

    def stabilize(self, *, known: bool = True) -> None:
        """Work out every segment's stable size anew.

        ``known``: what comes before a segment that is stable is so, too.

        Reads the log where it is not known where the oldest open transaction begins (OSError,
        CorruptRecord).
        """
        place = self._first_unstable()
        for segment in reversed(self.segments):
            if place is not None and segment.base_offset > place[0].base_offset:
                segment.stable_size = 0
            elif place is not None and segment is place[0]:
                segment.stable_size = place[1]
            elif known and segment.size and segment.stable_size == segment.size:
                return
            else:
                segment.stable_size = segment.size

    def _first_unstable(self) -> tuple[Segment, int] | None:
        """Segment and position of the batch that holds the last stable offset, if one does."""
        first = self.producers.first_undecided_offset
        if first is None:
            return None
        offset = self.last_stable_offset
        place = self._undecided.get(offset)
        if place is not None and place[0] in self.segments:
            return place
        for segment in self._segments_from(offset):
            position = segment.position_of(offset)
            if position is not None:
                self._undecided[offset] = segment, position
                return segment, position
        return None

    # -- snapshots of the producers ------------------------------------------------------------

    def _write_snapshot(self, offset: int) -> None:
        """The state of the producers up to ``offset``, the log's end (``takeSnapshot``)."""
        _write_small(self.files, self.snapshot_path(offset), self.producers.encode())
        self.unsynced_snapshots.add(offset)

    def snapshot_path(self, offset: int) -> str:
        """Where the snapshot that speaks up to ``offset`` is."""
        return os.path.join(self.directory, paths.file_name(offset, paths.SNAPSHOT))

    def _replace_snapshot(self, offset: int) -> str | None:
        """The newest snapshot is to be that of ``offset``; the path of the one to remove then.

        Those where a segment begins stay.
        """
        before, self.snapshot_offset = self.snapshot_offset, offset
        if before in {-1, offset, *(segment.base_offset for segment in self.segments)}:
            return None
        return self.snapshot_path(before)

    def start_snapshot(self) -> Callable[[], None] | None:
        """What is known of the producers now, as a function that writes it down (any thread).

        None where the log has not grown since the last snapshot.  After a crash a log with such a
        snapshot need not be read from its segment's start.
        """
        offset = self.log_end_offset
        if self.read_only or self.closed or offset == self.snapshot_offset:
            return None
        path, data = self.snapshot_path(offset), self.producers.encode()
        before = self.snapshot_offset
        replaced = self._replace_snapshot(offset)

        def write() -> None:
            # A partition that was deleted meanwhile needs none.
            with contextlib.suppress(FileNotFoundError):
                try:
                    _write_small(self.files, path, data)
                except OSError:
                    if self.snapshot_offset == offset:
                        # The next checkpoint tries again, though the log may not have grown.
                        self.snapshot_offset = before
                    raise
                if replaced is not None:
                    self.files.unlink(replaced)

        return write


def _write_small(files: Files, path: str, data: bytes) -> None:
    """Write a file that has a checksum: torn, it is as if it were not there."""
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        files.pwrite(fd, data, 0)
    except OSError:
        # What reads the directory meanwhile shall not take the rest for damage.
        with contextlib.suppress(OSError):
            files.unlink(path)
        raise
    finally:
        files.close(fd)
