"""The view of a partition's record batches as they are stored, back to back.

Its bytes are the segments' own, from the batch with the log start to the log end: control batches,
aborted and open transactions and empty batches too, of any codec and format. So it has nothing to
render or to measure.
"""

from __future__ import annotations

from typing import Final, Literal


class Batches:
    """`View` of stored batches; has no state."""

    name: Final = "batches"
    is_text: Literal[False] = False
    committed: Final = False
