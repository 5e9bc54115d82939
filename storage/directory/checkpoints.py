"""The offset checkpoints of a data directory: what they said when it was opened, what they say now.

A file that cannot be read is set aside by name (`bad_file`):

- recovery points and the cleaner's offsets count as 0: all is checked and cleaned again;
- log starts come from `kafkafs.history`; a partition without one is a fault until `repair` gets its
  log start, since records that were deleted must not be shown again. Until then
  `kafkafs.lost-log-starts` names it.

Invariants: the lines of partitions that were not opened stay; an older state is never written after
a later one.

Not here: a log's own lines (`Log.flushed_end`, `Log.remembered_log_start`).
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

    `log_starts`: the log start of partitions whose log start is lost; `rest_at_first`: whether all
    others of these begin at their first record. `may_hide`: whether a log ends at damage also where
    a mount shows records after it.
    """

    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    rest_at_first: bool = False
    may_hide: bool = True


class Checkpoints:
    """`cleaned`: up to where each log has been cleaned by now; `cleaned_before`: before it was
    loaded, also of deleted topics. `has_log_starts`: whether there was a checkpoint of log starts;
    each directory of ours has one, if an empty one. `lost_starts`: partitions whose log start is
    lost, each with an offset that is not above it. `mended_starts`: the log starts that were lost
    and that a repair has set.
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
        # The content of each when the directory was opened, by the file's name.
        self._at_open: dict[str, dict[TopicPartition, int]] = {}
        # Any thread writes them.
        self._lock = threading.Lock()
        self._started = 0
        self._done = 0
        # The content of each that this process has written.
        self._written: dict[str, dict[TopicPartition, int]] = {}
        # The topics that the files may name; None: not yet read.
        self._topics: frozenset[str] | None = None

    # -- reading -------------------------------------------------------------------------------

    def read(self, name: str) -> tuple[dict[TopicPartition, int], bool]:
        """Return an offset checkpoint, and whether it could be read; else it has no entries."""
        path = os.path.join(self._path, name)
        try:
            return checkpoint_file.read_offsets(self._files, path), True
        except CorruptCheckpoint as error:
            self.set_aside(path, error)
            return {}, False

    def readable(self, name: str) -> dict[TopicPartition, int]:
        """Return an offset checkpoint, without entries where it cannot be read; nothing is set
        aside.
        """
        try:
            return checkpoint_file.read_offsets(self._files, os.path.join(self._path, name))
        except CorruptCheckpoint:
            return {}

    def read_at_open(
        self, found: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], bool]:
        """Returns recovery points, log starts, and whether the recovery points could be read.

        `found`: the partitions that there are.
        """
        points, are_known = self.read(paths.RECOVERY_POINTS)
        starts = self._read_log_starts(found)
        self.look_at_cleaner_offsets()
        # Not of a topic that is gone: another one of its name has not been cleaned.
        known = self.cleaned_before
        self.cleaned.update((item, known[item]) for item in found if item in known)
        self._at_open = {
            paths.RECOVERY_POINTS: points,
            paths.LOG_STARTS: starts,
            paths.CLEANER_OFFSETS: known,
        }
        return points, starts, are_known

    def look_at_cleaner_offsets(self) -> None:
        """Read up to where each partition has been cleaned, before partitions are loaded."""
        self.cleaned_before, _ = self.read(paths.CLEANER_OFFSETS)

    def at_open(self, item: TopicPartition) -> tuple[int | None, int | None]:
        """Return the recovery point and the log start of a partition when the directory was
        opened.
        """
        points, starts = (self._at_open[name] for name in (paths.RECOVERY_POINTS, paths.LOG_STARTS))
        return points.get(item), starts.get(item)

    def bring_back(self, deletion: Deletion) -> list[TopicPartition]:
        """Take in the lines of a topic that is about to be undeleted, also into `cleaned_before`.

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
        """What recovery has cut off a log, which ends at `end` now, is dirty when it is written
        again (`LogCleanerManager.maybeTruncateCheckpoint`).
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
        """Set aside what is no plain file where high watermarks and the marker will be written."""
        for name in (paths.HIGH_WATERMARKS, paths.CLEAN_SHUTDOWN):
            path = os.path.join(self._path, name)
            with contextlib.suppress(FileNotFoundError):
                mode = self._files.file_stat(path).st_mode
                if not stat.S_ISREG(mode):
                    self.set_aside(path, unusable(path, mode))

    # -- log starts ----------------------------------------------------------------------------

    def _read_log_starts(self, found: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log starts; `lost_starts` become those that neither file nor history tells."""
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
            # Before the bad file, the only sign of it, is renamed.
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
        """Return a lost log start by the repair, or by the partition's own history."""
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
        """Errors: CorruptCheckpoint where the partition's log start is lost."""
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
        """Take a state of the checkpoints; returns a function that writes it (any thread).

        `offsets`: of the logs, by the file's name. `topics`: all that these name. `unopened`: the
        partitions that are there and not open. Where a later state has been written, the function
        writes nothing: when it returns, this state or a later one is durable. Errors: OSError.
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
                    # (Unknown where the write has failed.)
                    self._written[name] = each
                self._topics = topics
                self._done = number

        return write
