"""The view of a partition's record batches as they are stored, back to back.

Its bytes are the segments' own: control batches, aborted and open transactions, empty batches,
whatever codec and format they have, from the batch that holds the log start to the log end. So
there is nothing to render or to measure.
"""

from __future__ import annotations

from typing import Final, Literal


class Batches:
    """`View` of stored batches; has no state."""

    name: Final = "batches"
    is_text: Literal[False] = False
    committed: Final = False
