"""Records of ``__consumer_offsets`` as a broker writes them, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from storage import Log, LogManager, Record, encode
from storage.groups.offset_records import Committed, commit_key, commit_value
from storage.log.append import append_batches
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


def share_group(name: str, *members: str) -> list[Pair]:
    """A share group; without members only that it is there."""
    return [
        (_key(11, name), _value(struct.pack(">iq", 1, 0))),
        (_key(15, name), _value(_NOTHING * 3)),
        (_key(12, name), _value(struct.pack(">i", 1))),
        *((_key(10, name, each), _value(_NULL + _CLIENT + _NOTHING)) for each in members),
        *((_key(13, name, each), _value(_NOTHING)) for each in members),
        *((_key(14, name, each), _value(_EPOCHS + _NOTHING)) for each in members),
    ]


def consumer_group(name: str, *members: str) -> list[Pair]:
    """A group of KIP-848 with a regular expression, in the order in which a broker writes it."""
    member = _NULL * 2 + _CLIENT + _NOTHING + _NULL + struct.pack(">i", 1000) + _NULL
    return [
        *((_key(5, name, each), _value(member)) for each in members),
        (_key(16, name, "or.*"), _value(_NOTHING + struct.pack(">qq", 1, NOW_MS))),
        (_key(4, name), _value(_NOTHING)),
        (_key(3, name), _value(struct.pack(">i", 1))),
        *((_key(7, name, each), _value(_NOTHING)) for each in members),
        (_key(6, name), _value(struct.pack(">i", 1))),
        *((_key(8, name, each), _value(_EPOCHS + _NOTHING * 2)) for each in members),
    ]


def streams_group(name: str, *members: str) -> list[Pair]:
    """A group of KIP-1071, in the order in which a broker writes it."""
    member = _NULL * 2 + _CLIENT + struct.pack(">ii", 1000, 0) + _compact("process")
    return [
        *((_key(19, name, each), _value(member + b"\xff" + _NOTHING)) for each in members),
        (_key(23, name), _value(struct.pack(">i", 0) + _NOTHING)),
        (_key(17, name), _value(struct.pack(">iq", 1, 0))),
        *((_key(21, name, each), _value(_NOTHING * 3)) for each in members),
        (_key(20, name), _value(struct.pack(">i", 1))),
        *((_key(22, name, each), _value(_EPOCHS + _NOTHING * 6)) for each in members),
    ]


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
    append_batches(log, batch, now_ns=NOW_NS)


def end(log: Log, producer: int, kind: int) -> None:
    """The marker of a transaction."""
    marker = encode_marker(kind, producer, 0, 0, 0, NOW_MS, 0)
    append_batches(log, marker, now_ns=NOW_NS)


def positions(manager: LogManager, group: str) -> dict[tuple[str, int], int]:
    """The positions of a group that count."""
    found = manager.groups.find(group)
    return {} if found is None else {item: each.position for item, each in found.committed.items()}


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


_NULL = b"\0"
_NOTHING = b"\1"
"""An empty array."""
_CLIENT = _compact("client") + _compact("/host")
_EPOCHS = struct.pack(">iib", 1, 0, 0)


def _key(kind: int, *names: str) -> bytes:
    return struct.pack(">h", kind) + b"".join(map(_string, names))


def _value(fields: bytes) -> bytes:
    """A message of version 0, without tagged fields."""
    return struct.pack(">h", 0) + fields + b"\0"


def _records(pairs: Sequence[Pair]) -> list[Record]:
    return [Record(n, NOW_MS, 0, key, value) for n, (key, value) in enumerate(pairs)]
