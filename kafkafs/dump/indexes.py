"""Dumps `.index` and `.timeindex` files, and checks each against the log beside it."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from kafkafs.dump._dump import Walk
from kafkafs.dump.errors import DumpError
from kafkafs.dump.events import Output
from kafkafs.dump.java import absolute, base_name, parse_long
from kafkafs.dump.log_file import decompress
from kafkafs.dump.log_reader import Frame, LogReader
from kafkafs.dump.options import Options

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
#: How many entries at the end a lookup tries first (AbstractIndex.warmEntries).
_WARM: Final = 8192 // _OFFSET_ENTRY.size


def base_offset(path: str) -> int:
    """The offset in a file's name, before its first dot. DumpError."""
    try:
        return parse_long(base_name(path).split(".")[0])
    except ValueError as error:
        raise DumpError(f"{path}: its name has no offset: {error}") from None


def _beside(path: str, suffix: str) -> str:
    directory, slash, name = absolute(path).rpartition("/")
    return directory + slash + name.split(".")[0] + suffix


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# -- .index ----------------------------------------------------------------------------------------


class OffsetEntries:
    """The entries of an offset index as a broker reads them, zeros included."""

    def __init__(self, path: str, base: int) -> None:
        data = _read(path)
        self.base = base
        self.length = len(data)
        self.count = len(data) // _OFFSET_ENTRY.size
        self._data = data

    def entry(self, number: int) -> tuple[int, int]:
        """The (offset, position) of an entry."""
        relative, position = _OFFSET_ENTRY.unpack_from(self._data, number * _OFFSET_ENTRY.size)
        return self.base + relative, position

    def lookup(self, offset: int) -> tuple[int, int]:
        """Where to begin the search for an offset, with the steps of OffsetIndex.lookup.

        If the entries do not rise, the result depends on the steps.
        """
        if self.count == 0:
            return self.base, 0
        low, high = 0, max(0, self.count - 1 - _WARM)
        if self.entry(high)[0] < offset:
            low, high = high, self.count - 1
        elif self.entry(0)[0] > offset:
            return self.base, 0
        while low < high:
            middle = (low + high + 1) >> 1
            found = self.entry(middle)[0]
            if found == offset:
                return self.entry(middle)
            if found > offset:
                high = middle - 1
            else:
                low = middle
        return self.entry(low)

    def sanity(self, path: str) -> str | None:
        last = self.entry(self.count - 1)[0]
        if last < self.base:
            return (
                f"Corrupt index found, index file {absolute(path)} has non-zero size but the last"
                f" offset is {last} which is less than the base offset {self.base}"
            )
        if self.length % _OFFSET_ENTRY.size:
            return (
                f"Index file {absolute(path)} is corrupt, found {self.length} bytes which is"
                f" neither positive nor a multiple of {_OFFSET_ENTRY.size}"
            )
        return None


def dump_index(path: str, options: Options, output: Output) -> dict[int, int]:
    """Print an offset index; return the offsets that are not their batch's last, with that one."""
    base = base_offset(path)
    mismatches: dict[int, int] = {}
    with LogReader(_beside(path, ".log")) as log:
        index = OffsetEntries(path, base)
        if index.count == 0:
            output.event("emptyIndex", file=path)
            return mismatches
        if options.index_sanity_check:
            _show_sanity(path, index.sanity(path), output)
            return mismatches
        for number in range(index.count):
            offset, position = index.entry(number)
            # A broker preallocates entries: the unwritten ones are zeros.
            if offset == base and number > 0:
                break
            frame = log.frame(position, log.slice_end(position, options.max_message_size))
            if frame is None:
                raise log.fault(position, f"no batch is there for offset {offset} of {path}")
            last = _last_offset(log, frame)
            if last != offset:
                mismatches[offset] = last
            if not options.verify_index_only:
                output.event("indexEntry", offset=offset, position=position)
    return mismatches


def _show_sanity(path: str, fault: str | None, output: Output) -> None:
    if fault is not None:
        raise DumpError(fault)
    output.event("saneIndex", file=path)


def _last_offset(log: LogReader, frame: Frame) -> int:
    if frame.last_offset is None:
        raise log.fault(frame.position, "a batch's header is cut off")
    return frame.last_offset


# -- .timeindex ------------------------------------------------------------------------------------


@dataclass
class TimeFaults:
    """The faults of a time index: pairs of its number and the log's, or the previous entry's."""

    mismatches: list[tuple[int, int]] = field(default_factory=list)
    out_of_order: list[tuple[int, int]] = field(default_factory=list)
    not_found: list[tuple[int, int]] = field(default_factory=list)


class _Chain:
    """All batches of a log from a position on, read once for a whole index."""

    def __init__(self, log: LogReader, position: int) -> None:
        self.positions = array("q")
        self.last_offsets = array("q")
        self._log = log
        self._rises = True
        last = -(1 << 63)
        while (frame := log.frame(position, log.size)) is not None:
            offset = last if frame.last_offset is None else frame.last_offset
            # A cut-off header matters only to a search that reaches it.
            self._rises = self._rises and frame.last_offset is not None and offset >= last
            self.positions.append(position)
            self.last_offsets.append(offset)
            position += frame.size
            last = offset

    def number_at(self, position: int) -> int | None:
        number = bisect_left(self.positions, position)
        found = number < len(self.positions) and self.positions[number] == position
        return number if found else None

    def find(self, number: int, offset: int) -> Frame | None:
        """The first batch from `number` on whose last offset is `offset` or above."""
        if self._rises:
            number = bisect_left(self.last_offsets, offset, number)
        while number < len(self.positions):
            frame = self._log.frame(self.positions[number], self._log.size)
            assert frame is not None
            if _last_offset(self._log, frame) >= offset:
                return frame
            number += 1
        return None


class _Batches:
    """The chains of a log, one for each position that no other chain has."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._chains: list[_Chain] = []

    def find(self, position: int, offset: int) -> Frame | None:
        for chain in self._chains:
            number = chain.number_at(position)
            if number is not None:
                return chain.find(number, offset)
        chain = _Chain(self._log, position)
        if chain.positions:
            self._chains.append(chain)
        return chain.find(0, offset)


def dump_time_index(path: str, options: Options, output: Output) -> TimeFaults:
    """Print a time index; return its faults. DumpError, OSError."""
    base = base_offset(path)
    faults = TimeFaults()
    with LogReader(_beside(path, ".log")) as log:
        offsets = OffsetEntries(_beside(path, ".index"), base)
        data = _read(path)
        count = len(data) // _TIME_ENTRY.size
        entries = [_TIME_ENTRY.unpack_from(data, n * _TIME_ENTRY.size) for n in range(count)]
        if options.index_sanity_check:
            _show_sanity(path, _time_sanity(path, entries, len(data), base), output)
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
            if frame is None:
                faults.not_found.append((offset, -1))
            elif frame.last_offset != offset:
                faults.not_found.append((offset, _last_offset(log, frame)))
            else:
                largest = _largest_timestamp(log, frame)
                if largest != timestamp:
                    faults.mismatches.append((timestamp, largest))
                if before >= timestamp:
                    faults.out_of_order.append((timestamp, before))
            if not options.verify_index_only:
                output.event("timeIndexEntry", timestamp=timestamp, offset=offset)
            before = timestamp
    return faults


def _largest_timestamp(log: LogReader, frame: Frame) -> int:
    found = [-1]

    def take() -> None:
        found.extend(row["timestamp"] for row in walk.take_rows() if "timestamp" in row)

    walk = Walk(decompress, position=frame.position, rows=True)
    log.walk(walk, frame.position + frame.size, take)
    return max(found)


def _time_sanity(path: str, entries: list[tuple[int, int]], length: int, base: int) -> str | None:
    corrupt = f"Corrupt time index found, time index file ({absolute(path)}) has non-zero size but"
    if entries and entries[-1][0] < entries[0][0]:
        return (
            f"{corrupt} the last timestamp is {entries[-1][0]} which is less than the first"
            f" timestamp {entries[0][0]}"
        )
    if entries and entries[-1][1] < 0:
        return (
            f"{corrupt} the last offset is {base + entries[-1][1]} which is less than the first"
            f" offset {base}"
        )
    if length % _TIME_ENTRY.size:
        return (
            f"Time index file {absolute(path)} is corrupt, found {length} bytes which is neither"
            f" positive nor a multiple of {_TIME_ENTRY.size}"
        )
    return None
