"""One segment in the view of stored batches: its text is its bytes, which needs no index."""

from __future__ import annotations

from kafkafs.line_index.segment_lines import SegmentLines
from kafkafs.line_index.store import NEVER
from storage.record.header import parse_header
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment


class SegmentBatches:
    """Has the methods of `SegmentLines`; needs no measuring and no file."""

    __slots__ = ("segment",)

    complete = True
    loaded = True
    records = 0
    """A view of bytes counts no records."""
    unsaved = 0
    is_guessed = False

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    @property
    def text_length(self) -> int:
        """Bytes of the log."""
        return self.segment.size

    @property
    def covered(self) -> int:
        return self.segment.size

    def append(self, position: int, data: bytes | bytearray | memoryview) -> bool:
        """The segment knows its size."""
        return True

    def measure(self, until: float = NEVER) -> None:
        """Nothing to measure."""

    def seal(self) -> None:
        """Nothing to keep."""

    def save(self) -> bool:
        """Nothing to write."""
        return True

    def leave(self) -> None:
        """Nothing of it is saved."""

    def vanish(self) -> None:
        """Nothing of it is saved."""

    def bytes_before(self, offset: int) -> int:
        """Bytes before the batch that holds the first record with an offset ≥ `offset`, or before
        the damage in which it is lost. Waits.
        """
        self.segment.lease()
        try:
            reader = SegmentReader(self.segment)
            found = reader.look_again(lambda: reader.position_of(offset))
        finally:
            self.segment.release()
        return self.segment.size if found is None else found

    def bytes_until(self, offset: int) -> int:
        """Bytes up to the end of the batch that holds the last record before `offset`. Waits."""
        reader = SegmentReader(self.segment)
        self.segment.lease()
        try:
            found = reader.locate(offset - 1)
            if found is None:
                return self.segment.size
            position, header = found
            first = header.base_offset
            if header.is_wrapper:
                # A set is named after its last record.
                data = reader.read(position, header.size)
                form = reader.shared_form(data, 0, len(data), position)
                first = parse_header(form[0]).base_offset
            return position + header.size if first < offset else position
        finally:
            self.segment.release()


Extent = SegmentLines | SegmentBatches
"""The text of one segment in one view."""
