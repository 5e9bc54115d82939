"""Which entries bytes have (`layout`), and so which entries a searched record must have.

A *word* is a run of ASCII letters, digits and `_`, in lower case. Each valid UTF-8 character of
several bytes is an entry. Four neighbouring words that are numbers of at most three digits, joined
by single dots, are one more, so that an IPv4 address is found although its numbers are everywhere.

Bytes that contain a needle have its entries, except for a word at its start or end, which may be a
part of a longer one there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_MOST_ENTRIES = 16
"""Entries of a needle that are looked up: the longest ones."""

_WORD = re.compile(rb"[A-Za-z0-9_]+")
_CHARACTER = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]"
    rb"|(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f])[\x80-\xbf]"
    rb"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf]{2}"
)
# A match is empty, so that the next one may begin inside the window.
_WINDOW = re.compile(rb"(?<![A-Za-z0-9_])(?=((?:[0-9]{1,3}\.){3}[0-9]{1,3})(?![A-Za-z0-9_]))")


@dataclass(frozen=True, slots=True)
class Entry:
    """The records have this entry; `is_key`: it is a whole key."""

    data: bytes
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class AllOf:
    """All are true; also without parts."""

    parts: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of them is true; never without parts."""

    parts: tuple[Query, ...]


Query: TypeAlias = Entry | AllOf | OneOf

EVERYTHING: Query = AllOf(())
NOTHING: Query = OneOf(())


def entries(data: bytes, *, starts: bool = True, ends: bool = True) -> Iterator[bytes]:
    """Yield the entries that bytes have which contain `data`.

    `starts`, `ends`: no word there begins before `data`, or extends beyond it.
    """
    low, high = 0 if starts else 1, len(data) if ends else len(data) - 1
    for match in _WORD.finditer(data):
        if low <= match.start() and match.end() <= high:
            yield match[0].lower()
    for match in _WINDOW.finditer(data):
        if low <= match.start() and match.end(1) <= high:
            yield match[1]
    for match in _CHARACTER.finditer(data):
        yield match[0]


def query_of_bytes(data: bytes, *, starts: bool, ends: bool) -> Query:
    """Return what records must have that contain `data`. `starts`, `ends`: those of `entries`."""
    found = set(entries(data, starts=starts, ends=ends))
    # A window has its numbers.
    found -= {number for each in found if b"." in each for number in each.split(b".")}
    longest = sorted(found, key=lambda each: (-len(each), each))[:_MOST_ENTRIES]
    return AllOf(tuple(map(Entry, longest)))


def query_of_key(key: bytes) -> Query:
    """Return what records with this key must have."""
    return Entry(key, is_key=True)
