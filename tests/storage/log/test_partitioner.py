"""storage.log.partitioner: which partition a record goes to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from storage import Record, encode
from storage.errors import UnknownTopicOrPartition
from storage.log.partitioner import STAY_BYTES, Partitioner, Sticky
from storage.record.batch import decode
from tests.murmur2 import partition_of

LIMIT = 1048588


def keyed(*keys: bytes | None, size: int = 10) -> bytes:
    return encode([Record(n, 7, 0, key, b"v" * size) for n, key in enumerate(keys)])


class Chosen:
    """Chooses the last; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, partitions: Sequence[int]) -> int:
        self.asked.append(list(partitions))
        return partitions[-1]


def test_without_a_key_it_sticks_until_its_bytes_are_there() -> None:
    choose = Chosen()
    partitioner = Partitioner(choose=choose)
    seen = []
    for _ in range(100):
        routed = partitioner.route(keyed(None, size=400), range(3), LIMIT)
        partitioner.sticky = routed.sticky
        seen += list(routed.batches)
    # 408 bytes each: the 41st is the first behind 16 KiB.
    assert seen == [2] * 41 + [1] * 41 + [2] * 18
    assert choose.asked == [[0, 1, 2], [0, 1], [0, 2]], "another one than before"


def test_one_partition_is_always_the_one() -> None:
    partitioner = Partitioner()
    routed = partitioner.route(keyed(None, b"k", None, size=STAY_BYTES), [0], LIMIT)
    assert [record.key for record in decode(routed.batches[0])] == [None, b"k", None]


def test_every_partition_gets_its_share() -> None:
    """Chosen at random, and never the same one twice in a row."""
    partitioner = Partitioner()
    turns = []
    for _ in range(300):
        routed = partitioner.route(keyed(None, size=STAY_BYTES), range(4), LIMIT)
        partitioner.sticky = routed.sticky
        turns += list(routed.batches)
    # A partition is left out 300 times in a row about once in 10 ** 50 runs.
    assert set(turns) == {0, 1, 2, 3}
    assert all(one != next_one for one, next_one in itertools.pairwise(turns))


def test_a_new_partition_counts_from_its_first_record_on() -> None:
    partitioner = Partitioner(choose=Chosen())
    partitioner.sticky = Sticky(0, 1)
    routed = partitioner.route(keyed(None, None, b"foobar"), range(2), LIMIT)
    assert sorted(routed.batches) == [0, 1]
    grown = partitioner.route(keyed(None, None, b"foobar"), range(7), LIMIT)
    assert sorted(grown.batches) == sorted({0, 6, partition_of(b"foobar", 7)})


def test_a_directory_that_holds_some_partitions_only() -> None:
    """Without a key, to those that are here; the count for keys is the topic's, as far as known."""
    partitioner = Partitioner()
    routed = partitioner.route(keyed(None), [1, 3], LIMIT)
    assert set(routed.batches) <= {1, 3}
    by_partition = {partition_of(key, 4): key for key in (b"%d" % n for n in range(50))}
    assert list(partitioner.route(keyed(by_partition[3]), [1, 3], LIMIT).batches) == [3]
    with pytest.raises(UnknownTopicOrPartition, match="partition 2 of 4"):
        partitioner.route(keyed(by_partition[1], by_partition[2]), [1, 3], LIMIT)
    six = {partition_of(key, 6): key for key in (b"%d" % n for n in range(50))}
    assert list(Partitioner(6).route(keyed(six[3]), [1, 3], LIMIT).batches) == [3]
    with pytest.raises(UnknownTopicOrPartition, match="partition 5 of 6"):
        Partitioner(6).route(keyed(six[5]), [1, 3], LIMIT)


def test_a_partition_that_is_gone_is_not_stuck_to() -> None:
    partitioner = Partitioner()
    partitioner.sticky = Sticky(9, 1000)
    assert set(partitioner.route(keyed(None), range(2), LIMIT).batches) <= {0, 1}
    with pytest.raises(UnknownTopicOrPartition):
        partitioner.route(keyed(None), [], LIMIT)
