"""The gaps of a mirror, for people and for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafs.cli.common.output import Output
from kafkafs.quantities import TimeMs, Value

if TYPE_CHECKING:
    from storage.state.gaps_file import Gap


def gap_facts(gap: Gap) -> dict[str, Value]:
    """Return the facts of a gap; None for those of a list that cannot be read."""
    kind, *numbers = gap
    first, last, time_ms = (None if number < 0 else number for number in numbers)
    return {
        "kind": kind,
        "first": first,
        "last": last,
        "time": None if time_ms is None else TimeMs(time_ms),
    }


def gap_text(gap: Gap, out: Output) -> str:
    """Return the facts of a gap as one text."""
    return " ".join(map(out.text, gap_facts(gap).values()))
