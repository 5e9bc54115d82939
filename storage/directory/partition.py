"""Finds the partitions of a data directory and loads them.

Each partition has one directory (`TOPIC-N`). If the deletion of a topic was interrupted, it is
finished (`deletion_file`). Loading is recovery. Small files of a partition that cannot be read are
renamed (`bad_file`) and rebuilt:

- `leader-epoch-checkpoint` from the epochs of the batches;
- `partition.metadata` from another partition of the topic, or from the broker's metadata log.
  Without these the partition is a fault until `repair`.

Not here: the checkpoints of the directory (`checkpoints`), the list of partitions (`topics`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from storage import paths
from storage.directory.checkpoints import Checkpoints, RepairAnswers
from storage.directory.reserve import NAME as RESERVE
from storage.directory.topics import Topic, TopicPartition, Topics
from storage.errors import CorruptCheckpoint, CorruptRecord, LogWouldEnd, SegmentGone
from storage.files import Files, is_temporary
from storage.kafka07.segment import holds_entries, refusal
from storage.log.group import LogGroup
from storage.log.log import Log
from storage.log.rescue import decided, finish
from storage.log.salvage import count_behind
from storage.plural import counted
from storage.recovery.partition import LogLoader, PartitionFiles, Promises, Recovered
from storage.recovery.segment import header_at
from storage.segment.cut import Cut
from storage.segment.reader import SegmentReader
from storage.settings.settings import Settings
from storage.state import checkpoint_file, deletion_file, history, manifest_file
from storage.state.deletion_file import DeletedPartition, Deletion
from storage.state.tiered import TieredTopics

_log = logging.getLogger(__name__)

# Attempts to load a partition while its writer renames files.
_TRIES = 5
# Names of other directories in one line of the log.
_SHOWN = 3
# Seconds that a cleaner may take to rename its output, and between two checks.
_SWAP_S = 1.0
_LOOK_S = 0.005
# Recovering a log of at most this size takes less time than opening its files.
_SHORT_BYTES = 64 << 10


class Scan(NamedTuple):
    """The entries of a data directory: the partitions to load, in order, the directories to delete,
    and the deleted topics of some of these directories.
    """

    partitions: list[TopicPartition]
    doomed: list[str]
    deletions: list[Deletion]


@dataclass
class Loader:
    """Loads the partitions of one data directory.

    `faults` gets a line for each problem. `has_marker`: whether the marker of a clean stop existed.
    `wanted`: which topics to load, by name; None: all. `answers`: the changes that a repair may
    make; it gives a new id to a topic without a readable one.

    `tiered`: the topics that are loaded as read-only. `cuts`: bytes that recovery has cut off;
    `uncut`: partitions whose logs a repair would have to truncate before records that a mount
    shows; `skipped`: names of other directories.
    """

    files: Files
    path: str
    settings: Settings
    checkpoints: Checkpoints
    topics: Topics
    faults: list[str]
    log_group: LogGroup[Log]
    tiered: TieredTopics
    read_only: bool
    has_marker: bool
    wanted: Callable[[str], bool] | None
    answers: RepairAnswers | None
    cuts: list[Cut] = field(default_factory=list)
    uncut: set[TopicPartition] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # Whether the last stop was clean, and the checkpoints can be read.
        self.stopped_clean = self.has_marker
        # Partitions with an empty directory that were not loaded yet.
        self._empty: set[TopicPartition] = set()

    # -- finding -------------------------------------------------------------------------------

    def scan(self) -> Scan:
        """List the partitions, and finish an interrupted deletion. Errors: OSError."""
        found: set[TopicPartition] = set()
        doomed: list[str] = []
        others: list[str] = []
        for name, kind in self.files.listing(self.path):
            if kind == "file" and is_temporary(name) and not self.read_only:
                # A killed process left it: only this process writes here.
                self.files.unlink(os.path.join(self.path, name))
            if kind == "file" or name in paths.BROKERS_OWN or name.startswith(RESERVE):
                continue
            parsed = paths.parse_partition_directory(name)
            if parsed is not None:
                # Includes a link, or the like: loading reports the problem.
                if self.wanted is None or self.wanted(parsed[0]):
                    found.add(parsed)
                continue
            if kind != "directory":
                continue
            aside = paths.parse_aside_directory(name)
            if aside is not None and aside.kind == "delete":
                doomed.append(name)
            elif name not in self.skipped:
                others.append(name)
        if others:
            self.skipped.update(others)
            _log.warning("%s", _left_alone(sorted(others)))
        deletions = [each for name in doomed if (each := self._deletion(name)) is not None]
        for deletion in deletions:
            for partition in self._left(deletion, found, doomed):
                found.remove((deletion.topic, partition.number))
                doomed.append(partition.directory)
                if not self.read_only:
                    source = self._directory((deletion.topic, partition.number))
                    self.files.rename(source, os.path.join(self.path, partition.directory))
        return Scan(sorted(found), doomed, deletions)

    def _deletion(self, name: str) -> Deletion | None:
        """Return the deletion that a directory of this name records, if any."""
        try:
            deletion = deletion_file.read(self.files, os.path.join(self.path, name))
        except (CorruptCheckpoint, OSError) as error:
            _log.warning("%s: its deleted records cannot be restored: %s", name, error)
            return None
        # A copy of the record does not count.
        is_its_own = deletion is not None and deletion.partitions[0].directory == name
        return deletion if is_its_own else None

    def _left(
        self, deletion: Deletion, found: Container[TopicPartition], doomed: Container[str]
    ) -> list[DeletedPartition]:
        """Return the partitions of a deleted topic whose directories have their normal names."""
        topic, (first, *others) = deletion.topic, deletion.partitions
        if (topic, first.number) in found:
            return []  # another topic has the name
        return [
            each
            for each in others
            if (topic, each.number) in found
            and each.directory not in doomed
            and self._topic_id(self._directory((topic, each.number))) in ("", deletion.id)
        ]

    def look_into(self, found: Sequence[TopicPartition]) -> set[TopicPartition]:
        """List the partitions' directories before anything is changed.

        Return the partitions with short logs; none after a clean stop. Errors: ReadOnlyFormat for a
        partition of Kafka 0.7.
        """
        short = set[TopicPartition]()
        for item in found:
            directory = self._directory(item)
            # Loading reports an unreadable directory.
            with contextlib.suppress(OSError):
                names = [name for name, _ in self.files.scan(directory)]
                if holds_entries(names):
                    raise refusal(directory)
                if not names:
                    self._empty.add(item)
                if not self.has_marker and self._is_short(directory, names):
                    short.add(item)
        return short

    def _is_short(self, directory: str, names: Sequence[str]) -> bool:
        """Return whether a partition has at most one segment, of at most `_SHORT_BYTES`."""
        bases = paths.log_bases(names)
        if not bases:
            return True
        path = os.path.join(directory, paths.file_name(bases[0], paths.LOG))
        return len(bases) == 1 and self.files.file_stat(path).st_size <= _SHORT_BYTES

    # -- loading -------------------------------------------------------------------------------

    def retry_while_writer_renames(
        self, item: TopicPartition, load: Callable[[], Log], *, awaits_swap: bool = False
    ) -> Log | None:
        """Load a partition, and again while its writer, another process, renames its files; return
        None if it was removed.

        `awaits_swap`: wait until a cleaner has renamed its output.
        """
        if not self.read_only:
            return load()
        directory = self._directory(item)
        for number in range(_TRIES):
            try:
                if awaits_swap:
                    self._await_swap(directory)
                return load()
            except (FileNotFoundError, SegmentGone):
                if not self.files.exists(directory):
                    break
                if number == _TRIES - 1:
                    raise
        return None

    def _directory(self, item: TopicPartition) -> str:
        return os.path.join(self.path, paths.partition_directory(*item))

    def _await_swap(self, directory: str) -> None:
        """Wait while a living cleaner replaces segments, so that no file is renamed during the
        load.

        The rest of an interrupted swap is shown as if it were finished.
        """
        end = time.monotonic() + _SWAP_S
        lock = os.path.join(self.path, paths.LOCK)
        while any(name.endswith(paths.LOG + paths.SWAP) for name, _ in self.files.scan(directory)):
            if time.monotonic() > end or self.files.locked_by(lock) is None:
                return
            time.sleep(_LOOK_S)

    def load_partition(
        self,
        item: TopicPartition,
        *,
        clean: bool,
        recovery_point: int | None,
        log_start: int | None,
        now_ms: int,
        advance: Callable[[int], None] = lambda size: None,
        verify: bool = False,
        after_crash: bool = False,
    ) -> Log:
        """Load a partition.

        `recovery_point`, `log_start`: its lines in the checkpoints, or None. `verify`: read all
        batches; a log that a repair may not truncate is loaded as a mount does. `after_crash`: even
        if the last stop was clean. Errors: StorageError, OSError.
        """
        was_closed = self.has_marker and not after_crash
        is_new = item in self._empty
        self._empty.discard(item)
        directory = self._directory(item)
        files, settings = self.files, self.settings
        topic, partition = item
        topic_id = "" if is_new else self._topic_id(directory)
        settings.set_topic_id(topic, topic_id)
        config = settings.log_config(topic)
        tiered = self.tiered.line(topic)
        writable = not self.read_only and tiered is None
        is_brokers = settings.is_brokers_topic(topic)
        promises = self._promises(
            item, recovery_point, log_start, clean=clean, verify=verify, is_new=is_new
        )
        if verify and self.answers is not None and not self.answers.may_hide and tiered is None:
            promises = replace(promises, may_end=False)
        place = PartitionFiles(files, directory, config, writable, advance)
        try:
            recovered = files.with_reserve(LogLoader(place, promises, now_ms).load)
        except LogWouldEnd as damage:
            log = self.load_partition(
                item,
                clean=self.stopped_clean,
                recovery_point=promises.recovery_point,
                log_start=log_start,
                now_ms=now_ms,
            )
            if log.log_end_offset > (damage.offset or 0):
                self._keep_uncut(log, damage)
                return log
            # A mount ends the log there, too.
            log.abandon()
            promises = replace(promises, may_end=True)
            recovered = files.with_reserve(LogLoader(place, promises, now_ms).load)
        recovered.producers.expire(now_ms, settings.broker.producer_id_expiration_ms)
        self.cuts.extend(recovered.cuts)
        self.faults.extend(recovered.faults)
        start = max(promises.log_start, recovered.segments[0].base_offset)
        end = recovered.segments[-1].next_offset
        # A broker finds remote segments by the epochs below the first local one.
        epochs_start = promises.log_start if is_brokers else start
        epochs = list[tuple[int, int]]()
        if not is_new:
            epochs = self._load_epochs(directory, epochs_start, end, recovered, writable=writable)
        log = Log(
            *(files, directory, topic, partition, topic_id, config, recovered, self.log_group),
            # (`find_topic_id` sets it when it writes the file that has this time.)
            created_ns=0 if is_new and writable else self._created_ns(directory),
            log_start=promises.log_start,
            recovery_point=end if clean and not recovered.damaged else promises.flushed_to,
            epochs=epochs,
            was_closed=was_closed,
            read_only=self.read_only,
            tiered=tiered,
            checkpointed_start=log_start if is_brokers else None,
            may_have_gaps=promises.may_have_gaps,
            recovery_point_is_reliable=promises.recovery_point_is_reliable,
        )
        if promises.unsynced and writable and not clean:
            log.durability.restore_flush_error()
        return log

    def load_undeleted(self, deletion: Deletion, now_ms: int) -> Topic:
        """Load the partitions of an undeleted topic as after a crash, and add them to the topic.

        A partition that cannot be loaded is a fault of the topic.
        """
        logs: list[Log] = []
        faults: list[tuple[TopicPartition, Exception]] = []
        for each in deletion.partitions:
            item = deletion.topic, each.number
            point, start = each.recovery_point, each.log_start
            if each.cleaned is not None:
                self.checkpoints.cleaned[item] = each.cleaned
            try:
                log = self.load_partition(
                    item,
                    clean=False,
                    recovery_point=point,
                    log_start=start,
                    now_ms=now_ms,
                    after_crash=True,
                )
                self.compare_end(log, point or 0)
                if not log.topic_id:
                    self.find_topic_id(log, deletion.id)
                logs.append(log)
            except Exception as error:
                faults.append((item, error))
        topic = self.topics.appear(deletion.topic, deletion.id)
        for log in logs:
            self.add(log)
        for item, fault in faults:
            self.topics.set_fault(item, fault)
            _log.warning("%s", topic.faults[item[1]])
        return topic

    def _keep_uncut(self, log: Log, damage: LogWouldEnd) -> None:
        """Record that a repair did not truncate a log at damage, and count the records after it."""
        self.uncut.add((log.topic, log.partition))
        behind = counted(count_behind(log, damage), "record")
        self.faults.append(
            f"{damage}; nothing was truncated, because a mount shows {behind} after the "
            f"damage. To keep them: kafkafs repair {self.path} --salvage --apply. To truncate the "
            f"log there: kafkafs repair {self.path} --accept-loss --apply"
        )

    def compare_end(self, log: Log, flushed_end: int) -> None:
        """Record a lost end if the log ends before `flushed_end`, up to which it was flushed."""
        if flushed_end > log.log_end_offset:
            log.note_lost_end(flushed_end)
            self.faults.append(f"{log.directory}: {log.what_is_lost}")

    # -- what was promised ---------------------------------------------------------------------

    def _promises(
        self,
        item: TopicPartition,
        recovery_point: int | None,
        checkpointed_start: int | None,
        *,
        clean: bool,
        verify: bool,
        is_new: bool,
    ) -> Promises:
        """Return the promises about a log, by the checkpoints and its own small files.

        `recovery_point`, `checkpointed_start`: its lines in the checkpoints, or None. `is_new`: it
        has no files. An interrupted rescue is finished first, as that moves the recovery point.

        A partition's own files count only if the directory is ours, not a broker's or a copy whose
        files appear in any order: the log start and the entries of the manifest, and the recovery
        point as a flushed end. A broker deletes and cleans without these records. The end of a copy
        is known to the cluster that writes the original.

        Our cleaner leaves gaps between segments only below a durable recovery point. A broker's
        cleaner may have left gaps anywhere; for a copy, the copied checkpoint decides. Any gap is
        possible, too, if the cleaner's checkpoint is ahead of the recovery point, or if the log was
        copied without its checkpoints.
        """
        files, settings, directory = self.files, self.settings, self._directory(item)
        is_ours = files.in_order and not settings.is_brokers
        log_start = checkpointed_start or 0
        if is_ours and not is_new:
            log_start = self._log_start(directory, recovery_point, log_start, clean=clean)
        if not (clean or is_new or self.read_only) and self.tiered.line(item[0]) is None:
            rescued_to = decided(files, directory)
            if rescued_to:
                finish(files, directory, [name for name, _ in files.scan(directory)])
                recovery_point = max(recovery_point or 0, rescued_to)
        point = recovery_point or 0
        cleaned_to = self.checkpoints.cleaned_before.get(item)
        may_have_gaps = cleaned_to is not None or (
            files.in_order and settings.is_brokers_topic(item[0])
        )
        has_gaps_anywhere = (
            settings.is_brokers
            or (cleaned_to or 0) > point
            or (recovery_point is None and not manifest_file.is_blank(files, directory))
        )
        manifest_below = paths.MAX_OFFSET if self.stopped_clean else point
        return Promises(
            clean,
            recovery_point,
            verify,
            log_start,
            manifest_below=manifest_below if is_ours else None,
            gaps_below=paths.MAX_OFFSET if has_gaps_anywhere else point,
            may_have_gaps=may_have_gaps,
            unsynced=not is_new and files.exists(os.path.join(directory, paths.UNSYNCED)),
        )

    def _log_start(
        self, directory: str, recovery_point: int | None, log_start: int, *, clean: bool
    ) -> int:
        """Return the log start of a partition of ours; `log_start`: its line in the checkpoint."""
        if recovery_point is None or not self.checkpoints.has_log_starts:
            return max(log_start, self._own_log_start(directory))
        if recovery_point == 0 and not clean:
            # Appending with given offsets may have moved the log start to the first batch
            # (`append_with_offsets`). A later log start may belong to a change that was not made.
            written = min(self._own_log_start(directory), self._first_offset(directory))
            return max(log_start, written)
        return log_start

    # -- adding and creating -------------------------------------------------------------------

    def add(self, log: Log) -> None:
        """Add a loaded partition to its topic; all partitions of a topic share one id. Errors:
        CorruptCheckpoint if the ids differ, or the id was lost.
        """
        if not log.topic_id:
            self.find_topic_id(log, self.topics.id_of(log.topic))
        self.topics.add(log)
        if not log.read_only:
            self.checkpoints.note_end((log.topic, log.partition), log.log_end_offset)

    def find_topic_id(self, log: Log, known: str) -> None:
        """Give a log the id of its topic's other partitions. If there are none, use the id of the
        broker's metadata log if the log's own file cannot be read, else a new one.

        Errors: CorruptCheckpoint if its own file cannot be read and there is no other source, until
        a `repair`.
        """
        path = os.path.join(log.directory, paths.PARTITION_METADATA)
        fault: CorruptCheckpoint | None = None
        try:
            checkpoint_file.read_partition_metadata(self.files, path)
        except CorruptCheckpoint as error:
            fault = error
            known = known or self.settings.id_at_broker(log.topic)
            if not known and self.answers is None:
                remedy = f"to give the topic a new id: kafkafs repair {self.path} --apply"
                raise CorruptCheckpoint(f"{error.message}; {remedy}", path=path) from None
        if known:
            log.topic_id = known
        elif log.read_only:
            log.topic_id = checkpoint_file.stand_in_topic_id(self.path, log.topic)
        else:
            log.topic_id = checkpoint_file.new_topic_id()
        if fault is not None:
            self.checkpoints.set_aside(path, fault, stays=log.read_only)
        if not log.read_only:
            checkpoint_file.write_partition_metadata(self.files, path, log.topic_id)
            log.created_ns = self._created_ns(log.directory)

    def create_log(self, topic: Topic, partition: int, directory: str, now_ms: int) -> Log:
        """Make the files of a new, empty partition in its directory; durable. Errors: OSError.

        Its creation time is later than those of the topic's other partitions, even if the disk's
        clock stood still.
        """
        files, config = self.files, self.settings.log_config(topic.name)
        metadata = os.path.join(directory, paths.PARTITION_METADATA)
        checkpoint_file.write_partition_metadata(files, metadata, topic.id)
        created_ns = max(self._created_ns(directory), topic.extended_ns + 1)
        files.utime_ns(metadata, created_ns)
        epochs = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        checkpoint_file.write_epochs(files, epochs, [])
        manifest_file.begin(files, directory)
        place = PartitionFiles(files, directory, config, writable=True)
        recovered = LogLoader(place, Promises(clean=True, manifest_below=0), now_ms).load()
        files.sync_directory(directory)
        return Log(
            *(files, directory, topic.name, partition, topic.id, config, recovered, self.log_group),
            created_ns=created_ns,
            log_start=0,
            recovery_point=0,
            epochs=[],
            was_closed=True,
            read_only=False,
        )

    # -- facts in a partition's own files ------------------------------------------------------

    def _own_log_start(self, directory: str) -> int:
        """Return the log start in a partition's own files; 0 if they have none.

        It may belong to a deletion that was not decided. So it counts only for a partition without
        lines in the checkpoints, or up to the first batch.
        """
        start = 0
        with contextlib.suppress(CorruptCheckpoint, OSError):
            start = manifest_file.read(self.files, directory).log_start
        with contextlib.suppress(CorruptCheckpoint, OSError):
            start = max(start, history.recorded_start(self.files, directory) or 0)
        return start

    def _first_offset(self, directory: str) -> int:
        """Return the base offset of a partition's first batch; 0 if it cannot be found."""
        bases = paths.log_bases(name for name, _ in self.files.scan(directory))
        if not bases:
            return 0
        path = os.path.join(directory, paths.file_name(bases[0], paths.LOG))
        with contextlib.suppress(OSError), self.files.held_open(path) as fd:
            header = header_at(self.files, fd, 0)
            return 0 if header is None else header.base_offset
        return 0

    def _topic_id(self, directory: str) -> str:
        """Return the id of `partition.metadata`; empty if `find_topic_id` has to find it."""
        path = os.path.join(directory, paths.PARTITION_METADATA)
        try:
            return checkpoint_file.read_partition_metadata(self.files, path) or ""
        except CorruptCheckpoint:
            return ""

    def _created_ns(self, directory: str) -> int:
        """Return the creation time of a partition: the time of `partition.metadata`, which is
        written once.

        Without that file: the time of the directory.
        """
        with contextlib.suppress(OSError):
            metadata = os.path.join(directory, paths.PARTITION_METADATA)
            return self.files.file_stat(metadata).st_mtime_ns
        with contextlib.suppress(OSError):
            return self.files.born_ns(directory) or self.files.file_stat(directory).st_mtime_ns
        return 0

    def _load_epochs(
        self, directory: str, start: int, end: int, recovered: Recovered, *, writable: bool
    ) -> list[tuple[int, int]]:
        """Return the leader epochs from `start` to `end`, as in `LeaderEpochFileCache`.

        If the file cannot be read, they come from all batches.
        """
        path = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        seen = recovered.epochs
        try:
            recorded: list[tuple[int, int]] | None = checkpoint_file.read_epochs(self.files, path)
        except CorruptCheckpoint as error:
            recorded, seen = None, _epochs_of(recovered)
            self.checkpoints.set_aside(path, error, stays=not writable)
        epochs: list[tuple[int, int]] = []
        for epoch, offset in recorded or []:
            # An empty log keeps the epoch of its start.
            if offset < end or offset <= start:
                if offset <= start:
                    epochs.clear()
                epochs.append((epoch, max(offset, start)))
        for epoch, offset in seen:
            if epoch > (epochs[-1][0] if epochs else -1):
                checkpoint_file.begin_epoch(epochs, epoch, max(offset, start))
        if epochs != recorded and writable:
            checkpoint_file.write_epochs(self.files, path, epochs)
        return epochs


def _left_alone(names: Sequence[str]) -> str:
    """Return a line about directories that are not partitions."""
    shown, more = ", ".join(names[:_SHOWN]), len(names) - _SHOWN
    rest = f" and {counted(more, 'other')}" if more > 0 else ""
    what = "not a partition directory" if len(names) == 1 else "not partition directories"
    return f"{shown}{rest}: {what}, ignored"


def _epochs_of(recovered: Recovered) -> list[tuple[int, int]]:
    """Return (epoch, offset of its first batch), ascending, of all batches."""
    epochs: list[tuple[int, int]] = []
    for segment in recovered.segments:
        with contextlib.suppress(CorruptRecord):  # up to the first damage
            for _, header in SegmentReader(segment).batches():
                if header.leader_epoch > (epochs[-1][0] if epochs else -1):
                    epochs.append((header.leader_epoch, header.base_offset))
        segment.close_descriptors()
    return epochs
