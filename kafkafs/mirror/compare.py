"""Compares our log with that of the leader.

In a cluster without topic ids, a topic that was created again has the same name, and only its
records tell it from the old one.
"""

from __future__ import annotations

from typing import Final

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import BrokerError, ClientError
from kafka_client.fetch import NO_TOPIC_ID, Fetcher, Position
from kafka_client.requests import EARLIEST, LATEST, Offset, end_offsets_of_epochs, list_offsets
from kafkafs.mirror import rules
from kafkafs.mirror.facts import Copy
from kafkafs.mirror.rules import Again, BeginAt, Policy, Skip, Truncate, Wait
from storage.log.log import Log
from storage.record.header import parse_header

# How often the mirror fetches a refused position again, or from a broker that throttles.
_ATTEMPTS: Final = 3


def compare(cluster: Cluster, copy: Copy) -> Skip | Truncate | BeginAt | Again | Wait:
    """Ask the leader where its log begins, and where our last epoch ends there. Return where to
    read on. Errors: ClientError.
    """
    partition, log = copy.partition, copy.log
    earliest = list_offsets(cluster, {partition: EARLIEST})[partition]
    latest = list_offsets(cluster, {partition: LATEST})[partition]
    entries, epoch_end = log.epochs.entries, None
    if entries:
        epoch_end = end_offsets_of_epochs(cluster, {partition: entries[-1][0]})[partition]
    found = rules.on_comparison(
        log.log_end_offset,
        copy.position,
        entries,
        earliest,
        latest,
        epoch_end,
        is_empty=not log.size,
    )
    if isinstance(found, Again) and copy.attempts >= _ATTEMPTS:
        return Wait("the leader refuses an offset that its log has")
    return found


def is_another_topic(cluster: Cluster, copy: Copy, policy: Policy) -> bool:
    """Return whether the leader never had our records. Errors: ClientError, OSError."""
    if has_batch_before(cluster, copy, copy.log.log_end_offset, policy):
        return False
    found = compare(cluster, copy)
    return not isinstance(found, Truncate) or leaves_nothing(cluster, copy, found.offset, policy)


def leaves_nothing(cluster: Cluster, copy: Copy, offset: int, policy: Policy) -> bool:
    """Return whether the leader has no records of ours below the offset of a truncation, though an
    unclean election leaves a part of them. Errors: ClientError, OSError.
    """
    return offset <= copy.log.log_start_offset or not has_batch_before(
        cluster, copy, offset, policy
    )


def has_batch_before(cluster: Cluster, copy: Copy, offset: int, policy: Policy) -> bool:
    """Return whether the leader has our last batch below an offset; True if nobody can know.

    Errors: ClientError, OSError.
    """
    ours = _batch_before(copy.log, offset)
    if ours is None:
        return True
    theirs = _batch_of_leader(cluster, copy.partition, ours)
    if theirs is not None:
        return rules.is_same_batch(ours, theirs, policy)
    earliest = list_offsets(cluster, {copy.partition: EARLIEST})[copy.partition]
    return isinstance(earliest, Offset) and earliest.offset > parse_header(ours).base_offset


def has_our_end(cluster: Cluster, copy: Copy, topic_id: bytes) -> bool:
    """Return whether the topic with an id has our last batch, byte for byte: it is that of our log.
    Errors: ClientError, OSError.
    """
    ours = _batch_before(copy.log, copy.log.log_end_offset)
    theirs = None if ours is None else _batch_of_leader(cluster, copy.partition, ours, topic_id)
    return ours is not None and theirs is not None and theirs[: len(ours)] == ours


def _batch_before(log: Log, offset: int) -> bytes | None:
    """Return our last batch that begins below an offset; None: there is none."""
    if offset <= log.log_start_offset or not log.size:
        return None
    ours = log.read(offset - 1, 1, isolation="read_uncommitted")
    return ours if parse_header(ours).base_offset < offset else None


def _batch_of_leader(
    cluster: Cluster, partition: TopicPartition, ours: bytes, topic_id: bytes = NO_TOPIC_ID
) -> memoryview | None:
    """Return what the leader has from the offset of our batch on; None: it refuses the offset."""
    connection = cluster.connection(cluster.metadata.leader_of(partition))
    position = Position(parse_header(ours).base_offset, topic_id=topic_id)
    # A broker that throttles answers without the partition. The next request is then sent later.
    for _ in range(_ATTEMPTS):
        fetcher = Fetcher(connection, has_session=False, partition_bytes=len(ours), max_wait_ms=0)
        fetcher.add(partition, position)
        fetcher.send()
        for found in fetcher.receive():
            error = found.error
            if isinstance(error, BrokerError) and error.code == rules.OFFSET_OUT_OF_RANGE:
                return None
            if error is not None:
                raise error
            return found.records
    raise ClientError(f"{partition}: the leader does not send the records that it has")
