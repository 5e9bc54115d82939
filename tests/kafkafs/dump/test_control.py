"""Control records as text and as fields, and keys and values that are no control record."""

from __future__ import annotations

import struct

import pytest

from kafkafs.dump.control import control_fields, control_text
from storage.errors import CorruptRecord


def key(kind: int, version: int = 0) -> bytes:
    return struct.pack(">hh", version, kind)


@pytest.mark.parametrize(("kind", "name"), [(0, "ABORT"), (1, "COMMIT")])
@pytest.mark.parametrize("version", [0, 1])
def test_the_end_of_a_transaction(kind: int, name: str, version: int) -> None:
    value = struct.pack(">hi", version, 7) + b"later versions only add to it"
    said = f" endTxnMarker: {name} coordinatorEpoch: 7"
    assert control_text(key(kind, version), value) == said.encode()
    assert control_fields(key(kind), value) == {"type": name, "coordinatorEpoch": 7}


def test_a_type_that_nobody_knows() -> None:
    assert control_text(key(99), None) == b" controlType: UNKNOWN(99)"
    assert control_fields(key(99), b"x") == {"type": "UNKNOWN", "typeId": 99}


@pytest.mark.parametrize(
    ("record_key", "value", "reason"),
    [
        (None, None, "key is too short"),
        (b"\0\0\0", b"", "key is too short"),
        (key(0, -1), b"", "key has version -1"),
        (key(0), None, "the transaction marker is too short"),
        (key(1), b"\0\0\0", "the transaction marker is too short"),
        (key(1), struct.pack(">hi", -1, 0), "has version -1"),
        (key(2), b"", "no LeaderChangeMessage"),
    ],
)
def test_what_is_no_control_record(
    record_key: bytes | None, value: bytes | None, reason: str
) -> None:
    for read in (control_text, control_fields):
        with pytest.raises(CorruptRecord, match=reason):
            read(record_key, value)
