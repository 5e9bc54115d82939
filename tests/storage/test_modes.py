"""`within`, beside every user that there may be."""

from __future__ import annotations

import itertools

import pytest

from storage.modes import Ownership, of_directory, of_file, within

IDS = (1, 2, 3)
USERS = [
    (uid, frozenset(groups))
    for uid in IDS
    for count in range(len(IDS) + 1)
    for groups in itertools.combinations(IDS, count)
]
MODES = (0, 0o777, 0o755, 0o750, 0o700, 0o640, 0o604, 0o066, 0o070, 0o007, 0o412)


def bits(shown: Ownership, uid: int, groups: frozenset[int]) -> int:
    """Return the permission bits that the kernel gives a user (`generic_permission`)."""
    mode, owner, group = shown
    return (mode >> (6 if uid == owner else 3 if group in groups else 0)) & 7


@pytest.mark.parametrize("ids", list(itertools.product((1, 2), (1, 2), (1, 2), (1, 2))))
def test_nobody_gets_more_than_both_give(ids: tuple[int, int, int, int]) -> None:
    for mode, limit_mode in itertools.product(MODES, MODES):
        given, limit = (mode, ids[0], ids[1]), (limit_mode, ids[2], ids[3])
        found = within(given, limit), *given[1:]
        for uid, groups in USERS:
            allowed = bits(given, uid, groups) & bits(limit, uid, groups)
            assert bits(found, uid, groups) & ~allowed == 0, (given, limit, uid, groups)


def test_with_the_same_owner_and_group_it_takes_what_both_have() -> None:
    for mode, limit in itertools.product(MODES, MODES):
        assert within((mode, 1, 2), (limit, 1, 2)) == mode & limit, (oct(mode), oct(limit))


def test_the_special_bits_stay() -> None:
    assert within((0o7777, 1, 2), (0o600, 1, 2)) == 0o7600


@pytest.mark.parametrize("ids", list(itertools.product((1, 2), (1, 2), (1, 2), (1, 2))))
def test_a_directory_is_read_by_those_who_reach_the_partition(ids: tuple[int, ...]) -> None:
    for topic_mode, partition_mode in itertools.product(MODES, MODES):
        topic, partition = (topic_mode, ids[0], ids[1]), (partition_mode, ids[2], ids[3])
        mode = of_directory(3, 1, topic, partition)
        assert mode & 0o722 == 0o700
        for uid, groups in USERS:
            if uid == 3:
                continue
            may_read = bits(topic, uid, groups) & 1 and bits(partition, uid, groups) & 4
            for disk in (mode, of_file(mode)):
                given = bits((disk, 3, 1), uid, groups)
                assert not given or may_read, (topic, partition, uid, groups)


@pytest.mark.parametrize(
    ("topic", "partition", "expected"),
    [
        (0o755, 0o644, (0o755, 0o644)),
        (0o755, 0o640, (0o750, 0o640)),
        (0o755, 0o600, (0o700, 0o600)),
        (0o700, 0o644, (0o700, 0o600)),
        (0o711, 0o644, (0o755, 0o644)),
        (0o755, 0o604, (0o705, 0o604)),
        (0o000, 0o000, (0o700, 0o600)),
        (0o1777, 0o666, (0o755, 0o644)),
    ],
)
def test_with_the_same_owner_it_has_the_mount_s_bits(
    topic: int, partition: int, expected: tuple[int, int]
) -> None:
    mode = of_directory(1, 1, (topic, 1, 1), (partition, 1, 1))
    assert (mode, of_file(mode)) == expected
