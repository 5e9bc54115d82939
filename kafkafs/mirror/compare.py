"""Compares our log with that of the leader.

In a cluster without topic ids, a topic that was created again has the same name, and only its
records tell it from the old one.
"""

from __future__ import annotations

from typing import Final

from kafka_client.cluster import Cluster
from kafka_client.errors import BrokerError, ClientError
from kafka_client.fetch import Fetcher, Position
from kafka_client.requests import EARLIEST, LATEST, Offset, end_offsets_of_epochs, list_offsets
from kafkafs.mirror import rules
from kafkafs.mirror.facts import Copy
from kafkafs.mirror.rules import Again, BeginAt, Policy, Skip, Truncate, Wait
from storage.record.header import parse_header

# How often the mirror fetches a refused position again.
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
    partition, log = copy.partition, copy.log
    if offset <= log.log_start_offset or not log.size:
        return True
    ours = log.read(offset - 1, 1, isolation="read_uncommitted")
    base_offset = parse_header(ours).base_offset
    if base_offset >= offset:
        return True
    connection = cluster.connection(cluster.metadata.leader_of(partition))
    fetcher = Fetcher(connection, partition_bytes=len(ours), max_wait_ms=0)
    fetcher.add(partition, Position(base_offset))
    fetcher.send()
    for found in fetcher.receive():
        if isinstance(found.error, BrokerError) and found.error.code == rules.OFFSET_OUT_OF_RANGE:
            earliest = list_offsets(cluster, {partition: EARLIEST})[partition]
            return isinstance(earliest, Offset) and earliest.offset > base_offset
        if found.error is not None:
            raise found.error
        return rules.is_same_batch(ours, found.records, policy)
    # A broker that throttles answers without the partition.
    raise ClientError(f"{partition}: the leader does not send the records that it has")
