"""The content of a history file, and the check whether it still matches the log.

Reading is strict: a guess would show a reader the wrong bytes.

Not here: the time of writing, and the consequences of a mismatch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import CorruptRecord
from storage.record.crc import crc32c
from storage.record.header import HEADER_SIZE
from storage.segment.reader import SegmentReader

if TYPE_CHECKING:
    from storage.segment.segment import Segment

SHOWN_ABOVE = "shown-above"
"""The line that is present while `.follow` has shown records that may not be flushed."""
REPACKED = "repacked"
"""The name of a line for each segment that was repacked."""

# The names of lines that each save writes with their present values.
_LATER = ("batches", "repacked-below", "unchanged-from")

Sizes = Mapping[tuple[int, int], int]
"""(base offset, bytes) of a repacked segment -> its bytes before."""


class BaseLine(NamedTuple):
    """The base of absolute positions.

    `sealed`: the number of sealed segments from there on; `crc`: theirs (`sealed_crc`). `flushed`
    and `flushed_crc`: the same of the flushed ones.
    """

    offset: int
    position: int
    sealed: int
    crc: int
    flushed: int
    flushed_crc: int


@dataclass(slots=True)
class HistoryContent:
    """A file's content; empty without one.

    `text`: its lines except `shown-above`, those about the boot and the mount, and `_LATER`.
    `repacked`: the former sizes of segments, by the present ones.
    """

    text: str = ""
    facts: dict[str, list[str]] = field(default_factory=dict)
    bases: dict[str, list[BaseLine]] = field(default_factory=dict)
    passed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    repacked: Sizes = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> HistoryContent:
        """Parse a history file. Errors: ValueError, KeyError or IndexError for another file."""
        repacked: dict[tuple[int, int], int] = {}
        recorded = cls(repacked=repacked)
        for line in text.splitlines():
            name, *values = line.split(" ")
            if name not in (SHOWN_ABOVE, "boot", "mount", *_LATER):
                recorded.text += f"{line}\n"
            if name == "base":
                offset, position, sealed, flushed = (int(values[at]) for at in (1, 2, 3, 5))
                crc, flushed_crc = int(values[4], 16), int(values[6], 16)
                base = BaseLine(offset, position, sealed, crc, flushed, flushed_crc)
                recorded.bases.setdefault(values[0], []).append(base)
            elif name == "passed":
                place = (int(values[1]), int(values[2]))
                recorded.passed.setdefault(values[0], []).append(place)
            elif name == REPACKED:
                first, before, after = map(int, values)
                if not 0 <= after < before:
                    raise ValueError(line)
                repacked[first, after] = before
            else:
                recorded.facts[name] = values
        recorded._check()
        return recorded

    def _check(self) -> None:
        facts = self.facts
        if facts["version"] != ["0"] or "boot" not in facts:
            raise ValueError(facts)
        numbers = [self.nonce, self.follow_nonce, int(facts["first"][0]), int(facts["sealed"][0])]
        numbers += [self.log_start, self.stable_end]
        int(facts["sealed"][1], 16)
        if "last" in facts:
            base, position, crc, _ = facts["last"]
            numbers += [int(base), int(position), int(crc, 16)]
        if SHOWN_ABOVE in facts:
            base, end = facts[SHOWN_ABOVE]
            numbers += [int(base), int(end)]
        numbers += [self.batches_nonce, self.repacked_below, self.unchanged_from]
        numbers += self.repack_postponed
        if min(numbers) < 0 or max(self.nonce, self.follow_nonce) >= 1 << 64:
            raise ValueError(facts)

    @property
    def nonce(self) -> int:
        return int(self.facts["nonce"][0], 16)

    @property
    def follow_nonce(self) -> int:
        return int(self.facts["follow"][0], 16)

    @property
    def shown_end(self) -> int:
        """The offset up to which `.follow` has shown unflushed records; 0 without any."""
        return int(self.facts[SHOWN_ABOVE][1]) if SHOWN_ABOVE in self.facts else 0

    @property
    def stable_end(self) -> int:
        """The last stable offset when the file was written."""
        return int(self.facts["stable"][0]) if self.facts else 0

    @property
    def log_start(self) -> int:
        return int(self.facts["start"][0])

    @property
    def batches_nonce(self) -> int:
        """The part of the nonce that only files of stored bytes have; 0: the log never had one."""
        return int(self.facts["batches"][0], 16) if "batches" in self.facts else 0

    @property
    def repacked_below(self) -> int:
        """The offset below which each segment was repacked, or needs it not."""
        return int(self.facts["repacked-below"][0]) if "repacked-below" in self.facts else 0

    @property
    def repack_postponed(self) -> frozenset[int]:
        """The base offsets of segments below `repacked_below` that were not repacked for want of
        room.
        """
        return frozenset(map(int, self.facts.get("repacked-below", [])[1:]))

    @property
    def unchanged_from(self) -> int:
        """The segments with this base offset or a higher one were never cleaned or truncated."""
        return int(self.facts["unchanged-from"][0]) if "unchanged-from" in self.facts else 0

    def is_repacked(self, old: Segment, new: Segment) -> bool:
        """Return whether `new`, another file of the segment `old`, has the same records, or more
        because `old` was read in part.

        One of them was repacked; `old`, if the writer has taken that back.
        """
        sizes = self.repacked
        if all((each.base_offset, each.size) not in sizes for each in (old, new)):
            return False
        before, after = size_of(old, sizes), size_of(new, sizes)
        if before == after:
            # (After a truncation other records may have taken the same number of bytes.)
            return _last(old) == _last(new)
        return before < after and old.base_offset >= self.unchanged_from

    def fits(self, segments: Sequence[Segment], log_start: int) -> bool:
        """Return whether the segments are those of the fingerprint, or have only grown since."""
        facts = self.facts
        if not facts:
            return False
        segments = segments[visible_from(segments, log_start) :]
        if self.log_start != max(log_start, segments[0].base_offset):
            return False
        count, crc = int(facts["sealed"][0]), int(facts["sealed"][1], 16)
        if int(facts["first"][0]) != segments[0].base_offset or count >= len(segments):
            return False
        return sealed_crc(segments[:count], self.repacked) == crc and self._has_last(
            segments[count]
        )

    def still_holds(
        self, line: BaseLine, segments: Sequence[Segment], *, only_flushed: bool
    ) -> bool:
        """Return whether the segments from a base on are unchanged, or have only grown since.

        `only_flushed`: segments that were not flushed when the file was written may be lost.
        """
        if not has_segment(segments, line.offset):
            return False
        from_base = segments[number_of(segments, line.offset) :]
        if (
            only_flushed
            and sealed_crc(from_base[: line.flushed], self.repacked) != line.flushed_crc
        ):
            return False
        if only_flushed and not self._is_last_flushed:
            return True
        sealed = from_base[: line.sealed]
        if line.sealed >= len(from_base) or sealed_crc(sealed, self.repacked) != line.crc:
            return False
        return self._has_last(from_base[line.sealed])

    @property
    def _is_last_flushed(self) -> bool:
        return "last" in self.facts and self.facts["last"][3] == "flushed"

    def _has_last(self, segment: Segment) -> bool:
        """Return whether the former last batch is at its place."""
        if "last" not in self.facts:
            return True
        base, position, batch_crc, _ = self.facts["last"]
        if segment.base_offset != int(base):
            return False
        before = self.repacked.get((int(base), segment.size))
        if before is not None:
            # It was sealed and repacked since, so the batch is part of another one.
            return int(position) < before
        try:
            batch = next(SegmentReader(segment).batches(int(position)), None)
        except CorruptRecord:
            return False
        return batch is not None and batch[1].crc == int(batch_crc, 16)


def _last(segment: Segment) -> tuple[int, int]:
    """Return what a repacked segment keeps of its last records."""
    return segment.next_offset, segment.max_timestamp


def visible_from(segments: Sequence[Segment], log_start: int) -> int:
    """Return the number of the segment of the log start: nothing before it is shown."""
    return max(bisect_right(segments, log_start, key=lambda segment: segment.base_offset) - 1, 0)


def number_of(segments: Sequence[Segment], offset: int) -> int:
    """Return the number of the first segment that begins at `offset` or later."""
    return bisect_left(segments, offset, key=lambda segment: segment.base_offset)


def has_segment(segments: Sequence[Segment], offset: int) -> bool:
    """Return whether a segment begins at `offset`."""
    number = number_of(segments, offset)
    return number < len(segments) and segments[number].base_offset == offset


def sealed_crc(segments: Sequence[Segment], sizes: Sizes) -> int:
    """Return a CRC over base offsets and sizes; `sizes`: those that count instead."""
    text = "".join(f"{each.base_offset} {size_of(each, sizes)}\n" for each in segments)
    return crc32c(text.encode())


def size_of(segment: Segment, sizes: Sizes) -> int:
    """Return the size of a segment before it was repacked."""
    return sizes.get((segment.base_offset, segment.size), segment.size)


def flushed_of(sealed: Sequence[Segment], flushed_end: int) -> Sequence[Segment]:
    """Return the sealed segments whose records are all below `flushed_end`."""
    return sealed[: bisect_right(sealed, flushed_end, key=lambda segment: segment.next_offset)]


def count_and_crc(segments: Sequence[Segment], sizes: Sizes) -> str:
    """Return a fingerprint as the file has it."""
    return f"{len(segments)} {sealed_crc(segments, sizes):08x}"


def head(segments: Sequence[Segment]) -> bytes:
    """Return eight bytes that identify the first batch of the log."""
    first = segments[0]
    try:
        data = first.source().read_at(0, HEADER_SIZE) if first.size else b""
    except CorruptRecord:
        data = b""
    base = crc32c(str(first.base_offset).encode())
    return crc32c(data).to_bytes(4, "big") + base.to_bytes(4, "big")
