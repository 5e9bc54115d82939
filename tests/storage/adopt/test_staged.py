"""Names of staged files, and requests: what is none is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage.adopt.staged import AdoptRequest, QueryKind, StagedFile, StagedName, parse_name
from storage.errors import InvalidRecord
from storage.owner.request_kinds import decode

FILES = (
    StagedFile("orders", 0, "q-3-0-7.staged", 10),
    StagedFile("orders", 1, "q-3-1-8.staged", 0),
)
REQUEST = AdoptRequest("q", 3, "run", FILES)


def test_names() -> None:
    name = StagedName("a-1.b_c", 1, 2, 3)
    assert str(name) == "a-1.b_c-1-2-3.staged"
    assert parse_name(str(name)) == name
    for other in (
        "a-1-2.staged",
        "a-1-2-3.log",
        "-1-2-3.staged",
        "a/b-1-2-3.staged",
        "",
        ".staged",
    ):
        assert parse_name(other) is None


def decoded(text: str) -> AdoptRequest:
    """The request in a line for the owner."""
    request = decode(b'{"adopt":%s}' % text.encode()).request
    assert isinstance(request, AdoptRequest)
    return request


def test_a_request_is_one_line() -> None:
    line = REQUEST.encode()
    assert "\n" not in line
    assert decoded(line) == REQUEST
    for kind in QueryKind:
        assert decoded(REQUEST._replace(kind=kind).encode()).kind is kind
    assert "kind" not in json.loads(line)


WRONG: list[dict[str, Any]] = [
    *({"query": query} for query in ("", "a b", "q/..", 5, None, ["q"])),
    *({"batch": batch} for batch in (-1, 1 << 63, "3", None, True, 3.0)),
    *({"run": run} for run in ("", "r" * 129, 1, None)),
    *({"files": None}, {"files": 1}, {"files": "x"}, {"files": [[]]}, {"files": [5]}),
    {"files": [["orders", 0, "x", 1]]},
    {"files": [["or/ders", 0, "q-3-0-7.staged", 10]]},
    {"files": [["orders", -1, "q-3-0-7.staged", 10]]},
    {"files": [["orders", 0, "q-3-0-7.staged", -10]]},
    {"files": [["orders", 0, "q-4-0-7.staged", 10]]},
    {"files": [["orders", 0, "p-3-0-7.staged", 10]]},
    {"files": [["orders", 0, "q-3-0-7.staged", 10]] * 2},
    {"files": [[["orders"], 0, "q-3-0-7.staged", 10]]},
    *({"files": {"a": 1}}, {"kind": 1}, {"kind": "x"}, {"kind": [1]}, {"more": 1}),
]


@pytest.mark.parametrize("changes", WRONG)
def test_what_is_no_request(changes: dict[str, Any]) -> None:
    fields = {**json.loads(REQUEST.encode()), **changes}
    with pytest.raises(InvalidRecord):
        decoded(json.dumps(fields))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '"x"', "{}", "[" * 100_000])
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(InvalidRecord):
        decoded(text)
