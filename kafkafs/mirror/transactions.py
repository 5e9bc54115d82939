"""Ends transactions whose markers the source has no more.

A cleaner removes a marker after all records of its transaction, and retention removes both. A copy
that has these records, and was not at the end meanwhile, never gets the marker: the transaction
stays open here, and nothing after it is stable, or the marker of the producer's next transaction
ends both. So an ABORT marker is written at an offset after its records that has no record. That
hides records that the source no longer has; a COMMIT could show aborted ones.

- Before the first hole after a pause, `has_records` tells whether the source still has a record of
  a transaction. If so, it also has the marker. If not, its cleaner has removed the records before
  the marker: they were aborted, or later records have their keys. This says nothing about records
  that retention removes, or whose marker is damaged: the marker may still come.
- At the end, `lost_markers` finds transactions that are open here only. `write_markers` removes the
  batches after the first new marker, and appends them again from the files that keep them: the
  source may have deleted them. After a kill meanwhile, the files `*.diverged` still have those that
  were not appended, and the mirror reads on in the source.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kafka_client.cluster import Cluster, TopicPartition
from kafka_client.errors import ClientError
from kafka_client.fetch import Fetcher, Position
from storage import paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.log.append import append_as_follower
from storage.log.log import Log
from storage.manager import LogManager
from storage.record._batch import walk_batches
from storage.record.control import ABORT
from storage.record.header import HEADER_SIZE, parse_header
from storage.segment.cut import Cut
from storage.segment.reader import SegmentReader
from storage.state.producer_state import Producer

_PIECE_BYTES: Final = 4 << 20
# So much is moved while the mirror does nothing else.
_MOVED_BYTES: Final = 1 << 30
# How often in a row a leader may throttle a search.
_PAUSES: Final = 3


class LostMarker(NamedTuple):
    """A transaction that has ended in the source. `offset`: one without a record after its records;
    `epoch`: the leader epoch of the batch after that; `moved_bytes`: the size of what comes after.
    """

    producer: Producer
    offset: int
    epoch: int
    moved_bytes: int

    def marker(self) -> bytearray:
        """Return the batch that aborts the transaction here, with the time of its last record."""
        return self.producer.marker(ABORT, self.offset, self.producer.timestamp, self.epoch)


def lost_markers(log: Log, source_stable: int, searched_to: int = 0) -> list[LostMarker]:
    """Return the open transactions of a complete copy that have ended in the source, whose last
    stable offset is `source_stable`, in the order of their new markers. Those are left out for
    which no offset is free in the last 1 GiB, from `searched_to` on. Errors: OSError, StorageError.
    """
    first = log.producers.first_undecided_offset
    if first is None or first >= source_stable:
        return []
    ended = [each for each in log.producers if 0 <= each.transaction_first_offset < source_stable]
    ended.sort(key=lambda producer: producer.last_offset)
    start = max(ended[0].last_offset + 1, log.log_start_offset, searched_to)
    found: list[LostMarker] = []
    # The later the offsets, the fewer batches are moved.
    for offset, epoch, moved_bytes in _free_offsets(log, start, len(ended)):
        while ended and ended[-1].last_offset >= offset:
            ended.pop()
        if ended:
            found.append(LostMarker(ended.pop(), offset, epoch, moved_bytes))
    return found[::-1]


def write_markers(manager: LogManager, log: Log, lost: Sequence[LostMarker], now_ns: int) -> None:
    """Write the markers, and append the batches after them again. Durable.

    Errors: those of `truncate` and `append_as_follower`; the log ends before its former end, and
    the files `*.diverged` have the rest.
    """
    left = deque(lost)
    for cut in sorted(manager.truncate(log, lost[0].offset), key=_place):
        for base_offset, batches in _batches_of(log, cut, left):
            while left and left[0].offset < base_offset:
                append_as_follower(log, left.popleft().marker(), now_ns)
            append_as_follower(log, batches, now_ns)
            if log.durability.flush_due:
                log.flush()
        log.flush()
        _remove(log.files, cut)
    assert not left


def _free_offsets(log: Log, start: int, count: int) -> list[tuple[int, int, int]]:
    """Return the last `count` offsets from `start` on without records, the last one first; with
    each the leader epoch of the batch after it, and the number of bytes from that batch on, at most
    `_MOVED_BYTES`. None are found before damage.
    """
    found: list[tuple[int, int, int]] = []
    later: tuple[int, int] | None = None
    after = 0
    for segment in reversed(log.segments_from(start)):
        if len(found) >= count or after > _MOVED_BYTES:
            break
        free: deque[tuple[int, int, int]] = deque(maxlen=count)
        end = max(start, segment.base_offset)
        first_epoch: int | None = None
        reader = SegmentReader(segment)
        position = reader.position_of(end)
        for at, header in () if position is None else reader.batches(position):
            base, epoch = header.base_offset, header.leader_epoch
            first_epoch = epoch if first_epoch is None else first_epoch
            moved = after + segment.size - at
            # (A wrapper of v0 or v1 has its last offset only.)
            if not header.is_wrapper and moved <= _MOVED_BYTES:
                free.extend((each, epoch, moved) for each in range(max(end, base - count), base))
            end = max(end, header.last_offset + 1)
        if segment.damages:
            break
        if later is not None:
            base, epoch = later
            free.extend((each, epoch, after) for each in range(max(end, base - count), base))
        if first_epoch is not None:
            later = segment.base_offset, first_epoch
        elif later is not None:
            later = segment.base_offset, later[1]
        after += segment.size
        found += reversed(free)
    return found[:count]


def _place(cut: Cut) -> tuple[str, int]:
    """Return where the bytes of a cut were."""
    return cut.path, cut.position


def _batches_of(log: Log, cut: Cut, left: Sequence[LostMarker]) -> Iterator[tuple[int, memoryview]]:
    """Yield kept batches, and the first base offset of each part: a part ends before the next
    marker. Batches below the log start are left out. Errors: OSError, CorruptRecord.
    """
    assert cut.kept_as is not None
    files, position = log.files, 0
    with files.held_open(cut.kept_as) as fd:
        while position < cut.size:
            header = parse_header(files.pread(fd, HEADER_SIZE, position))
            if header.last_offset < log.log_start_offset:
                position += header.size
                continue
            size = min(max(header.size, _PIECE_BYTES), cut.size - position)
            data = files.pread(fd, size, position)
            base = header.base_offset
            end = next((each.offset for each in left if each.offset > base), paths.MAX_OFFSET)
            taken, _, _, _, fault, _ = walk_batches(data, len(data), base, base, end)
            if not taken:
                reason = fault or "the batch is truncated"
                raise CorruptRecord(reason, path=cut.kept_as, position=position)
            yield base, memoryview(data)[:taken]
            position += taken


def _remove(files: Files, cut: Cut) -> None:
    """Remove the files of a cut whose batches are in the log again."""
    assert cut.kept_as is not None
    suffix = cut.kept_as.removeprefix(cut.path)
    for kind in (*paths.REBUILT_SUFFIXES, paths.LOG):
        with contextlib.suppress(FileNotFoundError):
            files.unlink(cut.path.removesuffix(paths.LOG) + kind + suffix)
    files.sync_directory(os.path.dirname(cut.path))


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
    cluster: Cluster,
    partition: TopicPartition,
    producer_id: int,
    first: int,
    end: int,
    stop: Callable[[], bool],
) -> bool:
    """Return whether the leader has records of a producer from offset `first` up to `end`. `stop`:
    called before each of the requests, which may be many.

    Errors: ClientError, also if `stop` returns True; CorruptRecord.
    """
    connection = cluster.connection(cluster.metadata.leader_of(partition))
    fetcher = Fetcher(connection, max_wait_ms=0)
    fetcher.add(partition, Position(first))
    next_offset, pauses = first, 0
    while next_offset < end:
        if stop():
            raise ClientError("the run ends before the cluster is searched for a transaction")
        fetcher.send()
        found = next(iter(fetcher.receive()), None)
        if found is not None and found.error is not None:
            raise found.error
        if found is None and pauses < _PAUSES:
            # A broker that throttles answers without the partition. The next request waits.
            pauses += 1
            continue
        if found is None or not found.records:
            # It has records after these: it throttles, or it has just become the leader.
            raise ClientError(f"{partition}: the leader does not send the records that it has")
        next_offset, pauses = found.next_offset, 0
        at = 0
        while at < len(found.records):
            header = parse_header(found.records, at)
            is_data = header.records_count > 0 and not header.is_control
            if is_data and header.producer_id == producer_id and header.base_offset < end:
                return True
            at += header.size
    return False
