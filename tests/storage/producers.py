"""Batches as producers and transaction coordinators make them, for tests to append."""

from __future__ import annotations

from storage import Record, encode
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import HEADER_SIZE, TRANSACTIONAL_BIT, pack, parse_header
from storage.record.plain import recompress
from tests.storage.logs import NOW_MS


class Producer:
    """A producer that numbers its records; `codec` is an index into CODECS.

    `now_ms` is the time of all that it makes: long ago, so that a log may forget it when opened.
    """

    def __init__(
        self,
        producer_id: int,
        *,
        epoch: int = 0,
        transactional: bool = False,
        codec: int = 0,
        now_ms: int = NOW_MS,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.transactional = transactional
        self.codec = codec
        self.now_ms = now_ms
        self.sequence = 0

    def batch(self, *values: bytes | None) -> bytes:
        """The next batch."""
        records = [Record(n, self.now_ms, 0, b"key", value) for n, value in enumerate(values)]
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
        """Return the next batch, after a cleaner has removed all of its `count` records."""
        header = parse_header(self.batch(b""))
        self.sequence += count - 1
        none = header._replace(
            attributes=header.attributes & TRANSACTIONAL_BIT,
            last_offset_delta=count - 1,
            base_timestamp=-1,
            records_count=0,
        )
        return pack(none, b"")

    def marker(self, kind: int) -> bytes:
        return bytes(encode_marker(kind, self.producer_id, self.epoch, 0, 0, self.now_ms, 0))

    def commit(self) -> bytes:
        return self.marker(COMMIT)

    def abort(self) -> bytes:
        return self.marker(ABORT)


def sparse(batch: bytes, last_offset_delta: int) -> bytes:
    """The batch with other bounds, as where a cleaner has taken its last records."""
    header = parse_header(batch)
    return pack(header._replace(last_offset_delta=last_offset_delta), batch[HEADER_SIZE:])
