"""Compares our log with that of the leader, in a cluster without topic ids.

There a topic that was created again has the same name, and only its records tell it from the old
one.
"""

from __future__ import annotations

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import BrokerError, ClientError
from kafka_client.fetch import Fetcher, Position
from kafka_client.requests import EARLIEST, Offset, list_offsets
from kafkafs.mirror.rules import OFFSET_OUT_OF_RANGE, Policy, is_same_batch
from storage.log.log import Log
from storage.record.header import parse_header


def has_batch_before(
    cluster: Cluster, partition: TopicPartition, log: Log, offset: int, policy: Policy
) -> bool:
    """Return whether the leader has our last batch below an offset; True if nobody can know.

    Errors: ClientError, OSError.
    """
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
        if isinstance(found.error, BrokerError) and found.error.code == OFFSET_OUT_OF_RANGE:
            earliest = list_offsets(cluster, {partition: EARLIEST})[partition]
            return isinstance(earliest, Offset) and earliest.offset > base_offset
        if found.error is not None:
            raise found.error
        return is_same_batch(ours, found.records, policy)
    # A broker that throttles answers without the partition.
    raise ClientError(f"{partition}: the leader does not send the records that it has")
