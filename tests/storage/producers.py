"""Batches as producers and transaction coordinators make them, for tests to append."""

from __future__ import annotations

from storage import Record, encode
from storage.record.batch import (
    HEADER_SIZE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack,
    parse_header,
)
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.plain import recompress
from tests.storage.logs import NOW_MS


class Producer:
    """A producer that numbers its records; `codec` is an index into CODECS."""

    def __init__(
        self, producer_id: int, *, epoch: int = 0, transactional: bool = False, codec: int = 0
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.transactional = transactional
        self.codec = codec
        self.sequence = 0

    def batch(self, *values: bytes | None, timestamp_ms: int = NOW_MS) -> bytes:
        """The next batch."""
        records = [Record(n, timestamp_ms, 0, b"key", value) for n, value in enumerate(values)]
        made = encode(
            records,
            attributes=TRANSACTIONAL_BIT if self.transactional else 0,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        self.sequence += len(values)
        return bytes(recompress(made, self.codec))

    def empty(self, count: int) -> bytes:
        """The next batch of `count` records, all of which a cleaner has taken."""
        header = BatchHeader(
            0, 0, 0, 2, 0, TRANSACTIONAL_BIT if self.transactional else 0, count - 1, -1, NOW_MS,
            self.producer_id, self.epoch, self.sequence, 0,
        )  # fmt: skip
        self.sequence += count
        return pack(header, b"")

    def marker(self, kind: int) -> bytes:
        return bytes(encode_marker(kind, self.producer_id, self.epoch, 0, 0, NOW_MS, 0))

    def commit(self) -> bytes:
        return self.marker(COMMIT)

    def abort(self) -> bytes:
        return self.marker(ABORT)


def sparse(batch: bytes, last_offset_delta: int) -> bytes:
    """The batch with other bounds, as where a cleaner has taken its last records."""
    header = parse_header(batch)
    return pack(header._replace(last_offset_delta=last_offset_delta), batch[HEADER_SIZE:])
