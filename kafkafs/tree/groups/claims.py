"""Which consumer of a group has which partition: claims.

A consumer is an open file (`claim_file`); its claims end with it. It says what it wants, and is
granted a share; while it holds a partition, nobody else commits a position there.

The shares are even, and as few partitions as possible change hands. A partition that is to go to
another consumer stays with its holder until that gives it back: first it commits what it has
handled. So no two work on the same partition. What a closed file held is granted to others at once.

Everything here is on the owner's thread.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from kafkafs.tree.context import MountContext
from kafkafs.tree.notices import Waiter

M = TypeVar("M")


class Claimed(NamedTuple):
    """A partition. A topic that is made again has another id."""

    topic: str
    partition: int
    topic_id: str


class State(StrEnum):
    """What a consumer is told of a partition."""

    HELD = "held"
    RETURN = "return"
    """It holds it, and is asked to give it back."""
    WAIT = "wait"
    """It gets it as soon as the holder gives it back."""


class Consumer:
    """One that shares a group's partitions."""

    def __init__(self) -> None:
        self.name = ""
        """Its process and command, for who is refused."""
        self.wanted: dict[str, frozenset[int] | None] = {}
        """Partitions by topic; None: all, also those that are made later."""
        self.waiter: Waiter | None = None
        self.has_news = False
        """Whether its partitions have changed since they were last read."""


Share = list[tuple[Claimed, State]]


class GroupClaims:
    """Those of one group."""

    def __init__(self, mount: MountContext, group: str) -> None:
        self._mount = mount
        self._group = group
        self.consumers: list[Consumer] = []
        # Who holds each partition, and who is to hold it.
        self._holders: dict[Claimed, Consumer] = {}
        self._granted: dict[Claimed, Consumer] = {}
        self._shares: dict[Consumer, Share] = {}
        # What the shares were made of.
        self._topics: dict[str, tuple[str, Sequence[int]]] = {}

    # -- the consumers -------------------------------------------------------------------------

    def want(self, consumer: Consumer, topic: str, partition: int | None) -> None:
        """A consumer wants a partition, or (None) all of a topic."""
        wanted = consumer.wanted.get(topic, frozenset())
        both = None if partition is None or wanted is None else wanted | {partition}
        consumer.wanted[topic] = both
        if consumer not in self.consumers:
            self.consumers.append(consumer)
            self._mount.manager.groups.joined(self._group)
        self.look()

    def give_back(self, consumer: Consumer, topic: str, partition: int) -> None:
        """A consumer gives a partition back that it holds. EPERM where it does not."""
        del self._holders[self._held(consumer, topic, partition)]
        self.look()

    def leave(self, consumer: Consumer) -> None:
        """A consumer has ended."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            if not self.consumers:
                self._mount.manager.groups.left(self._group)
            self.look()

    def check_holds(self, consumer: Consumer, topic: str, partition: int) -> None:
        """EPERM unless a consumer holds a partition."""
        self._held(consumer, topic, partition)

    def _held(self, consumer: Consumer, topic: str, partition: int) -> Claimed:
        known = self._mount.manager.topics.get(topic)
        claimed = Claimed(topic, partition, "" if known is None else known.id)
        if known is None or self._holders.get(claimed) is not consumer:
            raise OSError(errno.EPERM, f"{topic}/{partition} is not claimed by this open file")
        return claimed

    def share_of(self, consumer: Consumer) -> Share:
        """What a consumer holds, or is to get."""
        return self._shares.get(consumer, [])

    # -- everybody else ------------------------------------------------------------------------

    def held(self, topic: str | None, partition: int | None) -> Iterator[tuple[Claimed, Consumer]]:
        """Who holds a partition; what is held of a topic, or (None) of all, and by whom."""
        if topic is not None and partition is not None:
            known = self._mount.manager.topics.get(topic)
            claimed = Claimed(topic, partition, "" if known is None else known.id)
            if claimed in self._holders:
                yield claimed, self._holders[claimed]
            return
        for claimed, consumer in self._holders.items():
            if topic in (None, claimed.topic):
                yield claimed, consumer

    # -- the shares ----------------------------------------------------------------------------

    def look(self) -> None:
        """Grant what is there now to those who want it, and wake those for whom that is new."""
        before, there = self._shares, self._there()
        self._granted = shared(there, self._granted)
        self._holders = {
            claimed: holder if holder in wanting else self._granted[claimed]
            for claimed, wanting in there.items()
            for holder in (self._holders.get(claimed),)
        }
        self._shares = self._made_shares()
        for consumer in self.consumers:
            if self.share_of(consumer) != before.get(consumer, []):
                consumer.has_news = True
                waiter, consumer.waiter = consumer.waiter, None
                if waiter is not None:
                    self._mount.notices.wake(waiter)

    def look_again(self) -> None:
        """As `look`, where topics or partitions were made or deleted."""
        if self._wanted_topics() != self._topics:
            self.look()

    def _wanted_topics(self) -> dict[str, tuple[str, Sequence[int]]]:
        """The id and the partitions of each topic that is there and wanted."""
        names = {name for consumer in self.consumers for name in consumer.wanted}
        found = {name: self._mount.manager.topics.get(name) for name in sorted(names)}
        return {
            name: (topic.id, tuple(topic.numbers))
            for name, topic in found.items()
            if topic is not None
        }

    def _made_shares(self) -> dict[Consumer, Share]:
        shares: dict[Consumer, Share] = {consumer: [] for consumer in self.consumers}
        for claimed, granted in self._granted.items():
            holder = self._holders[claimed]
            if holder is granted:
                shares[holder].append((claimed, State.HELD))
            else:
                shares[holder].append((claimed, State.RETURN))
                shares[granted].append((claimed, State.WAIT))
        return shares

    def _there(self) -> dict[Claimed, list[Consumer]]:
        """The partitions that are there and wanted, and who wants each."""
        self._topics = self._wanted_topics()
        return {
            Claimed(name, number, topic_id): those
            for name, (topic_id, numbers) in self._topics.items()
            for number, those in _wanting(name, numbers, self.consumers)
        }


def _wanting(
    topic: str, numbers: Sequence[int], consumers: Sequence[Consumer]
) -> Iterator[tuple[int, list[Consumer]]]:
    """The partitions of a topic that somebody wants, and who that is."""
    whole = frozenset(numbers)
    wanting = {
        consumer: whole if (wanted := consumer.wanted[topic]) is None else wanted
        for consumer in consumers
        if topic in consumer.wanted
    }
    for number in numbers:
        those = [consumer for consumer, wanted in wanting.items() if number in wanted]
        if those:
            yield number, those


def shared(wanted: Mapping[Claimed, Sequence[M]], before: Mapping[Claimed, M]) -> dict[Claimed, M]:
    """Give each partition to one of those who want it: evenly, and as few as possible to others
    than before.
    """
    loads: Counter[M] = Counter()
    given: dict[Claimed, M] = {}
    for claimed, wanting in wanted.items():
        if claimed in before and before[claimed] in wanting:
            given[claimed] = before[claimed]
            loads[before[claimed]] += 1
    for claimed, wanting in wanted.items():
        if claimed not in given:
            given[claimed] = least = min(wanting, key=loads.__getitem__)
            loads[least] += 1
    # First those give who have most of all that want the same, so that nobody gives too much.
    for only_most in (True, False):
        has_moved = True
        while has_moved:
            has_moved = False
            for claimed, wanting in wanted.items():
                most, least = given[claimed], min(wanting, key=loads.__getitem__)
                if only_most and loads[most] < max(map(loads.__getitem__, wanting)):
                    continue
                # Each such move makes the shares more even, so there is an end.
                if loads[least] + 1 < loads[most]:
                    given[claimed] = least
                    loads[most] -= 1
                    loads[least] += 1
                    has_moved = True
    return given


class Claims:
    """Those of all groups."""

    def __init__(self, mount: MountContext) -> None:
        self._mount = mount
        self._groups: dict[str, GroupClaims] = {}

    def of(self, group: str) -> GroupClaims:
        """A group's."""
        return self._groups.setdefault(group, GroupClaims(self._mount, group))

    def left(self, group: str) -> None:
        """A consumer of a group has ended."""
        if group in self._groups and not self._groups[group].consumers:
            del self._groups[group]

    def look(self) -> None:
        """Once a second: grant what was made meanwhile, and forget what was deleted."""
        for group in self._groups.values():
            group.look_again()

    def check_free(
        self, group: str, topic: str | None = None, partition: int | None = None
    ) -> None:
        """EBUSY where a partition of a group, of one of its topics, or this one, is claimed."""
        known = self._groups.get(group)
        for claimed, consumer in () if known is None else known.held(topic, partition):
            what = f"{claimed.topic}/{claimed.partition}"
            raise OSError(errno.EBUSY, f"{what} is claimed by {consumer.name}")
