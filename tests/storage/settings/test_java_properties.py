"""Properties files as Java reads them."""

from __future__ import annotations

import pytest

from storage.settings.java_properties import parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", {}),
        (b"# a=1\n! b=2\n\n  \t# c=3\n", {}),
        (b"a=1\nb:2\nc 3\n d = 4 \ne\t:\t5", {"a": "1", "b": "2", "c": "3", "d": "4 ", "e": "5"}),
        (b"a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        (b"a\nb=\n=c", {"a": "", "b": "", "": "c"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"a=b=c:d", {"a": "b=c:d"}),
        (b"a=1,\\\n   2,\\\n# 3\nb=4", {"a": "1,2,# 3", "b": "4"}),
        (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (b"a=1\\", {"a": "1"}),
        (b"\\\na=1", {"a": "1"}),
        (b"a\\=b\\:c\\ d=\\t\\n\\u00e9\\q", {"a=b:c d": "\t\n\u00e9q"}),
        ("a=\u00e9".encode(), {"a": "\u00e9"}),
        (b"log.retention.hours = 168", {"log.retention.hours": "168"}),
    ],
)
def test_parse(text: bytes, expected: dict[str, str]) -> None:
    assert parse(text) == expected
