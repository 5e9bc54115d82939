"""Reads the literals of a condition: texts and bytes as Spark's SQL writes them, and times.

A time is ISO 8601, as in Spark: `2026`, `2026-11`, `2026-11-22`, `2026-11-22T08`, `2026-11-22
08:00`, `2026-11-22T08:00:00.5`, those with a time of day perhaps with a zone (`Z`, `+09:00`,
`UTC+9`, `JST`, `Asia/Tokyo`); digits after microseconds are dropped. Or it is a duration before
now: `-90s`, `-15m`, `-2h`, `-7d`. Without a zone it is in the caller's. As in Java, a time of day
that a zone skips counts from the hour before, and the first one counts if a zone has two.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_TIME = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[T ](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d+))?)?)?\s*([A-Za-z+-].*)?)?)?)?",
    re.ASCII,
)
# Hours, minutes and seconds, with colons or of two digits each.
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])"
    r"(?:(\d{1,2})(?::(\d{2})(?::(\d{2}))?|:(\d))?|(\d{2})(\d{2})(\d{2})?)",
    re.ASCII,
)
_FARTHEST = timedelta(hours=18)
# `java.time.ZoneId.SHORT_IDS`.
_SHORT_NAMES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "ART": "Africa/Cairo",
    "AGT": "America/Argentina/Buenos_Aires",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}
_AGO = re.compile(r"-(\d{1,12})([smhd])", re.ASCII)
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_AFFIXES = re.compile(r"[^_%]+%+[^_%]+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-1][0-7][0-7]|.)", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


class Moment(NamedTuple):
    """A time in µs since 1970. `is_relative`: it is before now; `is_local`: it has no zone."""

    us: int
    is_relative: bool = False
    is_local: bool = False


def moment(text: str, zone: tzinfo | None, now_ms: int) -> Moment:
    """Return the time of a text; `zone` None: the process's. Errors: ValueError."""
    text = text.strip()
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return Moment(now_ms * 1000 - int(ago[1]) * _UNITS_US[ago[2]], is_relative=True)
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a time such as 2026-11-22T08:00 or -15m")
    date = [int(part or 1) for part in match.groups()[:3]]
    clock = [int(part or 0) for part in match.groups()[3:6]]
    plain = datetime(date[0], date[1], date[2], clock[0], clock[1], clock[2])
    where = zone_named(match[8].strip()) if match[8] else zone
    if where is None:
        us = int(plain.timestamp()) * 1_000_000
    else:
        us = (plain.replace(tzinfo=where) - _EPOCH) // _MICROSECOND
    micros = int(((match[7] or "") + "000000")[:6])
    return Moment(us + micros, is_local=not match[8])


def zone_named(text: str) -> tzinfo:
    """Return a time zone by Spark's name: a name, a short one, or an offset. Errors: ValueError."""
    text = _SHORT_NAMES.get(text, text)
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    match = _OFFSET.fullmatch(text)
    if match is not None:
        hours = int(match[2] or match[6])
        minutes = int(match[3] or match[5] or match[7] or 0)
        seconds = int(match[4] or match[8] or 0)
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if minutes > 59 or seconds > 59 or offset > _FARTHEST:
            raise ValueError(f"no time zone has the offset {text}")
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, KeyError):
        raise ValueError(f"unknown time zone {text!r}") from None


def unescaped(text: str) -> str:
    r"""Return the string of a quoted text, with escapes like `\n` and `\u0041`, as Spark reads it.

    `\%` and `\_` stay unchanged: they have a meaning for `like`.
    """

    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape, 8) if escape[0].isdigit() else int(escape[1:], 16))
        return f"\\{escape}" if escape in "%_" else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(one, text)


def fewest_characters(text: str, escape: str) -> int:
    """Return the number of characters that Spark requires of a match, besides the match itself.

    From `prefix%suffix` it makes three conditions: the start, the end, and the sum of both lengths
    (`LikeSimplification`). It counts characters by their first bytes, so that malformed bytes may
    have too few.
    """
    if escape in text or _AFFIXES.fullmatch(text) is None:
        return 0
    return len(text.replace("%", ""))


def pattern(text: str, escape: str) -> tuple[bytes | str, ...]:
    """Return the tokens of a pattern for `condition.Like`. Errors: ValueError."""
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
                raise ValueError(f"{escape!r} must be followed by %, _ or itself")
            literal += following
        elif char not in "%_":
            literal += char
        else:
            end_literal()
            if char == "_" or tokens[-1:] != ["%"]:
                tokens.append(char)
    end_literal()
    return tuple(tokens)
