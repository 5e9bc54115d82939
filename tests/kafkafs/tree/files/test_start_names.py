"""Parsing of names with an `@`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.tree.files.start_names import (
    Edge,
    Last,
    Offset,
    Point,
    StartName,
    Time,
    parse_start_name,
)

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 21, 14, 30, 0, 500_000, UTC)
NOW_MS = 1795271400500


def ms(text: str) -> Time:
    """Of a time in UTC."""
    return Time(round(datetime.fromisoformat(text + "+00:00").timestamp() * 1000))


def point(text: str, zone: tzinfo = BERLIN) -> Point | None:
    said = parse_start_name(f"0@{text}", NOW_MS, zone)
    if said is None:
        return None
    assert (said.partition, said.end) == ("0", None)
    return said.start


POINTS = [
    ("1234", Offset(1234)),
    ("0", Offset(0)),
    ("007", Offset(7)),
    ("20261121", Offset(20261121)),
    ("9" * 200, Offset(10**200 - 1)),
    ("-10", Last(10)),
    ("-0", Last(0)),
    ("start", Edge.START),
    ("end", Edge.END),
    ("-15m", Time(NOW_MS - 900_000)),
    ("-1s", Time(NOW_MS - 1000)),
    ("-1ms", Time(NOW_MS - 1)),
    ("-1.5h", Time(NOW_MS - 5_400_000)),
    ("-2h", Time(NOW_MS - 7_200_000)),
    ("-3d", Time(NOW_MS - 3 * 86_400_000)),
    ("-99999999999999999999d", Time(0)),
    ("2026-11-21T08:00:00Z", ms("2026-11-21T08:00:00")),
    ("2026-11-21T08:00:00+02:00", ms("2026-11-21T06:00:00")),
    ("2026-11-21T08:00:00-0530", ms("2026-11-21T13:30:00")),
    ("2026-11-21T08:00:00", ms("2026-11-21T07:00:00")),
    ("2026-07-21T08:00", ms("2026-07-21T06:00:00")),
    ("2026-11-21 08:00", ms("2026-11-21T07:00:00")),
    ("20261121T080000Z", ms("2026-11-21T08:00:00")),
    ("2026-W47-6T08Z", ms("2026-11-21T08:00:00")),
    ("2026-11-21", ms("2026-11-20T23:00:00")),
    ("2026-07-21", ms("2026-07-20T22:00:00")),
    ("2026-W47-6", ms("2026-11-20T23:00:00")),
    # Not 20:26 somewhere, nor 19:08.
    ("2026-11", ms("2026-10-31T23:00:00")),
    ("1908-11", Time(0)),
    ("08:00", ms("2026-11-21T07:00:00")),
    ("T08:00", ms("2026-11-21T07:00:00")),
    ("T0800", ms("2026-11-21T07:00:00")),
    ("08:00Z", ms("2026-11-21T08:00:00")),
    ("08:00:01.250", Time(ms("2026-11-21T07:00:01").timestamp_ms + 250)),
    ("08:00:01.2501", Time(ms("2026-11-21T07:00:01").timestamp_ms + 251)),
    ("08:00:01,000001Z", Time(ms("2026-11-21T08:00:01").timestamp_ms + 1)),
    # Today is another day there.
    ("08:00+13:00", ms("2026-11-21T19:00:00")),
    # Summer time begins, and ends: what there is not, and the first of two.
    ("2026-03-29T02:30", ms("2026-03-29T01:30:00")),
    ("2026-10-25T02:30", ms("2026-10-25T00:30:00")),
    ("1970-01-01T00:00:00.001Z", Time(1)),
    ("1969-12-31", Time(0)),
    ("0001-01-01", Time(0)),
    ("9999-12-31T23:59:59Z", ms("9999-12-31T23:59:59")),
]


@pytest.mark.parametrize(("text", "expected"), POINTS)
def test_a_point(text: str, expected: Point) -> None:
    assert point(text) == expected


def test_today_is_where_the_mount_is() -> None:
    # 14:30 UTC is the next morning in Auckland.
    assert point("08:00", ZoneInfo("Pacific/Auckland")) == ms("2026-11-21T19:00:00")
    assert point("2026-11-22", ZoneInfo("Pacific/Auckland")) == ms("2026-11-21T11:00:00")


def test_without_a_zone_it_is_the_processes_own() -> None:
    local = datetime(2026, 11, 21, 8).astimezone()
    said = parse_start_name("0@2026-11-21T08:00:00", NOW_MS)
    assert said is not None
    assert said.start == Time(round(local.timestamp() * 1000))
    for text in ("0001-01-01", "9999-12-31T23:59:59"):
        assert parse_start_name(f"0@{text}", NOW_MS) is not None


RANGES = [
    ("1234..1300", Offset(1234), Offset(1300)),
    ("1300..1234", Offset(1300), Offset(1234)),
    ("08:00..09:00", ms("2026-11-21T07:00:00"), ms("2026-11-21T08:00:00")),
    ("2026-11-20..2026-11-21", ms("2026-11-19T23:00:00"), ms("2026-11-20T23:00:00")),
    ("2026-10..2026-11", ms("2026-09-30T22:00:00"), ms("2026-10-31T23:00:00")),
    ("-20..-10", Last(20), Last(10)),
    ("start..end", Edge.START, Edge.END),
    ("-1h..-15m", Time(NOW_MS - 3_600_000), Time(NOW_MS - 900_000)),
    ("100..-15m", Offset(100), Time(NOW_MS - 900_000)),
    ("..100", Edge.START, Offset(100)),
    ("..end", Edge.START, Edge.END),
    ("100..", Offset(100), None),
    ("08:00..", ms("2026-11-21T07:00:00"), None),
    ("..", Edge.START, None),
    ("08:00:00.5..1300", Time(ms("2026-11-21T07:00:00").timestamp_ms + 500), Offset(1300)),
]


@pytest.mark.parametrize(("text", "start", "end"), RANGES)
def test_a_range(text: str, start: Point, end: Point | None) -> None:
    assert parse_start_name(f"17@{text}", NOW_MS, BERLIN) == StartName("17", start, end)


@pytest.mark.parametrize(
    "name",
    [
        "0",
        "0@",
        "0@@",
        "0@ 1",
        "0@+1",
        "0@1.5",
        "0@1e3",
        "0@0x10",
        "0@-",
        "0@--1",
        "0@-m",
        "0@-1w",
        "0@-1.5ms",
        "0@-1M",
        "0@End",
        "0@now",
        "0@25:00",
        "0@2026-13-01",
        "0@2026-11-31",
        "0@2026-13",
        "0@2026-00",
        "0@2026-11-21x08:00",
        "0@2026-11-21T",
        "0@2026-11-21T08:00:00Q",
        "0@.",
        "0@...",
        "0@1.",
        "0@.2",
        "0@1...2",
        "0@1..2..3",
        "0@1-2",
        "0@\u0661",
        "0@-\u0661",
        "0@\udcff",
        "0@²",
        f"0@{'1' * 5000}",
        f"0@-{'1' * 5000}",
    ],
)
def test_what_says_nothing(name: str) -> None:
    assert parse_start_name(name, NOW_MS, BERLIN) is None


@given(st.text(max_size=30))
def test_any_text_says_something_or_nothing(text: str) -> None:
    said = parse_start_name(f"0@{text}", NOW_MS, BERLIN)
    if said is not None:
        assert text.isascii()
        assert (said.end is not None) == (".." in text and not text.endswith(".."))


zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(
    st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 29)),
    zones,
    st.sampled_from(["auto", "milliseconds", "microseconds"]),
)
def test_any_time_is_rounded_up_to_the_millisecond(
    moment: datetime, zone: timezone, timespec: str
) -> None:
    text = moment.isoformat(timespec=timespec)
    exact = datetime.fromisoformat(text).replace(tzinfo=zone) - datetime(1970, 1, 1, tzinfo=UTC)
    expected = Time((exact // timedelta(microseconds=1) + 999) // 1000)
    assert point(text, zone) == expected
    assert point(datetime.fromisoformat(text).replace(tzinfo=zone).isoformat()) == expected


@given(st.integers(0, 10**12), st.sampled_from(["s", "m", "h", "d"]))
def test_any_duration(count: int, unit: str) -> None:
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86_400}[unit]
    assert point(f"-{count}{unit}") == Time(max(NOW_MS - count * seconds * 1000, 0))
