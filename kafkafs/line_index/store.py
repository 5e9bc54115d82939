"""The shared parts of all line indexes of a mount: the seam to the disk, the entries in memory.

The entries of a sealed segment are read from its file as a whole when they are needed. They are not
mapped: whoever cuts the file would end the daemon. A budget bounds the bytes that stay in memory.
"""

from __future__ import annotations

from storage.background import Duties
from storage.byte_budget import ByteBudget
from storage.files import Files

GRANULARITY = 4096
"""Bytes of text between two entries."""
HELD_BUDGET = 64 << 20
"""Bytes of entries that stay in memory, of all segments together."""
NEVER = float("inf")
"""No end to measuring (`time.monotonic`)."""


class LineStore:
    """See the module. `held`: who has entries in memory."""

    def __init__(
        self,
        files: Files,
        duties: Duties | None = None,
        *,
        granularity: int = GRANULARITY,
        budget: int = HELD_BUDGET,
    ) -> None:
        self.files = files
        self.duties = duties or Duties()
        self.granularity = granularity
        self.memory = ByteBudget(budget)
