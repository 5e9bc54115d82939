"""Reads the literals of a condition: texts and bytes as Spark's SQL writes them, and times.

A time is ISO 8601 with a date, as Spark takes it: `2026-11-22`, `2026-11-22T08`,
`2026-11-22 08:00`, `2026-11-22T08:00:00.5`, those with a time of day perhaps with a zone (`Z`,
`+09:00`, `Asia/Tokyo`); digits behind microseconds are dropped. Or it is so long before now:
`-90s`, `-15m`, `-2h`, `-7d`. Without a zone it is in the caller's. A time of day that a zone skips
counts from the hour before, and of one that a zone has twice the first counts, as in Java.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d+))?)?)?\s*([A-Za-z+-].*)?)?",
    re.ASCII,
)
_OFFSET = re.compile(r"([+-])(\d{1,2}):?(\d{2})?", re.ASCII)
_AGO = re.compile(r"-(\d{1,12})([smhd])", re.ASCII)
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_AFFIXES = re.compile(r"[^_%]+%[^_%]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-1][0-7][0-7]|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


class Moment(NamedTuple):
    """A time in µs since 1970. `is_relative`: it is before now; `is_local`: it has no zone."""

    us: int
    is_relative: bool = False
    is_local: bool = False


def moment(text: str, zone: tzinfo | None, now_ms: int) -> Moment:
    """The time that a text says; `zone` None: the process's. ValueError."""
    text = text.strip()
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return Moment(now_ms * 1000 - int(ago[1]) * _UNITS_US[ago[2]], is_relative=True)
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time such as 2026-11-22T08:00 or -15m")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    micros = int(((match[7] or "") + "000000")[:6])
    plain = datetime(year, month, day, hour, minute, second, micros)
    where = _zone(match[8]) if match[8] else zone
    known = plain.astimezone() if where is None else plain.replace(tzinfo=where)
    return Moment((known - _EPOCH) // _MICROSECOND, is_local=not match[8])


def _zone(text: str) -> tzinfo:
    text = text.strip()
    if text in ("Z", "UTC", "GMT"):
        return UTC
    match = _OFFSET.fullmatch(text)
    if match is not None:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        return timezone(-offset if match[1] == "-" else offset)
    return zone_named(text)


def zone_named(text: str) -> tzinfo:
    """A time zone by its name, or an offset. ValueError."""
    if text[:1] in ("+", "-") or text in ("Z", "UTC", "GMT"):
        match = _OFFSET.fullmatch(text)
        if match is None and text[:1] in ("+", "-"):
            raise ValueError(f"there is no time zone {text!r}")
        return UTC if match is None else _zone(text)
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {text!r}") from None


def unescaped(text: str) -> str:
    r"""What stands for a text between quotes: `\n`, `\u0041` …, as Spark reads it.

    `\%` and `\_` stay as they are: they mean something to `like`.
    """

    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape, 8) if escape[0].isdigit() else int(escape[1:], 16))
        return f"\\{escape}" if escape in "%_" else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(one, text)


def fewest_characters(text: str, escape: str) -> int:
    """How many characters Spark wants of what is like a pattern, besides that it is like it.

    Of `prefix%suffix` it makes three conditions: what it starts with, what it ends with, and that
    it is as long as both (`LikeSimplification`). It takes the lengths of both in UTF-16, and counts
    characters by their first bytes: malformed bytes, and prefixes beyond U+FFFF, may have too few.
    """
    if escape in text or _AFFIXES.fullmatch(text) is None:
        return 0
    return len(text.replace("%", "").encode("utf-16-le")) // 2


def pattern(text: str, escape: str) -> tuple[bytes | str, ...]:
    """The tokens of a pattern of `like`, as `condition.Like` has them. ValueError."""
    tokens: list[bytes | str] = []
    literal = ""

    def end_literal() -> None:
        nonlocal literal
        if literal:
            tokens.append(literal.encode())
            literal = ""

    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == escape:
            following = text[at : at + 1]
            at += 1
            if following not in ("%", "_", escape) or not following:
                raise ValueError(f"{escape!r} stands before neither %, _ nor itself")
            literal += following
        elif char not in "%_":
            literal += char
        else:
            end_literal()
            if char == "_" or tokens[-1:] != ["%"]:
                tokens.append(char)
    end_literal()
    return tuple(tokens)
