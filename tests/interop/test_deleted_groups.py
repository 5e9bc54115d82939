"""A broker loads `__consumer_offsets` after groups of each kind were deleted here.

A coordinator that cannot replay one record loads nothing of the partition, and then none of its
groups can be used.  So each case has a partition of its own, with a group that stays; the broker
must list the groups that stay, and no other.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.groups.offset_records import kind_of, partition_for
from storage.segment.reader import SegmentReader
from tests.interop.brokers import Broker
from tests.interop.clients import create_topic
from tests.interop.kafka_tools import run_tool
from tests.interop.test_groups import GROUPS_TOOL, OFFSETS, mount_of
from tests.mount.mounting import kafkafs
from tests.storage.groups.records import (
    Pair,
    classic_group,
    consumer_group,
    group_key,
    position,
    streams_group,
    write,
)
from tests.storage.logs import NOW_MS

pytestmark = pytest.mark.soak

PARTITIONS = 120
#: The groups have long names, so a batch has one record: a log can be cut after each record.
SETTINGS = {"cleanup_policy": "compact", "max_message_bytes": 800}


def without(kind: int, pairs: Sequence[Pair]) -> list[Pair]:
    """The first member has no record of this type."""
    found = [pair for pair in pairs if kind_of(pair[0]) == kind]
    return [pair for pair in pairs if pair is not found[0]]


def kinds(name: str) -> dict[str, list[Pair]]:
    """Return the records that a broker may write for a group besides its offsets, by kind."""
    two = ("member-1", "member-2")
    consumer, streams = consumer_group(name, *two), streams_group(name, *two)
    return {
        "offsets": [],
        "classic": [(group_key(name), classic_group(since_ms=5, members=0))],
        "classic-members": [(group_key(name), classic_group(since_ms=5, members=2))],
        "consumer": consumer_group(name),
        "consumer-members": consumer,
        "consumer-lacks-8": without(8, consumer),
        "consumer-lacks-7": without(7, consumer),
        "consumer-lacks-5": without(5, consumer),
        "consumer-lacks-6": without(6, consumer),
        "streams": streams_group(name),
        "streams-members": streams,
        "streams-lacks-22": without(22, streams),
        "streams-lacks-19": without(19, streams),
        "streams-lacks-20": without(20, streams),
    }


class Partitions:
    """Gives each group a partition of its own, with another group that stays there."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._free = itertools.count()
        self.kept: set[str] = set()

    def add(self, kind: str, name: str) -> tuple[Log, str]:
        """Write what a broker has written of a group of this kind; returns its full name."""
        number = next(self._free)
        log = self._manager.log(OFFSETS, number)
        kept, name = group_in(number, f"kept-{name}"), group_in(number, name)
        self.kept.add(kept)
        write(log, position(kept, "orders", 0, 1))
        for pair in (position(name, "orders", 0, 1), *kinds(name)[kind]):
            write(log, pair)
        return log, name


def group_in(partition: int, name: str) -> str:
    """A group's name that leads to this partition."""
    names = (f"{name:-<400}{number}" for number in itertools.count())
    return next(each for each in names if partition_for(each, PARTITIONS) == partition)


def batch_ends(log: Log, offset: int) -> list[int]:
    """Where in the file the batches from this offset on end."""
    (segment,) = log.segments
    return [
        position + header.size
        for position, header in SegmentReader(segment).batches()
        if header.base_offset >= offset
    ]


def listed(broker: Broker) -> set[str]:
    """The groups that Kafka's tool lists."""
    done = run_tool(GROUPS_TOOL, "--bootstrap-server", broker.address, "--list")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_broker_loads_what_deleted_groups_have_left(tmp_path: Path) -> None:
    broker = Broker(tmp_path, offsets_topic_num_partitions=PARTITIONS)
    try:
        broker.start()
        create_topic(broker, "orders")
        create_topic(broker, OFFSETS, PARTITIONS, **SETTINGS)
        broker.stop()
        with LogManager.open(str(broker.data), clock_ms=lambda: NOW_MS) as manager:
            partitions = Partitions(manager)
            deleted, cuts = delete_all_kinds(manager, partitions)
            log, broken = partitions.add("consumer-members", "broken")
            pairs = [position(broken, "orders", 0, 1), *kinds(broken)["consumer-members"]]
            for key, _ in sorted(pairs):
                write(log, (key, None))
        mend(broker, log.partition)
        for path, size in cuts.items():
            os.truncate(path, size)
        (broker.data / ".kafka_cleanshutdown").unlink()
        broker.start()
        loaded = 0
        for _ in range(PARTITIONS):
            loaded = broker.server.wait_for(
                f"(Finished loading|Failed to load).* {OFFSETS}-", loaded
            )
        assert not [line for line in broker.server.lines if "Failed to load" in line]
        groups = listed(broker)
        assert partitions.kept <= groups
        assert not {*deleted, broken} & groups
    finally:
        broker.kill()


def delete_all_kinds(
    manager: LogManager, partitions: Partitions
) -> tuple[set[str], dict[str, int]]:
    """Delete groups of each kind; one of each kind is deleted whole, and of the others the log is
    to be cut after each of the batches that deleted them.  Returns the names of the former, and
    where the logs of the others have to end.
    """
    deleted: set[str] = set()
    cuts: dict[str, int] = {}
    for kind in kinds(""):
        log, name = partitions.add(kind, kind)
        end = log.log_end_offset
        manager.groups.forget(name)
        deleted.add(name)
        for batch in range(len(batch_ends(log, end)) - 1):
            log, name = partitions.add(kind, f"{kind}-cut-{batch}")
            manager.groups.forget(name)
            cuts[log.segments[0].log_path] = batch_ends(log, end)[batch]
    return deleted, cuts


def mend(broker: Broker, partition: int) -> None:
    """Type what docs/kafka.md says: what the tombstones delete goes, and they stay."""
    properties = broker.base / "server.properties"
    assert kafkafs("config", broker.data, "--broker-config", properties).returncode == 0
    with mount_of(broker.base) as mount:
        mount.run(f"echo 'run {partition}' > {OFFSETS}/.control/roll")
        done = kafkafs("compact", mount.path, f"{OFFSETS}:{partition}")
        assert done.returncode == 0, done.stderr
