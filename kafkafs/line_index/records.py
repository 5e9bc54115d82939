"""Where single records lie in a segment's text: found by offset, or by number.

The line index leads to the start of a batch near by; from there the log is read batch by batch, and
each batch measured record by record. So nothing is kept for it, and it waits for the disk.

A number counts the records that the view shows of the segment, from 0. All that is shown of the
segment must be measured.

Not here: how the entries near by are found (`segment_lines.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkafs.line_index.encoded import judge
from kafkafs.views._measure import ENTRY_SIZE, Measure
from storage.errors import CorruptRecord
from storage.record._seek import find_record
from storage.record.batch import BatchHeader, Buffer

if TYPE_CHECKING:
    from kafkafs.line_index.segment_lines import SegmentLines

_TEXT_BEFORE = struct.Struct("<Q")


def text_before(lines: SegmentLines, offset: int) -> tuple[int, int]:
    """(bytes of text, records shown) before the first record with an offset ≥ `offset`."""

    def is_behind(position: int, _: int) -> bool:
        return _base_offset_at(lines, position) > offset

    text, position, records = lines.batch_before(is_behind)
    for header, data, batch in _batches(lines, position):
        if batch.records and header.last_offset >= offset:
            found = find_record(data, offset=offset)
            if found is not None:
                # With a granularity of 1 each record has an entry.
                text += _TEXT_BEFORE.unpack_from(batch.entries, found[0] * ENTRY_SIZE)[0]
                return text, records + found[0]
        text += batch.text_length
        records += batch.records
        if header.last_offset >= offset:
            break
    return text, records


def offset_of(lines: SegmentLines, number: int) -> int:
    """The offset of record `number`, which there must be."""
    _, position, records = lines.batch_before(lambda _, before: before > number)
    for _, data, batch in _batches(lines, position):
        if number - records < batch.records:
            found = find_record(data, number=number - records)
            assert found is not None, "a batch shows fewer records than were measured"
            return found[1]
        records += batch.records
    raise CorruptRecord("shows fewer records than were counted", path=lines.segment.log_path)


def _batches(lines: SegmentLines, position: int) -> Iterator[tuple[BatchHeader, Buffer, Measure]]:
    """Each batch that is shown from `position` on: its plain form, measured record by record."""
    segment, measure = lines.segment, lines.view.measure
    segment.lease()
    try:
        for at, header in segment.batches(position):
            if at >= lines.end:
                return
            data: Buffer = segment.read_at(at, header.size)
            batch = Measure(1)
            if not segment.always_expand:
                measure(data, 0, header.size, batch)
            if segment.always_expand or batch.encoded:
                shown = judge(segment, lines.is_aborted, data, 0, header.size, at)
                if not shown.hidden:
                    data = data if shown.plain is None else shown.plain
                    batch.step_into(len(data), data)
                    measure(data, 0, len(data), batch)
            yield header, data, batch
    finally:
        segment.release()


def _base_offset_at(lines: SegmentLines, position: int) -> int:
    """Of the batch there; beyond every offset at the end of the log."""
    segment = lines.segment
    if position >= segment.size:
        return 1 << 63
    if segment.always_expand:
        return segment.base_offset + position
    buffer = memoryview(bytearray(8))
    segment.read_into(buffer, position, True)
    return int.from_bytes(buffer, "big")
