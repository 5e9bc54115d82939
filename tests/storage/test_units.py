"""Durations and sizes with units."""

from __future__ import annotations

import pytest

from storage.units import duration_in_words, duration_ms, duration_text, has_unit, size_bytes


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("0", "ms", 0),
        ("7", "ms", 7),
        ("7", "d", 604_800_000),
        ("0.5", "s", 500),
        ("20ms", "d", 20),
        ("2s", "ms", 2000),
        ("90 m", "ms", 5_400_000),
        ("1.5h", "ms", 5_400_000),
        ("7d", "s", 604_800_000),
    ],
)
def test_durations(text: str, unit: str, expected: int) -> None:
    assert duration_ms(text, unit) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("64K", 1 << 16),
        ("64KiB", 1 << 16),
        ("1.5 MiB", 3 << 19),
        ("0.3KiB", 307),
        ("10G", 10 << 30),
        ("1T", 1 << 40),
        ("1PiB", 1 << 50),
        ("1E", 1 << 60),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "+1",
        "1.",
        ".5",
        "1.5",
        "1.5ms",
        "1e3",
        "1  s",
        "1w",
        "1S",
        "1K",
        "s",
        "1_0",
        "\u0661",
    ],
)
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="a number with one of the units ms, s, m, h, d"):
        duration_ms(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "1.5B", "1KB", "1kib", "1k", "1MB", "5m", "9" * 31]
)
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="a number with one of the units B, KiB, MiB, GiB, TiB"):
        size_bytes(text)


def test_a_number_and_a_word_have_a_unit() -> None:
    assert [has_unit(text) for text in ("7d", "7 weeks", "7", "7.5", "d", "-7d")] == [
        *(True, True, False, False, False, False)
    ]


def test_durations_as_text() -> None:
    times = (0, 9, 1500, 90_000, 5_400_000, 43_200_000, 604_800_000)
    texts = ["0ms", "9ms", "1500ms", "90s", "90m", "12h", "7d"]
    assert [duration_text(time_ms) for time_ms in times] == texts


def test_durations_in_words() -> None:
    times = (9, 1000, 1500, 59_999, 60_000, 5_400_000, 86_400_000, 604_800_001)
    assert [duration_in_words(time_ms) for time_ms in times] == [
        *("9 ms", "1 s", "1.5 s", "59.999 s"),
        *("1 minute", "1.5 hours", "1 day", "7 days"),
    ]
