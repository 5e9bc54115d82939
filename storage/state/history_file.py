"""What stands in a history file, and whether a log is still the one that it speaks of.

Reading is strict: what is guessed here would show a reader the wrong bytes.

Not here: when it is written, and what follows from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from storage.errors import CorruptRecord
from storage.record._crc import crc32c
from storage.record.header import HEADER_SIZE

if TYPE_CHECKING:
    from storage.segment.segment import Segment


class BaseLine(NamedTuple):
    """Where absolute positions hang.

    ``sealed``: how many sealed segments there were from there on; ``crc``: theirs (`sealed_crc`).
    """

    offset: int
    position: int
    sealed: int
    crc: int


@dataclass(slots=True)
class HistoryContent:
    """A file's content; empty where there is none."""

    facts: dict[str, list[str]] = field(default_factory=dict)
    bases: dict[str, list[BaseLine]] = field(default_factory=dict)
    passed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> HistoryContent:
        """ValueError, KeyError or IndexError where it is no such file."""
        recorded = cls()
        for line in text.splitlines():
            name, *values = line.split(" ")
            if name == "base":
                offset, position, sealed = map(int, values[1:4])
                base = BaseLine(offset, position, sealed, int(values[4], 16))
                recorded.bases.setdefault(values[0], []).append(base)
            elif name == "passed":
                place = (int(values[1]), int(values[2]))
                recorded.passed.setdefault(values[0], []).append(place)
            else:
                recorded.facts[name] = values
        recorded._check()
        return recorded

    def _check(self) -> None:
        facts = self.facts
        if facts["version"] != ["0"] or "boot" not in facts:
            raise ValueError(facts)
        numbers = [self.nonce, self.follow_nonce, int(facts["first"][0]), int(facts["sealed"][0])]
        numbers.append(self.log_start)
        int(facts["sealed"][1], 16)
        if "last" in facts:
            base, position, crc = facts["last"]
            numbers += [int(base), int(position), int(crc, 16)]
        if min(numbers) < 0 or max(self.nonce, self.follow_nonce) >= 1 << 64:
            raise ValueError(facts)

    @property
    def nonce(self) -> int:
        return int(self.facts["nonce"][0], 16)

    @property
    def follow_nonce(self) -> int:
        return int(self.facts["follow"][0], 16)

    @property
    def log_start(self) -> int:
        return int(self.facts["start"][0])

    def fits(self, segments: Sequence[Segment], log_start: int) -> bool:
        """Whether the segments are those of the fingerprint, or have only grown since."""
        facts = self.facts
        if not facts:
            return False
        segments = segments[visible_from(segments, log_start) :]
        if self.log_start != max(log_start, segments[0].base_offset):
            return False
        count, crc = int(facts["sealed"][0]), int(facts["sealed"][1], 16)
        if int(facts["first"][0]) != segments[0].base_offset or count >= len(segments):
            return False
        return sealed_crc(segments[:count]) == crc and self._has_last(segments[count])

    def still_holds(self, line: BaseLine, segments: Sequence[Segment]) -> bool:
        """Whether the segments from a base on are what they were, or have only grown since."""
        if not has_segment(segments, line.offset):
            return False
        number = number_of(segments, line.offset)
        sealed = segments[number : number + line.sealed]
        if len(sealed) < line.sealed or number + line.sealed >= len(segments):
            return False
        return sealed_crc(sealed) == line.crc and self._has_last(segments[number + line.sealed])

    def _has_last(self, segment: Segment) -> bool:
        """Whether the batch that was the last one is where it was."""
        if "last" not in self.facts:
            return True
        base, position, batch_crc = self.facts["last"]
        if segment.base_offset != int(base):
            return False
        try:
            batch = next(segment.batches(int(position)), None)
        except CorruptRecord:
            return False
        return batch is not None and batch[1].crc == int(batch_crc, 16)


def visible_from(segments: Sequence[Segment], log_start: int) -> int:
    """The number of the segment that holds the log start: nothing before it is shown."""
    return max(bisect_right(segments, log_start, key=lambda segment: segment.base_offset) - 1, 0)


def number_of(segments: Sequence[Segment], offset: int) -> int:
    """Of the first segment that begins at ``offset`` or behind it."""
    return bisect_left(segments, offset, key=lambda segment: segment.base_offset)


def has_segment(segments: Sequence[Segment], offset: int) -> bool:
    """Whether one begins at ``offset``."""
    number = number_of(segments, offset)
    return number < len(segments) and segments[number].base_offset == offset


def sealed_crc(segments: Sequence[Segment]) -> int:
    """Over base offsets and sizes."""
    text = "".join(f"{segment.base_offset} {segment.size}\n" for segment in segments)
    return crc32c(text.encode())


def head(segments: Sequence[Segment]) -> bytes:
    """Eight bytes that name the first batch of the log."""
    first = segments[0]
    try:
        data = first.read_at(0, HEADER_SIZE) if first.size else b""
    except CorruptRecord:
        data = b""
    base = crc32c(str(first.base_offset).encode())
    return crc32c(data).to_bytes(4, "big") + base.to_bytes(4, "big")
