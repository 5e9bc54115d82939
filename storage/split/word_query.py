"""Which words a record must have if a condition is true for it (`storage.words`)."""

from __future__ import annotations

from storage.condition.condition import Among, AnyOf, Contains, Every, Like, Part, Within
from storage.words.query import (
    EVERYTHING,
    NOTHING,
    AllOf,
    OneOf,
    Query,
    query_of_bytes,
    query_of_key,
)

_MOST_ALTERNATIVES = 256
"""For more, reading a page for each takes longer than reading the blocks."""


def query_of(part: Part) -> Query:
    """Return a query that is true for all records for which the part is true."""
    if isinstance(part, Every):
        return _all_of([query_of(each) for each in part.parts])
    if isinstance(part, AnyOf):
        return _one_of([query_of(each) for each in part.parts])
    if isinstance(part, Within) or not isinstance(part, Among | Like | Contains) or part.is_not:
        return EVERYTHING
    if isinstance(part, Contains):
        found = _one_of(
            [query_of_bytes(word, starts=part.whole, ends=part.whole) for word in part.words]
        )
    elif isinstance(part, Like):
        last = len(part.tokens) - 1
        found = _all_of(
            [
                query_of_bytes(token, starts=number == 0, ends=number == last)
                for number, token in enumerate(part.tokens)
                if isinstance(token, bytes)
            ]
        )
    elif part.column == "key":
        return _one_of([query_of_key(key) for key in part.operands])
    else:
        found = _one_of([query_of_bytes(each, starts=True, ends=True) for each in part.operands])
    if part.column == "header" and not isinstance(part, Contains):
        # A word may be in no header: null contains the empty one.
        found = _all_of([query_of_bytes(part.header, starts=True, ends=True), found])
    return found


def _all_of(parts: list[Query]) -> Query:
    if NOTHING in parts:
        return NOTHING
    left = tuple(each for each in parts if each != EVERYTHING)
    return left[0] if len(left) == 1 else AllOf(left)


def _one_of(parts: list[Query]) -> Query:
    if EVERYTHING in parts:
        return EVERYTHING
    left = tuple(each for each in parts if each != NOTHING)
    if len(left) > _MOST_ALTERNATIVES:
        return EVERYTHING
    return left[0] if len(left) == 1 else OneOf(left)
