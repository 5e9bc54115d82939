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
from storage.directory.manager import Topic

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


class GroupClaims:
    """Those of one group."""

    def __init__(self, mount: MountContext) -> None:
        self._mount = mount
        self.consumers: list[Consumer] = []
        # Who holds each partition, and who is to hold it.
        self._holders: dict[Claimed, Consumer] = {}
        self._granted: dict[Claimed, Consumer] = {}

    # -- the consumers -------------------------------------------------------------------------

    def want(self, consumer: Consumer, topic: str, partition: int | None) -> None:
        """A consumer wants a partition, or (None) all of a topic."""
        wanted = consumer.wanted.get(topic, frozenset())
        both = None if partition is None or wanted is None else wanted | {partition}
        consumer.wanted[topic] = both
        if consumer not in self.consumers:
            self.consumers.append(consumer)
        self.look()

    def give_back(self, consumer: Consumer, topic: str, partition: int) -> None:
        """A consumer gives a partition back that it holds. EPERM where it does not."""
        del self._holders[self._held(consumer, topic, partition)]
        self.look()

    def leave(self, consumer: Consumer) -> None:
        """A consumer has ended."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
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

    def partitions_of(self, consumer: Consumer) -> Iterator[tuple[Claimed, State]]:
        """What a consumer holds, or is to get."""
        for claimed, granted in sorted(self._granted.items(), key=lambda item: item[0]):
            holder = self._holders.get(claimed)
            if holder is consumer:
                yield claimed, State.HELD if granted is consumer else State.RETURN
            elif granted is consumer:
                yield claimed, State.WAIT

    # -- everybody else ------------------------------------------------------------------------

    def held(self, topic: str | None = None) -> Iterator[tuple[Claimed, Consumer]]:
        """What is held, of a topic or (None) of all, by whom."""
        for claimed, consumer in self._holders.items():
            if topic in (None, claimed.topic):
                yield claimed, consumer

    # -- the shares ----------------------------------------------------------------------------

    def look(self) -> None:
        """Grant what is there now to those who want it, and wake those for whom that is new."""
        before = {consumer: list(self.partitions_of(consumer)) for consumer in self.consumers}
        there = self._there()
        self._granted = shared(there, self._granted)
        self._holders = {
            claimed: holder if holder in wanting else self._granted[claimed]
            for claimed, wanting in there.items()
            for holder in (self._holders.get(claimed),)
        }
        for consumer, partitions in before.items():
            if list(self.partitions_of(consumer)) != partitions:
                consumer.has_news = True
                waiter, consumer.waiter = consumer.waiter, None
                if waiter is not None:
                    self._mount.notices.wake(waiter)

    def _there(self) -> dict[Claimed, list[Consumer]]:
        """The partitions that are there and wanted, and who wants each."""
        found: dict[Claimed, list[Consumer]] = {}
        topics = self._mount.manager.topics
        for name in sorted({name for consumer in self.consumers for name in consumer.wanted}):
            topic = topics.get(name)
            if topic is not None:
                found.update(_wanted(topic, self.consumers))
        return found


def _wanted(
    topic: Topic, consumers: Sequence[Consumer]
) -> Iterator[tuple[Claimed, list[Consumer]]]:
    """The partitions of a topic that somebody wants, and who that is."""
    whole = frozenset(topic.numbers)
    wanting = {
        consumer: whole if (numbers := consumer.wanted[topic.name]) is None else numbers
        for consumer in consumers
        if topic.name in consumer.wanted
    }
    for number in topic.numbers:
        those = [consumer for consumer, numbers in wanting.items() if number in numbers]
        if those:
            yield Claimed(topic.name, number, topic.id), those


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
    has_moved = True
    while has_moved:
        has_moved = False
        for claimed, wanting in wanted.items():
            most, least = given[claimed], min(wanting, key=loads.__getitem__)
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
        return self._groups.setdefault(group, GroupClaims(self._mount))

    def left(self, group: str) -> None:
        """A consumer of a group has ended."""
        if group in self._groups and not self._groups[group].consumers:
            del self._groups[group]

    def look(self) -> None:
        """Once a second: grant what was made meanwhile, and forget what was deleted."""
        for group in self._groups.values():
            group.look()

    def check_free(
        self, group: str, topic: str | None = None, partition: int | None = None
    ) -> None:
        """EBUSY where a partition of a group, of one of its topics, or this one, is claimed."""
        known = self._groups.get(group)
        for claimed, consumer in () if known is None else known.held(topic):
            if partition in (None, claimed.partition):
                what = f"{claimed.topic}/{claimed.partition}"
                raise OSError(errno.EBUSY, f"{what} is claimed by {consumer.name}")
