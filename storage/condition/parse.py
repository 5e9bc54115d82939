"""Makes a `Condition` from text: a small part of SQL's grammar, parsed by sqlglot as Spark's SQL.

    and  or  not  ( )  =  <>  <  <=  >  >=  between  in  like … escape  is [not] null

over the columns topic, partition, offset, timestamp, timestampType, key, value and header('name').
A column is compared with literals only: quoted text or X'…' bytes for text and bytes, whole
numbers, and times (`literals`) for `timestamp`. Bytes and text compare as bytes.

All other syntax of sqlglot is refused. `InvalidCondition` has the place in the text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import tzinfo
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from storage.condition import literals
from storage.condition.condition import (
    Among,
    AnyOf,
    Condition,
    Every,
    IsNull,
    Like,
    Number,
    Order,
    Ordered,
    Part,
    Text,
    Within,
)
from storage.condition.intervals import HIGHEST, LOWEST, interval, union

if TYPE_CHECKING:
    from sqlglot import Token, exp

_T = TypeVar("_T")

_NUMBERS = ("partition", "offset", "timestamp", "timestampType")
_TEXTS = ("topic", "key", "value")
_NAMES = {name.lower(): name for name in (*_NUMBERS, *_TEXTS)}
COLUMNS = (*_TEXTS, *_NUMBERS, "header('name')")

_WHOLE = re.compile(r"[0-9]{1,40}", re.ASCII)
_DEEPEST = 100
# Java's replacement for malformed bytes, which SQL cannot tell from these; we could.
_REPLACEMENT = "\ufffd"


class InvalidCondition(ValueError):  # noqa: N818 - as the errors of storage
    """The mistake in a condition, and its place: `at` counts its characters from 0."""

    def __init__(self, reason: str, text: str, at: int) -> None:
        super().__init__(f"{reason}, at character {at + 1} of {text!r}")
        self.at = at


def parse(text: str, *, zone: tzinfo | None = None, now_ms: int | None = None) -> Condition:
    """Return the condition of a text. Errors: InvalidCondition.

    `zone`: of times without a zone; None: the process's. `now_ms`: the origin of times before now;
    None: the wall clock.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    parser = _Parser(text, zone, now)
    part = parser.parse()
    return Condition(part, text, now, parser.is_relative, parser.is_local)


def in_zone(condition: Condition, zone: tzinfo) -> Condition:
    """Return the condition of the same text, with another zone for times without one."""
    return parse(condition.text, zone=zone, now_ms=condition.now_ms)


class _Column(NamedTuple):
    name: Number | Text
    header: bytes = b""

    @property
    def is_number(self) -> bool:
        return self.name in _NUMBERS


def _inner(node: exp.Expr) -> exp.Expr:
    """Return the node inside parentheses."""
    from sqlglot import exp

    while isinstance(node, exp.Paren):
        node = node.this
    return node


class _Parser:
    """Parses one text."""

    def __init__(self, text: str, zone: tzinfo | None, now_ms: int) -> None:
        self._text = text
        self._tokens: list[Token] = []
        self._zone = zone
        self._now_ms = now_ms
        self.is_relative = False
        self.is_local = False

    def parse(self) -> Part:
        from sqlglot import errors

        try:
            return self._part(self._tree(), 0)
        except errors.ParseError as error:
            at, what = self._place_of(error)
            raise InvalidCondition(f"unexpected {what}", self._text, at) from None
        except errors.TokenError:
            at = max(map(self._text.rfind, "'\"`"), default=0)
            raise InvalidCondition("unterminated quote", self._text, max(at, 0)) from None
        except RecursionError:
            raise InvalidCondition("nested too deeply", self._text, 0) from None

    def _tree(self) -> exp.Expr:
        import sqlglot
        from sqlglot import TokenType, exp

        tokens = self._tokens = sqlglot.tokenize(self._text, read="spark")
        if not tokens:
            raise InvalidCondition("the condition is empty", self._text, 0)
        for token in tokens:
            if token.token_type == TokenType.SEMICOLON or token.comments:
                what = "a comment" if token.comments else "';'"
                raise InvalidCondition(f"unexpected {what}", self._text, token.start)
        text = self._text
        for before, token in pairwise(tokens):
            # sqlglot knows X'61', and not X"61".
            is_next = token.token_type == TokenType.STRING and token.start == before.end + 1
            if is_next and before.text in ("X", "x"):
                start, end = token.start, token.end
                text = f"{text[:start]}'{text[start + 1 : end]}'{text[end + 1 :]}"
        return sqlglot.parse_one(text, read="spark", into=exp.Condition)

    def _place_of(self, error: Exception) -> tuple[int, str]:
        """Return the place at which a text does not parse, and the word there."""
        found = getattr(error, "errors", None) or [{}]
        word = str(found[0].get("highlight") or "")
        line, column = int(found[0].get("line") or 1), int(found[0].get("col") or 0)
        lines = self._text.splitlines(keepends=True)[: line - 1]
        at = sum(map(len, lines)) + column - len(word)
        return min(max(at, 0), len(self._text)), repr(word) if word else "end"

    def _wrong(self, reason: str, node: exp.Expr) -> InvalidCondition:
        starts = [each.meta["start"] for each in node.walk() if "start" in each.meta]
        return InvalidCondition(reason, self._text, min(starts, default=0))

    # -- the tree ------------------------------------------------------------------------------

    def _part(self, node: exp.Expr, depth: int) -> Part:
        from sqlglot import exp

        if depth > _DEEPEST:
            raise self._wrong("nested too deeply", node)
        if isinstance(node, exp.Paren):
            return self._part(self._only(node).this, depth + 1)
        if isinstance(node, exp.And | exp.Or):
            parts = tuple(self._part(each, depth + 1) for each in self._only(node).flatten())
            return Every(parts) if isinstance(node, exp.And) else AnyOf(parts)
        if isinstance(node, exp.Not):
            return self._part(self._only(node).this, depth + 1).negated()
        if isinstance(node, exp.Escape) and isinstance(node.this, exp.Like):
            return self._like(node.this, self._escape(self._only(node).expression))
        if type(node) is exp.Like:
            return self._like(node, "\\")
        if type(node) is exp.Is:
            return self._is_null(node)
        if isinstance(node, exp.Between):
            column = self._column(self._only(node, "low", "high").this)
            low = self._compared(column, ">=", node.args["low"])
            return Every((low, self._compared(column, "<=", node.args["high"])))
        if isinstance(node, exp.In) and node.expressions:
            return self._among(self._column(self._only(node, "expressions").this), node.expressions)
        if type(node) in (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE):
            return self._comparison(self._only(node))
        raise self._wrong("this condition is not supported", node)

    def _only(self, node: exp.Expr, *names: str) -> exp.Expr:
        """Return the node, if it has only `this`, `expression` and these: no word is ignored."""
        others = node.args.keys() - {"this", "expression", *names}
        if any(node.args[name] for name in others):
            raise self._wrong("this condition is not supported", node)
        return node

    def _is_null(self, node: exp.Expr) -> Part:
        from sqlglot import exp

        column = self._column(self._only(node, "negate").this)
        if type(node.expression) is not exp.Null:
            raise self._wrong("only null may follow 'is'", node)
        found: Part = IsNull(cast("Text", column.name), column.header)
        if column.is_number:
            found = Within(cast("Number", column.name), ())
        return found.negated() if node.args.get("negate") else found

    def _comparison(self, node: exp.Expr) -> Part:
        from sqlglot import exp

        orders: dict[type[exp.Expr], Order] = {
            exp.LT: "<",
            exp.LTE: "<=",
            exp.GT: ">",
            exp.GTE: ">=",
        }
        flipped: dict[Order, Order] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        column, operand = _inner(node.this), _inner(node.expression)
        order = orders.get(type(node))
        if isinstance(operand, exp.Column | exp.Anonymous) and not isinstance(
            column, exp.Column | exp.Anonymous
        ):
            column, operand = operand, column
            order = None if order is None else flipped[order]
        found = self._column(column)
        if order is not None:
            return self._compared(found, order, operand)
        same = self._among(found, [operand])
        return same.negated() if isinstance(node, exp.NEQ) else same

    def _column(self, node: exp.Expr) -> _Column:
        from sqlglot import exp

        node = _inner(node)
        if isinstance(node, exp.Column) and len(node.parts) == 1:
            name = _NAMES.get(node.name.lower())
            if name is None:
                columns = ", ".join(COLUMNS)
                raise self._wrong(
                    f"there is no column {node.name!r}; the columns are {columns}", node
                )
            return _Column(cast("Number | Text", name))
        if isinstance(node, exp.Anonymous) and node.name.lower() == "header":
            given = node.expressions
            if len(given) != 1 or not self._is_text(given[0]):
                raise self._wrong("header() takes one name in quotes", node)
            name = self._string(given[0])
            return _Column("header", self._checked(given[0], name.encode))
        raise self._wrong("expected a column", node)

    # -- comparisons ---------------------------------------------------------------------------

    def _compared(self, column: _Column, order: Order, node: exp.Expr) -> Part:
        if not column.is_number:
            name = cast("Text", column.name)
            return Ordered(name, order, self._bytes(node), column.header)
        number, scale = self._number(column, node)
        floor, ceiling = number // scale, -(-number // scale)
        within = {
            "<": (LOWEST, ceiling - 1),
            "<=": (LOWEST, floor),
            ">": (floor + 1, HIGHEST),
            ">=": (ceiling, HIGHEST),
        }
        return Within(cast("Number", column.name), interval(*within[order]))

    def _among(self, column: _Column, nodes: list[exp.Expr]) -> Part:
        if not column.is_number:
            operands = tuple(sorted({self._bytes(node) for node in nodes}))
            return Among(cast("Text", column.name), operands, column.header)
        numbers = [self._number(column, node) for node in nodes]
        whole = (number // scale for number, scale in numbers if number % scale == 0)
        return Within(cast("Number", column.name), union(interval(each, each) for each in whole))

    def _like(self, node: exp.Expr, escape: str) -> Part:
        column = self._column(node.this)
        if column.is_number:
            raise self._wrong(f"LIKE works only on text, and {column.name} is not text", node)
        text = self._string(node.expression)
        if _REPLACEMENT in text:
            raise self._wrong("a pattern cannot contain U+FFFD", node.expression)
        tokens = self._checked(node.expression, lambda: literals.pattern(text, escape))
        is_not = bool(self._only(node, "negate").args.get("negate"))
        fewest = literals.fewest_characters(text, escape)
        return Like(cast("Text", column.name), tokens, column.header, is_not, fewest)

    def _escape(self, node: exp.Expr) -> str:
        text = self._string(node)
        if len(text) != 1:
            raise self._wrong("ESCAPE takes one character", node)
        return text

    # -- literals ------------------------------------------------------------------------------

    def _checked(self, node: exp.Expr, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except (ValueError, OverflowError) as error:
            reason = "not valid Unicode text" if isinstance(error, UnicodeError) else str(error)
            raise self._wrong(reason, node) from None

    def _is_text(self, node: exp.Expr) -> bool:
        from sqlglot import exp

        return (type(node) is exp.Literal and node.is_string) or type(node) is exp.RawString

    def _string(self, node: exp.Expr) -> str:
        from sqlglot import exp

        node = _inner(node)
        if isinstance(node, exp.Concat):
            return self._with_quotes(node)
        if not self._is_text(node):
            raise self._wrong("expected text in quotes", node)
        written = self._text[node.meta["start"] : node.meta["end"] + 1]
        if type(node) is exp.RawString:
            return written[2:-1]
        return self._checked(node, lambda: literals.unescaped(written[1:-1]))

    def _with_quotes(self, node: exp.Concat) -> str:
        """Return a text with doubled quotes: sqlglot splits it into several texts."""
        from sqlglot import TokenType

        text = self._text
        starts = [token.start for token in self._tokens]
        first = starts.index(node.expressions[0].meta["start"])
        tokens = self._tokens[first : first + len(node.expressions)]
        if not all(token.token_type == TokenType.STRING for token in tokens) or any(
            end.start != start.end + 1 or text[start.end] != text[end.start]
            for start, end in pairwise(tokens)
        ):
            raise self._wrong("unexpected second text; write a quote within text as \\'", node)
        parts = [text[token.start + 1 : token.end] for token in tokens]
        quote = text[tokens[0].start]
        return self._checked(node, lambda: quote.join(map(literals.unescaped, parts)))

    def _bytes(self, node: exp.Expr) -> bytes:
        from sqlglot import exp

        node = _inner(node)
        if type(node) is exp.HexString:
            if self._text[node.meta["start"]] == "0":
                raise self._wrong("write bytes as X'61'", node)
            digits = str(node.this)
            digits = "0" * (len(digits) % 2) + digits
            return self._checked(node, lambda: bytes.fromhex(digits))
        return self._checked(node, self._string(node).encode)

    def _number(self, column: _Column, node: exp.Expr) -> tuple[int, int]:
        """Return a number, and how many of it are one unit of the column."""
        from sqlglot import exp

        node = _inner(node)
        if column.name == "timestamp":
            if not self._is_text(node):
                raise self._wrong("expected a time in quotes", node)
            text = self._string(node)
            found = self._checked(node, lambda: literals.moment(text, self._zone, self._now_ms))
            self.is_relative |= found.is_relative
            self.is_local |= found.is_local
            return found.us, 1000
        sign = 1
        if isinstance(node, exp.Neg):
            node, sign = _inner(node.this), -1
        if type(node) is exp.Literal and not node.is_string and _WHOLE.fullmatch(node.name):
            return sign * int(node.name), 1
        raise self._wrong(f"compare {column.name} with a whole number", node)
