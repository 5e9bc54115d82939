"""Numbers of things in sentences: `1 partition`, `2 partitions`. Pure."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return how many of a thing there are."""
    return f"{number} {plural(number, thing)}"


def plural(number: float, thing: str) -> str:
    """Return the word for so many of a thing."""
    if number == 1:
        return thing
    if thing.endswith("y") and not thing.endswith("ay"):
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith("ch") else f"{thing}s"
