"""Shows control records (ControlRecordType.java): ends of transactions, and those of KRaft."""

from __future__ import annotations

import functools
import struct
from typing import Any, Final

from kafkafs.dump.message_json import as_json, message_json
from storage.errors import CorruptRecord
from storage.settings.message_schemas import PROTOCOL
from storage.settings.messages import Message, MessageError, Reader, parse_schemas

_ENDS: Final = ("ABORT", "COMMIT")
#: By type: how DumpLogSegments names it, and its message.
_KRAFT: Final = {
    2: ("LeaderChange: ", "LeaderChangeMessage"),
    3: ("SnapshotHeader ", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter ", "SnapshotFooterRecord"),
    5: ("KRaftVersion ", "KRaftVersionRecord"),
    6: ("KRaftVoters ", "VotersRecord"),
}
_KEY: Final = struct.Struct(">hh")
_END: Final = struct.Struct(">hi")


@functools.cache
def _messages() -> dict[str, Message]:
    return parse_schemas(PROTOCOL)


def control_text(key: bytes | None, value: bytes | None) -> bytes:
    """Return the text at the end of a control record's line. CorruptRecord."""
    kind = _type(key)
    if kind in (0, 1):
        epoch = _coordinator_epoch(value)
        return f" endTxnMarker: {_ENDS[kind]} coordinatorEpoch: {epoch}".encode()
    if kind in _KRAFT:
        return f" {_KRAFT[kind][0]}{as_json(_kraft(kind, value))}".encode()
    return f" controlType: UNKNOWN({kind})".encode()


def control_fields(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return a control record as a JSON object. CorruptRecord."""
    kind = _type(key)
    if kind in (0, 1):
        return {"type": _ENDS[kind], "coordinatorEpoch": _coordinator_epoch(value)}
    if kind in _KRAFT:
        return {"type": _KRAFT[kind][0].rstrip(": "), **_kraft(kind, value)}
    return {"type": "UNKNOWN", "typeId": kind}


def _type(key: bytes | None) -> int:
    if key is None or len(key) < _KEY.size:
        raise CorruptRecord("a control record's key is too short")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecord(f"a control record's key has version {version}")
    return int(kind)


def _coordinator_epoch(value: bytes | None) -> int:
    # Later versions only add fields, so this reads them as version 0.
    if value is None or len(value) < _END.size:
        raise CorruptRecord("the transaction marker is too short")
    version, epoch = _END.unpack_from(value)
    if version < 0:
        raise CorruptRecord(f"the transaction marker has version {version}")
    return int(epoch)


def _kraft(kind: int, value: bytes | None) -> dict[str, Any]:
    """Read the message as version 0, and show it as the version in it."""
    name = _KRAFT[kind][1]
    try:
        read = _messages()[name].read(Reader(value or b""), 0)
    except MessageError as error:
        raise CorruptRecord(f"no {name}: {error}") from None
    return message_json(_messages()[name], read, read["version"])
