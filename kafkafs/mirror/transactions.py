"""Ends transactions whose markers the source has no more.

A cleaner removes a marker after all records of its transaction. A copy that has these records, and
was not at the end meanwhile, never gets the marker: the transaction stays open here, and nothing
after it is stable. Then an ABORT marker is written into the first hole after its records. That
hides records that the source no longer has; a COMMIT could show aborted ones.
"""

from __future__ import annotations

from typing import NamedTuple

from storage.log.log import Log
from storage.record.control import ABORT, encode_marker
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
