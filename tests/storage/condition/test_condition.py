"""storage.condition: for which records a condition is true, beside SQL's logic of three values."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.condition import intervals
from storage.condition.condition import NEVER, AnyOf, Condition, Contains, Every, Part
from storage.condition.parse import parse
from storage.record.batch import Record, decode_plain, encode
from storage.record.columns._columns import decode_columns
from storage.record.columns._predicate import kept, matches
from tests.storage.condition.three_values import Words, conditions, is_true, records


class Place(NamedTuple):
    topic: str
    partition: int


PLACES = (Place("orders", 0), Place("orders", 1), Place("events", 0))


@given(words=conditions(), found=st.lists(records(), min_size=1, max_size=6))
def test_the_same_records_as_by_three_values(words: Words, found: list[Record]) -> None:
    found = [record._replace(offset=number) for number, record in enumerate(found)]
    condition = parse(words.text)
    batch = encode(found)
    stored = list(decode_plain(batch))
    for place in PLACES:
        left = condition.of_partition(*place)
        expected = [record for record in stored if is_true(words, place, record)]
        assert kept_of(batch, left) == expected
        if expected:
            assert not left.is_impossible
            assert all(holds(left.offsets(), record.offset) for record in expected)
            assert all(holds(left.times(), record.timestamp) for record in expected)


def kept_of(batch: bytes, condition: Condition) -> list[Record]:
    some = kept(batch, condition.predicate(), 0, 1 << 62)
    return [] if some is None else list(decode_plain(some))


def holds(numbers: intervals.Intervals, number: int) -> bool:
    return intervals.meet(numbers, number, number)


def test_partitions_are_known_beforehand() -> None:
    condition = parse("topic = 'orders' and (partition = 1 or key = 'a')")
    assert condition.of_partition("events", 1).part == NEVER
    assert condition.of_partition("orders", 1).offsets() == intervals.EVERYTHING
    assert condition.of_partition("orders", 1).part != condition.of_partition("orders", 0).part


def test_a_part_of_the_range_only() -> None:
    batch = encode([Record(n, 1, 0, None, b"%d" % n) for n in range(5)])
    some = kept(batch, parse("value <> '2'").predicate(), 1, 4)
    assert some is not None
    assert [record.offset for record in decode_plain(some)] == [1, 3]
    assert kept(batch, parse("value = '0'").predicate(), 1, 4) is None


def test_only_batches_with_the_bytes_are_decided_record_by_record() -> None:
    def judged(part: Part, *stored: Record) -> int:
        batch = encode(stored)
        predicate = Condition(part, "").predicate()
        return decode_columns(batch, 0, len(batch), predicate=predicate).judged

    word, other = (
        Contains("value", (each,), fold=False, whole=False) for each in (b"wo\x04rd", b"other")
    )
    nothing = Record(0, 1, 0, b"key", b"nothing")
    in_value, in_key = nothing._replace(value=b"wo\x04rd"), nothing._replace(key=b"wo\x04rd")
    # The size of the value is between them.
    across = Record(0, 1, 0, b"wo", b"rd")
    has_other = Record(1, 1, 0, None, b"other")
    for part, some, count in (
        (word, (nothing, nothing._replace(offset=1)), 0),
        (word, (in_value, nothing._replace(offset=1)), 2),
        (word, (in_key,), 1),
        (word, (across,), 1),
        (Every((word, other)), (in_value,), 0),
        (Every((word, other)), (in_value, has_other), 2),
        (AnyOf((word, other)), (nothing,), 0),
        (AnyOf((word, other)), (has_other._replace(offset=0),), 1),
        (word.negated(), (nothing,), 1),
    ):
        assert judged(part, *some) == count, (part, some)


# -- text ------------------------------------------------------------------------------------------

texts = st.text("ab%_ä\U0001f600\n", max_size=6)
runs = st.binary(max_size=8) | st.lists(
    st.sampled_from(
        [b"a", b"b", "ä".encode(), "\U0001f600".encode(), b"\xff", b"\xe4\xb8", b"\xed"]
    )
).map(b"".join)


@given(pattern=texts, run=runs)
@example(pattern="%a_b%", run=b"aaab")
def test_like_is_as_a_regular_expression_over_characters(pattern: str, run: bytes) -> None:
    """Malformed bytes are as many characters as Java makes of them; text has no such character."""
    signs = {"%": ".*", "_": "."}
    wanted = "".join(signs.get(char) or re.escape(char) for char in pattern)
    quoted = pattern.replace("\n", "\\n")
    part = parse(f"key like '{quoted}'").predicate()
    batch = encode([Record(0, 1, 0, run, None)])
    found = kept(batch, part, 0, 1) is not None
    expected = re.fullmatch(wanted, as_java(run), re.DOTALL) is not None
    if re.fullmatch("[^_%]+%+[^_%]+", pattern):
        # Spark compares both ends, and lengths.
        expected &= len(pattern.replace("%", "")) <= lead_bytes(run)
    assert found == expected


def lead_bytes(run: bytes) -> int:
    count = at = 0
    while at < len(run):
        sizes = {0xC2 <= run[at] <= 0xDF: 2, 0xE0 <= run[at] <= 0xEF: 3, 0xF0 <= run[at] <= 0xF4: 4}
        count, at = count + 1, at + sizes.get(True, 1)
    return count


def as_java(run: bytes) -> str:
    # A surrogate's three bytes are one malformed character to Java, and three to Python.
    return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]", b"\xff", run).decode(errors="replace")


@given(run=st.binary(max_size=80), data=st.data())
def test_contains_finds_bytes_wherever_they_are_and_nothing_else(
    run: bytes, data: st.DataObject
) -> None:
    at, size = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 40))
    needle = data.draw(st.just(run[at : at + size]) | st.binary(max_size=3))
    tokens: tuple[Any, ...] = ("%", needle, "%") if needle else ("%",)
    assert matches(("like", "key", b"", False, 0, *tokens), run) == (needle in run)


@pytest.mark.parametrize("size", [255, 256, 257, 1000])
def test_long_words(size: int) -> None:
    """… are searched for in another way."""
    word = bytes(number % 251 for number in range(size))
    for before in (0, 1, 17):
        run = b"\xff" * before + word
        for fold, stored in ((False, run), (True, run.upper())):
            part = ("contains", "key", b"", False, fold, False, word.lower() if fold else word)
            assert matches(part, stored + b"a")
            assert matches(part, stored)
            assert not matches(part, stored[:-1])
        assert not matches(("contains", "key", b"", False, False, False, word), run.upper())


@given(
    needle=st.text("aA -", min_size=1, max_size=6).map(str.encode),
    repeated=st.integers(1, 300),
    run=st.text("aA -", max_size=6).map(str.encode),
    more=st.integers(0, 300),
    fold=st.booleans(),
)
def test_whole_words_of_any_size(
    needle: bytes, repeated: int, run: bytes, more: int, fold: bool
) -> None:
    needle = (needle * repeated)[:600]
    needle = needle.lower() if fold else needle
    run = needle[1:] + needle * 2 + run * more + needle
    pattern = rb"(?<![0-9A-Za-z_])%s(?![0-9A-Za-z_])" % re.escape(needle)
    found = re.search(pattern, run, re.IGNORECASE if fold else 0)
    part = ("contains", "key", b"", False, fold, True, needle)
    assert matches(part, run) == (found is not None)


@pytest.mark.parametrize("size", [1, 100, 200])
def test_a_whole_word_that_overlaps_a_part_of_a_longer_one(size: int) -> None:
    needle = b"a" + b" a" * size
    part = ("contains", "key", b"", False, False, True, needle)
    assert not matches(part, b"x" + needle)
    assert matches(part, b"x" + needle + b" a")


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("size", [1, 80, 300, 300_000])
def test_whole_words_are_found_in_linear_time(size: int, fold: bool) -> None:
    """In each word of the bytes begins a part that fits, and it is no whole word. If the search
    read the rest of the bytes or of the needle again for each, it would take hours.
    """
    needle = b"a" + b" aa" * (size // 3) + b" a" * (size > 1)
    part = ("contains", "key", b"", False, fold, True, needle)
    assert not matches(part, b"aa " * 3_000_000)
    assert not matches(part, b"a" * 9_000_000)
    assert matches(part, b"aa " * 3_000_000 + needle)


ORDERS: dict[str, Callable[[bytes, bytes], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@given(one=st.binary(max_size=3), other=st.binary(max_size=3))
def test_bytes_compare_without_a_sign(one: bytes, other: bytes) -> None:
    for order, compare in ORDERS.items():
        assert matches(("ordered", "key", b"", order, other), one) == compare(one, other)
    assert not matches(("ordered", "key", b"", "<", other), None)


def test_the_last_header_of_a_name_counts() -> None:
    headers = (("n", b"1"), ("m", None), ("n", b"2"), ("n2", b"3"))
    batch = encode([Record(0, 1, 0, None, None, headers)])
    for text, found in (
        ("header('n') = '2'", True),
        ("header('n') = '1'", False),
        ("header('m') is null", True),
        ("header('') is null", True),
        ("header('n2') = '3'", True),
        ("header('n2') <> '4'", True),
        ("header('none') <> '4'", False),
    ):
        assert bool(kept_of(batch, parse(text))) == found, text


# -- numbers ---------------------------------------------------------------------------------------

sets = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9))).map(
    lambda pairs: intervals.union(intervals.interval(*pair) for pair in pairs)
)


@given(one=sets, other=sets)
def test_intervals_are_sets(one: intervals.Intervals, other: intervals.Intervals) -> None:
    def members(numbers: intervals.Intervals) -> set[int]:
        return {number for number in range(-12, 12) if holds(numbers, number)}

    everything = set(range(-12, 12))
    assert members(intervals.union([one, other])) == members(one) | members(other)
    assert members(intervals.intersection([one, other])) == members(one) & members(other)
    assert members(intervals.complement(one)) == everything - members(one)
    assert intervals.complement(intervals.complement(one)) == one
    assert intervals.intersection([]) == intervals.EVERYTHING


def test_a_tree_that_is_too_deep_is_refused() -> None:
    tree: tuple[Any, ...] = ("every",)
    for _ in range(300):
        tree = ("every", tree)
    with pytest.raises(ValueError, match="too deeply"):
        matches(tree, None)
