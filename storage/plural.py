"""Numbers of things in sentences: `1 partition`, `2 partitions`. Pure."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return a number with its noun."""
    return f"{number} {plural(number, thing)}"


def plural(number: float, thing: str) -> str:
    """Return a noun in its form for that number."""
    if number == 1:
        return thing
    if thing.endswith("y") and not thing.endswith("ay"):
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith("ch") else f"{thing}s"
