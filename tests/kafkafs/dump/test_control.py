"""Control records of unknown types; keys and values that are no record of Kafka's own."""

from __future__ import annotations

import struct

import pytest

from kafkafs.dump.control import control_fields, control_text
from kafkafs.dump.decoders import topic_decoder
from storage.errors import CorruptRecord


def key(kind: int, version: int = 0) -> bytes:
    return struct.pack(">hh", version, kind)


def test_a_type_that_nobody_knows() -> None:
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


def test_a_record_of_a_coordinator_has_a_key() -> None:
    with pytest.raises(CorruptRecord, match="has no key") as caught:
        topic_decoder("share-group-state-decoder")(8, None, b"")
    assert caught.value.offset == 8
