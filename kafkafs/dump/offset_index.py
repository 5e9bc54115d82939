"""Dumps `.index` files, and checks each against the log beside it."""

from __future__ import annotations

import struct
from typing import Final

from kafkafs.dump.faults import MISMATCH, Fault, Pairs
from kafkafs.dump.java import absolute, base_name, parse_long
from kafkafs.dump.log_reader import LogReader
from kafkafs.dump.options import Options
from kafkafs.dump.output import DumpError, Output

_ENTRY: Final = struct.Struct(">ii")
#: The number of entries at the end that a lookup tries first (AbstractIndex.warmEntries).
_WARM: Final = 8192 // _ENTRY.size


def base_offset(path: str) -> int:
    """Return the offset in a file's name, before its first dot. DumpError."""
    try:
        return parse_long(base_name(path).split(".")[0])
    except ValueError as error:
        raise DumpError(f"{path}: the file name is not an offset: {error}") from None


def beside(path: str, suffix: str) -> str:
    """Return the path of the same segment's file with this suffix."""
    directory, slash, name = absolute(path).rpartition("/")
    return directory + slash + name.split(".")[0] + suffix


class OffsetEntries:
    """The entries of an offset index as a broker reads them, zeros included."""

    def __init__(self, path: str, base: int) -> None:
        with open(path, "rb") as file:
            self._data = file.read()
        self.base = base
        self.count = len(self._data) // _ENTRY.size

    def entry(self, number: int) -> tuple[int, int]:
        """Return the (offset, position) of an entry."""
        relative, position = _ENTRY.unpack_from(self._data, number * _ENTRY.size)
        return self.base + relative, position

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return the position at which the search for an offset begins (OffsetIndex.lookup).

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

    def check(self, path: str) -> None:
        """Check the file as OffsetIndex.sanityCheck does. DumpError."""
        last = self.entry(self.count - 1)[0]
        if last < self.base:
            raise DumpError(
                f"Corrupt index found, index file {absolute(path)} has non-zero size but the last"
                f" offset is {last} which is less than the base offset {self.base}"
            )
        if len(self._data) % _ENTRY.size:
            raise DumpError(
                f"Index file {absolute(path)} is corrupt, found {len(self._data)} bytes which is"
                f" neither positive nor a multiple of {_ENTRY.size}"
            )


def dump_offset_index(path: str, options: Options, output: Output) -> dict[Fault, Pairs]:
    """Print an offset index; return (entry's offset, its batch's last) where the two differ."""
    base = base_offset(path)
    mismatches: Pairs = []
    with LogReader(beside(path, ".log")) as log:
        index = OffsetEntries(path, base)
        if index.count == 0:
            output.event("emptyIndex", file=path)
            return {}
        if options.index_sanity_check:
            index.check(path)
            output.event("saneIndex", file=path)
            return {}
        for number in range(index.count):
            offset, position = index.entry(number)
            # A broker preallocates entries: the unwritten ones are zeros.
            if offset == base and number > 0:
                break
            frame = log.frame(position, log.slice_end(position, options.max_message_size))
            if frame is None:
                raise log.fault(position, f"{path}: there is no batch for offset {offset}")
            last = log.last_offset(frame)
            if last != offset:
                mismatches.append((offset, last))
            if not options.verify_index_only:
                output.event("indexEntry", offset=offset, position=position)
    return {MISMATCH: mismatches}
