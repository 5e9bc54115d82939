"""storage.condition.parse: what a condition's words mean, and where one is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from storage.condition.condition import (
    Among,
    AnyOf,
    Every,
    IsNull,
    Like,
    Ordered,
    Part,
    Within,
)
from storage.condition.intervals import HIGHEST, LOWEST
from storage.condition.parse import InvalidCondition, parse

EIGHT = 1_795_334_400_000  # 2026-11-22T08:00Z


def part(text: str) -> Part:
    return parse(text, zone=UTC, now_ms=EIGHT).part


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("offset = 5", Within("offset", ((5, 5),))),
        ("5 >= offset", Within("offset", ((LOWEST, 5),))),
        ("offset <> 5", Within("offset", ((LOWEST, 4), (6, HIGHEST)))),
        ("offset != 5", Within("offset", ((LOWEST, 4), (6, HIGHEST)))),
        ("OFFSET > -5", Within("offset", ((-4, HIGHEST),))),
        ("offset < 99999999999999999999", Within("offset", ((LOWEST, HIGHEST),))),
        ("offset > 9223372036854775807", Within("offset", ())),
        ("partition in (2, 1, 4)", Within("partition", ((1, 2), (4, 4)))),
        ("timestamptype not in (0)", Within("timestampType", ((LOWEST, -1), (1, HIGHEST)))),
        ("offset is null", Within("offset", ())),
        ("offset is not null", Within("offset", ((LOWEST, HIGHEST),))),
        ("key = 'alice'", Among("key", (b"alice",))),
        ('`KEY` = "alice"', Among("key", (b"alice",))),
        ("key <> X'6a'", Among("key", (b"j",), is_not=True)),
        ("X'6' < value", Ordered("value", ">", b"\x06")),
        ("value in ('b', 'a', 'b')", Among("value", (b"a", b"b"))),
        (
            "key between 'a' and 'b'",
            Every((Ordered("key", ">=", b"a"), Ordered("key", "<=", b"b"))),
        ),
        (
            "key not between 'a' and 'b'",
            AnyOf((Ordered("key", "<", b"a"), Ordered("key", ">", b"b"))),
        ),
        ("not key < 'a'", Ordered("key", ">=", b"a")),
        ("not key > 'a'", Ordered("key", "<=", b"a")),
        ("header('n') is null", IsNull("header", b"n")),
        ("not (header('n') is null)", IsNull("header", b"n", is_not=True)),
        ("topic like 'a%_b'", Like("topic", (b"a", "%", "_", b"b"))),
        ("value like '%%a%%'", Like("value", ("%", b"a", "%"))),
        ("value like '100\\%'", Like("value", (b"100%",))),
        ("value like 'ä%😀'", Like("value", ("ä".encode(), "%", "😀".encode()), fewest=2)),
        ("value like 'a%%b'", Like("value", (b"a", "%", b"b"), fewest=2)),
        ("value like '\\_%b'", Like("value", (b"_", "%", b"b"))),
        ("value not like '!%!!' escape '!'", Like("value", (b"%!",), is_not=True)),
        ("key = 'it\\'s \\u0041\\n\\101'", Among("key", (b"it's A\nA",))),
        ("key = r'a\\b'", Among("key", (b"a\\b",))),
        ("key = 'it''s'''", Among("key", (b"it's'",))),
        ('key in ("say ""hi""", \'b\')', Among("key", (b"b", b'say "hi"'))),
        ("topic like '''%'", Like("topic", (b"'", "%"))),
        ('key = X"616"', Among("key", (b"\x06\x16",))),
        ("((key)) = (('a'))", Among("key", (b"a",))),
        ("(('a')) < ((key))", Ordered("key", ">", b"a")),
        ("((((offset)) in ((5), (6), -(7))))", Within("offset", ((-7, -7), (5, 6)))),
        (
            "topic like ('a%') and key between ('a') and (X'62')",
            Every(
                (
                    Like("topic", (b"a", "%")),
                    Every((Ordered("key", ">=", b"a"), Ordered("key", "<=", b"b"))),
                )
            ),
        ),
        ("key = 'ä'", Among("key", ("ä".encode(),))),
        (
            "not (offset = 1 and (key = 'a' or value is null))",
            AnyOf(
                (
                    Within("offset", ((LOWEST, 0), (2, HIGHEST))),
                    Every(
                        (Among("key", (b"a",), is_not=True), IsNull("value", is_not=True)),
                    ),
                )
            ),
        ),
    ],
)
def test_words_and_what_they_mean(text: str, meaning: Part) -> None:
    assert part(text) == meaning


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("timestamp = '2026-11-22T08:00'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22 08'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T08:00:00.000Z'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T17:00+09:00'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22 17:00:00 Asia/Tokyo'", (EIGHT, EIGHT)),
        ("timestamp >= '2026-11-22T08:00:00.0001'", (EIGHT + 1, HIGHEST)),
        ("timestamp <= '2026-11-22T08:00:00.0001'", (LOWEST, EIGHT)),
        ("timestamp < '2026-11-22T08:00:00.0001'", (LOWEST, EIGHT)),
        ("timestamp > '2026-11-22T08:00:00.0000009'", (EIGHT + 1, HIGHEST)),
        ("timestamp >= '-15m'", (EIGHT - 900_000, HIGHEST)),
        ("timestamp < '-2d'", (LOWEST, EIGHT - 2 * 86_400_000 - 1)),
        ("timestamp < '1970-01-01'", (LOWEST, -1)),
        ("timestamp < '1970'", (LOWEST, -1)),
        ("timestamp < '1970-1'", (LOWEST, -1)),
        ("timestamp = '2026-11-22T17:00 UTC+9'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T17:00GMT+09:00'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T17:00:30+09:00:30'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T17:00:30+090030'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T17:05+9:5'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T17:30+0930'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T00:00 PST'", (EIGHT, EIGHT)),
        ("timestamp = '2026-11-22T03:00 EST'", (EIGHT, EIGHT)),
    ],
)
def test_times(text: str, bounds: tuple[int, int]) -> None:
    assert part(text) == Within("timestamp", (bounds,))


def test_a_time_that_no_record_can_have() -> None:
    assert part("timestamp = '2026-11-22T08:00:00.0001'") == Within("timestamp", ())


def test_a_time_without_a_zone_is_in_the_callers() -> None:
    text = "timestamp = '2026-11-22T08:00'"
    east = parse(text, zone=timezone(timedelta(hours=1)))
    assert east.part == Within("timestamp", ((EIGHT - 3_600_000,) * 2,))
    assert east.is_local
    assert not east.is_relative
    assert not parse("timestamp = '2026-11-22T08:00Z'").is_local
    assert parse("timestamp = '-1h'").is_relative


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's own zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("berlin", [ZoneInfo("Europe/Berlin"), None])
@pytest.mark.usefixtures("in_berlin")
def test_hours_that_a_zone_skips_or_has_twice(berlin: ZoneInfo | None) -> None:
    """As java.time has it, and so Spark."""
    skipped = parse("timestamp = '2026-03-29T02:30'", zone=berlin).part
    assert skipped == part("timestamp = '2026-03-29T01:30Z'")
    twice = parse("timestamp = '2026-10-25T02:30:00.001'", zone=berlin).part
    assert twice == part("timestamp = '2026-10-25T00:30:00.001Z'")
    early = parse("timestamp = '1960-10-25T02:30:00.001'", zone=berlin).part
    assert early == part("timestamp = '1960-10-25T01:30:00.001Z'")


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", 1, "condition is empty"),
        ("   ", 1, "condition is empty"),
        ("key", 1, "not supported"),
        ("key = ", 5, "unexpected '='"),
        ("key = 'a' value = 'b'", 11, "unexpected 'value'"),
        ("key = 'a", 7, "unterminated quote"),
        ("key = 'a'; offset = 1", 10, "unexpected ';'"),
        ("key = 'a' -- b", 7, "a comment"),
        ("offset = 1 and colour = 'a'", 16, "no column 'colour'; the columns are topic"),
        ("orders.key = 'a'", 1, "expected a column"),
        ("key = value", 7, "text in quotes"),
        ("key = null", 1, "text in quotes"),
        ("key = 5", 7, "text in quotes"),
        ("key = lower('A')", 7, "text in quotes"),
        ("lower(key) = 'a'", 1, "expected a column"),
        ("offset = '5'", 10, "a whole number"),
        ("offset = 5.0", 10, "a whole number"),
        ("offset = 1 + 1", 10, "a whole number"),
        ("offset = 1L", 10, "a whole number"),
        ("offset like '5'", 1, "LIKE works only on text"),
        ("timestamp = 5", 13, "a time in quotes"),
        ("timestamp = 'noon'", 13, "not a time"),
        ("timestamp = '2026-13-01'", 13, "month"),
        ("timestamp = '2026-11-22T08:00 Mars/Base'", 13, "unknown time zone 'Mars/Base'"),
        ("timestamp = '2026-11-22T08:00+25:00'", 13, "offset"),
        ("key <=> 'a'", 1, "not supported"),
        ("key ilike 'a'", 1, "not supported"),
        ("key rlike 'a'", 1, "not supported"),
        ("key like 'a\\\\b'", 10, "must be followed by %, _ or itself"),
        ("key like 'a\\\\'", 10, "must be followed by %, _ or itself"),
        ("key like 'a' escape 'xx'", 21, "one character"),
        ("key like all ('a')", 15, "text in quotes"),
        ("key like '\ufffd'", 10, "U\\+FFFD"),
        ("key in (select 1)", 1, "not supported"),
        ("key in ()", 1, ""),
        ("key = 'a' 'b'", 7, "unexpected second text"),
        ("key = 'a'\"b\"", 7, "unexpected second text"),
        ("key = concat('a', 'b')", 7, "unexpected second text"),
        ("key = 0x61", 7, "X'61'"),
        ("timestamp = '2026-11-22T08:00+123'", 13, "unknown time zone"),
        ("timestamp = '2026-11-22T08:00+08:60'", 13, "no time zone has the offset"),
        ("timestamp = '2026T08'", 13, "not a time"),
        ("key = X'0g'", 7, ""),
        ("key = '\\ud800'", 7, "not valid Unicode text"),
        ("header(name) = 'a'", 1, "one name in quotes"),
        ("header('a', 'b') = 'a'", 1, "one name in quotes"),
        ("key is true", 1, "only null"),
        ("key between symmetric 'a' and 'b'", 1, "not supported"),
        ("select 1", 1, ""),
        ("exists (select 1)", 1, ""),
        ("case when key = 'a' then true end", 1, ""),
        ("(" * 5000 + "offset = 1" + ")" * 5000, 1, ""),
    ],
)
def test_what_is_wrong_and_where(text: str, place: int, reason: str) -> None:
    with pytest.raises(InvalidCondition, match=f"{reason}.*at character") as error:
        part(text)
    if reason:
        assert error.value.at == place - 1


def test_a_long_chain_is_flat() -> None:
    found = part(" or ".join(f"key = '{number}'" for number in range(3000)))
    assert isinstance(found, AnyOf)
    assert len(found.parts) == 3000
