"""The view of whole records: each is a JSON object on a line of its own, the same to append.

The view loses nothing of a record but its offset, which the log assigns at an append. It writes the
format in `_json_lines.pyx`, and takes the one in `json_records.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kafkafs.views import _json_lines

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOOPS = _json_lines.JsonLinesLoops()


class JsonLines:
    """`TextView` for whole records; has no state. `committed` is as in `Values`."""

    is_text: Literal[True] = True
    whole_records: Final = True

    def __init__(self, committed: bool = True) -> None:
        self.committed: Final = committed
        self.name: Final = "jsonl" if committed else "jsonl-uncommitted"

    @staticmethod
    def parse(
        data: Buffer, start: int, end: int, timestamp_ms: int, max_batch_bytes: int
    ) -> tuple[bytearray, int]:
        # Only the first append imports the parser: a mount starts without it.
        from kafkafs.views.json_records import parse

        return parse(data, start, end, timestamp_ms, max_batch_bytes)

    render = staticmethod(_LOOPS.render)
    measure = staticmethod(_LOOPS.measure)
