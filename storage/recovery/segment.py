"""Loads one segment from its files, after any stop, so that the log can trust it.

After a clean stop loading trusts a sealed segment whose indexes' last entries match the log, and
reads the last segment only from its last index entry on. After any other stop it reads everything
from the recovery point on, checks the CRCs and rewrites the index entries.

A segment that was not flushed ends at the first batch that is torn or damaged. Loading copies the
bytes after it to `BASE.log.POSITION.cut`. Zeros up to the file's end are no damage, and loading
removes them. A file ends in zeros if it was allocated ahead (preallocate), or if its length reached
the disk and its bytes did not. Two kinds of damage stay in their place and do not end the segment,
unless it is read for a repair: a whole batch with a wrong base offset, if a sound batch or segment
follows it, and batches that a failed fsync has lost (`rescue`).

Invariants: a sealed segment's indexes equal rebuilt ones; the transaction index has nothing from
the offset on from which the log was read (`producers` adds that).

Not here: the other segments (`partition`), producers (`producers`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from storage import paths
from storage.byte_source import FileSource
from storage.errors import CorruptRecord, LogWouldEnd
from storage.files import Files
from storage.index import txn_index
from storage.index.index import OFFSET
from storage.record._batch import Rebuild, walk_batches
from storage.record.control import ABORT
from storage.record.header import (
    FRAME_SIZE,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    parse_header,
    size_at,
)
from storage.record.plain import first_offset
from storage.record.scan import batches
from storage.recovery.promises import PartitionFiles
from storage.segment.batch_check import Check, Part, check_part, sound_batch
from storage.segment.cut import Cut, cut_end, cut_tail
from storage.segment.damage import Damage
from storage.segment.reader import SegmentReader
from storage.segment.segment import MAX_OFFSET_SPAN, Segment
from storage.segment.summary import SegmentSummary
from storage.segment.walk import buffered, feed
from storage.segment.writer import SegmentWriter
from storage.state.manifest_file import ManifestEntry
from storage.state.producer_state import ProducerBatch
from storage.task import Task

#: The content of an offset index that is being rebuilt: no sound one has this length.
BEGUN = b"\0"
_CHUNK_BYTES = 4 * 1024 * 1024
_PAGE = 4096
# Batches of producers that are remembered of a segment, some 300 bytes each; if there are more, the
# log is read again.
_MOST_REMEMBERED = 100_000


class Start(NamedTuple):
    """The batch from which on a log is read: its first one, or that of an index entry.

    `max_timestamp`: the largest one before it, and its offset; -1: none.
    """

    position: int
    offset: int
    max_timestamp: int
    max_timestamp_offset: int


@dataclass(slots=True)
class Scan:
    """The read part of a segment's log: from `position`, a batch of `offset`, on.

    `producers`: the batches of producers there, with positions in the log; None: too many to be
    remembered. `first_abort`: the offset of the first ABORT marker among them.
    """

    position: int
    offset: int
    producers: list[ProducerBatch] | None = field(default_factory=list)
    first_abort: int | None = None

    def take(self, batches: Iterable[ProducerBatch]) -> None:
        """Add batches of producers that a walk finds."""
        for batch in batches:
            if batch.marker_type == ABORT and self.first_abort is None:
                self.first_abort = batch.base_offset
            if self.producers is not None:
                self.producers.append(batch)
                if len(self.producers) > _MOST_REMEMBERED:
                    self.producers = None


@dataclass(slots=True)
class Loaded:
    """A loaded segment. `damaged`: it ends before its file does, or too early.

    `torn`: only because the last write was not finished: all acknowledged batches are there, except
    after a power cut. `scan`: None if its files were trusted. `index`: the new content of a flushed
    segment's offset index, to be written by `finish_index`. `end`: the offset after its last batch;
    None: that batch was not read.
    """

    segment: Segment
    damaged: bool = False
    torn: bool = False
    index: bytes | None = None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    scan: Scan | None = None
    end: int | None = None


class SegmentLoader:
    """Loads one segment, once.

    `following`: the base offset of the next segment, None for the last. `present`: the names of the
    existing files. `listed`: the segment's entry in the manifest; None: it has none.
    `take_out_later`: takes the later segments out of a log that ends in this one. `trusted_below`:
    the log is read from this offset on; later damage ends it. `start`: the batch from which on it
    is read. `places`: the damaged ranges that the walk passes.
    """

    def __init__(
        self,
        partition: PartitionFiles,
        base: int,
        following: int | None,
        present: Collection[str],
        listed: ManifestEntry | None = None,
        take_out_later: Callable[[], list[Cut]] = list,
    ) -> None:
        self.partition = partition
        self.files = partition.files
        self.writable = partition.writable
        self.promises = partition.promises
        self.trusted_below = partition.promises.trusted_below
        self.following = following
        self.present = present
        self.listed = listed
        self.take_out_later = take_out_later
        self.segment = partition.segment(base, writable=partition.writable)
        self.result = Loaded(self.segment)
        self.start = self.whole = Start(0, base, -1, base)
        self.places: list[Damage] = []

    def load(self) -> Loaded:
        """Load the segment. Errors: OSError from the disk; LogWouldEnd."""
        try:
            self._load()
        finally:
            self.segment.close_descriptors()
        return self.result

    def own_size(self) -> int:
        """Return the bytes of a sealed log up to its last batch. Errors: OSError."""
        try:
            self._look()
            with self.files.held_open(self.segment.log_path) as self.fd:
                return self._own_size(self._read_end())
        finally:
            self.segment.close_descriptors()

    def _load(self) -> None:
        segment, following = self.segment, self.following
        segment.sealed = following is not None
        indexes_fit = self._look()
        may_cut = following is None or following > self.trusted_below
        if following is None or may_cut or not indexes_fit or self._may_lack_end():
            # The smaller number of index entries is no loss.
            segment.sealed = False
            segment.close()
            self._recover(may_cut=may_cut, indexes_fit=indexes_fit)
            end: int | None = segment.next_offset
            if following is not None and not self.result.damaged:
                if self.writable and self.result.index is None:
                    SegmentWriter(segment).seal()
                segment.next_offset = max(segment.next_offset, following)
                segment.sealed = True
        else:
            timestamp, timestamp_offset = self.last_time_entry or (-1, segment.base_offset)
            found = SegmentSummary(
                size=self._size_without_garbage(),
                next_offset=following,
                mtime_ns=self.mtime_ns,
                first_timestamp=self.first.max_timestamp if self.first else -1,
                max_timestamp=timestamp,
                max_timestamp_offset=timestamp_offset,
            )
            segment.restore(found, sealed=True)
            end = None
        if following is not None and not self.files.in_order:
            self._refuse_gap(end, following)

    def _may_lack_end(self) -> bool:
        """Return whether a sealed segment may have been flushed before it was sealed.

        Then its time index may lack the last entry, and its files may not have their final lengths.
        That is possible if the recovery point lies at the segment's end.
        """
        return self.promises.log_start < self.trusted_below == self.following

    def _refuse_gap(self, end: int | None, following: int) -> None:
        """Check that nothing before the next segment is missing or awaited. Errors:
        CorruptRecord.
        """
        segment = self.segment
        if self.partition.config.is_compacted or self.promises.may_have_gaps:
            return
        if end is None:
            last = SegmentReader(segment).last_batch()
            if any(place.end >= segment.size for place in segment.damages):
                return  # The damage at the end is reported by reads.
            end = segment.base_offset if last is None else last[1].last_offset + 1
        if end < following:
            raise CorruptRecord(
                f"offsets {end} to {following - 1} are missing: copy the missing segments; if "
                f"compaction removed these offsets, also copy {paths.CLEANER_OFFSETS}",
                path=segment.log_path,
                offset=end,
            )

    # -- checks without reading the log --------------------------------------------------------

    def _look(self) -> bool:
        """Read sizes and the first header; return whether the indexes' last entries match."""
        segment = self.segment
        self.last_offset_entry: tuple[int, int] | None = None
        self.last_time_entry: tuple[int, int] | None = None
        with self.files.held_open(segment.log_path) as self.fd:
            stat = self.files.descriptor_stat(self.fd)
            if not self.writable:
                # Its writer may replace the file at any moment.
                born_ns = self.files.born_ns(self.fd)
                segment.identity = stat.st_dev, stat.st_ino, born_ns
            self.size, self.mtime_ns = stat.st_size, stat.st_mtime_ns
            self.first = header_at(self.files, self.fd, 0)
            kinds = [paths.INDEX, paths.TIMEINDEX]
            if not self.writable and self.first is not None and self.first.magic == 0:
                kinds.pop()  # its messages have no time, and its broker wrote no such index
            if not all(map(self._has_file, kinds)):
                return False
            self.last_offset_entry = segment.offset_index.last_entry
            self.last_time_entry = segment.time_index.last_entry
            return self._indexes_fit()

    def _has_file(self, kind: str) -> bool:
        return paths.file_name(self.segment.base_offset, kind) in self.present

    def _indexes_fit(self) -> bool:
        """Return whether the last entries are possible (stricter than Kafka's sanity check)."""
        segment, base, size = self.segment, self.segment.base_offset, self.size
        upper = base + 2**31 if self.following is None else self.following
        # Brokers before 0.10 made no time index.
        has_times = self._has_file(paths.TIMEINDEX)
        if not segment.offset_index.is_sound or (has_times and not segment.time_index.is_sound):
            return False
        if self._has_file(paths.TXNINDEX) and (
            not segment.txn_index.is_sound
            or txn_index.sanity(segment.txn_index.entries, base, upper) is not None
        ):
            return False
        if self.last_offset_entry is not None:
            offset, position = self.last_offset_entry
            if not base <= offset < upper or not 0 < position < size:
                return False
            header = header_at(self.files, self.fd, position)
            if header is None or position + header.size > size:
                return False
            if self._first_offset(position, header) > offset:
                return False
        active = self.following is None
        largest = -1 if self.first is None else self.first.max_timestamp
        if self.last_time_entry is not None:
            # The last entries of an untrimmed file are zeros.
            timestamp, offset = self.last_time_entry
            if not base <= offset < upper:
                return False
            if self.listed is not None:
                # An index that was cut to some of its entries is as sound as a whole one.
                largest = max(largest, self.listed.timestamp)
            if not active and not self.writable:
                # The index of a read-only directory was not checked: only the log decides.
                largest = max(largest, self._read_end().max_timestamp)
            return active or timestamp >= largest
        # A sealed log whose records have timestamps ends with a final time entry.
        return active or size == 0 or (self.first is not None and largest < 0)

    def _read_end(self) -> Rebuild:
        """Read the log from the last batch in the offset index on."""
        base, interval = self.segment.base_offset, self.partition.config.index_interval_bytes
        position = self.last_offset_entry[1] if self.last_offset_entry else 0
        rebuild = Rebuild(base, interval, position=position)
        for _ in feed(self.files, self.fd, self.size, rebuild):
            rebuild.producers.clear()
        return rebuild

    # -- bytes after the last batch -----------------------------------------------------------

    def _own_size(self, rebuild: Rebuild) -> int:
        """Return the bytes of the log up to its last batch; `rebuild` has read its end.

        It ends if no offset is missing and no batch follows, or at the end in the manifest.
        """
        position = rebuild.position
        if self.following is not None and rebuild.next_offset == self.following:
            # (If a batch follows, the base offset of one of the two is wrong.)
            source = FileSource(self.files, self.fd, self.segment.log_path)
            if sound_batch(source.read_at, position, self.size) is None:
                return position
        if self.listed is not None and position <= self.listed.size < self.size:
            return self.listed.size
        return self.size

    def _size_without_garbage(self) -> int:
        """Return `_own_size` of a sealed log that was flushed; remove zeros after it.

        Reads the end of the log if the file's size differs from the manifest.
        """
        is_listed = self.listed is not None and self.listed.size == self.size
        if self.promises.manifest_below is None or is_listed:
            return self.size
        with self.files.held_open(self.segment.log_path) as self.fd:
            rebuild = self._read_end()
            size = self._own_size(rebuild)
        if rebuild.position == self.size or rebuild.position == size:
            self.result.end = rebuild.next_offset
        if size < self.size:
            flags = os.O_RDWR if self.writable else os.O_RDONLY
            with self.files.held_open(self.segment.log_path, flags) as self.fd:
                self._drop_garbage(size, self._used(size), may_cut=False)
        return size

    def _drop_garbage(self, size: int, used: int, *, may_cut: bool) -> None:
        """Remove bytes after the last batch, which ends at `size`; `used`: the start of zeros.

        Anything but zeros stays if the log may not be cut, and is reported.
        """
        path, count = self.segment.log_path, self.size - size
        if used == size:
            if self.writable:
                cut_end(self.files, self.fd, path, size)
        elif not may_cut:
            self.result.faults.append(
                f"{path}: position {size}: {count} bytes after the last batch are not a batch. "
                "To remove them: kafkafs repair --apply"
            )
        elif self.writable:
            reason = "not a batch; no record is missing"
            cut = cut_tail(self.files, self.fd, path, size, self.size, reason)
            self.result.cuts.append(replace(cut, ends_log=False))

    def _first_offset(self, position: int, header: BatchHeader) -> int:
        """Return a batch's first offset, as brokers index it; its last if a wrapper is damaged."""
        try:
            return first_offset(
                self._read_at(position, header.size if header.is_wrapper else 0), header
            )
        except CorruptRecord:
            return header.base_offset

    def _read_at(self, position: int, size: int) -> bytes:
        return self.files.pread(self.fd, size, position)

    def _find_start(self) -> Start:
        """Return the batch of the last index entry that was flushed.

        The time entry that was written with an offset entry covers everything up to that batch
        (`LogSegment.append`).
        """
        segment = self.segment
        limit = self.last_offset_entry[0] if self.last_offset_entry else -1
        limit = min(limit, self.trusted_below - 1)
        offset, position = segment.offset_index.lookup(limit)
        if not 0 < position < self.size:
            return self.whole
        head = SegmentReader(segment).read(position, min(HEADER_SIZE, self.size - position))
        header = parse_header(head)
        if not header.base_offset <= offset <= header.last_offset:
            return self.whole
        times, timestamp, timestamp_offset = segment.time_index, -1, segment.base_offset
        if count := times.count_to(offset):
            timestamp, timestamp_offset = times.entry(count - 1)
        if timestamp < 0 and self.first is not None and self.first.max_timestamp >= 0:
            return self.whole
        return Start(position, offset, timestamp, timestamp_offset)

    # -- reading the log -----------------------------------------------------------------------

    def _recover(self, *, may_cut: bool, indexes_fit: bool) -> None:
        """Read the part of the log that no trusted index entry covers, rewrite its entries, cut
        damage.

        A sealed segment that had been flushed is never cut: damage there is the disk's, affects
        only its own records, and the following ones are sound. `storage.log.salvage` recovers
        those.
        """
        files, segment, result = self.files, self.segment, self.result
        writable, following = self.writable, self.following
        if indexes_fit and self.last_offset_entry is not None and self.first is not None:
            self.start = self._find_start()
        path = segment.log_path
        self.fd = segment.log_fd()
        reason = self._read(may_cut=may_cut)
        rebuild = self.rebuild
        size, used = self._own_size(rebuild), self.size
        if reason is not None:
            used = self._used(rebuild.position)
            if may_cut and used == rebuild.position:
                size = used
        if reason is None or size == rebuild.position:
            # Only cleaners leave gaps between an unflushed segment and the next one, or an
            # append whose first batch lies too far ahead for this segment.
            result.damaged = (
                may_cut
                and following is not None
                and rebuild.next_offset < following > self.promises.gaps_below
                and not self._is_out_of_reach(following)
            )
        else:
            result.damaged = may_cut
        if result.damaged and not self.promises.may_end:
            raise LogWouldEnd(
                reason or f"the next segment begins at offset {following}",
                path=path,
                position=rebuild.position,
                offset=rebuild.next_offset,
            )
        latest = rebuild.max_timestamp, rebuild.max_timestamp_offset
        if reason is not None and not may_cut and size > rebuild.position:
            latest = max(latest, self._latest_after_damage(), key=lambda found: found[0])
        # First: while they are there, a start takes a cut segment for one that has lost its end.
        later = self.take_out_later() if result.damaged else []
        if writable and not may_cut:
            result.index = self._begin_indexes(is_whole=size == rebuild.position)
        if size == rebuild.position < self.size:
            self._drop_garbage(size, used, may_cut=may_cut)
        elif reason is not None and may_cut:
            size = rebuild.position
            result.torn = following is None and self._is_torn(size, used)
            if writable:
                index = self._index_from(size)
                result.cuts.append(cut_tail(files, self.fd, path, size, self.size, reason, index))
        elif reason is not None:
            result.faults.append(f"{path}: position {rebuild.position}: {reason}")
        result.cuts += later
        if writable and may_cut:
            self._write_indexes()
        result.end = rebuild.next_offset
        result.epochs = list(rebuild.epochs)
        result.scan = self.scan
        result.faults += [str(place.error(path)) for place in self.places]
        found = SegmentSummary.of(rebuild, size, self.mtime_ns)
        found = found._replace(max_timestamp=latest[0], max_timestamp_offset=latest[1])
        if self.start.position and self.first is not None:
            found = found._replace(first_timestamp=self.first.max_timestamp)
        segment.restore(found)
        segment.damages = segment.reported_damages = tuple(self.places)
        for place in self.places:
            segment.checked_ranges.add(place.start, place.end, place.next_offset)

    def _latest_after_damage(self) -> tuple[int, int]:
        """Return the largest timestamp of the sound batches of a flushed segment after the damage
        at which the walk ended, and the last offset of its first batch; (-1, -1) without any.
        """
        segment, rebuild, following = self.segment, self.rebuild, self.following
        assert following is not None
        part = Part(
            *(segment.base_offset, rebuild.position, rebuild.next_offset, self.size),
            self.partition.config.max_message_bytes,
            limit=following,
        )
        if self._has_file(paths.INDEX) and segment.offset_index.is_sound:
            part = part._replace(named=segment.offset_index.position_after)
        damages = check_part(buffered(self.files, self.fd), part, Task()).damages
        ends = [*(place.start for place in damages[1:]), self.size]
        batches = (
            (header.max_timestamp, header.last_offset)
            for place, end in zip(damages, ends, strict=True)
            for _, header in segment.headers(place.end, end)
        )
        return max(batches, key=lambda found: found[0], default=(-1, -1))

    def _is_out_of_reach(self, following: int) -> bool:
        """Return whether no segment that begins at this one's end could have the first batch of the
        segment `following`: then nothing needs to lie between (`Log.append_assigned`).
        """
        try:
            with self.files.held_open(self.partition.segment(following).log_path) as fd:
                header = header_at(self.files, fd, 0)
        except FileNotFoundError:
            return False
        return (
            header is not None and header.last_offset - self.rebuild.next_offset > MAX_OFFSET_SPAN
        )

    def _read(self, *, may_cut: bool) -> str | None:
        """Walk the log from `start` on; if it may be cut, past wrong base offsets.

        Return why the walk stopped before the file's end, or None.
        """
        self._walk(self.size)
        if self.start.position and self.rebuild.position == self.start.position:
            # The batch of the entry is damaged, and has no valid offset.
            self._walk_from_start()
        following = self.following
        if may_cut and (
            self._whole_size(self.rebuild.position)
            or (self.promises.unsynced and self.rebuild.position < self.size)
            or (following is not None and self.rebuild.next_offset > following)
        ):
            self.places = self._passed()
            if self.places and self.promises.verify:
                # A repair cuts the log there, and salvage restores the batches after the damage.
                (place, *_), self.places, self.start = self.places, [], self.whole
                self._walk(place.start)
                return place.reason
            if self.places:
                self._walk_from_start()
        if following is not None and self.rebuild.next_offset > following:
            # No CRC covers a base offset: the next segment's shows that one of these is wrong.
            source = FileSource(self.files, self.fd, self.segment.log_path)
            for at, header in batches(source, 0, self.rebuild.position):
                is_known = any(at == place.start for place in self.places)
                if header.last_offset >= following and not is_known:
                    self.places = [place for place in self.places if place.end <= at]
                    self._walk(at)
                    return f"offset {header.last_offset} is not below the next segment's"
        if self.rebuild.position != self.size:
            return self.rebuild.fault or "the last batch is incomplete"
        return None

    def _walk_from_start(self) -> None:
        self.start = self.whole
        self._walk(self.size)

    def _walk(self, end: int) -> None:
        """Read from `start` on to `end`, or to the first fault outside of `places`."""
        base, interval = self.segment.base_offset, self.partition.config.index_interval_bytes
        start = self.start
        self.scan = Scan(start.position, start.offset)
        self.rebuild = Rebuild(
            base,
            interval,
            position=start.position,
            indexed_position=start.position,
            indexed_timestamp=start.max_timestamp,
            max_timestamp=start.max_timestamp,
            max_timestamp_offset=start.max_timestamp_offset,
        )
        for place in self.places:
            self.scan.take(read_on(self.partition, self.rebuild, self.fd, place.start))
            self.rebuild.skip(place.end, place.next_offset)
        self.scan.take(read_on(self.partition, self.rebuild, self.fd, end))

    def _passed(self) -> list[Damage]:
        """Return the damage that the walk passes, as long as the log does not end there."""
        rebuild, base = self.rebuild, self.segment.base_offset
        position, next_offset = rebuild.position, rebuild.next_offset
        if rebuild.last_batch_position > (self.start.position or -1):
            # The last batch may be the one with the wrong base offset.
            position, next_offset = rebuild.last_batch_position, rebuild.offset_before_last
        found = self._damage_from(position, next_offset)
        if found and self.start.position:
            # A walk from a later batch does not know the offsets before that, so it begins at the
            # segment's start, where flushed damage may lie.
            found = self._damage_from(0, base, flushed_to=self.start.position)
        return found

    def _damage_from(self, position: int, next_offset: int, flushed_to: int = 0) -> list[Damage]:
        """Return the damage after `position`, up to the one at which the log ends.

        Damage in place are batches that only have a wrong base offset, and all that was flushed or
        that a failed fsync lost before whole batches.
        """
        following = self.following
        limit = paths.MAX_OFFSET if following is None else following
        if next_offset > limit:
            return []
        part = Part(
            *(self.segment.base_offset, position, next_offset, self.size),
            self.partition.config.max_message_bytes,
            limit=limit,
            may_be_torn=following is None,
        )
        # Where the segment, or its flushed part, is known to end. A broker's recovery point may be
        # above the end.
        is_ours = self.promises.manifest_below is not None
        end = following or (self.promises.recovery_point if is_ours else None) or 0
        check = Check(buffered(self.files, self.fd), part)
        found: list[Damage] = []
        while check.position < self.size:
            check.step()
            if len(check.damages) > len(found):
                place = check.damages[-1]
                is_whole = self._whole_size(place.start) == place.end - place.start
                if place.next_offset < 0 and is_whole and place.first_offset < end:
                    place = place._replace(next_offset=end)
                is_in_place = is_whole or self.promises.unsynced or place.start < flushed_to
                if place.next_offset < 0 or not is_in_place:
                    break
                found.append(place)
        return found

    def _whole_size(self, position: int) -> int:
        """Return the size of a whole batch at `position`, whatever its base offset; 0: none."""
        frame = self._read_at(position, FRAME_SIZE)
        is_known = len(frame) == FRAME_SIZE and frame[MAGIC_POSITION] <= MAGIC
        size = size_at(frame, 0) if is_known else 0
        if not FRAME_SIZE < size <= self.size - position:
            return 0
        batch = bytes(8) + self._read_at(position + 8, size - 8)
        return walk_batches(batch, len(batch), 0, 0, paths.MAX_OFFSET)[0]

    def _used(self, start: int) -> int:
        """Return the position after the last nonzero byte from `start` on; `start` without any."""
        for first, end in reversed([*self.files.data_ranges(self.fd, start, self.size)]):
            while end > first:
                at = max(first, end - _CHUNK_BYTES)
                used = len(self._read_at(at, end - at).rstrip(b"\0"))
                if used:
                    return at + used
                end = at
        return start

    def _is_torn(self, position: int, used: int) -> bool:
        """Return whether the batch at `position` was being written when its writer was killed.

        The kernel takes a write page by page. So it ends with the file, or if the file had been
        made longer before, at `used`, in an earlier page than its own last one.
        """
        head = self._read_at(position, HEADER_SIZE)
        if used - position < HEADER_SIZE or len(head) < HEADER_SIZE:
            return True
        end = position + size_at(head, 0)
        return end > self.size or (used < self.size and (used - 1) // _PAGE < (end - 1) // _PAGE)

    # -- the indexes ---------------------------------------------------------------------------

    @property
    def _first_untrusted(self) -> int:
        return self.start.offset + 1 if self.start.position else -1

    def _index_from(self, position: int) -> bytes:
        """Return the offset index if it has batches from `position` on: salvage finds them by it
        after damage that hides their places in the log.
        """
        index = self.segment.offset_index
        has_batches = index.is_sound and index.after(position) is not None
        return index.data() if has_batches else b""

    def _write_indexes(self) -> None:
        segment, rebuild = self.segment, self.rebuild
        segment.offset_index.truncate_to_offset(self._first_untrusted)
        segment.time_index.truncate_to_offset(self._first_untrusted)
        # A start after a kill trusts the time entry that belongs to an offset entry.
        segment.time_index.extend(rebuild.time_entries)
        segment.offset_index.extend(rebuild.offset_entries)
        segment.offset_index.trim()
        segment.time_index.trim()

    def _begin_indexes(self, *, is_whole: bool) -> bytes:
        """Write the indexes of a flushed segment, which a start after a crash does not read.

        After damage there may be larger timestamps. So unless the log `is_whole`, its time index
        gets no entry, and the next start reads the log again: it may be a good copy then.

        Until `finish_index` the offset index has a length that no sound index has. So a start after
        a kill in between rebuilds the indexes. Return the new content of the offset index.
        """
        segment, rebuild, first_untrusted = self.segment, self.rebuild, self._first_untrusted
        kept = b""
        if first_untrusted >= 0:  # Reading a missing index would make it.
            index = segment.offset_index
            kept = index.data(index.count_to(first_untrusted - 1))
        later = b"" if is_whole else self._entries_after_damage()
        segment.close()
        self.files.replace_atomically(segment.file_path(paths.INDEX), BEGUN)
        times = segment.time_index
        times.truncate_to_offset(first_untrusted if is_whole else -1)
        if is_whole:
            times.extend(rebuild.time_entries)
            times.append(rebuild.max_timestamp, rebuild.max_timestamp_offset)
        times.trim()
        return kept + bytes(rebuild.offset_entries) + later

    def _entries_after_damage(self) -> bytes:
        """Return the present entries of sound batches after the place at which the walk ended: they
        lead readers past the damage.
        """
        entries = bytearray()
        if not self._has_file(paths.INDEX):
            return b""
        next_offset, end = self.rebuild.next_offset, self.rebuild.position
        source = FileSource(self.files, self.fd, self.segment.log_path)
        data = self.segment.offset_index.data()
        for at in range(0, len(data), OFFSET.entry.size):
            relative, position = OFFSET.entry.unpack_from(data, at)
            offset = self.segment.base_offset + relative
            if offset >= next_offset and position > end:
                header = sound_batch(source.read_at, position, self.size)
                if header is not None and header.base_offset <= offset <= header.last_offset:
                    entries += OFFSET.entry.pack(relative, position)
                    next_offset, end = offset + 1, position
        return bytes(entries)


def header_at(files: Files, fd: int, position: int) -> BatchHeader | None:
    """Return the header at `position`, or None."""
    try:
        return parse_header(files.pread(fd, HEADER_SIZE, position))
    except CorruptRecord:
        return None


def finish_index(files: Files, item: Loaded) -> None:
    """Sync the files before the new offset index of a flushed segment, then write it."""
    if item.index is not None:
        item.segment.sync()
        item.segment.close()
        files.sync_directory(os.path.dirname(item.segment.log_path))
        files.replace_atomically(item.segment.file_path(paths.INDEX), item.index)


def is_empty(segment: Segment) -> bool:
    """Return whether a log's file is empty, or begins with preallocated zeros."""
    files = segment.disk
    if not files.file_stat(segment.log_path).st_size:
        return True
    if not segment.config.preallocate:
        return False
    with files.held_open(segment.log_path) as fd:
        return not any(files.pread(fd, HEADER_SIZE, 0))


def reaches(segment: Segment, offset: int) -> bool:
    """Return whether the last batch of a segment that was not loaded is at `offset` or later."""
    files = segment.disk
    fd = files.open(segment.log_path, os.O_RDONLY)
    source = FileSource(files, fd, segment.log_path)
    try:
        _, indexed = segment.offset_index.lookup(offset)
        size = source.size()
        for position in sorted({max(indexed, 0), 0}, reverse=True):
            is_reached = False
            # A wrong index entry has no batch, and damage ends the log.
            with contextlib.suppress(CorruptRecord):
                for at, header in batches(source, position):
                    # Damage may change an offset.
                    is_reached = (
                        header.last_offset >= offset
                        and sound_batch(source.read_at, at, size) is not None
                    )
                if position and header_at(files, fd, position) is not None:
                    return is_reached
            if is_reached:
                return True
        return False
    finally:
        files.close(fd)
        segment.close_descriptors()


def read_on(
    partition: PartitionFiles, rebuild: Rebuild, fd: int, end: int, *, check_crc: bool = True
) -> Iterator[ProducerBatch]:
    """Feed `rebuild` from its position on to `end`, or to its first fault; yield the batches of
    producers.
    """
    for _, taken, _ in feed(partition.files, fd, end, rebuild, check_crc=check_crc):
        partition.progress(taken)
        yield from map(ProducerBatch._make, rebuild.producers)
        rebuild.producers.clear()


def missing_segment(partition: PartitionFiles, entry: ManifestEntry) -> Segment:
    """Return a sealed segment with a missing file, for its place in the log.

    By the manifest it existed, and was not deleted. All of it is damage, which reads report; other
    positions stay. It is in memory only; if the file returns, the next start finds it.
    """
    segment = partition.segment(entry.base_offset)
    found = SegmentSummary(
        size=entry.size,
        next_offset=entry.next_offset,
        mtime_ns=entry.timestamp * 1_000_000,
        max_timestamp=entry.timestamp,
        max_timestamp_offset=entry.base_offset,
    )
    segment.restore(found, sealed=True)
    segment.mark_missing(entry.size)
    segment.reported_damages = segment.damages
    return segment
