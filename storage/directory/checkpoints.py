"""The offset checkpoints of a data directory.

Each file has a line for each partition. `note` notes the present values of one log, on the log
thread; `write` saves the log's manifest, takes the values into the lines, and writes each file
whose lines have changed. The lines of partitions that were not opened stay.

A file that cannot be read is renamed (`bad_file`):

- recovery points and the cleaner's offsets count as 0: all is checked and cleaned again;
- log starts come from `kafkafs.history`. A partition without one is a fault until `repair` sets its
  log start, since deleted records must not be shown again. Until then `kafkafs.lost-log-starts`
  names it.

Not here: the values of a log (`Log.flushed_end`, `Log.log_start_for_checkpoint`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field

from storage import paths
from storage.bad_file import set_aside
from storage.directory.topics import TopicPartition
from storage.errors import CorruptCheckpoint
from storage.files import Files, unusable
from storage.log.log import Log
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
    it was loaded, also of deleted topics. `stale`: partitions that only the files on the disk may
    name. `has_log_starts`: whether there was a checkpoint of log starts, which each directory of
    ours has. `lost_starts`: partitions whose log start is lost, each with an offset that is not
    above it. `mended_starts`: lost log starts that a repair has set.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        faults: list[str],
        answers: RepairAnswers,
        ignored: Collection[TopicPartition],
        *,
        read_only: bool,
    ) -> None:
        """`faults` gets a line for each file that cannot be read. `ignored`: partitions whose lines
        stay though their directories do not count.
        """
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
        self.stale: set[TopicPartition] = set()
        self._ignored = ignored
        # Held while the lines change.
        self._lock = threading.Lock()
        self._lines: dict[str, dict[TopicPartition, int]] = {name: {} for name in CHECKPOINTS}
        # The files whose lines may differ on the disk.
        self._unwritten = set(CHECKPOINTS)
        # The values of logs that are not in the lines yet.
        self._noted: dict[TopicPartition, tuple[Log, Sequence[int | None]]] = {}
        # Held by the thread that writes the files.
        self._writing = threading.Lock()

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
        there = {*found, *self._ignored}
        points, are_known = self.read(paths.RECOVERY_POINTS)
        starts = self._read_log_starts(found, there)
        self.look_at_cleaner_offsets()
        # A new topic with the name of a deleted one has not been cleaned.
        known = self.cleaned_before
        self.cleaned.update((item, known[item]) for item in found if item in known)
        if not self._read_only:
            self._take(paths.RECOVERY_POINTS, points, there)
            self._take(paths.LOG_STARTS, starts, there)
            self._take(paths.CLEANER_OFFSETS, known, there)
            self._take(paths.HIGH_WATERMARKS, self.read(paths.HIGH_WATERMARKS)[0], there)
        return points, starts, are_known

    def _take(
        self, name: str, offsets: dict[TopicPartition, int], there: Set[TopicPartition]
    ) -> None:
        """Take the lines of a file about the partitions that are `there`."""
        self._lines[name] = {item: offsets[item] for item in offsets if item in there}
        self.stale |= offsets.keys() - there

    def look_at_cleaner_offsets(self) -> None:
        """Read the cleaner's checkpoint before partitions are loaded."""
        self.cleaned_before, _ = self.read(paths.CLEANER_OFFSETS)

    def recorded(self, item: TopicPartition) -> tuple[int | None, int | None]:
        """Return the lines of a partition: its recovery point and its log start."""
        points, starts = (self._lines[name] for name in (paths.RECOVERY_POINTS, paths.LOG_STARTS))
        return points.get(item), starts.get(item)

    def note_end(self, item: TopicPartition, end: int) -> None:
        """Note that recovery truncated a log at `end`: records that are written there later are
        dirty (`LogCleanerManager.maybeTruncateCheckpoint`).
        """
        if self.cleaned.get(item, 0) > end:
            self.cleaned[item] = end

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

    def _read_log_starts(
        self, found: Sequence[TopicPartition], there: Set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the log starts; add those that neither file nor history has to `lost_starts`.

        `there`: the partitions `found`, and the ignored ones, whose histories are not read.
        """
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
            lost |= {item: 0 for item in there if item not in starts}
        if not lost:
            return starts
        self.lost_starts = {item: offset for item, offset in lost.items() if item in there}
        if fault is not None and not self._read_only:
            # Before the bad file, the only sign of the loss, is renamed.
            self._write_lost_starts()
        for item in self.lost_starts.keys() & set(found):
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

    def _write_lost_starts(self) -> None:
        path = os.path.join(self._path, paths.LOST_STARTS)
        # Another thread may remove lines meanwhile.
        lost = self.lost_starts.copy()
        if lost:
            checkpoint_file.write_offsets(self._files, path, lost)
        elif self._files.exists(path):
            self._files.unlink(path)
            self._files.sync_directory(self._path)

    # -- writing -------------------------------------------------------------------------------

    def note(self, log: Log) -> None:
        """Let the next `write` take the present values of a log into the lines."""
        item = log.topic, log.partition
        values = (
            log.flushed_end,
            log.log_start_for_checkpoint,
            log.high_watermark,
            self.cleaned.get(item),
        )
        with self._lock:
            self._noted[item] = log, values

    def _take_noted(self, item: TopicPartition) -> None:
        """Save the manifest of a noted log, then take its values into the lines. Errors: OSError;
        the log stays noted.
        """
        # Another thread may note the log again, take its values or forget it meanwhile.
        while (noted := self._noted.get(item)) is not None:
            log, values = noted
            # Before a recovery point declares its entries flushed.
            log.manifest.save()
            with self._lock:
                if self._noted.get(item) is noted:
                    del self._noted[item]
                    for name, offset in zip(CHECKPOINTS, values, strict=True):
                        self._set(name, item, offset)

    def _set(self, name: str, item: TopicPartition, offset: int | None) -> None:
        """Change a line; None: there is none."""
        lines = self._lines[name]
        if lines.get(item) != offset:
            self._unwritten.add(name)
            if offset is None:
                del lines[item]
            else:
                lines[item] = offset

    def forget(self, items: Iterable[TopicPartition]) -> None:
        """Remove the lines of partitions that are deleted."""
        with self._lock:
            for item in items:
                self.cleaned.pop(item, None)
                self._noted.pop(item, None)
                if any(item in lines for lines in (self.lost_starts, *self._lines.values())):
                    self.stale.add(item)
                self.lost_starts.pop(item, None)
                for name in CHECKPOINTS:
                    self._set(name, item, None)

    def bring_back(self, deletion: Deletion) -> None:
        """Add the lines of a topic that is about to be undeleted, also to `cleaned_before`."""
        with self._lock:
            for each in deletion.partitions:
                item = deletion.topic, each.number
                self._set(paths.RECOVERY_POINTS, item, each.recovery_point)
                self._set(paths.LOG_STARTS, item, each.log_start)
                self._set(paths.CLEANER_OFFSETS, item, each.cleaned)
                self.cleaned_before.pop(item, None)
                if each.cleaned is not None:
                    self.cleaned_before[item] = each.cleaned

    def write(self) -> None:
        """Write all that was noted. Thread-safe; when it returns, it is durable. Errors: OSError;
        the next call writes it again.
        """
        failure: OSError | None = None
        for item in list(self._noted):
            try:
                self._take_noted(item)
            except OSError as error:
                failure = failure or error
        with self._writing:
            with self._lock:
                names, self._unwritten = self._unwritten, set()
                stated = {name: self._lines[name].copy() for name in CHECKPOINTS if name in names}
                stale = self.stale.copy()
            try:
                for name, lines in stated.items():
                    path = os.path.join(self._path, name)
                    checkpoint_file.write_offsets(self._files, path, lines)
                if stale:
                    self._write_lost_starts()
            except BaseException:
                with self._lock:
                    self._unwritten |= names
                raise
            with self._lock:
                self.stale -= stale
        if failure is not None:
            raise failure
