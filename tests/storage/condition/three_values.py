"""Conditions as words and as a plain twin: SQL's logic of three values, without any rewriting."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

from hypothesis import strategies as st

from storage.record.batch import Record

# Of these times, and some around them, the records of the tests are.
EPOCH_MS = 1_700_000_000_000

Value = int | bytes | None


class Placed(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


class Words(NamedTuple):
    """A condition's text; `value` gives True, False, or None for unknown."""

    text: str
    value: Callable[[Placed, Record], bool | None]


def is_true(words: Words, place: Placed, record: Record) -> bool:
    return words.value(place, record) is True


# -- columns ---------------------------------------------------------------------------------------


def _header(name: str) -> Callable[[Placed, Record], Value]:
    def get(place: Placed, record: Record) -> Value:
        return dict(record.headers).get(name)

    return get


NUMBERS: dict[str, Callable[[Placed, Record], Value]] = {
    "partition": lambda place, record: place.partition,
    "offset": lambda place, record: record.offset,
    "timestamp": lambda place, record: record.timestamp,
    "timestampType": lambda place, record: record.timestamp_type,
}
TEXTS: dict[str, Callable[[Placed, Record], Value]] = {
    "topic": lambda place, record: place.topic.encode(),
    "key": lambda place, record: record.key,
    "value": lambda place, record: record.value,
    "header('h')": _header("h"),
    "header('g')": _header("g"),
}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

some_bytes = st.sampled_from(
    [b"", b"a", b"b", b"ab", b"aab", b"\xff", b"a\xffb", "ä".encode(), b"a%", b"orders"]
)
number_of = {
    "partition": st.integers(-1, 2),
    "offset": st.integers(-1, 12),
    "timestamp": st.sampled_from([-1, *range(EPOCH_MS - 2, EPOCH_MS + 4)]),
    "timestampType": st.integers(-1, 2),
}
patterns = st.text("ab%_", max_size=4)


def number_literal(column: str, number: int) -> str:
    if column != "timestamp":
        return str(number)
    moment = datetime.fromtimestamp(number // 1000, UTC).replace(microsecond=number % 1000 * 1000)
    return f"'{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z'"


def bytes_literal(data: bytes) -> str:
    return f"'{data.decode()}'" if data.isalnum() else f"X'{data.hex()}'"


# -- conditions ------------------------------------------------------------------------------------


def _known(get: Callable[[Placed, Record], Value], test: Callable[[Any], bool]) -> Any:
    def value(place: Placed, record: Record) -> bool | None:
        found = get(place, record)
        return None if found is None else test(found)

    return value


@st.composite
def comparisons(draw: st.DrawFn) -> Words:
    column = draw(st.sampled_from([*NUMBERS, *TEXTS, "key", "value", "timestamp", "offset"]))
    literal: Callable[[Any], str] = bytes_literal
    operands: st.SearchStrategy[Any] = some_bytes
    get = TEXTS.get(column) or NUMBERS[column]
    if column in NUMBERS:
        operands, literal = number_of[column], partial(number_literal, column)
    kinds = ["compare", "between", "in", "null"] + ["like"] * (column in TEXTS)
    kind = draw(st.sampled_from(kinds))
    word = draw(st.sampled_from(["", "not "]))
    is_not = bool(word)
    if kind == "compare":
        sign, operand = draw(st.sampled_from(list(OPERATORS))), draw(operands)
        compare = OPERATORS[sign]
        text = f"{column} {sign} {literal(operand)}"
        return Words(text, _known(get, lambda found: compare(found, operand)))
    if kind == "between":
        low, high = draw(operands), draw(operands)
        text = f"{column} {word}between {literal(low)} and {literal(high)}"
        return Words(text, _known(get, lambda found: (low <= found <= high) != is_not))
    if kind == "in":
        several = draw(st.lists(operands, min_size=1, max_size=3))
        text = f"{column} {word}in ({', '.join(map(literal, several))})"
        return Words(text, _known(get, lambda found: (found in several) != is_not))
    if kind == "null":
        text = f"{column} is {word}null"
        return Words(text, lambda place, record: (get(place, record) is None) != is_not)
    pattern = draw(patterns)
    wanted = "".join({"%": ".*", "_": "."}.get(char, char) for char in pattern)

    def like(found: bytes) -> bool:
        text = found.decode(errors="replace")
        return (re.fullmatch(wanted, text, re.DOTALL) is not None) != is_not

    return Words(f"{column} {word}like '{pattern}'", _known(get, like))


def _not(words: Words) -> Words:
    def value(place: Placed, record: Record) -> bool | None:
        found = words.value(place, record)
        return None if found is None else not found

    return Words(f"not ({words.text})", value)


def _joined(word: str, decisive: bool, several: Sequence[Words]) -> Words:
    def value(place: Placed, record: Record) -> bool | None:
        found = [each.value(place, record) for each in several]
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    return Words(f" {word} ".join(f"({each.text})" for each in several), value)


def conditions() -> st.SearchStrategy[Words]:
    def larger(smaller: st.SearchStrategy[Words]) -> st.SearchStrategy[Words]:
        several = st.lists(smaller, min_size=2, max_size=3)
        return (
            smaller.map(_not)
            | several.map(lambda parts: _joined("and", False, parts))
            | several.map(lambda parts: _joined("or", True, parts))
        )

    return st.recursive(comparisons(), larger, max_leaves=5)


# -- records ---------------------------------------------------------------------------------------


def records() -> st.SearchStrategy[Record]:
    """Records of one batch; the offset is the caller's."""
    values = st.none() | some_bytes
    headers = st.lists(st.tuples(st.sampled_from(["h", "g"]), values), max_size=2).map(tuple)
    return st.builds(
        Record,
        st.just(0),
        number_of["timestamp"],
        st.just(0),
        values,
        values,
        headers,
    )
