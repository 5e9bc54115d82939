"""Dumps `.timeindex` files, and checks each against the offset index and the log beside it."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import defaultdict
from typing import Final

from kafkafs.dump._dump import Walk
from kafkafs.dump.faults import NOT_FOUND, OUT_OF_ORDER, WRONG_TIMESTAMP, Fault, Pairs
from kafkafs.dump.java import absolute
from kafkafs.dump.log_reader import Frame, LogReader
from kafkafs.dump.offset_index import OffsetEntries, base_offset, beside
from kafkafs.dump.options import Options
from kafkafs.dump.output import DumpError, Output
from storage.record.compression import decompress

_ENTRY: Final = struct.Struct(">qi")


def dump_time_index(path: str, options: Options, output: Output) -> dict[Fault, Pairs]:
    """Print a time index; return its faults.

    A fault is a pair: the entry's offset and the log's, the entry's timestamp and the log's, or the
    entry's timestamp and that of the entry before it.
    """
    base = base_offset(path)
    faults: dict[Fault, Pairs] = defaultdict(list)
    with LogReader(beside(path, ".log")) as log:
        offsets = OffsetEntries(beside(path, ".index"), base)
        with open(path, "rb") as file:
            data = file.read()
        entries = list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))
        if options.index_sanity_check:
            _check(path, entries, len(data), base)
            output.event("saneIndex", file=path)
            return faults
        batches = _Batches(log)
        before = -1
        for number, (timestamp, relative) in enumerate(entries):
            offset = base + relative
            if relative == 0 and number > 0:
                break
            position = offsets.lookup(offset)[1]
            log.slice_end(position, 0)
            frame = batches.find(position, offset)
            found = -1 if frame is None else log.last_offset(frame)
            if frame is None or found != offset:
                faults[NOT_FOUND].append((offset, found))
            else:
                largest = _largest_timestamp(log, frame)
                if largest != timestamp:
                    faults[WRONG_TIMESTAMP].append((timestamp, largest))
                if before >= timestamp:
                    faults[OUT_OF_ORDER].append((timestamp, before))
            if not options.verify_index_only:
                output.event("timeIndexEntry", timestamp=timestamp, offset=offset)
            before = timestamp
    return faults


def _check(path: str, entries: list[tuple[int, int]], length: int, base: int) -> None:
    """Check the file as TimeIndex.sanityCheck does. DumpError."""
    corrupt = f"Corrupt time index found, time index file ({absolute(path)}) has non-zero size but"
    if entries and entries[-1][0] < entries[0][0]:
        raise DumpError(
            f"{corrupt} the last timestamp is {entries[-1][0]} which is less than the first"
            f" timestamp {entries[0][0]}"
        )
    if entries and entries[-1][1] < 0:
        raise DumpError(
            f"{corrupt} the last offset is {base + entries[-1][1]} which is less than the first"
            f" offset {base}"
        )
    if length % _ENTRY.size:
        raise DumpError(
            f"Time index file {absolute(path)} is corrupt, found {length} bytes which is neither"
            f" positive nor a multiple of {_ENTRY.size}"
        )


def _largest_timestamp(log: LogReader, frame: Frame) -> int:
    found = [-1]

    def take() -> None:
        found.extend(row["timestamp"] for row in walk.take_rows() if "timestamp" in row)

    walk = Walk(decompress, position=frame.position, rows=True)
    log.walk(walk, frame.position + frame.size, take)
    return max(found)


class _Chain:
    """All batches of a log from a position on, read once for a whole index."""

    def __init__(self, log: LogReader, position: int) -> None:
        self.positions = array("q")
        self._last_offsets = array("q")
        self._log = log
        self._rises = True
        last = -(1 << 63)
        while (frame := log.frame(position, log.size)) is not None:
            offset = last if frame.last_offset is None else frame.last_offset
            # A cut-off header matters only to a search that reaches it.
            self._rises = self._rises and frame.last_offset is not None and offset >= last
            self.positions.append(position)
            self._last_offsets.append(offset)
            position += frame.size
            last = offset

    def number_at(self, position: int) -> int | None:
        """Return the number of the batch that begins there, if one does."""
        number = bisect_left(self.positions, position)
        found = number < len(self.positions) and self.positions[number] == position
        return number if found else None

    def find(self, number: int, offset: int) -> Frame | None:
        """Return the first batch from `number` on whose last offset is `offset` or above."""
        if self._rises:
            number = bisect_left(self._last_offsets, offset, number)
        while number < len(self.positions):
            frame = self._log.frame(self.positions[number], self._log.size)
            assert frame is not None
            if self._log.last_offset(frame) >= offset:
                return frame
            number += 1
        return None


class _Batches:
    """The chains of a log, one for each position that no other chain has."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._chains: list[_Chain] = []

    def find(self, position: int, offset: int) -> Frame | None:
        """Return the first batch from `position` on whose last offset is `offset` or above."""
        for chain in self._chains:
            number = chain.number_at(position)
            if number is not None:
                return chain.find(number, offset)
        chain = _Chain(self._log, position)
        if chain.positions:
            self._chains.append(chain)
        return chain.find(0, offset)
