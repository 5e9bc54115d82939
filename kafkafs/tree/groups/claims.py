"""Which consumer of a group has which partition: claims.

A consumer is an open file (`claim_file`); its claims end with it. It says what it wants, and is
granted a share; while it holds a partition, nobody else commits a position there.

The shares are even, and as few partitions as possible change hands. A partition that is to go to
another consumer stays with its holder until that gives it back: first it commits what it has
handled. So no two work on the same partition. The share of a closed file goes to others at once.

Everything here is on the owner's thread.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from kafkafs.tree.context import MountContext
from kafkafs.tree.notices import Waiter

M = TypeVar("M")

MOST_NAMES = 4096
"""Topics and partitions that a consumer wants at most."""
NAME_BYTES = 1024
"""Memory of a name that a consumer wants, at most."""
MOST_CONSUMERS = 1024
"""Consumers of a group at most."""
Numbers = frozenset[int] | None
"""Partitions of a topic; None: all, also those that are made later."""


class Claimed(NamedTuple):
    """A partition. A topic that is made again has another id."""

    topic: str
    partition: int
    topic_id: str


class State(StrEnum):
    """The state of a partition in a consumer's share."""

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
        self.wanted: dict[str, Numbers] = {}
        """Partitions by topic."""
        self.waiter: Waiter | None = None
        self.has_news = False
        """Whether its partitions have changed since they were last read."""


Share = list[tuple[Claimed, State]]


class GroupClaims:
    """Those of one group."""

    def __init__(self, mount: MountContext, group: str) -> None:
        self._mount = mount
        self._group = group
        self.consumers: dict[Consumer, None] = {}
        # The consumers that want partitions of each topic, also of topics that are not there.
        self._wanting: dict[str, dict[Consumer, Numbers]] = {}
        # The consumer that holds each partition, and the one that gets it next.
        self._holders: dict[Claimed, Consumer] = {}
        self._granted: dict[Claimed, Consumer] = {}
        self._shares: dict[Consumer, Share] = {}
        # The facts that the shares were made of, and the changes of topics that they include.
        self._topics: dict[str, tuple[str, Sequence[int]]] = {}
        self._changes = -1
        self._is_due = False

    # -- the consumers -------------------------------------------------------------------------

    def check_wanted(self, consumer: Consumer, wanted: Mapping[str, Numbers]) -> int:
        """Return how many names are wanted.

        EINVAL for a consumer that would want too much, or would be one too many.
        """
        names = sum(1 if numbers is None else len(numbers) for numbers in wanted.values())
        if names > MOST_NAMES:
            raise OSError(
                errno.EINVAL,
                f"a consumer may claim at most {MOST_NAMES} topics and partitions, not {names}. "
                "To claim all partitions of a topic: claim TOPIC",
            )
        if consumer not in self.consumers and len(self.consumers) >= MOST_CONSUMERS:
            raise OSError(errno.EINVAL, f"a group may have at most {MOST_CONSUMERS} consumers")
        return names

    def change(
        self, consumer: Consumer, wanted: Mapping[str, Numbers], returned: Sequence[Claimed]
    ) -> None:
        """A consumer wants these partitions now, and gives back those that it has returned."""
        if not returned and wanted.items() <= consumer.wanted.items():
            return
        for claimed in returned:
            self._holders.pop(claimed, None)
        for topic, numbers in wanted.items():
            self._wanting.setdefault(topic, {})[consumer] = numbers
        consumer.wanted.update(wanted)
        if wanted and consumer not in self.consumers:
            self.consumers[consumer] = None
            self._mount.manager.groups.joined(self._group)
        self.look()

    def leave(self, consumer: Consumer) -> bool:
        """A consumer has ended. Returns whether others may get its partitions: `look_if_due` grants
        them those of all consumers that have ended.
        """
        if consumer not in self.consumers:
            return False
        del self.consumers[consumer]
        for topic in consumer.wanted:
            wanting = self._wanting[topic]
            del wanting[consumer]
            if not wanting:
                del self._wanting[topic]
        consumer.wanted = {}
        if not self.consumers:
            self._mount.manager.groups.left(self._group)
        self._is_due = True
        return bool(self.consumers)

    def check_holds(self, consumer: Consumer, topic: str, partition: int) -> None:
        """EPERM unless a consumer holds a partition."""
        self.held_by(consumer, topic, partition)

    def held_by(self, consumer: Consumer, topic: str, partition: int) -> Claimed:
        """A partition that a consumer holds; EPERM where it does not."""
        self.look_if_due()
        known = self._mount.manager.topics.get(topic)
        claimed = Claimed(topic, partition, "" if known is None else known.id)
        if known is None or self._holders.get(claimed) is not consumer:
            raise OSError(errno.EPERM, f"{topic}/{partition} is not claimed by this open file")
        return claimed

    def share_of(self, consumer: Consumer) -> Share:
        """The partitions that a consumer holds, or gets next."""
        self.look_if_due()
        return self._shares.get(consumer, [])

    # -- everybody else ------------------------------------------------------------------------

    def held(self, topic: str | None, partition: int | None) -> Iterator[tuple[Claimed, Consumer]]:
        """The claims on a partition, on a topic or (None) on all, with their holders."""
        self.look_if_due()
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
        """Grant the partitions that exist now, and wake the consumers with a new share."""
        self._is_due = False
        before, there = self._shares, self._there()
        self._granted = shared(there, self._granted)
        self._holders = {
            claimed: holder if holder is not None and holder in wanting else self._granted[claimed]
            for claimed, wanting in there.items()
            for holder in (self._holders.get(claimed),)
        }
        self._shares = self._made_shares()
        for consumer in self.consumers:
            if self._shares[consumer] != before.get(consumer, []):
                consumer.has_news = True
                waiter, consumer.waiter = consumer.waiter, None
                if waiter is not None:
                    self._mount.notices.wake(waiter)

    def look_if_due(self) -> None:
        """`look`, where consumers have ended, or topics or partitions were made or deleted, since
        the last one.
        """
        has_changed = self._changes != self._mount.manager.topics.changes
        if self._is_due or (has_changed and self._wanted_topics() != self._topics):
            self.look()

    def _wanted_topics(self) -> dict[str, tuple[str, Sequence[int]]]:
        """The id and the partitions of each topic that is there and wanted."""
        topics, wanting = self._mount.manager.topics, self._wanting
        # Set first: another thread may change the topics meanwhile.
        self._changes = topics.changes
        # Names of topics that are not there cost nothing.
        names = wanting if len(wanting) < len(topics) else [*topics]
        found = {name: topics.get(name) for name in sorted(names) if name in wanting}
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

    def _there(self) -> dict[Claimed, Collection[Consumer]]:
        """The partitions that are there and wanted, and who wants each."""
        self._topics = self._wanted_topics()
        found: dict[Claimed, Collection[Consumer]] = {}
        last: Collection[Consumer] = ()
        for name, (topic_id, numbers) in self._topics.items():
            for number, those in _wanting(numbers, self._wanting[name]):
                # One collection for all partitions that the same consumers want (`shared`).
                last = last if those is last or those == last else those
                found[Claimed(name, number, topic_id)] = last
        return found


def _wanting(
    numbers: Sequence[int], wanting: Mapping[Consumer, Numbers]
) -> Iterator[tuple[int, Collection[Consumer]]]:
    """The partitions of a topic that somebody wants, and who that is."""
    if all(wanted is None for wanted in wanting.values()):
        everybody = wanting.keys()
        yield from ((number, everybody) for number in numbers)
        return
    for number in numbers:
        those = dict.fromkeys(
            consumer for consumer, wanted in wanting.items() if wanted is None or number in wanted
        )
        if those:
            yield number, those.keys()


def shared(
    wanted: Mapping[Claimed, Collection[M]], before: Mapping[Claimed, M]
) -> dict[Claimed, M]:
    """Give each partition to one of those who want it: evenly, and as few as possible to others
    than before.
    """
    first = next(iter(wanted.values()), ())
    if all(wanting is first for wanting in wanted.values()):
        return _shared_by_all(wanted, first, before)
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


def _shared_by_all(
    claims: Collection[Claimed], consumers: Collection[M], before: Mapping[Claimed, M]
) -> dict[Claimed, M]:
    """Give each partition to one of the consumers, who all want all of them.

    Takes time for each partition and each consumer, not for each pair of them.
    """
    had = {claimed: before[claimed] for claimed in claims if before.get(claimed) in consumers}
    loads = Counter(had.values())
    share, more = divmod(len(claims), len(consumers)) if consumers else (0, 0)
    # Consumers that had most partitions get those that are left over.
    most_first = sorted(consumers, key=lambda each: -loads[each])
    left = {each: share + (place < more) for place, each in enumerate(most_first)}
    given: dict[Claimed, M] = {}
    for claimed, consumer in reversed(had.items()):
        if left[consumer]:
            given[claimed] = consumer
            left[consumer] -= 1
    free = (each for each in consumers for _ in range(left[each]))
    return {claimed: given[claimed] if claimed in given else next(free) for claimed in claims}


class Claims:
    """Those of all groups."""

    def __init__(self, mount: MountContext) -> None:
        self._mount = mount
        self._groups: dict[str, GroupClaims] = {}
        self._due: set[str] = set()
        self.on_due: Callable[[], None] = lambda: None
        """Called when consumers have ended; who sets it calls `look_if_due` a moment later."""

    def of(self, group: str) -> GroupClaims:
        """A group's."""
        return self._groups.setdefault(group, GroupClaims(self._mount, group))

    def leave(self, group: str, consumer: Consumer) -> None:
        """A consumer of a group has ended."""
        if self.of(group).leave(consumer):
            self._due.add(group)
            self.on_due()
        self.forget_empty(group)

    def forget_empty(self, group: str) -> None:
        """Forget a group without consumers."""
        if group in self._groups and not self._groups[group].consumers:
            del self._groups[group]

    def look_if_due(self) -> None:
        """Grant what consumers held that have ended since the last call."""
        due, self._due = self._due, set()
        for group in due & self._groups.keys():
            self._groups[group].look_if_due()

    def look(self) -> None:
        """Once a second: grant what was made meanwhile, and forget what was deleted."""
        for group in self._groups.values():
            group.look_if_due()

    def check_free(
        self, group: str, topic: str | None = None, partition: int | None = None
    ) -> None:
        """EBUSY where a partition of a group, of one of its topics, or this one, is claimed."""
        known = self._groups.get(group)
        for claimed, consumer in () if known is None else known.held(topic, partition):
            what = f"{claimed.topic}/{claimed.partition}"
            raise OSError(errno.EBUSY, f"{what} is claimed by {consumer.name}")
