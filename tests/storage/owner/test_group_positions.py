"""Positions of a group are committed for others, as far as they are within the logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage import LogManager
from storage.errors import InvalidRecord
from storage.owner.group_positions import GroupPositions, commit
from storage.owner.request_kinds import POSITIONS, OwnerRequest, decode, encode
from storage.task import Task
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, remove_head
from tests.storage.segmented import segmented

REQUEST = GroupPositions("a group", {"t": {0: 7, 12: 0}, "u": {}})


def test_comes_back_and_is_answered() -> None:
    line = encode(POSITIONS, REQUEST, "some-id")
    assert json.loads(line)["positions"]["positions"]["t"] == {"0": 7, "12": 0}
    assert decode(line.encode()) == OwnerRequest("some-id", POSITIONS, REQUEST)
    assert list(POSITIONS.staged(REQUEST)) == []
    facts = json.loads(json.dumps(POSITIONS.encode_answer(3)))
    assert facts["state"] == "committed"
    assert POSITIONS.decode_answer(facts) == 3


ODD_POSITIONS: list[Any] = [
    *(5, [], {"t": 5}, {"t": [5]}),
    *({topic: {"0": 1}} for topic in ("", "a b", "..", "a/b")),
    *({"t": {number: 1}} for number in ("-1", "01", "x", "9999999999")),
    *({"t": {"0": position}} for position in (-1, True, 1.5, "1", 1 << 63)),
]
ODD: list[Any] = [
    *(None, 5, [], {}, {"group": "g"}, {"positions": {}}),
    {"group": "g", "positions": {}, "more": 1},
    *({"group": group, "positions": {}} for group in ("", "x" * 40_000, 5, None)),
    *({"group": "g", "positions": positions} for positions in ODD_POSITIONS),
]


@pytest.mark.parametrize("fields", ODD)
def test_what_is_no_request(fields: Any) -> None:
    with pytest.raises(InvalidRecord):
        POSITIONS.decode(fields)


def committed(manager: LogManager, group: str = "g") -> dict[tuple[str, int], int]:
    found = manager.groups.find(group)
    assert found is not None
    return {item: each.position for item, each in found.committed.items()}


def test_is_committed_as_far_as_it_is_within_the_logs(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        remove_head(log, 2, NOW_MS)
        append(manager.create_topic("u", 2).partitions[1], b"a", b"b")

        def ask(**positions: dict[int, int]) -> int:
            return commit(manager, GroupPositions("g", positions), Task(), lambda: NOW_NS)

        assert ask(t={0: 8}, u={0: 0, 1: 2}) == 3
        assert committed(manager) == {("t", 0): 8, ("u", 0): 0, ("u", 1): 2}
        assert ask(t={0: 9, 1: 0}, u={0: 1, 1: 1}, v={0: 0}) == 1
        assert ask(t={0: 3}) == 0
        assert committed(manager) == {("t", 0): 8, ("u", 0): 0, ("u", 1): 1}
        assert ask(t={0: 4}) == 1
        assert committed(manager)["t", 0] == 4
