"""The partitions of a data directory: finds them, loads them, knows them by topic.

What is there is one directory per partition (``TOPIC-N``).  Loading is recovery, in threads where
that has to read.

Invariant: what cannot be loaded is refused before anything is changed elsewhere.

Not here: the lock, creating and deleting, periodic work, the end (``manager``).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from storage import checkpoint, paths
from storage.adoptions import Adoptions
from storage.config import LogConfig
from storage.counters import CleanerCounters, LogCounters
from storage.cut import Cut
from storage.duties import Duties
from storage.errors import CorruptCheckpoint, SegmentGone
from storage.files import Files
from storage.listener import LogListener
from storage.log import Log
from storage.old_segment import is_old, refusal
from storage.recovery import Origin, recover
from storage.reserve import Reserve
from storage.settings import Settings

_log = logging.getLogger(__name__)

# How often a partition is loaded again whose files its writer renames meanwhile.
_TRIES = 5
# How long its cleaner may take to name what it puts into the log, and how often one looks.
_SWAP_S = 1.0
_LOOK_S = 0.005
# How many topics a line names.
_NAMED = 10


@dataclass(slots=True)
class Topic:
    """A topic and those of its partitions that lie in this directory, by number."""

    name: str
    id: str
    partitions: dict[int, Log] = field(default_factory=dict)


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
        self.clock_ms = clock_ms
        self.monotonic_ms = monotonic_ms
        self.reserve = Reserve(files, path)
        self.topics: dict[str, Topic] = {}
        # Which topics to look at, by name; None: all.
        self.wanted: Callable[[str], bool] | None = None
        self.cuts: list[Cut] = []
        self.faults: list[str] = []
        self.skipped: list[str] = []
        self.listeners: list[LogListener] = []
        self.counters = LogCounters()
        self.duties = Duties()
        self.cleaner_counters = CleanerCounters()
        # Up to where each log has been cleaned, by topic and partition.
        self.cleaner_offsets: dict[tuple[str, int], int] = {}
        # Why logs could not be cleaned when that was tried last.
        self.uncleanable: dict[Log, str] = {}
        # What was adopted; one at a time may adopt. What the disk is to say of it before anything
        # else is done, as it could not be told.
        self.adoptions = Adoptions()
        self.adopting = threading.Lock()
        self.undecided: Adoptions | None = None
        # What opening took: bytes of log that recovery has read, and the time.
        self.opening_bytes = 0
        self.opening_s = 0.0
        self._lock_fd = -1
        self._dirty: set[Log] = set()
        self._doomed: list[tuple[int, str, Log | None]] = []
        # What could not be removed, to be tried again: paths, and whether it is a directory.
        self._unremoved: set[tuple[str, bool]] = set()
        # Checkpoints are written in any thread, and an older one never after a later one.
        self._checkpoints_started = 0
        self._checkpoint_written = 0
        self._checkpoint_lock = threading.Lock()

    def _load(self, progress: Callable[[Progress], None] | None, *, verify: bool) -> None:
        started = time.monotonic()
        now_ms = self.clock_ms()
        found, doomed = self.scan()
        if not self.read_only:
            self._refuse_old(found)
        recovery_points = self._read_offsets(paths.RECOVERY_POINTS)
        log_starts = self._read_offsets(paths.LOG_STARTS)
        cleaned = self._read_offsets(paths.CLEANER_OFFSETS)
        # Not of a topic that is gone: another one of its name has not been cleaned.
        self.cleaner_offsets = {item: cleaned[item] for item in found if item in cleaned}
        if not self.read_only:
            checkpoint.remove_marker(self.files, self.path)
        # Who holds the lock has recovered it, or is about to.
        written = self.read_only and self.files.is_locked(os.path.join(self.path, paths.LOCK))
        clean = (self.clean or written) and not verify
        state = [0, 0]

        def advance(size: int, partitions: int = 0) -> None:
            state[0] += size
            state[1] += partitions
            if progress is not None:
                progress(Progress(state[0], state[1], len(found)))

        def load(item: tuple[str, int]) -> Log | None:
            log = self.load_partition(
                item,
                clean=clean,
                recovery_point=recovery_points.get(item),
                verify=verify,
                log_start=log_starts.get(item, 0),
                now_ms=now_ms,
                advance=advance,
                may_wait=True,
            )
            # A living writer's checkpoint may be ahead of what was seen of its log.
            if log is not None and not written:
                self._compare_end(log, recovery_points.get(item, 0))
            advance(0, 1)
            return log

        logs: list[Log] = []
        try:
            threads = self.files.parallel
            if not clean:
                threads = max(threads, self.settings.broker.num_recovery_threads_per_data_dir)
            if (clean and threads == 1) or len(found) < 2:
                for item in found:
                    if (log := load(item)) is not None:
                        logs.append(log)
            else:
                with ThreadPoolExecutor(threads, "recovery") as pool:
                    logs.extend(log for log in pool.map(load, found) if log is not None)
            for log in logs:
                self.add(log)
        except BaseException:
            for log in logs:
                log.abandon()
            raise
        self.opening_bytes = state[0]
        self.opening_s = time.monotonic() - started
        for cut in self.cuts:
            _log.warning("%s", cut)
        for fault in self.faults:
            _log.warning("%s", fault)
        if not self.read_only:
            for line in [*self.settings.notes, *self.kept_topics()]:
                _log.warning("%s", line)
        for name in doomed:
            self._doomed.append((self.monotonic_ms(), os.path.join(self.path, name), None))

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

    def _read_offsets(self, name: str) -> dict[tuple[str, int], int]:
        return checkpoint.read_offsets(self.files, os.path.join(self.path, name))

    def scan(self) -> tuple[list[tuple[str, int]], list[str]]:
        """Partitions to load, in order, and the names of directories to delete."""
        found: list[tuple[str, int]] = []
        doomed: list[str] = []
        for name, is_directory in self.files.scan(self.path):
            if not is_directory or name in paths.BROKERS_OWN:
                continue
            aside = paths.parse_aside_directory(name)
            if aside is not None and aside.kind == "delete":
                if not self.read_only:
                    doomed.append(name)
                continue
            parsed = paths.parse_partition_directory(name)
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
            if is_old([name for name, _ in self.files.scan(directory)]):
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
        may_wait: bool = False,
        verify: bool = False,
    ) -> Log | None:
        """Load a partition; ``add`` makes it known.

        None where another process, whose directory this is, removes it meanwhile; where that one
        renames files under us, they are looked for anew.  ``may_wait``: until a cleaner has given
        what it puts into the log its names.
        """
        facts = (clean, recovery_point, log_start, now_ms, advance, verify)
        tries = _TRIES if self.read_only else 1
        while True:
            tries -= 1
            try:
                if self.read_only and may_wait:
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
        may_be_cleaned = self._may_be_cleaned(item)
        flushed_to = 0 if verify or recovery_point is None else recovery_point
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
            holes_to=self._holes_to(item, config, recovery_point),
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
            epochs=self._load_epochs(directory, start, end, recovered.epochs),
            clean=self.clean,
            read_only=self.read_only,
            may_be_cleaned=may_be_cleaned,
            dirty=self._dirty,
            counters=self.counters,
            monotonic_ms=self.monotonic_ms,
        )
        unsynced = os.path.join(directory, paths.UNSYNCED)
        if not clean and not self.read_only and self.files.exists(unsynced):
            log.distrust()
        return log

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
        return item in self._read_offsets(paths.CLEANER_OFFSETS)

    def _holes_to(
        self, item: tuple[str, int], config: LogConfig, recovery_point: int | None
    ) -> int:
        """Up to where a cleaner may have left gaps between segments.

        Ours has the recovery point written down first, and leaves none behind it.  A broker's may
        have come further; so may that of whoever copied segments without their checkpoints.
        """
        cleaned = self._read_offsets(paths.CLEANER_OFFSETS).get(item)
        if not (self.settings.is_brokers or config.is_compacted or cleaned is not None):
            return 0
        if self.settings.is_brokers or recovery_point is None or (cleaned or 0) > recovery_point:
            return paths.MAX_OFFSET
        return recovery_point

    def _topic_id(self, directory: str) -> str:
        path = os.path.join(directory, paths.PARTITION_METADATA)
        return checkpoint.read_partition_metadata(self.files, path) or ""

    def _load_epochs(
        self, directory: str, start: int, end: int, seen: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The leader epochs within the log, as ``LeaderEpochFileCache`` keeps them."""
        path = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        recorded = checkpoint.read_epochs(self.files, path)
        epochs: list[tuple[int, int]] = []
        for epoch, offset in recorded:
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

    def add(self, log: Log) -> None:
        """Make a loaded partition part of its topic; all of a topic's share one id."""
        topic = self.topics.get(log.topic)
        if topic is None:
            topic = self.topics[log.topic] = Topic(log.topic, log.topic_id)
        if not log.topic_id:
            if not topic.id:
                topic.id = (
                    checkpoint.stand_in_topic_id(self.path, log.topic)
                    if self.read_only
                    else checkpoint.new_topic_id()
                )
            log.topic_id = topic.id
            if not self.read_only:
                path = os.path.join(log.directory, paths.PARTITION_METADATA)
                checkpoint.write_partition_metadata(self.files, path, topic.id)
        elif log.topic_id != topic.id:
            raise CorruptCheckpoint(
                f"topic id {log.topic_id} differs from {topic.id} of the topic's other partitions",
                path=os.path.join(log.directory, paths.PARTITION_METADATA),
            )
        log.listeners = self.listeners
        topic.partitions[log.partition] = log
        # What recovery has cut is dirty when it is written again
        # (``LogCleanerManager.maybeTruncateCheckpoint``).
        item = (log.topic, log.partition)
        if self.cleaner_offsets.get(item, 0) > log.log_end_offset:
            self.cleaner_offsets[item] = log.log_end_offset


def _some(names: list[str]) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    return f"{len(names)} topics ({shown} and {more} more)" if more > 0 else shown
