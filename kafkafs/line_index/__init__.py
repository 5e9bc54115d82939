"""The line index: it maps a position in a segment's text to a position in the segment's log.

For each segment and view it has the bytes of text, the number of records, and sparse entries (text
before a record -> position of the record), one every few KiB of text. Each append measures the
appended bytes in memory; a segment that this process did not append is measured once from its log.
A `.lines` file (`lines_file.py`) saves the index. The file is disposable: where it is missing,
damaged or does not fit its segment, the segment is measured again, and readers see no error.

Memory: an active segment has the entries since the last save in memory. A sealed one has its totals
only; the entries that were used last stay in memory, within a budget (`store.py`).

`encoded.py` decodes batches and hides aborted transactions. `readers.py` renders text from a byte
on, `records.py` finds single records, and the text after damage. The view of stored batches needs
no index (`segment_batches.py`).
"""

from kafkafs.line_index.readers import Damaged, Reader, TextChanged, reader_at
from kafkafs.line_index.segment_batches import Extent, SegmentBatches
from kafkafs.line_index.segment_lines import SegmentLines
from kafkafs.line_index.store import NEVER, LineStore

__all__ = [
    "NEVER",
    "Damaged",
    "Extent",
    "LineStore",
    "Reader",
    "SegmentBatches",
    "SegmentLines",
    "TextChanged",
    "reader_at",
]
