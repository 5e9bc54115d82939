"""Views: ways of writing a partition's records as text, and of reading them back from it.

A view is incremental and pure: bytes in, bytes and numbers out, no file, clock or thread. Its state
between two calls is a `Cursor` or a `Measure`, which belong to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from kafkafs.views.batches import Batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafs.views._measure import Cursor, Measure


class TextView(Protocol):
    """A view that shows records as text.

    `_measure`, `_render` and `_parse` state the rules of each call.
    """

    @property
    def is_text(self) -> Literal[True]:
        """The view counts records and takes lines; a view of stored bytes does neither."""
        ...

    @property
    def name(self) -> str:
        """The name of the view, and of its line indexes and absolute positions."""
        ...

    @property
    def committed(self) -> bool:
        """Whether the view ends at the last stable offset and leaves out aborted transactions."""
        ...

    @property
    def whole_records(self) -> bool:
        """Whether the view shows more than values; a cursor in a batch then needs its header."""
        ...

    def parse(
        self, data: Buffer, start: int, end: int, timestamp_ms: int, max_batch_bytes: int
    ) -> tuple[bytearray, int]:
        """Encode the complete lines `data[start:end]` as (record batches, lines)."""
        ...

    def render(
        self,
        data: Buffer,
        data_position: int,
        data_size: int,
        cursor: Cursor,
        out: bytearray | memoryview,
        out_start: int,
        out_end: int,
        skip: int,
    ) -> tuple[int, int]:
        """Render log bytes from the cursor on into `out`: (where the text ends, skip left)."""
        ...

    def measure(self, data: Buffer, data_position: int, data_size: int, state: Measure) -> None:
        """Count the text of log bytes and collect the line index's entries on the way."""
        ...


View = TextView | Batches
