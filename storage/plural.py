"""Numbers of things in sentences: ``1 partition``, ``2 partitions``. Pure."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """How many of a thing there are."""
    return f"{number} {plural(number, thing)}"


def lasting(duration_ms: int) -> str:
    """A duration in its largest unit: ``9 ms``, ``1.5 hours``, ``7 days``."""
    for unit, unit_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if duration_ms >= unit_ms:
            number = round(duration_ms / unit_ms, 1)
            return f"{number:g} {plural(number, unit)}"
    return f"{duration_ms / 1000:g} s" if duration_ms >= 1000 else f"{duration_ms} ms"


def plural(number: float, thing: str) -> str:
    """The word for so many of a thing."""
    if number == 1:
        return thing
    if thing.endswith("y") and not thing.endswith("ay"):
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith("ch") else f"{thing}s"
