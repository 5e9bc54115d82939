"""Parses durations and sizes with units: `7d`, `1.5h`, `100 ms`, `64KiB`, `1G`. Prints durations.

The grammar of settings, mount options, names in a mount and commands. A number without a unit has
the unit of its place, which the caller gives. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from storage.plural import plural

DURATIONS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZES: Final = {"B": 1} | {
    prefix + ending: 1024**power
    for power, prefix in enumerate("KMGTPE", 1)
    for ending in ("", "iB")
}

_WORDS: Final = {"d": "day", "h": "hour", "m": "minute"}

_QUANTITY = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")


def duration_ms(text: str, unit: str = "ms") -> int:
    """Return the milliseconds of a duration. A ValueError says what is valid."""
    return _parse(text, DURATIONS_MS, unit, "ms, s, m, h, d")


def size_bytes(text: str, unit: str = "B") -> int:
    """Return the bytes of a size. A ValueError says what is valid."""
    return _parse(text, SIZES, unit, "B, KiB, MiB, GiB, TiB")


def duration_text(number_ms: int) -> str:
    """Return a duration as a setting may have it, in the largest unit that is exact: `90s`."""
    units = [unit for unit, unit_ms in DURATIONS_MS.items() if number_ms % unit_ms == 0]
    unit = units[-1] if number_ms else "ms"
    return f"{number_ms // DURATIONS_MS[unit]}{unit}"


def duration_in_words(number_ms: int) -> str:
    """Return a duration, rounded, in its largest unit: `9 ms`, `1.5 hours`, `7 days`."""
    for unit, word in _WORDS.items():
        if number_ms >= DURATIONS_MS[unit]:
            number = round(number_ms / DURATIONS_MS[unit], 1)
            return f"{number:g} {plural(number, word)}"
    return f"{number_ms / 1000:g} s" if number_ms >= 1000 else f"{number_ms} ms"


def has_unit(text: str) -> bool:
    """Return whether a text is a number and a word."""
    match = _QUANTITY.fullmatch(text)
    return match is not None and bool(match[2])


def _parse(text: str, units: Mapping[str, int], unit: str, shown: str) -> int:
    match = _QUANTITY.fullmatch(text)
    factor = None if match is None else units.get(match[2] or unit)
    if match is None or factor is None or (factor == 1 and "." in match[1]):
        raise ValueError(f"a number with one of the units {shown}")
    return round(Fraction(match[1]) * factor)
