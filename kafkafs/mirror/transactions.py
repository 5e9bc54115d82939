"""Ends transactions whose markers the source has no more.

A cleaner removes a marker after all records of its transaction. A copy that has these records, and
was not at the end meanwhile, never gets the marker: the transaction stays open here, and nothing
after it is stable, or the marker of the producer's next transaction ends both. So an ABORT marker
is written into the first hole after its records. That hides records that the source no longer has;
a COMMIT could show aborted ones.

- Before the first hole after a pause, `has_records` tells whether the source still has a record of
  the transaction. If so, it also has the marker.
- At the end, `lost_marker` finds a transaction that is open here only.
"""

from __future__ import annotations

from typing import NamedTuple

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.fetch import Fetcher, Position
from storage.log.log import Log
from storage.record.control import ABORT, encode_marker
from storage.record.header import parse_header
from storage.segment.reader import SegmentReader
from storage.state.producer_state import Producer


class LostMarker(NamedTuple):
    """A transaction that has ended in the source. `offset`: a hole after its records; `epoch`: the
    leader epoch of the batch after that.
    """

    producer: Producer
    offset: int
    epoch: int

    def marker(self, now_ms: int) -> bytearray:
        """Return the batch that aborts the transaction here."""
        return encode_marker(
            ABORT,
            producer_id=self.producer.producer_id,
            epoch=self.producer.epoch,
            coordinator_epoch=max(self.producer.coordinator_epoch, 0),
            offset=self.offset,
            timestamp_ms=now_ms,
            leader_epoch=self.epoch,
        )


def lost_marker(log: Log, source_stable: int) -> LostMarker | None:
    """Return the oldest open transaction of a complete copy, if it has ended in the source, whose
    last stable offset is `source_stable`; None also if there is no hole. Errors: OSError,
    StorageError.
    """
    first = log.producers.first_undecided_offset
    if first is None or first >= source_stable:
        return None
    producer = next(each for each in log.producers if each.transaction_first_offset == first)
    end = max(producer.last_offset + 1, log.log_start_offset)
    for segment in log.segments_from(end):
        reader = SegmentReader(segment)
        start = reader.position_of(max(end, segment.base_offset))
        if start is None:
            continue
        for _, header in reader.batches(start):
            if header.base_offset > end:
                return LostMarker(producer, end, header.leader_epoch)
            end = max(end, header.last_offset + 1)
    return None


def open_transactions(log: Log) -> dict[int, int]:
    """Return the first offset of each open transaction, by its producer."""
    if log.producers.first_undecided_offset is None:
        return {}
    return {
        each.producer_id: each.transaction_first_offset
        for each in log.producers
        if each.in_transaction
    }


def has_records(
    cluster: Cluster, partition: TopicPartition, producer_id: int, first: int, end: int
) -> bool:
    """Return whether the leader has records of a producer from offset `first` up to `end`.

    Errors: ClientError, CorruptRecord.
    """
    connection = cluster.connection(cluster.metadata.leader_of(partition))
    fetcher = Fetcher(connection, max_wait_ms=0)
    fetcher.add(partition, Position(first))
    is_behind = first < end
    while is_behind:
        fetcher.send()
        is_behind = False
        for found in fetcher.receive():
            if found.error is not None:
                raise found.error
            is_behind = bool(found.records) and found.next_offset < end
            at = 0
            while at < len(found.records):
                header = parse_header(found.records, at)
                is_data = header.records_count > 0 and not header.is_control
                if is_data and header.producer_id == producer_id and header.base_offset < end:
                    return True
                at += header.size
    return False
