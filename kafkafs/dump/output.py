"""Writes the contents of files: as DumpLogSegments' lines, or as JSON with one object a line.

An event has a type, which is the object's first member, and fields; `_LINES` has DumpLogSegments'
words for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, TypeAlias

Value: TypeAlias = "int | bool | str | list[Value] | dict[str, Value] | None"
Write: TypeAlias = Callable[[bytes | memoryview], object]

#: How many lines to collect before writing them.
_MANY: Final = 4096

_json: Final = json.JSONEncoder(separators=(",", ":")).encode

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


class DumpError(Exception):
    """Ends a dump before its last file. One line: the file, what is wrong, and where."""


class Output:
    """The output of a dump: `write_error` gets the faults of text, `write` all else."""

    def __init__(self, write: Write, write_error: Write, *, is_json: bool = False) -> None:
        self.is_json: Final = is_json
        self._write = write
        self._write_error = write_error
        self._kept: list[bytes] = []

    def event(self, kind: str, **fields: Value) -> None:
        """Write an event of a file."""
        if self.is_json:
            line = _json({"type": kind, **fields})
        elif kind == "producer":
            line = _producer(fields)
        else:
            line = _LINES[kind].format_map(fields)
        self._kept.append(_encoded(line))
        if len(self._kept) >= _MANY:
            self.flush()

    def text(self, lines: memoryview) -> None:
        """Write finished lines, without keeping the buffer; not for JSON."""
        self.flush()
        self._write(lines)

    def complain(self, line: str, kind: str, **fields: Value) -> None:
        """Write a fault of a file; `line` has DumpLogSegments' words."""
        if self.is_json:
            self.event(kind, **fields)
        else:
            self._write_error(_encoded(line))

    def flush(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, []
            self._write(b"".join(kept))


def _encoded(line: str) -> bytes:
    # A file's name need not be UTF-8.
    return line.encode("utf-8", "surrogateescape") + b"\n"


def _producer(fields: dict[str, Value]) -> str:
    first = fields["currentTxnFirstOffset"]
    shown = "OptionalLong.empty" if first is None else f"OptionalLong[{first}]"
    line = _PRODUCER.format_map({**fields, "currentTxnFirstOffset": shown})
    batch = fields["lastBatch"]
    return line + _LAST_BATCH.format_map(batch) if isinstance(batch, dict) else line
