"""Characters that cannot be printed are escaped, and nothing else is changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.printable import lines, one_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("orders/0: größer … 日本", "orders/0: größer … 日本"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x07\x00\x7f", r"\x1b[2J\x07\x00\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("\u2028\u202eabc\u200b", r"\u2028\u202eabc\u200b"),
        ("\udcff", r"\udcff"),
        ("\U000e0001", r"\U000e0001"),
        ("C:\\n", "C:\\n"),
    ],
)
def test_one_line(text: str, expected: str) -> None:
    assert one_line(text) == expected


@given(st.text(st.characters()))
def test_it_is_one_line_that_can_be_written(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    shown.encode()
    assert one_line(shown) == shown


@given(st.text(st.characters()))
def test_newlines_stay(text: str) -> None:
    assert lines(text).split("\n") == [one_line(line) for line in text.split("\n")]
