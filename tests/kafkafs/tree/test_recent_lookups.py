"""The last lookups of each process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kafkafs.tree.inodes import Node
from kafkafs.tree.recent_lookups import RECENT, RECENT_S, RecentLookups, process_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Found(Node):
    there = True

    def is_current(self) -> bool:
        return self.there


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recent(clock: Clock) -> RecentLookups:
    return RecentLookups(clock)


def test_a_process_is_led_to_the_same_for_a_while(recent: RecentLookups, clock: Clock) -> None:
    node = Found(5)
    assert recent.find((1, 2, "0")) is None
    recent.note((1, 2, "0"), node)
    assert recent.find((1, 2, "0")) is node
    assert [recent.find(other) for other in ((9, 2, "0"), (1, 3, "0"), (1, 2, "1"))] == [None] * 3
    clock.now += RECENT_S - 0.1
    assert recent.find((1, 2, "0")) is node
    recent.note((1, 2, "0"), node)
    clock.now += RECENT_S - 0.1
    assert recent.find((1, 2, "0")) is node
    clock.now += 0.1
    assert recent.find((1, 2, "0")) is None


def test_until_it_opens_it(recent: RecentLookups) -> None:
    first, second = Found(5), Found(6)
    recent.note((1, 2, "0"), first)
    recent.note((9, 2, "0"), first)
    recent.note((1, 3, "0"), second)
    recent.opened(1, first)
    assert recent.find((1, 2, "0")) is None
    assert recent.find((9, 2, "0")) is first
    assert recent.find((1, 3, "0")) is second
    recent.opened(1, first)
    recent.opened(7, first)


def test_of_two_names_the_last_one_is_opened(recent: RecentLookups) -> None:
    node = Found(5)
    recent.note((1, 2, "0"), node)
    recent.note((1, 3, "0@..end"), node)
    recent.note((1, 2, "0"), node)
    recent.opened(1, node)
    assert recent.find((1, 2, "0")) is None
    assert recent.find((1, 3, "0@..end")) is node


def test_until_it_writes(recent: RecentLookups) -> None:
    nodes = [Found(5), Found(6)]
    for node in nodes:
        recent.note((1, 2, str(node.inode)), node)
        recent.note((9, 2, str(node.inode)), node)
    recent.writes(1)
    assert [recent.find((1, 2, name)) for name in ("5", "6")] == [None, None]
    assert [recent.find((9, 2, name)) for name in ("5", "6")] == nodes
    recent.opened(1, nodes[0])
    recent.writes(1)


def test_what_is_not_there_any_more_is_looked_up_anew(recent: RecentLookups) -> None:
    node = Found(5)
    recent.note((1, 2, "0"), node)
    node.there = False
    assert recent.find((1, 2, "0")) is None


def test_however_many_are_looked_up_few_are_remembered(recent: RecentLookups, clock: Clock) -> None:
    for number in range(10_000):
        recent.note((number % 7, 2, str(number)), Found(number))
    assert len(recent) == RECENT
    assert recent.find((9_999 % 7, 2, "9999")) is not None
    assert recent.find((0, 2, "0")) is None
    clock.now += RECENT_S / 2
    recent.note((1, 2, "last"), Found(1))
    clock.now += RECENT_S / 2
    recent.expire()
    assert len(recent) == 1
    clock.now += RECENT_S / 2
    recent.expire()
    assert len(recent) == 0
    assert recent._last == {}


def test_a_thread_that_cannot_be_seen() -> None:
    """0: of another pid namespace. One that has ended stands for itself."""
    assert process_of(0) == 0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_of(ended.pid) == ended.pid
