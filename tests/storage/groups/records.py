"""Records of ``__consumer_offsets`` as a broker writes them, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from storage import Log, LogManager, Record, encode
from storage.groups.offset_records import Committed, commit_key, commit_value
from storage.record.control import encode_marker
from storage.record.header import TRANSACTIONAL_BIT
from tests.storage.logs import NOW_MS, NOW_NS

Pair = tuple[bytes, bytes | None]


def position(group: str, topic: str, number: int, at: int, **more: object) -> Pair:
    """A commit of version 4; ``more``: other fields of ``Committed``."""
    committed = Committed(at, time_ms=NOW_MS)._replace(**more)  # type: ignore[arg-type]
    return commit_key(group, topic, number), commit_value(committed)


def taken_back(group: str, topic: str, number: int) -> Pair:
    """A tombstone."""
    return commit_key(group, topic, number), None


def group_key(name: str) -> bytes:
    """Of ``GroupMetadataValue``, which describes a classic group."""
    return struct.pack(">h", 2) + _string(name)


def classic_group(*, since_ms: int, members: int) -> bytes:
    """``GroupMetadataValue`` of version 2."""
    value = struct.pack(">h", 2) + _string("consumer") + struct.pack(">i", 3)
    value += _string("range") + _string("leader") + struct.pack(">q", since_ms)
    value += struct.pack(">i", members)
    for number in range(members):
        value += _string(f"id-{number}") + _string("client") + _string("/host")
        value += struct.pack(">ii", 1000, 1000) + struct.pack(">i", 0) + struct.pack(">i", 0)
    return value


def share_group(name: str) -> Pair:
    """``ShareGroupMetadata``: that the group is there."""
    return struct.pack(">h", 11) + _string(name), struct.pack(">hiqb", 0, 1, 0, 0)


def write(log: Log, *pairs: Pair) -> None:
    """One batch without a producer."""
    log.append(bytearray(encode(_records(pairs))), now_ns=NOW_NS)


def write_in_transaction(log: Log, producer: int, sequence: int, *pairs: Pair) -> None:
    """One batch of a transaction."""
    batch = encode(
        _records(pairs),
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )
    log.appender.append_batches(batch, now_ns=NOW_NS)


def end(log: Log, producer: int, kind: int) -> None:
    """The marker of a transaction."""
    marker = encode_marker(kind, producer, 0, 0, 0, NOW_MS, 0)
    log.appender.append_batches(marker, now_ns=NOW_NS)


def positions(manager: LogManager, group: str) -> dict[tuple[str, int], int]:
    """The positions of a group that count."""
    found = manager.groups.find(group)
    return {} if found is None else {item: each.position for item, each in found.committed.items()}


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _records(pairs: Sequence[Pair]) -> list[Record]:
    return [Record(n, NOW_MS, 0, key, value) for n, (key, value) in enumerate(pairs)]
