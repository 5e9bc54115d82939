"""The files of a partition that is loaded, and what was promised about them before.

`directory.partition` computes the promises from the checkpoints and the partition's own small
files. A follower of another process has simpler ones: everything was written.

Not here: loading (`partition`, `segment`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage import paths
from storage.files import Files
from storage.segment.segment import Segment
from storage.settings.config import LogConfig


@dataclass(frozen=True, slots=True)
class Promises:
    """The state of a log that was promised before it is loaded.

    `clean`: the last stop was clean, or another process has the log open: everything was written.
    `recovery_point`: everything below it was flushed; None: unknown. `verify`: check all of the log
    nevertheless. `log_start`: records below it were deleted. `manifest_below`: the manifest's
    entries that end at or below this offset are valid; None: a broker's log has no manifest.
    `gaps_below`: a cleaner may have left gaps of offsets between segments below this offset.
    `may_have_gaps`: a cleaner may have left gaps in any segment, whatever the topic's present
    settings are. `aborts_below`: the transaction indexes of segments that end at or below this
    offset have all aborted transactions. A broker that recovers later segments empties their
    indexes first (`LogSegment.recover`); in a copy, indexes may be older than logs. So later
    segments that have such an index are read from their first batch. `unsynced`: an fsync has
    failed: the page cache, or new files, still have the readable bytes. `may_end`: the log may end
    at damage; otherwise that is LogWouldEnd.
    """

    clean: bool
    recovery_point: int | None = None
    verify: bool = False
    log_start: int = 0
    manifest_below: int | None = None
    gaps_below: int = 0
    may_have_gaps: bool = False
    aborts_below: int = paths.MAX_OFFSET
    unsynced: bool = False
    may_end: bool = True

    @property
    def flushed_to(self) -> int:
        """The recovery point that counts."""
        return 0 if self.verify else self.recovery_point or 0

    @property
    def trusted_below(self) -> int:
        """Sealed segments that end at or below it need not be read, and are not cut. A deletion may
        be half done below the log start.
        """
        return paths.MAX_OFFSET if self.clean else max(self.flushed_to, self.log_start)

    @property
    def recovery_point_is_reliable(self) -> bool:
        """Whether a gap between segments above the recovery point would be a loss, so that a
        checkpoint may have that point (`log.flush.Durability`).
        """
        is_known = self.recovery_point is not None and not self.verify
        return is_known or self.gaps_below <= self.flushed_to


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The directory of a partition that is loaded.

    `writable`: loading corrects the files. `progress`: called with counts of bytes that were read.
    `swapped`: the segments whose files' names end in `.swap`; a read-only load does not rename
    them.
    """

    files: Files
    directory: str
    config: LogConfig
    promises: Promises
    writable: bool
    progress: Callable[[int], None] = lambda size: None
    swapped: frozenset[int] = frozenset()

    def segment(self, base: int, *, writable: bool = False) -> Segment:
        """Return the segment's files, without their content."""
        segment = Segment(self.files, self.directory, base, self.config, writable=writable)
        if base in self.swapped:
            segment.note_renamed_to(paths.SWAP)
        return segment
