"""The line index: where in a segment's log the text at a view position lies.

For each segment and view: how much text and how many records the segment shows, and a sparse list
of entries (text before a record -> where the record is), one every few KiB of text. It is kept
while appending, by measuring the appended bytes in memory, and built once for a segment that was
not appended here, by measuring its log. It is saved in a `.lines` file (`lines_file.py`), which is
disposable: one that is missing, damaged or does not fit its segment is measured anew, and no error
of its own ever reaches a reader.

Memory: an active segment has its entries since the last save in memory; a sealed one keeps its
totals only, and the entries of those last looked into stay mapped, within a budget (`store.py`).

Batches that have to be decoded first, and what is shown of transactions: `encoded.py`. Rendering
from a byte of text on: `readers.py`; where the log is damaged: `damaged.py`. The view of
stored batches needs no index, and looks the same from outside (`segment_batches.py`).

Not here: positions beyond one segment (`generations`), when to save (`tree.partition`).
"""

from kafkafs.line_index.readers import BytesReader, Damaged, TextReader
from kafkafs.line_index.segment_batches import SegmentBatches
from kafkafs.line_index.segment_lines import SegmentLines
from kafkafs.line_index.store import NEVER, LineStore

Extent = SegmentLines | SegmentBatches
Reader = TextReader | BytesReader

__all__ = ["NEVER", "Damaged", "Extent", "LineStore", "Reader", "SegmentBatches", "SegmentLines"]
