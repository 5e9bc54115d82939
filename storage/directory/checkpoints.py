"""The offset checkpoints of a data directory: their content at its opening, and their new states.

A file that cannot be read is renamed (`bad_file`):

- recovery points and the cleaner's offsets count as 0: all is checked and cleaned again;
- log starts come from `kafkafs.history`. A partition without one is a fault until `repair` sets its
  log start, since deleted records must not be shown again. Until then `kafkafs.lost-log-starts`
  names it.

Invariants: the lines of partitions that were not opened stay; an older state is never written after
a later one.

Not here: the values of a log (`Log.flushed_end`, `Log.log_start_for_checkpoint`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from storage import paths
from storage.bad_file import set_aside
from storage.directory.topics import TopicPartition
from storage.errors import CorruptCheckpoint
from storage.files import Files, unusable
from storage.state import checkpoint_file, history
from storage.state.deletion_file import Deletion

CHECKPOINTS = (
    paths.RECOVERY_POINTS,
    paths.LOG_STARTS,
    paths.HIGH_WATERMARKS,
    paths.CLEANER_OFFSETS,
)


@dataclass(frozen=True, slots=True)
class RepairAnswers:
    """Changes that a repair may make.

    `log_starts`: the log starts of partitions whose own are lost. `rest_at_first`: whether all
    other such partitions begin at their first record. `may_hide`: whether a log is truncated at
    damage even if a mount shows records after it.
    """

    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    rest_at_first: bool = False
    may_hide: bool = True


class Checkpoints:
    """The offset checkpoints of one data directory.

    `cleaned`: the offset up to which each log has been cleaned; `cleaned_before`: the same before
    it was loaded, also of deleted topics. `has_log_starts`: whether there was a checkpoint of log
    starts, which each directory of ours has. `lost_starts`: partitions whose log start is lost,
    each with an offset that is not above it. `mended_starts`: lost log starts that a repair has
    set.
    """

    def __init__(
        self, files: Files, path: str, faults: list[str], answers: RepairAnswers, *, read_only: bool
    ) -> None:
        """`faults` gets a line for each file that cannot be read."""
        self._files = files
        self._path = path
        self._faults = faults
        self._answers = answers
        self._read_only = read_only
        self.cleaned: dict[TopicPartition, int] = {}
        self.cleaned_before: dict[TopicPartition, int] = {}
        self.has_log_starts = True
        self.lost_starts: dict[TopicPartition, int] = {}
        self.mended_starts: dict[TopicPartition, int] = {}
        # The content of each file when the directory was opened.
        self._at_open: dict[str, dict[TopicPartition, int]] = {}
        # Any thread may write the files.
        self._lock = threading.Lock()
        self._started = 0
        self._done = 0
        # The content of each file that this process has written.
        self._written: dict[str, dict[TopicPartition, int]] = {}
        # The topics that the files may name; None: not yet read.
        self._topics: frozenset[str] | None = None

    # -- reading -------------------------------------------------------------------------------

    def read(self, name: str) -> tuple[dict[TopicPartition, int], bool]:
        """Return an offset checkpoint, and whether it could be read; otherwise it is empty."""
        path = os.path.join(self._path, name)
        try:
            return checkpoint_file.read_offsets(self._files, path), True
        except CorruptCheckpoint as error:
            self.set_aside(path, error)
            return {}, False

    def read_at_open(
        self, found: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], bool]:
        """Return recovery points, log starts, and whether the recovery points could be read.

        `found`: the partitions of the directory.
        """
        points, are_known = self.read(paths.RECOVERY_POINTS)
        starts = self._read_log_starts(found)
        self.look_at_cleaner_offsets()
        # A new topic with the name of a deleted one has not been cleaned.
        known = self.cleaned_before
        self.cleaned.update((item, known[item]) for item in found if item in known)
        self._at_open = {
            paths.RECOVERY_POINTS: points,
            paths.LOG_STARTS: starts,
            paths.CLEANER_OFFSETS: known,
        }
        return points, starts, are_known

    def look_at_cleaner_offsets(self) -> None:
        """Read the cleaner's checkpoint before partitions are loaded."""
        self.cleaned_before, _ = self.read(paths.CLEANER_OFFSETS)

    def at_open(self, item: TopicPartition) -> tuple[int | None, int | None]:
        """Return a partition's recovery point and log start when the directory was opened."""
        points, starts = (self._at_open[name] for name in (paths.RECOVERY_POINTS, paths.LOG_STARTS))
        return points.get(item), starts.get(item)

    def bring_back(self, deletion: Deletion) -> list[TopicPartition]:
        """Add the lines of a topic that is about to be undeleted, also to `cleaned_before`.

        Return its partitions.
        """
        for each in deletion.partitions:
            item = deletion.topic, each.number
            for name, offset in (
                (paths.RECOVERY_POINTS, each.recovery_point),
                (paths.LOG_STARTS, each.log_start),
                (paths.CLEANER_OFFSETS, each.cleaned),
            ):
                self._at_open[name].pop(item, None)
                if offset is not None:
                    self._at_open[name][item] = offset
        return [(deletion.topic, each.number) for each in deletion.partitions]

    def note_end(self, item: TopicPartition, end: int) -> None:
        """Note that recovery truncated a log at `end`: records that are written there later are
        dirty (`LogCleanerManager.maybeTruncateCheckpoint`).
        """
        if self.cleaned.get(item, 0) > end:
            self.cleaned[item] = end

    def _kept(self, name: str, unopened: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return a checkpoint's lines for the partitions `unopened`, which the next one repeats."""
        if not unopened:
            return {}
        if name not in self._at_open:
            self._at_open[name] = self.read(name)[0]
        offsets = self._at_open[name]
        return {item: offsets[item] for item in unopened if item in offsets}

    def set_aside(self, path: str, error: Exception, *, stays: bool = False) -> None:
        """Note that a small file cannot be read, and rename it unless it `stays`."""
        line = str(error)
        if not (self._read_only or stays):
            line += f"; kept as {set_aside(self._files, path)}"
        if line not in self._faults:
            self._faults.append(line)

    def set_others_aside(self) -> None:
        """Rename anything but a regular file in the place of the high watermarks and the marker."""
        for name in (paths.HIGH_WATERMARKS, paths.CLEAN_SHUTDOWN):
            path = os.path.join(self._path, name)
            with contextlib.suppress(FileNotFoundError):
                mode = self._files.file_stat(path).st_mode
                if not stat.S_ISREG(mode):
                    self.set_aside(path, unusable(path, mode))

    # -- log starts ----------------------------------------------------------------------------

    def _read_log_starts(self, found: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log starts; add those that neither file nor history has to `lost_starts`."""
        path = os.path.join(self._path, paths.LOG_STARTS)
        self.has_log_starts = self._files.exists(path)
        fault: CorruptCheckpoint | None = None
        starts: dict[TopicPartition, int] = {}
        try:
            starts = checkpoint_file.read_offsets(self._files, path)
        except CorruptCheckpoint as error:
            fault = error
        lost, lost_known = self.read(paths.LOST_STARTS)
        if fault is not None or not lost_known:
            lost |= {item: 0 for item in found if item not in starts}
        if not lost:
            return starts
        self.lost_starts = {item: offset for item, offset in lost.items() if item in found}
        if fault is not None and not self._read_only:
            # Before the bad file, the only sign of the loss, is renamed.
            self._write_lost_starts()
        for item in list(self.lost_starts):
            start = self._told_log_start(item)
            if start is not None:
                starts[item] = start
                del self.lost_starts[item]
        if fault is not None:
            self.set_aside(path, fault)
        if not self._read_only:
            checkpoint_file.write_offsets(self._files, path, starts)
            self._write_lost_starts()
        return starts

    def _told_log_start(self, item: TopicPartition) -> int | None:
        """Return a lost log start from the repair, or from the partition's own history."""
        if item in self._answers.log_starts:
            self.mended_starts[item] = self._answers.log_starts[item]
            return self.mended_starts[item]
        directory = os.path.join(self._path, paths.partition_directory(*item))
        try:
            start = history.recorded_start(self._files, directory)
        except (CorruptCheckpoint, OSError):
            start = None
        if start is None and self._answers.rest_at_first:
            start = self.mended_starts[item] = 0
        return start

    def check_log_start(self, item: TopicPartition) -> None:
        """Check that the log start of a partition is known. Errors: CorruptCheckpoint."""
        if item in self.lost_starts:
            name = "{}:{}".format(*item)
            raise CorruptCheckpoint(
                "the log start offset is lost. So that deleted records do not reappear, run "
                f"`kafkafs repair {self._path} --log-start {name}=OFFSET --apply` ({name}=first if "
                "no records were deleted)",
                path=os.path.join(self._path, paths.LOG_STARTS),
            )

    def forget_lost_starts(self, topic: str) -> None:
        """Drop the lost starts of a deleted topic. Errors: OSError."""
        lost = {item: start for item, start in self.lost_starts.items() if item[0] != topic}
        if lost != self.lost_starts:
            self.lost_starts = lost
            self._write_lost_starts()

    def _write_lost_starts(self) -> None:
        path = os.path.join(self._path, paths.LOST_STARTS)
        if self.lost_starts:
            checkpoint_file.write_offsets(self._files, path, self.lost_starts)
        elif self._files.exists(path):
            self._files.unlink(path)
            self._files.sync_directory(self._path)

    # -- writing -------------------------------------------------------------------------------

    def topics(self) -> frozenset[str]:
        """Return the topics that the checkpoints on disk may name."""
        if self._topics is None:
            self._topics = frozenset(
                topic for name in CHECKPOINTS for topic, _ in self.read(name)[0]
            )
        return self._topics

    def start(
        self,
        offsets: Mapping[str, dict[TopicPartition, int]],
        topics: frozenset[str],
        unopened: Sequence[TopicPartition],
    ) -> Callable[[], None]:
        """Take a state of the checkpoints; return a thread-safe function that writes it.

        `offsets`: of the logs, by the file's name. `topics`: the topics that these name.
        `unopened`: the partitions that exist and are not open. If a later state was written, the
        function writes nothing: when it returns, this state or a later one is durable. Errors:
        OSError.
        """
        stated = {
            name: self._kept(name, unopened) | each
            for name, each in {**offsets, paths.CLEANER_OFFSETS: self.cleaned}.items()
        }
        topics |= {topic for topic, _ in [*stated[paths.CLEANER_OFFSETS], *unopened]}
        self._started += 1
        number = self._started

        def write() -> None:
            with self._lock:
                if number < self._done:
                    return
                self._topics = self.topics() | topics
                for name, each in stated.items():
                    if each != self._written.pop(name, None):
                        path = os.path.join(self._path, name)
                        checkpoint_file.write_offsets(self._files, path, each)
                    # (Not known if the write failed.)
                    self._written[name] = each
                self._topics = topics
                self._done = number

        return write
