"""The partitions of a data directory: finds them, loads them, knows them by topic.

What is there is one directory per partition (``TOPIC-N``).  Loading is recovery, in threads where
that has to read.

What cannot be loaded is one partition's fault (``Topic.faults``), of which the others know nothing;
who wants all or nothing is told the first such fault instead.  Small files that cannot be read are
rebuilt, and set aside by name (``bad_file``):

- the recovery points and the cleaner's offsets count as 0: all is checked and cleaned again;
- log starts come from ``kafkafs.history``; a partition without one is a fault until ``repair`` is
  told where it begins, since records that were deleted must not be shown again.  Which these are
  stands in ``kafkafs.lost-log-starts`` until then;
- ``leader-epoch-checkpoint`` comes from the epochs of the batches;
- ``partition.metadata`` comes from another partition of the topic, or the broker's metadata log,
  else it is a fault until ``repair``.

Invariant: checkpoints keep what they say of partitions that are faults.

Not here: the lock, creating and deleting, periodic work, the end (``manager``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from storage import paths
from storage.adopt.adoptions import Adoptions
from storage.bad_file import set_aside
from storage.counters import CleanerCounters, LogCounters
from storage.directory.reserve import Reserve
from storage.duties import Duties
from storage.errors import (
    CorruptCheckpoint,
    CorruptRecord,
    FaultyPartition,
    ReadOnlyFormat,
    SegmentGone,
    StorageError,
)
from storage.files import Files, is_temporary, unusable
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.log.rescue import decided, finish
from storage.recovery.recovery import Origin, Recovered, recover
from storage.segment.cut import Cut
from storage.segment.old_segment import holds_entries, refusal
from storage.settings.settings import Settings
from storage.state import book_file, checkpoint, history
from storage.threads import side_by_side

_log = logging.getLogger(__name__)

# How often a partition is loaded again whose files its writer renames meanwhile.
_TRIES = 5
# How long its cleaner may take to name what it puts into the log, and how often one looks.
_SWAP_S = 1.0
_LOOK_S = 0.005
# How many topics a line names.
_NAMED = 10
# What the whole machine or disk lacks is not the fault of the partition that met it first.
_EVERYBODYS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
)
CHECKPOINTS = (
    paths.RECOVERY_POINTS,
    paths.LOG_STARTS,
    paths.HIGH_WATERMARKS,
    paths.CLEANER_OFFSETS,
)

Item = tuple[str, int]
"""A partition: its topic and number."""


@dataclass(slots=True)
class Topic:
    """A topic and those of its partitions that lie in this directory, by number.

    ``faults``: why those that could not be opened could not be.
    """

    name: str
    id: str
    partitions: dict[int, Log] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """Of all partitions that are there, rising."""
        return sorted({*self.partitions, *self.faults})

    def check(self, partition: int) -> None:
        """FaultyPartition where there is such a partition and it could not be opened."""
        if partition in self.faults:
            raise FaultyPartition(self.faults[partition])


@dataclass(frozen=True, slots=True)
class Mending:
    """What a repair has been told.  ``log_starts``: where partitions begin whose log start is not
    known any more; ``rest_at_first``: all others of them at their first record.
    """

    log_starts: dict[Item, int] = field(default_factory=dict)
    rest_at_first: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far opening has come: bytes read by recovery, partitions loaded of all."""

    bytes_read: int
    partitions: int
    partitions_total: int


class DataDirectory:
    """The part of a manager that knows partitions."""

    def __init__(
        self,
        path: str,
        files: Files,
        settings: Settings,
        *,
        read_only: bool,
        clean: bool,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.path = path
        self.files = files
        self.settings = settings
        self.read_only = read_only
        self.clean = clean
        # Whether that was so, and its checkpoints can be read.
        self.stopped_clean = clean
        self.clock_ms = clock_ms
        self.monotonic_ms = monotonic_ms
        self.reserve = Reserve(files, path)
        self.topics: dict[str, Topic] = {}
        # Which topics to look at, by name; None: all.
        self.wanted: Callable[[str], bool] | None = None
        # Whether a partition that cannot be opened is a fault of its own, or an error for all.
        self.keeps_faulty = False
        self.mending: Mending | None = None
        self.cuts: list[Cut] = []
        self.faults: list[str] = []
        # What the checkpoints said, by the file's name.
        self._offsets_at_open: dict[str, dict[Item, int]] = {}
        # Whether there is a checkpoint of log starts; each of ours has one, if an empty one.
        self._has_log_starts = True
        # Those whose log start is not known any more, with one that is not above it.
        self.lost_starts: dict[Item, int] = {}
        self.skipped: list[str] = []
        self.listeners: list[LogListener[Log]] = []
        self.counters = LogCounters()
        self.duties = Duties()
        self.cleaner_counters = CleanerCounters()
        # Up to where each log has been cleaned, by topic and partition.
        self.cleaner_offsets: dict[tuple[str, int], int] = {}
        # The same as it was before partitions were loaded, also of topics that are gone.
        self._cleaned_before: dict[Item, int] = {}
        # Why logs could not be cleaned when that was tried last.
        self.uncleanable: dict[Log, str] = {}
        # What was adopted; one at a time may adopt. What the disk is to say of it before anything
        # else is done, as it could not be told.
        self.adoptions = Adoptions()
        self.adopting = threading.Lock()
        self.undecided: Adoptions | None = None
        # Why it is not known what was adopted, so that nothing may be.
        self.adoptions_fault: CorruptCheckpoint | None = None
        # What opening took: bytes of log that recovery has read, and the time.
        self.opening_bytes = 0
        self.opening_s = 0.0
        self._lock_fd = -1
        # Whether nobody else uses ``files``.
        self._made_files = False
        self._dirty: set[Log] = set()
        # Those that wait for segments of theirs to be removed.
        self._retiring: set[Log] = set()
        # Whether files of segments may be open that age closes.
        self._opened_before = -1
        self._left_open = False
        # When expired producers are looked for next, by the monotonic clock.
        self._expiring_ms = 0
        # How often partitions or settings have changed; those of compacted topics as of one count.
        self._changes = 0
        self._compacted: tuple[int, tuple[Log, ...]] = (-1, ())
        self._doomed: list[tuple[int, str, Log | None]] = []
        # What could not be removed, to be tried again: paths, and whether it is a directory.
        self._unremoved: set[tuple[str, bool]] = set()
        # Checkpoints are written in any thread, and an older one never after a later one.
        self._checkpoints_started = 0
        self._checkpoint_written = 0
        self._checkpoint_lock = threading.Lock()
        # What each says, as far as this process has written it.
        self._written_offsets: dict[str, dict[Item, int]] = {}
        # The topics that the checkpoints on disk may speak of; None: they were not read for it.
        self._in_checkpoints: frozenset[str] | None = None

    def _load(self, progress: Callable[[Progress], None] | None, *, verify: bool) -> None:
        started = time.monotonic()
        now_ms = self.clock_ms()
        found, doomed = self.scan()
        if not self.read_only:
            self._refuse_old(found)
        recovery_points, points_known = self._read_offsets(paths.RECOVERY_POINTS)
        self.stopped_clean = self.clean and points_known
        log_starts = self._read_log_starts(found)
        cleaned = self.look_at_cleaner_offsets()
        self._offsets_at_open = {
            paths.RECOVERY_POINTS: recovery_points,
            paths.LOG_STARTS: log_starts,
            paths.CLEANER_OFFSETS: cleaned,
        }
        # Not of a topic that is gone: another one of its name has not been cleaned.
        self.cleaner_offsets = {item: cleaned[item] for item in found if item in cleaned}
        if not self.read_only:
            self._set_others_aside()
            checkpoint.remove_marker(self.files, self.path)
        # Who holds the lock has recovered it, or is about to.
        written = self.read_only and self.files.is_locked(os.path.join(self.path, paths.LOCK))
        clean = (self.stopped_clean or written) and not verify
        state = [0, 0]

        def advance(size: int, partitions: int = 0) -> None:
            state[0] += size
            state[1] += partitions
            if progress is not None:
                progress(Progress(state[0], state[1], len(found)))

        logs: list[Log] = []

        def load(item: Item) -> Log | None:
            log = None
            with self._as_fault(item):
                self._check_log_start(item)
                log = self.load_partition(
                    item,
                    clean=clean,
                    recovery_point=recovery_points.get(item),
                    verify=verify,
                    log_start=log_starts.get(item, 0),
                    now_ms=now_ms,
                    advance=advance,
                    awaits_swap=True,
                )
                # A living writer's checkpoint may be ahead of what was seen of its log.
                if log is not None and not written:
                    self._compare_end(log, recovery_points.get(item, 0))
            if log is not None:
                logs.append(log)
            advance(0, 1)
            return log

        try:
            threads = self.files.parallel
            if not clean:
                threads = max(threads, self.settings.broker.num_recovery_threads_per_data_dir)
            loaded = side_by_side(load, found, threads, "recovery")
            # Those first that know their topic's id.
            for log in sorted(filter(None, loaded), key=lambda log: not log.topic_id):
                with self._as_fault((log.topic, log.partition), log):
                    self.add(log)
        except BaseException:
            for log in logs:
                log.abandon()
            raise
        self.opening_bytes = state[0]
        self.opening_s = time.monotonic() - started
        self._say_what_was_found()
        for name in doomed:
            self._doomed.append((self.monotonic_ms(), os.path.join(self.path, name), None))

    def _say_what_was_found(self) -> None:
        for cut in self.cuts:
            _log.warning("%s", cut)
        for fault in self.faults:
            _log.warning("%s", fault)
        if not self.read_only:
            for line in [*self.settings.notes, *self.kept_topics()]:
                _log.warning("%s", line)

    def kept_topics(self) -> list[str]:
        """Of which topics nothing goes as their settings are not known: a line for each reason."""
        topics: dict[str, list[str]] = {}
        for name in sorted(self.topics):
            why = self.settings.why_kept(name, "TOPIC")
            if why is not None:
                topics.setdefault(why, []).append(name)
        return [
            f"nothing is deleted or compacted of {_some(names)}: {why}"
            for why, names in topics.items()
        ]

    # -- faults --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _as_fault(self, item: Item, log: Log | None = None) -> Iterator[None]:
        """What goes wrong with a partition in this block is its own fault, where those are kept."""
        try:
            yield
        except Exception as error:
            everybodys = isinstance(error, MemoryError) or (
                isinstance(error, OSError) and error.errno in _EVERYBODYS
            )
            if not self.keeps_faulty or everybodys or isinstance(error, ReadOnlyFormat):
                raise
            if log is not None:
                log.abandon()
            self.set_fault(item, error)

    def set_fault(self, item: Item, error: Exception) -> None:
        """A partition that is there cannot be shown; said once as long as it is for one reason."""
        name, number = item
        if not isinstance(error, (StorageError, OSError)):
            _log.error("%s-%d: not foreseen", name, number, exc_info=error)
        reason = f"{name}-{number}: cannot be opened: {str(error) or type(error).__name__}"
        topic = self.topics.get(name)
        if topic is None:
            stand_in = checkpoint.stand_in_topic_id(self.path, name)
            topic = self.topics.setdefault(name, Topic(name, stand_in))
        if topic.faults.get(number) != reason:
            topic.faults[number] = reason
            self.faults.append(reason)

    def forget_faults(self, there: Container[Item]) -> None:
        """Those of partitions that are not there any more."""
        for item in self.faulty:
            if item not in there:
                topic = self.topics[item[0]]
                del topic.faults[item[1]]
                if not topic.numbers:
                    del self.topics[topic.name]
                    self.settings.forget(topic.name)

    @property
    def faulty(self) -> list[Item]:
        """The partitions that are there and could not be opened."""
        return [
            (topic.name, number) for topic in list(self.topics.values()) for number in topic.faults
        ]

    def _kept_offsets(self, name: str) -> dict[Item, int]:
        """What a checkpoint says of partitions that are faults, which has to outlive that."""
        faulty = self.faulty
        if not faulty:
            return {}
        if name not in self._offsets_at_open:
            self._offsets_at_open[name] = self._read_offsets(name)[0]
        offsets = self._offsets_at_open[name]
        return {item: offsets[item] for item in faulty if item in offsets}

    # -- small files ---------------------------------------------------------------------------

    def _read_offsets(self, name: str) -> tuple[dict[Item, int], bool]:
        """An offset checkpoint, and whether it could be read; else it has no entries."""
        path = os.path.join(self.path, name)
        try:
            return checkpoint.read_offsets(self.files, path), True
        except CorruptCheckpoint as error:
            self.set_aside(path, error)
            return {}, False

    def look_at_cleaner_offsets(self) -> dict[Item, int]:
        """Before partitions are loaded: up to where each has been cleaned."""
        self._cleaned_before, _ = self._read_offsets(paths.CLEANER_OFFSETS)
        return self._cleaned_before

    def _readable_offsets(self, name: str) -> dict[Item, int]:
        """The same for a first look: nothing is set aside."""
        try:
            return checkpoint.read_offsets(self.files, os.path.join(self.path, name))
        except CorruptCheckpoint:
            return {}

    def set_aside(self, path: str, error: Exception) -> None:
        """A small file cannot be read: give it another name, where that may be, and say so."""
        line = str(error)
        if not self.read_only:
            line += f"; kept as {set_aside(self.files, path)}"
        if line not in self.faults:
            self.faults.append(line)

    def _set_others_aside(self) -> None:
        """What is in the place of small files that are written here and not read."""
        for name in (paths.HIGH_WATERMARKS, paths.CLEAN_SHUTDOWN):
            path = os.path.join(self.path, name)
            with contextlib.suppress(FileNotFoundError):
                mode = self.files.file_stat(path).st_mode
                if not stat.S_ISREG(mode):
                    self.set_aside(path, unusable(path, mode))

    def _read_log_starts(self, found: Sequence[Item]) -> dict[Item, int]:
        """Where logs start; ``lost_starts`` are those of which nothing tells."""
        path = os.path.join(self.path, paths.LOG_STARTS)
        self._has_log_starts = self.files.exists(path)
        fault: CorruptCheckpoint | None = None
        starts: dict[Item, int] = {}
        try:
            starts = checkpoint.read_offsets(self.files, path)
        except CorruptCheckpoint as error:
            fault = error
        lost, lost_known = self._read_offsets(paths.LOST_STARTS)
        if fault is not None or not lost_known:
            lost |= {item: 0 for item in found if item not in starts}
        if not lost:
            return starts
        self.lost_starts = {item: offset for item, offset in lost.items() if item in found}
        if fault is not None and not self.read_only:
            # Before anything else: the bad file is all that says it, and goes.
            self._write_lost_starts()
        for item in list(self.lost_starts):
            start = self._told_log_start(item)
            if start is not None:
                starts[item] = start
                del self.lost_starts[item]
        if fault is not None:
            self.set_aside(path, fault)
        if not self.read_only:
            checkpoint.write_offsets(self.files, path, starts)
            self._write_lost_starts()
        return starts

    def _told_log_start(self, item: Item) -> int | None:
        """By the repair, or by the partition's own history."""
        mending = self.mending or Mending()
        if item in mending.log_starts:
            return mending.log_starts[item]
        directory = os.path.join(self.path, paths.partition_directory(*item))
        try:
            start = history.recorded_start(self.files, directory)
        except (CorruptCheckpoint, OSError):
            start = None
        return 0 if start is None and mending.rest_at_first else start

    def _check_log_start(self, item: Item) -> None:
        if item in self.lost_starts:
            name = paths.partition_directory(*item)
            raise CorruptCheckpoint(
                "its log start is not known any more, and records that were deleted are not shown "
                f"again: kafkafs repair {self.path} --log-start {name}=OFFSET tells it (or "
                f"{name}=first: nothing was deleted)",
                path=os.path.join(self.path, paths.LOG_STARTS),
            )

    def forget_lost_starts(self, topic: str) -> None:
        """The topic has been deleted.  OSError."""
        lost = {item: start for item, start in self.lost_starts.items() if item[0] != topic}
        if lost != self.lost_starts:
            self.lost_starts = lost
            self._write_lost_starts()

    def _write_lost_starts(self) -> None:
        path = os.path.join(self.path, paths.LOST_STARTS)
        if self.lost_starts:
            checkpoint.write_offsets(self.files, path, self.lost_starts)
        elif self.files.exists(path):
            self.files.unlink(path)
            self.files.sync_directory(self.path)

    def scan(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Partitions to load, in order, and the names of directories to delete."""
        found: list[tuple[str, int]] = []
        doomed: list[str] = []
        for name, kind in self.files.listing(self.path):
            if kind == "file" and is_temporary(name) and not self.read_only:
                # What a kill has left; nobody else writes here.
                self.files.unlink(os.path.join(self.path, name))
            if kind == "file" or name in paths.BROKERS_OWN:
                continue
            parsed = paths.parse_partition_directory(name)
            if kind != "directory":
                # A link that leads to a directory elsewhere would be shown if it were followed.
                if parsed is not None and (self.wanted is None or self.wanted(parsed[0])):
                    found.append(parsed)
                continue
            aside = paths.parse_aside_directory(name)
            if aside is not None and aside.kind == "delete":
                if not self.read_only:
                    doomed.append(name)
                continue
            if parsed is not None:
                if self.wanted is None or self.wanted(parsed[0]):
                    found.append(parsed)
            elif name not in self.skipped:
                self.skipped.append(name)
                _log.warning("%s: not a partition's directory, left alone", name)
        return sorted(found), doomed

    def _refuse_old(self, found: list[tuple[str, int]]) -> None:
        """ReadOnlyFormat where a partition is one of Kafka 0.7, before anything is changed."""
        for item in found:
            directory = os.path.join(self.path, paths.partition_directory(*item))
            # What cannot be looked into is found out where it is loaded.
            with contextlib.suppress(OSError):
                if holds_entries([name for name, _ in self.files.scan(directory)]):
                    raise refusal(directory)

    def load_partition(
        self,
        item: tuple[str, int],
        *,
        clean: bool,
        recovery_point: int | None,
        log_start: int,
        now_ms: int,
        advance: Callable[[int], None] = lambda size: None,
        awaits_swap: bool = False,
        verify: bool = False,
    ) -> Log | None:
        """Load a partition; ``add`` makes it known.

        None where another process, whose directory this is, removes it meanwhile; where that one
        renames files under us, they are looked for anew.  ``awaits_swap``: wait until a cleaner has
        given what it puts into the log its names.
        """
        facts = (clean, recovery_point, log_start, now_ms, advance, verify)
        tries = _TRIES if self.read_only else 1
        while True:
            tries -= 1
            try:
                if self.read_only and awaits_swap:
                    self._await_swap(item)
                return self._load_partition(item, *facts)
            except (FileNotFoundError, SegmentGone):
                directory = os.path.join(self.path, paths.partition_directory(*item))
                if self.read_only and not self.files.exists(directory):
                    return None
                if not tries:
                    raise

    def _await_swap(self, item: tuple[str, int]) -> None:
        """Wait while a cleaner that lives replaces segments, so that files keep their names
        meanwhile.  Of one that was stopped all is shown as if it had finished.
        """
        directory = os.path.join(self.path, paths.partition_directory(*item))
        end = time.monotonic() + _SWAP_S
        while any(name.endswith(paths.LOG + paths.SWAP) for name, _ in self.files.scan(directory)):
            lock = os.path.join(self.path, paths.LOCK)
            if time.monotonic() > end or self.files.locked_by(lock) is None:
                return
            time.sleep(_LOOK_S)

    def _load_partition(
        self,
        item: tuple[str, int],
        clean: bool,
        recovery_point: int | None,
        log_start: int,
        now_ms: int,
        advance: Callable[[int], None],
        verify: bool,
    ) -> Log:
        topic, partition = item
        directory = os.path.join(self.path, paths.partition_directory(topic, partition))
        topic_id = self._topic_id(directory)
        self.settings.identify(topic, topic_id)
        config = self.settings.log_config(topic)
        if recovery_point is None or not self._has_log_starts:
            log_start = max(log_start, self._own_log_start(directory))
        may_be_cleaned = self._may_be_cleaned(item)
        rescued_to = 0 if clean else decided(self.files, directory)
        if rescued_to and not self.read_only:
            finish(self.files, directory, [name for name, _ in self.files.scan(directory)])
            recovery_point = max(recovery_point or 0, rescued_to)
        flushed_to = 0 if verify or recovery_point is None else recovery_point
        holes_to = self._holes_to(item, recovery_point)
        origin = Origin(
            self.files,
            directory,
            config,
            clean=clean,
            # What lies below the log start is not read: a deletion may have been half done.
            recovery_point=max(flushed_to, log_start),
            log_start=log_start,
            writable=not self.read_only,
            now_ms=now_ms,
            may_be_cleaned=may_be_cleaned,
            holes_to=holes_to,
            booked_to=self._booked_to(recovery_point),
            flushed_end=self._flushed_end(recovery_point, log_start),
            producer_expiration_ms=self.settings.broker.producer_id_expiration_ms,
            progress=advance,
        )
        recovered = self.files.spend(lambda: recover(origin))
        self.cuts.extend(recovered.cuts)
        self.faults.extend(recovered.faults)
        start = max(log_start, recovered.segments[0].base_offset)
        end = recovered.segments[-1].next_offset
        log = Log(
            self.files,
            directory,
            topic,
            partition,
            topic_id,
            config,
            recovered,
            log_start=log_start,
            recovery_point=end if clean and not recovered.damaged else flushed_to,
            epochs=self._load_epochs(
                directory, start, end, recovered.epochs, lambda: self._epochs_of(recovered)
            ),
            clean=self.clean,
            read_only=self.read_only,
            may_be_cleaned=may_be_cleaned,
            point_counts=holes_to <= flushed_to or (recovery_point is not None and not verify),
            dirty=self._dirty,
            retiring=self._retiring,
            counters=self.counters,
            monotonic_ms=self.monotonic_ms,
        )
        unsynced = os.path.join(directory, paths.UNSYNCED)
        if not clean and not self.read_only and self.files.exists(unsynced):
            log.durability.distrust_as_before()
        return log

    def _own_log_start(self, directory: str) -> int:
        """Where a partition that has come without its lines in the checkpoints begins, by its own
        files; 0 where nothing tells, or a broker may know more.

        Of one that has its lines these count alone: what is to go is written down here before it is
        decided there.
        """
        if self.settings.is_brokers or not self.files.in_order:
            return 0
        start = 0
        with contextlib.suppress(CorruptCheckpoint, OSError):
            start = book_file.read(self.files, directory).log_start
        with contextlib.suppress(CorruptCheckpoint, OSError):
            start = max(start, history.recorded_start(self.files, directory) or 0)
        return start

    def _compare_end(self, log: Log, flushed_end: int) -> None:
        """Hold where a log ends against what was written down when it was flushed."""
        if flushed_end > log.log_end_offset:
            log.note_lost_end(flushed_end)
            self.faults.append(f"{log.directory}: {log.what_is_lost}")

    def _may_be_cleaned(self, item: tuple[str, int]) -> bool:
        """Whether a cleaner was there or may have been: of a broker's topics nothing tells.

        But for what it has written down, where records may be missing for other reasons.
        """
        if self.settings.is_brokers_topic(item[0]) and self.files.in_order:
            return True
        return item in self._cleaned_before

    def _holes_to(self, item: tuple[str, int], recovery_point: int | None) -> int:
        """Up to where a cleaner may have left gaps between segments, whatever the topic's settings
        say now.

        Ours has the recovery point written down first, and leaves none behind it.  A broker's may
        have come further; so may that of whoever copied segments without their checkpoints.
        """
        if self.settings.is_brokers or self._cleaned_before.get(item, 0) > (recovery_point or 0):
            return paths.MAX_OFFSET
        if recovery_point is not None:
            return recovery_point
        directory = os.path.join(self.path, paths.partition_directory(*item))
        return 0 if book_file.is_blank(self.files, directory) else paths.MAX_OFFSET

    def _booked_to(self, recovery_point: int | None) -> int | None:
        """Up to where a log's book counts, all of which was flushed; None: a broker keeps none."""
        if self.settings.is_brokers or not self.files.in_order:
            return None
        return paths.MAX_OFFSET if self.stopped_clean else recovery_point or 0

    def _flushed_end(self, recovery_point: int | None, log_start: int) -> int | None:
        """Where a batch of a log ended when it was flushed; None where that is not known, as the
        recovery point was moved up to the log start, or a broker's is told by another cluster.
        """
        if self.settings.is_brokers or not self.files.in_order:
            return None
        is_end = recovery_point is not None and recovery_point > log_start
        return recovery_point if is_end else None

    def _topic_id(self, directory: str) -> str:
        """That of ``partition.metadata``; empty where ``add`` has to find it out."""
        path = os.path.join(directory, paths.PARTITION_METADATA)
        try:
            return checkpoint.read_partition_metadata(self.files, path) or ""
        except CorruptCheckpoint:
            return ""

    def _load_epochs(
        self,
        directory: str,
        start: int,
        end: int,
        seen: list[tuple[int, int]],
        all_epochs: Callable[[], list[tuple[int, int]]],
    ) -> list[tuple[int, int]]:
        """The leader epochs within the log, as ``LeaderEpochFileCache`` keeps them.

        ``seen``: those that recovery has come across; ``all_epochs`` reads the whole log for them.
        """
        path = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        try:
            recorded: list[tuple[int, int]] | None = checkpoint.read_epochs(self.files, path)
        except CorruptCheckpoint as error:
            recorded, seen = None, all_epochs()
            self.set_aside(path, error)
        epochs: list[tuple[int, int]] = []
        for epoch, offset in recorded or []:
            # The one that holds at the log start also where the log is empty.
            if offset < end or offset <= start:
                if offset <= start:
                    epochs.clear()
                epochs.append((epoch, max(offset, start)))
        for epoch, offset in seen:
            if epoch > (epochs[-1][0] if epochs else -1):
                checkpoint.begin_epoch(epochs, epoch, max(offset, start))
        if epochs != recorded and not self.read_only:
            checkpoint.write_epochs(self.files, path, epochs)
        return epochs

    @staticmethod
    def _epochs_of(recovered: Recovered) -> list[tuple[int, int]]:
        """(epoch, offset of its first batch), rising, of all batches that are there."""
        epochs: list[tuple[int, int]] = []
        for segment in recovered.segments:
            with contextlib.suppress(CorruptRecord):  # up to what is damaged
                for _, header in segment.batches():
                    if header.leader_epoch > (epochs[-1][0] if epochs else -1):
                        epochs.append((header.leader_epoch, header.base_offset))
            segment.close_descriptors()
        return epochs

    def add(self, log: Log) -> None:
        """Make a loaded partition part of its topic; all of a topic's share one id.

        CorruptCheckpoint where they do not, or nothing tells what the id was.
        """
        topic = self.topics.get(log.topic)
        known = topic.id if topic is not None and topic.partitions else ""
        if not log.topic_id:
            self._find_topic_id(log, known)
        elif known and log.topic_id != known:
            raise CorruptCheckpoint(
                f"topic id {log.topic_id} differs from {known} of the topic's other partitions",
                path=os.path.join(log.directory, paths.PARTITION_METADATA),
            )
        if topic is None:
            topic = self.topics[log.topic] = Topic(log.topic, log.topic_id)
        topic.id = log.topic_id
        topic.faults.pop(log.partition, None)
        log.listeners = self.listeners
        topic.partitions[log.partition] = log
        self._changes += 1
        # What recovery has cut is dirty when it is written again
        # (``LogCleanerManager.maybeTruncateCheckpoint``).
        item = (log.topic, log.partition)
        if self.cleaner_offsets.get(item, 0) > log.log_end_offset:
            self.cleaner_offsets[item] = log.log_end_offset

    def _find_topic_id(self, log: Log, known: str) -> None:
        """Give a log the id of its topic's other partitions, else that of the broker's metadata log
        where its own is there and cannot be read, else a new one.

        CorruptCheckpoint where its own cannot be read and there are no others: until ``repair``.
        """
        path = os.path.join(log.directory, paths.PARTITION_METADATA)
        fault: CorruptCheckpoint | None = None
        try:
            checkpoint.read_partition_metadata(self.files, path)
        except CorruptCheckpoint as error:
            fault = error
            known = known or self.settings.id_at_broker(log.topic)
            if not known and self.mending is None:
                remedy = f"kafkafs repair {self.path} gives the topic a new id"
                raise CorruptCheckpoint(f"{error.message}; {remedy}", path=path) from None
        if known:
            log.topic_id = known
        elif self.read_only:
            log.topic_id = checkpoint.stand_in_topic_id(self.path, log.topic)
        else:
            log.topic_id = checkpoint.new_topic_id()
        if fault is not None:
            self.set_aside(path, fault)
        if not self.read_only:
            checkpoint.write_partition_metadata(self.files, path, log.topic_id)


def _some(names: list[str]) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{len(names)} topics ({shown} and {more} more)" if more > 0 else shown
