"""Parses names of a partition's file from another record on: `N@START` and `N@START..END`.

Without START, the file begins at the log start; without END, it has no end.

A point is one of:

    1234                      an offset: all digits always are one
    -10                       before the last ten records
    start, end                the log start; the log end, as it is now
    2026-11-21T08:00:00Z      a time in ISO 8601, as Python's fromisoformat takes it: a date, a date
                              with a time of day, or a time of day, which is today's; or a month
    -15m                      a duration ago (`storage.units`)
    group=G                   the position that a consumer group has committed (`group_names`)

A time without a zone is local time. Times are in ms since 1970, as the timestamps of records are;
a time between two milliseconds counts as the later one.

Pure: clock and zone are the caller's. `start_points.py` finds a point's offset in a log.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import Enum
from typing import Final, NamedTuple

from storage.paths import MAX_NAME_LENGTH
from storage.units import duration_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_MONTH: Final = re.compile("[0-9]{4}-[0-9]{2}")


class NoPoint(FileNotFoundError):  # noqa: N818 - it is the name that is none
    """A name with an `@` that has no meaning."""


class Offset(NamedTuple):
    """The first record with this offset or a larger one."""

    offset: int


class Last(NamedTuple):
    """Before the last `records` records."""

    records: int


class Time(NamedTuple):
    """The first record with this timestamp or a later one."""

    timestamp_ms: int


class OfGroup(NamedTuple):
    """The position that a group has committed; `spelt`: its name as `group_names` spells it."""

    spelt: str


class Edge(Enum):
    """The log start; the log end."""

    START = "start"
    END = "end"


Point = Offset | Last | Time | Edge | OfGroup


class StartName(NamedTuple):
    """A parsed name. `end` is exclusive; None: the file grows with the log."""

    partition: str
    start: Point
    end: Point | None

    @property
    def is_snapshot(self) -> bool:
        """Whether it ends where the log does when the name is looked up."""
        return self.end is Edge.END

    @property
    def has_group(self) -> bool:
        """Whether it says what a group has committed."""
        return isinstance(self.start, OfGroup) or isinstance(self.end, OfGroup)


def is_snapshot_name(name: str) -> bool:
    """Whether a name parses as a snapshot's."""
    return "@" in name and name.endswith("..end")


def parse_start_name(name: str, now_ms: int, zone: tzinfo | None = None) -> StartName | None:
    """None where `name` is no such name. `zone` None: the process's local time."""
    partition, at, points = name.partition("@")
    if not at:
        return None
    first, dots, last = points.partition("..")
    start = Edge.START if dots and not first else parse_point(first, now_ms, zone)
    end = parse_point(last, now_ms, zone) if last else None
    if start is None or (last and end is None):
        return None
    return StartName(partition, start, end)


def parse_point(text: str, now_ms: int, zone: tzinfo | None = None) -> Point | None:
    """The point of a text; None where it is none. `zone` None: the process's local time."""
    kind, _, spelt = text.partition("=")
    if kind == "group" and spelt:
        return OfGroup(spelt)
    # (int() refuses thousands of digits.)
    if not text.isascii() or len(text) > MAX_NAME_LENGTH:
        return None
    if text.isdecimal():
        return Offset(int(text))
    if text in ("start", "end"):
        return Edge(text)
    if text.startswith("-"):
        return _before_now(text[1:], now_ms)
    return _time(text, now_ms, zone)


def _before_now(text: str, now_ms: int) -> Point | None:
    """The point of a text after a minus: a count of records, or of units of time."""
    if text.isdecimal():
        return Last(int(text))
    try:
        return Time(max(now_ms - duration_ms(text), 0))
    except ValueError:
        return None


def _time(text: str, now_ms: int, zone: tzinfo | None) -> Time | None:
    try:
        if "T" in text[1:] or " " in text:
            moment = datetime.fromisoformat(text)
        else:
            moment = _date_or_time(text, now_ms, zone)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = _local(moment, zone)
    # No record is older than 1970, and a record without a timestamp is older than any.
    return Time(max(-((_EPOCH - moment) // _MS), 0))


def _date_or_time(text: str, now_ms: int, zone: tzinfo | None) -> datetime:
    """The date, or the time of day, of `text`. ValueError where it is neither."""
    if _MONTH.fullmatch(text):
        # Else 2026-11 would be a time of day, 20:26, in a zone eleven hours west.
        text += "-01"
    try:
        return datetime.combine(date.fromisoformat(text), time())
    except ValueError:
        of_day = time.fromisoformat(text)
    now = _EPOCH + now_ms * _MS
    # Today in the zone of the time of day.
    today = now.astimezone(of_day.tzinfo or zone).date()
    return datetime.combine(today, of_day)


def _local(moment: datetime, zone: tzinfo | None) -> datetime:
    if zone is not None:
        return moment.replace(tzinfo=zone)
    try:
        return moment.astimezone()
    except (OverflowError, OSError, ValueError):
        # At the ends of what Python knows of time: hours do not matter there.
        return moment.replace(tzinfo=UTC)
