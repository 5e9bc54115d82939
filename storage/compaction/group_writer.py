"""Writes the kept records of a cleaning into new segments; their files are `.cleaned` until the
swap.

A group of segments becomes one segment with the base offset of the first. If it is full (by its
size, its offsets or its indexes), another one begins at the next batch. New segments are indexed
like any other (`SegmentWriter`), trimmed and synced when they end, and get the mtime of the last
segment that they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.index.txn_index import TxnEntry
from storage.record.header import Buffer
from storage.segment.segment import MAX_OFFSET_SPAN, MAX_SEGMENT_BYTES, Segment
from storage.segment.writer import BatchEntry, SegmentWriter
from storage.settings.config import LogConfig


class GroupWriter:
    """Writes the new segments of one group. `segments`: those made so far."""

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        config: LogConfig,
        *,
        now_ms: int,
        pace: Callable[[int], None],
        suffix: str = paths.CLEANED,
    ) -> None:
        """`pace` gets the number of written bytes; `suffix`: the ending of the files' names.
        Errors: OSError from the disk; no file is left.
        """
        self.suffix = suffix
        self._pace = pace
        self._create = partial(
            Segment.create, files, directory, config=config, now_ms=now_ms, suffix=suffix
        )
        self._writer = SegmentWriter.begin(self._create(base_offset))
        self.segments = [self._writer.segment]

    def append(
        self, data: Buffer, entries: Sequence[BatchEntry], aborted: Iterable[TxnEntry]
    ) -> None:
        """Write whole batches, with the aborted transactions whose markers are among them.

        Errors: OSError from the disk, CorruptRecord if offsets do not rise, those of `pace`; the
        caller then has to discard all segments.
        """
        view = memoryview(data)
        left = list(aborted)
        first = 0
        while first < len(entries):
            count = self._fitting(entries[first:])
            if not count:
                at = entries[first][0]
                next_offset = int.from_bytes(view[at : at + 8], "big")
                self._seal(next_offset)
                self.segments[-1].close_descriptors()
                self._writer = SegmentWriter.begin(self._create(next_offset))
                self.segments.append(self._writer.segment)
                continue
            some = entries[first : first + count]
            start, end = some[0][0], some[-1][0] + some[-1][1]
            segment = self.segments[-1]
            while left and left[0].last_offset <= some[-1][2]:
                segment.txn_index.append(left.pop(0))
            shifted = [(at - start, size, last, newest) for at, size, last, newest in some]
            self._writer.append(view[start:end], shifted, 0)
            first += count
        assert not left
        self._pace(len(view))

    def _fitting(self, entries: Sequence[BatchEntry]) -> int:
        """Return how many of these batches fit into the last segment: at least one if it is empty.
        Errors: CorruptRecord if offsets do not rise.
        """
        segment = self.segments[-1]
        # An index of one entry, which the roll needs, is full in an empty segment, too.
        if segment.index_full and segment.size:
            return 0
        count = 0
        size = segment.size
        next_offset = segment.next_offset
        for _, batch_size, last_offset, _ in entries:
            if last_offset < next_offset:
                # No CRC covers a batch's base offset.
                raise CorruptRecord(
                    f"a batch ends at offset {last_offset}, but offset {next_offset} is next",
                    path=segment.log_path,
                    position=size,
                )
            next_offset = last_offset + 1
            size += batch_size
            if size > MAX_SEGMENT_BYTES or last_offset - segment.base_offset > MAX_OFFSET_SPAN:
                return count if segment.size else max(count, 1)
            count += 1
        return count

    def _seal(self, next_offset: int) -> None:
        self._writer.seal()
        self.segments[-1].next_offset = next_offset

    def end(self, next_offset: int, mtime_ns: int) -> int:
        """End the group at `next_offset`; `mtime_ns`: the mtime of its files.

        Return the number of segments, which are durable now. Errors: OSError, CorruptRecord.
        """
        if self.segments[-1].next_offset > next_offset:
            raise CorruptRecord(
                f"its last batch ends beyond offset {next_offset}, where the next segment begins",
                path=self.segments[-1].log_path,
            )
        self._seal(next_offset)
        for segment in self.segments:
            segment.stable_size = segment.size
            segment.sync()
            if self.suffix == paths.CLEANED:
                # The age of staged files counts from now (`staged_orphans`).
                segment.set_mtime(mtime_ns)
            segment.mtime_ns = mtime_ns
            segment.close_descriptors()
        return len(self.segments)
