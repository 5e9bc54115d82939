"""The faults that DumpLogSegments collects from all files and prints at its end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from kafkafs.dump.java import map_order
from kafkafs.dump.output import Output

Pairs: TypeAlias = list[tuple[int, int]]


class Fault(NamedTuple):
    """A kind of fault: its line for a file, its line for each pair of numbers, their JSON names."""

    type: str
    head: str
    line: str
    fields: tuple[str, str]


MISMATCH: Final = Fault(
    "mismatch",
    "Mismatches in :{}",
    "  Index offset: {}, log offset: {}",
    ("indexOffset", "logOffset"),
)
WRONG_TIMESTAMP: Final = Fault(
    "timestampMismatch",
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {}, log timestamp: {}",
    ("indexTimestamp", "logTimestamp"),
)
OUT_OF_ORDER: Final = Fault(
    "outOfOrderTimestamp",
    "Found out of order timestamp in :{}",
    "  Index timestamp: {}, Previously indexed timestamp: {}",
    ("indexTimestamp", "previousTimestamp"),
)
NOT_FOUND: Final = Fault(
    "offsetNotFound",
    "The following indexed offsets are not found in :{}",
    "Indexed offset: {}, found log offset: {}",
    ("indexOffset", "logOffset"),
)
GAP: Final = Fault(
    "nonConsecutiveOffsets",
    "Non-consecutive offsets in {}",
    "  {} is followed by {}",
    ("offset", "nextOffset"),
)


class Faults:
    """The faults of some files, by kind and by file."""

    def __init__(self) -> None:
        self._found: dict[Fault, dict[str, Pairs]] = defaultdict(lambda: defaultdict(list))

    def add(self, file: str, faults: Mapping[Fault, Pairs]) -> None:
        for fault, pairs in faults.items():
            if pairs:
                self._found[fault][file] += pairs

    def show(self, output: Output) -> None:
        """Print the faults in DumpLogSegments' order."""
        for fault in (MISMATCH, WRONG_TIMESTAMP, OUT_OF_ORDER, NOT_FOUND, GAP):
            found = self._found[fault]
            for file in map_order(found):
                pairs = found[file]
                if fault in (MISMATCH, GAP):
                    # The faults of a file that is given twice are shown once.
                    pairs = sorted(dict(pairs).items(), reverse=fault is MISMATCH)
                _show(fault, file, pairs, output)


def _show(fault: Fault, file: str, pairs: Pairs, output: Output) -> None:
    if output.is_json:
        for pair in pairs:
            output.event(fault.type, file=file, **dict(zip(fault.fields, pair, strict=True)))
    else:
        lines = [fault.head.format(file), *(fault.line.format(*pair) for pair in pairs)]
        output.complain("\n".join(lines), fault.type)
