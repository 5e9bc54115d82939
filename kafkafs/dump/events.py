"""Writes what the files have: as DumpLogSegments' lines, or as JSON, one object a line.

An event has a type and fields; `_LINES` has DumpLogSegments' words for it. As text, complaints go
to standard error, and the rest to standard output. As JSON everything goes to standard output, in
DumpLogSegments' order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

Value: TypeAlias = "int | bool | str | list[Value] | dict[str, Value] | None"
Write: TypeAlias = Callable[[bytes | memoryview], object]

#: How many lines to collect before writing them.
_MANY: Final = 4096

_LINES: Final = {
    "file": "Dumping {file}",
    "log": "Log starting offset: {startOffset}",
    "bootstrapSnapshot": "KRaft bootstrap snapshot",
    "metadataSnapshot": "Snapshot end offset: {endOffset}, epoch: {epoch}",
    "invalidBytes": "Found {count} invalid bytes at the end of {name}",
    "emptyIndex": "{file} is empty.",
    "saneIndex": "{file} passed sanity check.",
    "indexEntry": "offset: {offset} position: {position}",
    "timeIndexEntry": "timestamp: {timestamp} offset: {offset}",
    "abortedTransaction": (
        "version: {version} producerId: {producerId} firstOffset: {firstOffset}"
        " lastOffset: {lastOffset} lastStableOffset: {lastStableOffset}"
    ),
}
_PRODUCER: Final = (
    "producerId: {producerId} producerEpoch: {producerEpoch} coordinatorEpoch: {coordinatorEpoch}"
    " currentTxnFirstOffset: {currentTxnFirstOffset} lastTimestamp: {lastTimestamp}"
)
_LAST_BATCH: Final = (
    " firstSequence: {firstSequence} lastSequence: {lastSequence} lastOffset: {lastOffset}"
    " offsetDelta: {offsetDelta} timestamp: {timestamp}"
)


class Output(Protocol):
    """Where a dump goes."""

    @property
    def is_json(self) -> bool: ...
    def event(self, kind: str, **fields: Value) -> None:
        """Write something that a file has."""

    def text(self, lines: memoryview) -> None:
        """Write finished lines, without keeping the buffer; not for JSON."""

    def complain(self, line: str, kind: str, **fields: Value) -> None:
        """Write something that is wrong with a file; `line` has DumpLogSegments' words."""

    def flush(self) -> None: ...


class TextOutput:
    """DumpLogSegments' own lines."""

    is_json: Final = False

    def __init__(self, write: Write, write_error: Write) -> None:
        self._write = write
        self._write_error = write_error
        self._kept: list[bytes] = []

    def event(self, kind: str, **fields: Value) -> None:
        line = _producer(fields) if kind == "producer" else _LINES[kind].format_map(fields)
        self._kept.append(_encoded(line))
        if len(self._kept) >= _MANY:
            self.flush()

    def text(self, lines: memoryview) -> None:
        self.flush()
        self._write(lines)

    def complain(self, line: str, kind: str, **fields: Value) -> None:
        self._write_error(_encoded(line))

    def flush(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, []
            self._write(b"".join(kept))


class JsonOutput:
    """An object a line, its `type` first."""

    is_json: Final = True

    def __init__(self, write: Write) -> None:
        self._write = write
        self._kept: list[str] = []

    def event(self, kind: str, **fields: Value) -> None:
        self._kept.append(json.dumps({"type": kind, **fields}, separators=(",", ":")))
        if len(self._kept) >= _MANY:
            self.flush()

    def text(self, lines: memoryview) -> None:
        raise AssertionError("lines in a JSON dump")

    def complain(self, line: str, kind: str, **fields: Value) -> None:
        self.event(kind, **fields)

    def flush(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, []
            self._write(_encoded("\n".join(kept)))


def _encoded(line: str) -> bytes:
    # A file's name need not be UTF-8.
    return line.encode("utf-8", "surrogateescape") + b"\n"


def _producer(fields: dict[str, Value]) -> str:
    first = fields["currentTxnFirstOffset"]
    shown = "OptionalLong.empty" if first is None else f"OptionalLong[{first}]"
    line = _PRODUCER.format_map({**fields, "currentTxnFirstOffset": shown})
    batch = fields["lastBatch"]
    return line + _LAST_BATCH.format_map(batch) if isinstance(batch, dict) else line
