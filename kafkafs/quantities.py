"""Sizes and times among the values of a report, and how people read them.

The code that prints them decides between these texts and plain numbers. Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
"""The content of a cell in a table; None if it is not known, or not there."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Size(int):
    """A number of bytes."""


class TimeMs(int):
    """A time, in milliseconds since 1970."""


def human_size(size: int) -> str:
    """A number of bytes like 512B or 1.5MiB."""
    if abs(size) < 1024:
        return f"{int(size)}B"
    number = float(size)
    for unit in _UNITS:
        number /= 1024
        if abs(number) < 999.95 or unit == _UNITS[-1]:
            break
    return f"{number:.1f}{unit}" if abs(number) < 99.95 else f"{number:.0f}{unit}"


def local_time(time_ms: int, timespec: str = "milliseconds") -> str:
    """A time as ISO 8601 in local time; a number where no year is like that."""
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(int(time_ms))
    return moment.replace(microsecond=time_ms % 1000 * 1000).isoformat(timespec=timespec)
