"""Parses values of options: numbers, times, JSON. Names are in lower case. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

_LONG = re.compile(r"[+-]?[0-9]{1,19}")
_DURATION = re.compile(r"(-?[0-9]{1,15})([a-z]+)?")
_UNITS_MS = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class InvalidOption(ValueError):  # noqa: N818 - as the errors of storage
    """An unknown option of the source or the sink, an invalid value, or a contradiction."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message, with the known name that is closest; or ""."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in sorted(known)}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f": did you mean {by_lower[near[0]]!r}?" if near else ""


def unknown(name: str, known: Iterable[str]) -> InvalidOption:
    """Return the error of an unknown option: with the closest known one, else with all."""
    names = list(known)
    hint = did_you_mean(name, names) or f". There are: {', '.join(names)}"
    return InvalidOption(f"Unknown option {name!r}{hint}")


def parsed(text: str, parser: Callable[[str], T], example: str, name: str) -> T:
    """Parse an option's text with `parser`. InvalidOption if it raises ValueError."""
    try:
        return parser(text.strip())
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"Expected e.g. {example} for {name!r}, got {text} ({error})") from None


def long(text: str, expectation: str) -> int:
    """Parse a whole number of 64 bits. InvalidOption with the `expectation`."""
    if _LONG.fullmatch(text.strip()) is None or not -(1 << 63) <= int(text) < 1 << 63:
        raise InvalidOption(f"{expectation}, got {text!r}")
    return int(text)


def positive(options: Mapping[str, str], name: str) -> int | None:
    """Return a positive whole number, or None without this option. InvalidOption."""
    text = options.get(name.lower())
    if text is None:
        return None
    number = long(text, f"Option {name!r} must be a whole number")
    if number <= 0:
        raise InvalidOption(f"{name} must be positive, got {text!r}")
    return number


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return the value of an option that is true or false. InvalidOption."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"Option {name!r} must be 'true' or 'false', got {text!r}")
    return text.lower() == "true"


def duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    """Return a time in ms; the text has a unit or none. InvalidOption."""
    text = options.get(name.lower())
    if text is None:
        return default
    match = _DURATION.fullmatch(text.strip().lower())
    unit = None if match is None else _UNITS_MS.get(match[2] or "ms")
    if match is None or unit is None:
        raise InvalidOption(
            f"Option {name!r} must be a time with a unit, such as 50s, 100ms or 15m, got {text!r}"
        )
    return int(int(match[1]) * unit)
