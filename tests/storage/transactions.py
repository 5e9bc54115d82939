"""A producer that writes to a log, in transactions or not, for tests of the log itself."""

from __future__ import annotations

from collections.abc import Sequence

from storage import Appended, Log, LogListener, LogManager, Record, encode
from storage.log.append import append_batches
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import TRANSACTIONAL_BIT
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.producer_state import MAX_SEQUENCE
from tests.storage.logs import NOW_MS, NOW_NS


def produced(
    values: Sequence[bytes | None],
    producer_id: int = 7,
    sequence: int = 0,
    *,
    epoch: int = 0,
    transactional: bool = False,
    timestamp_ms: int = NOW_MS,
) -> bytearray:
    """A batch of an idempotent producer."""
    return bytearray(
        encode(
            [Record(n, timestamp_ms, 0, b"k", value) for n, value in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT if transactional else 0,
        )
    )


def marker(producer_id: int, kind: int, *, epoch: int = 0, coordinator_epoch: int = 0) -> bytearray:
    """The marker that ends a transaction."""
    return encode_marker(kind, producer_id, epoch, coordinator_epoch, 0, NOW_MS, 0)


class Watcher(LogListener[Log]):
    """Records the events of a log, each with the last stable offset."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def appended(
        self, log: Log, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        assert SegmentReader(segment).read(position, len(data)) == bytes(data)
        self.events.append(("appended", log.last_stable_offset))

    def stabilized(self, log: Log) -> None:
        self.events.append(("stabilized", log.last_stable_offset))


class Client:
    """A client that numbers its records."""

    def __init__(self, log: Log, producer_id: int, epoch: int = 0) -> None:
        self.log = log
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = 0

    def send(
        self, *values: bytes | None, transactional: bool = True, timestamp_ms: int = NOW_MS
    ) -> Appended:
        """Append a batch."""
        batch = produced(
            values,
            self.producer_id,
            self.sequence,
            epoch=self.epoch,
            transactional=transactional,
            timestamp_ms=timestamp_ms,
        )
        (appended,) = append_batches(self.log, batch, now_ns=timestamp_ms * 1_000_000)
        self.sequence = (self.sequence + len(values)) & MAX_SEQUENCE
        return appended

    def commit(self) -> Appended:
        return self.end(COMMIT)

    def abort(self) -> Appended:
        return self.end(ABORT)

    def end(self, kind: int) -> Appended:
        """Append a marker."""
        batch = marker(self.producer_id, kind, epoch=self.epoch)
        (appended,) = append_batches(self.log, batch, now_ns=NOW_NS)
        return appended


def new_log(manager: LogManager, **overrides: object) -> Log:
    topic = manager.create_topic("t", 1)
    for name, value in overrides.items():
        manager.change_topic_settings("t", {name.replace("_", "."): str(value)})
    return topic.partitions[0]


def put(log: Log, *batches: bytes | bytearray, **options: object) -> list[Appended]:
    return append_batches(log, b"".join(batches), now_ns=NOW_NS, **options)  # type: ignore[arg-type]
