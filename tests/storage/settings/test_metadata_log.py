"""A cluster's metadata log: the state that its snapshot and its records make, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import CorruptRecord
from storage.files import Files
from storage.record.header import HEADER_SIZE
from storage.settings.metadata_log import Metadata, read_metadata
from storage.state.checkpoint_file import new_topic_id
from tests import metadata_log as made
from tests.metadata_log import BROKER, TOPIC, MetadataLog

ORDERS, USERS = new_topic_id(), new_topic_id()
ORDERS_KEPT = made.config(TOPIC, "orders", "retention.ms", "-1")


def read(log: MetadataLog) -> Metadata:
    return read_metadata(Files(), str(log.directory))


def test_topics_and_settings(tmp_path: Path) -> None:
    log = MetadataLog(tmp_path)
    log.change_leader()
    log.append(made.no_op(), made.topic("orders", ORDERS), ORDERS_KEPT)
    log.append(made.topic("users", USERS), made.config(TOPIC, "users", "retention.ms", "5"))
    log.append(made.config(BROKER, "", "log.retention.ms", "7"))
    log.append(made.config(BROKER, "1", "log.retention.ms", "8"))
    log.append(made.config(TOPIC, "orders", "segment.ms", "9"))
    log.append(made.config(TOPIC, "orders", "segment.ms", None))
    log.append(*(made.partition(ORDERS, number) for number in range(3)), made.partition(USERS, 0))
    found = read(log)
    assert found.topics == {"orders": ORDERS, "users": USERS}
    assert found.partitions == {ORDERS: 3, USERS: 1}
    assert found.configs == {
        (TOPIC, "orders"): {"retention.ms": "-1"},
        (TOPIC, "users"): {"retention.ms": "5"},
        (BROKER, ""): {"log.retention.ms": "7"},
        (BROKER, "1"): {"log.retention.ms": "8"},
    }
    log.append(made.removed(USERS))
    found = read(log)
    assert found.topics == {"orders": ORDERS}
    assert found.partitions == {ORDERS: 3}
    assert (TOPIC, "users") not in found.configs


def test_a_snapshot_stands_for_what_lies_below_it(tmp_path: Path) -> None:
    log = MetadataLog(tmp_path)
    log.append(made.topic("gone", USERS))
    log.snapshot(made.topic("gone", USERS))
    log.append(made.removed(USERS), made.topic("orders", ORDERS))
    log.snapshot(made.topic("orders", ORDERS), ORDERS_KEPT)
    log.append(made.config(TOPIC, "orders", "retention.bytes", "7"))
    assert read(log).configs == {(TOPIC, "orders"): {"retention.ms": "-1", "retention.bytes": "7"}}
    # The log may start below the end of the snapshot, or be missing after it.
    first = log.path
    log.roll()
    log.append(made.config(TOPIC, "orders", "retention.bytes", None))
    assert read(log).configs == {(TOPIC, "orders"): {"retention.ms": "-1"}}
    log.snapshot(made.topic("orders", ORDERS))
    first.unlink()
    assert read(log) == Metadata({"orders": ORDERS}, {})
    log.path.unlink()
    assert read(log) == Metadata({"orders": ORDERS}, {})


def test_what_the_snapshot_holds_is_not_replayed(tmp_path: Path) -> None:
    """The log has thousands of batches before the end of the snapshot, and after it."""
    log = MetadataLog(tmp_path)
    for number in range(3000):
        log.append(made.no_op(), made.config(TOPIC, "orders", "retention.ms", str(number)))
    log.snapshot(made.topic("orders", ORDERS), ORDERS_KEPT)
    assert read(log).configs == {(TOPIC, "orders"): {"retention.ms": "-1"}}
    log.append(made.config(TOPIC, "orders", "retention.bytes", "1"))
    for number in range(2000):
        log.append(made.config(TOPIC, "orders", "retention.bytes", str(number)))
    assert read(log).configs == {
        (TOPIC, "orders"): {"retention.ms": "-1", "retention.bytes": "1999"}
    }


def test_transactions_count_when_they_have_ended(tmp_path: Path) -> None:
    log = MetadataLog(tmp_path)
    log.append(made.begin(), made.topic("orders", ORDERS), made.partition(ORDERS, 0), ORDERS_KEPT)
    assert read(log) == Metadata()
    log.append(made.end())
    assert read(log).topics == {"orders": ORDERS}
    log.append(made.begin(), made.partition(ORDERS, 1), made.removed(ORDERS))
    log.append(made.abort())
    log.append(made.topic("users", USERS))
    assert read(log).topics == {"orders": ORDERS, "users": USERS}
    assert read(log).partitions == {ORDERS: 1}


def filled(tmp_path: Path) -> MetadataLog:
    log = MetadataLog(tmp_path)
    log.append(made.topic("orders", ORDERS), made.config(TOPIC, "orders", "retention.ms", "5"))
    log.append(ORDERS_KEPT)
    return log


@pytest.mark.parametrize("left", [1, 12, 60, 61, 70, -1])
def test_a_batch_that_is_not_whole_was_never_decided(tmp_path: Path, left: int) -> None:
    log = filled(tmp_path)
    size = log.path.stat().st_size
    log.append(made.config(TOPIC, "orders", "retention.ms", "1"))
    data = log.path.read_bytes()
    end = size + left if left > 0 else len(data) + left
    log.path.write_bytes(data[:end])
    assert read(log).configs == {(TOPIC, "orders"): {"retention.ms": "-1"}}
    log.path.write_bytes(data[:size] + bytes(4096))
    assert read(log).configs == {(TOPIC, "orders"): {"retention.ms": "-1"}}


def damage(at: int) -> Callable[[MetadataLog], None]:
    def apply(log: MetadataLog) -> None:
        data = bytearray(log.path.read_bytes())
        data[at] ^= 0x40
        log.path.write_bytes(data)

    return apply


def clear_the_first(log: MetadataLog) -> None:
    data = log.path.read_bytes()
    log.path.write_bytes(bytes(HEADER_SIZE) + data[HEADER_SIZE:])


def lose_the_first(log: MetadataLog) -> None:
    log.path.unlink()
    log.roll()
    log.append(ORDERS_KEPT)


def lose_one(log: MetadataLog) -> None:
    log.next_offset += 1
    log.append(ORDERS_KEPT)


def lose_a_segment(log: MetadataLog) -> None:
    log.next_offset += 1
    log.roll()
    log.append(ORDERS_KEPT)


def cut_the_first(log: MetadataLog) -> None:
    path = log.path
    log.roll()
    log.append(ORDERS_KEPT)
    path.write_bytes(path.read_bytes()[:-1])


def cut_the_snapshot(log: MetadataLog) -> None:
    path = log.snapshot(made.topic("orders", ORDERS), ORDERS_KEPT)
    path.write_bytes(path.read_bytes()[:-1])


def empty_the_snapshot(log: MetadataLog) -> None:
    log.snapshot(ORDERS_KEPT).write_bytes(b"")


@pytest.mark.parametrize(
    "spoil",
    [
        *(damage(at) for at in (7, 10, 16, 20, 23, 70, 100)),
        *(clear_the_first, lose_the_first, lose_one, lose_a_segment, cut_the_first),
        *(cut_the_snapshot, empty_the_snapshot),
    ],
)
def test_what_is_damaged_or_missing_tells_nothing(
    tmp_path: Path, spoil: Callable[[MetadataLog], None]
) -> None:
    log = filled(tmp_path)
    spoil(log)
    with pytest.raises(CorruptRecord):
        read(log)


def test_known_records_that_are_not_needed_are_skipped(tmp_path: Path) -> None:
    """In any version: RegisterBrokerRecord, PartitionChangeRecord, ClientQuotaRecord."""
    log = filled(tmp_path)
    before = read(log)
    log.append(made.unregistered_controller(), *(made.later(kind, 99) for kind in (0, 5, 14)))
    assert read(log) == before
    assert before.later is None


def test_a_reassignment_may_add_replicas(tmp_path: Path) -> None:
    """The largest number counts: other brokers may still have the replicas that were removed."""
    log = MetadataLog(tmp_path)
    log.append(made.topic("orders", ORDERS), *(made.partition(ORDERS, each) for each in range(2)))
    assert read(log).replicas == {ORDERS: 1}
    log.append(made.replicas_changed(ORDERS, 1, 3), made.replicas_changed(ORDERS, 1, 2))
    assert read(log).replicas == {ORDERS: 3}
    log.append(made.replicas_changed(ORDERS, 1, 40))
    assert read(log).replicas == {ORDERS: 40}


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (made.later(111, 0), "Unknown metadata id 111"),
        (made.later(4, 9), "Unknown version 9 of ConfigRecord"),
        (bytes([2, 4, 0]), "unknown frame version 2"),
    ],
)
def test_records_of_a_later_kafka(tmp_path: Path, record: bytes, what: str) -> None:
    """The others count, before and after it, and a PartitionRecord of any version."""
    log = MetadataLog(tmp_path)
    log.append(made.metadata_version(30), made.topic("orders", ORDERS))
    log.append(record)
    log.append(made.topic("users", USERS), bytes([1, 3, 99]) + made.partition(USERS, 4)[3:])
    log.append(made.metadata_version(31), made.later(112, 0))
    found = read(log)
    assert found.topics == {"orders": ORDERS, "users": USERS}
    assert found.partitions == {USERS: 5}
    assert found.version == 31
    assert found.later is not None
    assert what in found.later
