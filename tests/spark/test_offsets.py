"""Offsets' JSON, shares of a limit, and how ranges are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.spark.source.offsets import (
    OffsetRange,
    Reached,
    TopicPartition,
    divided,
    from_nested,
    limited,
    names,
    nested,
    parse,
    parse_partitions,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PLACES = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 11))
OFFSETS = st.dictionaries(PLACES, st.integers(0, 1 << 62))


def test_are_written_in_order() -> None:
    offsets = {TopicPartition("b", 10): 1, B0: -1, TopicPartition("b", 9): 3, A1: 0}
    assert json.dumps(nested(offsets)) == '{"a": {"1": 0}, "b": {"0": -1, "9": 3, "10": 1}}'
    assert names(offsets) == "[a-1, b-0, b-9, b-10]"


@given(OFFSETS)
def test_come_back(offsets: dict[TopicPartition, int]) -> None:
    assert parse(json.dumps(nested(offsets))) == offsets
    assert from_nested(nested(offsets)).offsets == offsets


def test_have_ids_of_topics_in_a_checkpoint_but_not_in_options() -> None:
    reached = Reached({A0: 1, B0: 2}, {"a": "x", "other": "y"})
    text = json.dumps(nested(*reached))
    assert text == '{"a": {"0": 1, "id": "x"}, "b": {"0": 2}}'
    assert from_nested(json.loads(text)) == Reached(reached.offsets, {"a": "x"})
    assert parse(text) == reached.offsets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        '{"a": 1}',
        '{"a": {"id": 1}}',
        '{"a": {"-1": 1}}',
        '{"a": {"01": 1}}',
        '{"a": {"0": "1"}}',
        '{"a": {"0": true}}',
        '{"a": {"0": 1, "0": 2}}',
        f'{{"a": {{"0": {1 << 63}}}}}',
    ],
)
def test_nothing_else_is_taken_for_offsets(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        parse(text)


def test_partitions_are_lists() -> None:
    assert parse_partitions('{"a": [1, 0], "b": []}') == {A0, A1}
    for text in ('{"a": {"0": 1}}', '{"a": ["0"]}', '{"a": [-1]}', "[]"):
        with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
            parse_partitions(text)


# -- shares ----------------------------------------------------------------------------------------


def test_each_partition_gets_its_share() -> None:
    start = {A0: 0, A1: 100, B0: 7}
    end = {A0: 900, A1: 200, B0: 7}
    assert limited(start, end, 100) == {A0: 90, A1: 110, B0: 7}


def test_a_small_partition_is_not_starved() -> None:
    assert limited({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 10) == {A0: 9, A1: 1}


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    assert limited({A0: 5}, {A0: 9}, 1000) == {A0: 9}
    assert limited({}, {}, 1) == {}


def test_an_end_below_the_start_stays() -> None:
    assert limited({A0: 9, A1: 0}, {A0: 5, A1: 10}, 5) == {A0: 5, A1: 5}


@given(OFFSETS, st.integers(1, 1 << 40))
def test_no_limit_goes_too_far_or_stands_still(end: dict[TopicPartition, int], most: int) -> None:
    start = {place: offset // 3 for place, offset in end.items()}
    result = limited(start, end, most)
    assert result.keys() == end.keys()
    assert all(start[place] <= result[place] <= end[place] for place in end)
    assert all(result[place] > start[place] for place in end if end[place] > start[place])
    assert sum(result[place] - start[place] for place in end) <= most + len(end)


# -- ranges ----------------------------------------------------------------------------------------


def test_are_left_alone_where_there_are_enough() -> None:
    ranges = [OffsetRange(A0, 0, 10), OffsetRange(A1, 5, 5), OffsetRange(B0, 0, 1)]
    assert divided(ranges) == [ranges[0], ranges[2]]
    assert divided(ranges, at_least=2) == [ranges[0], ranges[2]]


def test_the_largest_is_cut() -> None:
    ranges = [OffsetRange(A0, 0, 5), OffsetRange(A1, 100, 200)]
    assert divided(ranges, at_least=4) == [
        OffsetRange(A0, 0, 5),
        OffsetRange(A1, 100, 133),
        OffsetRange(A1, 133, 166),
        OffsetRange(A1, 166, 200),
    ]


def test_more_pieces_than_offsets_are_not_made() -> None:
    for at_least in (9, (1 << 63) - 1):
        assert divided([OffsetRange(A0, 3, 5)], at_least=at_least) == [
            OffsetRange(A0, 3, 4),
            OffsetRange(A0, 4, 5),
        ]


def test_no_piece_has_more_records_than_it_may() -> None:
    assert divided([OffsetRange(A0, 0, 7), OffsetRange(A1, 0, 2)], most_records=3) == [
        OffsetRange(A0, 0, 2),
        OffsetRange(A0, 2, 4),
        OffsetRange(A0, 4, 7),
        OffsetRange(A1, 0, 2),
    ]


@given(
    st.dictionaries(PLACES, st.tuples(st.integers(0, 1000), st.integers(0, 1000))),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 300),
)
def test_pieces_are_the_whole(
    found: dict[TopicPartition, tuple[int, int]], at_least: int | None, most: int | None
) -> None:
    ranges = [OffsetRange(place, start, start + size) for place, (start, size) in found.items()]
    pieces = divided(ranges, at_least=at_least, most_records=most)
    assert all(piece.size > 0 and (most is None or piece.size <= most) for piece in pieces)
    for whole in ranges:
        at = whole.start
        for piece in pieces:
            if piece.partition == whole.partition:
                assert piece.start == at
                at = piece.end
        assert at == whole.end
