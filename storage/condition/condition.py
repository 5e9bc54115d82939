"""A parsed condition: its possible partitions, offsets and times, and its predicate for records.

SQL's logic has three values: a comparison with null is neither true nor false, and neither is its
negation. A condition has no `not` above other parts: the parser pushes it down to the comparisons,
as Kleene's logic allows (`not (a and b)` is `not a or not b`), and each of these is "not true" for
null in both forms. So whether a condition is *true* needs two values only.

Times are in ms, as those of records are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from storage.condition.intervals import (
    EVERYTHING,
    NOTHING,
    Intervals,
    complement,
    intersection,
    meet,
    union,
)
from storage.record.columns._predicate import Predicate, matches

Number: TypeAlias = Literal["partition", "offset", "timestamp", "timestampType"]
Text: TypeAlias = Literal["topic", "key", "value", "header"]
Order: TypeAlias = Literal["<", "<=", ">", ">="]

NEGATED: dict[Order, Order] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class Within:
    """The number is one of these."""

    column: Number
    numbers: Intervals

    def negated(self) -> Part:
        return Within(self.column, complement(self.numbers))


@dataclass(frozen=True, slots=True)
class Among:
    """The bytes are among these; `is_not`: there are bytes, and they are not."""

    column: Text
    operands: tuple[bytes, ...]
    """In rising order."""
    header: bytes = b""
    is_not: bool = False

    def negated(self) -> Part:
        return replace(self, is_not=not self.is_not)


@dataclass(frozen=True, slots=True)
class Ordered:
    """The bytes are less or greater than the operand, compared as unsigned bytes."""

    column: Text
    order: Order
    operand: bytes
    header: bytes = b""

    def negated(self) -> Part:
        return replace(self, order=NEGATED[self.order])


@dataclass(frozen=True, slots=True)
class Like:
    """The bytes match; `is_not`: there are bytes, and they do not.

    `tokens`: bytes; "_", which stands for a character; "%", which stands for any bytes. Neither two
    of bytes nor two "%" follow each other. `fewest`: the minimum of characters in the bytes, as
    Spark counts them (`literals.fewest_characters`).
    """

    column: Text
    tokens: tuple[bytes | str, ...]
    header: bytes = b""
    is_not: bool = False
    fewest: int = 0

    def negated(self) -> Part:
        return replace(self, is_not=not self.is_not)


@dataclass(frozen=True, slots=True)
class Contains:
    """The bytes contain one of the words, as `LC_ALL=C grep -F` finds them; null is no bytes.

    `fold`: the case of ASCII letters does not count. `whole`: a word is no part of a longer one.
    """

    column: Text
    words: tuple[bytes, ...]
    fold: bool = False
    whole: bool = False
    header: bytes = b""
    is_not: bool = False

    def negated(self) -> Part:
        return replace(self, is_not=not self.is_not)


@dataclass(frozen=True, slots=True)
class IsNull:
    """There are no bytes; `is_not`: there are."""

    column: Text
    header: bytes = b""
    is_not: bool = False

    def negated(self) -> Part:
        return replace(self, is_not=not self.is_not)


@dataclass(frozen=True, slots=True)
class Every:
    """All of the parts are true; also without parts."""

    parts: tuple[Part, ...]

    def negated(self) -> Part:
        return AnyOf(tuple(part.negated() for part in self.parts))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of the parts is true; never without parts."""

    parts: tuple[Part, ...]

    def negated(self) -> Part:
        return Every(tuple(part.negated() for part in self.parts))


OfBytes: TypeAlias = Among | Ordered | Like | Contains | IsNull
Part: TypeAlias = Within | OfBytes | Every | AnyOf

ALWAYS: Part = Every(())
NEVER: Part = AnyOf(())


class Condition(NamedTuple):
    """A parsed condition.

    `text`: its source, parsed at `now_ms`. `is_relative`: it has a time before that; `is_local`:
    one without a zone.
    """

    part: Part
    text: str
    now_ms: int = 0
    is_relative: bool = False
    is_local: bool = False

    @property
    def is_impossible(self) -> bool:
        """Whether it is true for no record, as far as is known without reading."""
        return self.part == NEVER

    @property
    def is_certain(self) -> bool:
        """Whether it is true for all records, as far as is known without reading."""
        return self.part == ALWAYS

    def of_partition(self, topic: str, partition: int) -> Condition:
        """Return the rest of the condition for the records of a partition."""
        return self._replace(part=_of_partition(self.part, topic.encode(), partition))

    def offsets(self) -> Intervals:
        """Return the offsets for which it may be true."""
        return _numbers(self.part, "offset")

    def times(self) -> Intervals:
        """Return the timestamps for which it may be true."""
        return _numbers(self.part, "timestamp")

    def predicate(self) -> Predicate:
        """Return the predicate for the records of a partition, from a result of `of_partition`."""
        return Predicate(_tree(self.part))


def _of_partition(part: Part, topic: bytes, partition: int) -> Part:
    """Return the part without its comparisons of topics and partitions."""
    if isinstance(part, Every):
        left = [_of_partition(each, topic, partition) for each in part.parts]
        if NEVER in left:
            return NEVER
        parts = tuple(each for each in left if each != ALWAYS)
        return parts[0] if len(parts) == 1 else Every(parts)
    if isinstance(part, AnyOf):
        left = [_of_partition(each, topic, partition) for each in part.parts]
        if ALWAYS in left:
            return ALWAYS
        parts = tuple(each for each in left if each != NEVER)
        return parts[0] if len(parts) == 1 else AnyOf(parts)
    if isinstance(part, Within):
        if part.column == "partition":
            return ALWAYS if meet(part.numbers, partition, partition) else NEVER
        if part.numbers in (EVERYTHING, NOTHING):
            return ALWAYS if part.numbers else NEVER
    elif part.column == "topic":
        return ALWAYS if matches(_tree(replace(part, column="key")), topic) else NEVER
    return part


def _tree(part: Part) -> tuple[Any, ...]:
    """Return the part in the form of `_predicate`."""
    if isinstance(part, Every):
        return ("every", *map(_tree, part.parts))
    if isinstance(part, AnyOf):
        return ("any", *map(_tree, part.parts))
    if isinstance(part, Within):
        return ("within", part.column, *(bound for pair in part.numbers for bound in pair))
    if isinstance(part, Among):
        return ("among", part.column, part.header, part.is_not, *part.operands)
    if isinstance(part, Ordered):
        return ("ordered", part.column, part.header, part.order, part.operand)
    if isinstance(part, Like):
        return ("like", part.column, part.header, part.is_not, part.fewest, *part.tokens)
    if isinstance(part, Contains):
        words = (word.lower() if part.fold else word for word in part.words)
        return ("contains", part.column, part.header, part.is_not, part.fold, part.whole, *words)
    return ("null", part.column, part.header, part.is_not)


def _numbers(part: Part, column: Number) -> Intervals:
    """Return a superset of the column's numbers for which the part is true."""
    if isinstance(part, Every):
        return intersection(_numbers(each, column) for each in part.parts)
    if isinstance(part, AnyOf):
        return union(_numbers(each, column) for each in part.parts)
    if isinstance(part, Within) and part.column == column:
        return part.numbers
    return EVERYTHING
