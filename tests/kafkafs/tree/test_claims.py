"""How partitions are shared out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kafkafs.tree.groups.claims import Claimed, shared


def partitions(count: int) -> list[Claimed]:
    return [Claimed("orders", number, "id") for number in range(count)]


@given(st.integers(0, 40), st.lists(st.integers(0, 9), max_size=20))
def test_shares_stay_even_and_little_moves(count: int, changes: list[int]) -> None:
    """Consumers come and go: each change moves no more than a share."""
    before: dict[Claimed, int] = {}
    there: list[int] = []
    for consumer in changes:
        there = sorted({*there} ^ {consumer})
        wanted = dict.fromkeys(partitions(count), there) if there else {}
        after = shared(wanted, before)
        assert after.keys() == wanted.keys()
        loads = Counter(after.values())
        if there:
            sizes = [loads[each] for each in there]
            assert max(sizes) - min(sizes) <= 1
        moved = [claimed for claimed in after if before.get(claimed) in {*there} - {after[claimed]}]
        assert len(moved) <= (-(-count // len(there)) if there else 0)
        before = after


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=30))
def test_each_partition_goes_to_one_that_wants_it(wanted: list[set[int]]) -> None:
    asked = dict(zip(partitions(len(wanted)), map(sorted, wanted), strict=True))
    given_to = shared(asked, {})
    assert given_to.keys() == asked.keys()
    assert all(given_to[claimed] in asked[claimed] for claimed in asked)
    loads = Counter(given_to.values())
    for claimed, consumer in given_to.items():
        assert loads[consumer] <= min(loads[each] for each in asked[claimed]) + 1
