"""Which tombstones delete a group, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from storage.errors import PolicyViolation
from storage.groups.offset_records import read_key
from storage.groups.tombstones import group_tombstones
from tests.storage.groups.records import (
    Pair,
    classic_group,
    consumer_group,
    group_key,
    position,
    share_group,
    streams_group,
)


def lacking(pairs: Sequence[Pair], *types: int) -> list[Pair]:
    return [pair for pair in pairs if pair[0][1] not in types]


@pytest.mark.parametrize(
    ("pairs", "types"),
    [
        ([], [2]),
        ([(group_key("g"), classic_group(since_ms=5, members=2))], [2]),
        (consumer_group("g"), [6, 16, 4, 3]),
        (consumer_group("g", "a", "b"), [8, 8, 7, 7, 6, 5, 5, 16, 4, 3]),
        (lacking(consumer_group("g", "a"), 8, 6, 16, 4), [8, 7, 6, 5, 3]),
        (lacking(consumer_group("g", "a"), 5, 7, 3), [8, 7, 6, 5, 16, 4, 3]),
        (streams_group("g"), [20, 23, 17]),
        (streams_group("g", "a", "b"), [22, 22, 21, 21, 20, 19, 19, 23, 17]),
        (lacking(streams_group("g", "a"), 22, 20), [22, 21, 20, 19, 23, 17]),
        ([*streams_group("g"), (b"\0\x12\0\1g", b"")], [20, 23, 18, 17]),
        ([(group_key("g"), b""), *consumer_group("g")], [2, 6, 16, 4, 3]),
    ],
)
def test_the_order_is_kafkas(pairs: list[Pair], types: list[int]) -> None:
    """Positions come first, also those that the first brokers wrote."""
    new = position("g", "orders", 1, 5)[0]
    legacy = b"\0\0" + new[2:]
    found = group_tombstones("g", [key for key, _ in [*reversed(pairs), (new, b""), (legacy, b"")]])
    assert set(found[:2]) == {new, legacy}
    assert [key[1] for key in found[2:]] == types
    for key in found[2:]:
        assert key[1] == 18 or b"g" in read_key(key).values()


def test_a_share_group_is_left_to_a_broker() -> None:
    with pytest.raises(PolicyViolation, match="kafka-share-groups --delete"):
        group_tombstones("g", [key for key, _ in share_group("g", "a")])


def test_records_of_unknown_types_are_left_to_a_broker() -> None:
    with pytest.raises(PolicyViolation, match="newer Kafka"):
        group_tombstones("g", [b"\0\x18\0\1g", *(key for key, _ in consumer_group("g"))])
