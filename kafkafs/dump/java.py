"""Conventions of Java that are visible in the output of its programs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from decimal import Decimal

_LONG = re.compile(r"[+-]?[0-9]+")


def file_name(given: str) -> str:
    """Return a path as `java.io.File` keeps it: without doubled and trailing slashes."""
    shortened = re.sub("/+", "/", given)
    return shortened.rstrip("/") or shortened[:1]


def absolute(path: str) -> str:
    """Return `File.getAbsolutePath`, which keeps dots and links."""
    return path if path.startswith("/") else f"{os.getcwd()}/{path}".rstrip("/")


def base_name(path: str) -> str:
    return path[path.rfind("/") + 1 :]


def parse_long(digits: str, bits: int = 64) -> int:
    """Parse as `Long.parseLong`, or with 32 bits as `Integer.parseInt`. ValueError."""
    if _LONG.fullmatch(digits) is None or not -(1 << bits - 1) <= int(digits) < 1 << bits - 1:
        raise ValueError(f'"{digits}" is not a number of {bits} bits')
    return int(digits)


def double_text(number: float) -> str:
    """Return `Double.toString` since Java 19: the shortest digits that give this number."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        text = format(Decimal(repr(number)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, _ = Decimal(repr(number)).normalize().as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' * sign}{digits[0]}.{rest}E{Decimal(repr(number)).adjusted()}"


def map_order(keys: Iterable[str]) -> list[str]:
    """Return the order of a HashMap's keys after `computeIfAbsent` of each of `keys`.

    `computeIfAbsent` puts a key before the others of its bucket.
    """
    inserted = list(keys)
    buckets = 16
    while len(inserted) > buckets * 3 // 4 + 1:
        buckets *= 2
    inserted.reverse()
    return sorted(inserted, key=lambda key: _spread(key) % buckets)


def _spread(text: str) -> int:
    """Return `String.hashCode` as HashMap uses it."""
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        hashed = 31 * hashed + int.from_bytes(units[at : at + 2], "big") & 0xFFFFFFFF
    return hashed ^ hashed >> 16
