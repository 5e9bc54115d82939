"""Opens the logs of a data directory, once, in this order:

1. find the partitions, and finish an interrupted deletion (`partition`);
2. read the checkpoints, and remove the marker of a clean stop: if the process is killed from now
   on, the next start recovers;
3. leave out unneeded topics, if the caller named the needed ones and the last stop was clean;
4. load each partition, several at a time if recovery has much to read;
5. add each loaded partition to its topic.

A partition that cannot be opened is an error, or with `keeps_faulty` a fault of its topic.

Not here: taking the lock (`lock`), loading one partition (`partition`), writing the results
(`manager`).
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from storage.directory.lock import DirectoryLock
from storage.directory.partition import Loader, Scan
from storage.directory.topics import TopicPartition
from storage.errors import ReadOnlyFormat
from storage.log.log import Log
from storage.state import checkpoint_file
from storage.threads import side_by_side

# A shortage of the machine or the disk is no fault of the first partition that met it.
_SYSTEM_WIDE_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of opening: bytes read by recovery, partitions loaded of all."""

    bytes_read: int
    partitions: int
    partitions_total: int


class Opened(NamedTuple):
    """The results of opening besides the logs.

    `left_out`: the partitions that are not needed; `bytes_read`: bytes of the logs that recovery
    has read; `took_s`: the time that opening took.
    """

    scan: Scan
    left_out: list[TopicPartition]
    bytes_read: int
    took_s: float


def open_logs(
    loader: Loader,
    lock: DirectoryLock,
    progress: Callable[[Progress], None] | None,
    needs: Callable[[Set[str]], Set[str]] | None,
    *,
    verify: bool,
    keeps_faulty: bool,
    now_ms: int,
) -> Opened:
    """Open the logs of the loader's directory, and add them to its topics.

    `needs`: returns the needed ones of these topics. Other arguments and errors: see
    `LogManager.open`; after an error no log is open.
    """
    started = time.monotonic()
    scan = loader.scan()
    found, left_out = scan.partitions, list[TopicPartition]()
    short = set[TopicPartition]() if loader.read_only else loader.look_into(found)
    recovery_points, log_starts, are_known = loader.checkpoints.read_at_open(found)
    loader.stopped_clean = loader.has_marker and are_known
    if not loader.read_only:
        loader.checkpoints.set_others_aside()
        checkpoint_file.remove_marker(loader.files, loader.path)
    # The process with the lock has recovered the logs, or is about to.
    is_written = loader.read_only and lock.is_locked()
    clean = (loader.stopped_clean or is_written) and not verify
    if needs is not None and clean:
        topics = needs({topic for topic, _ in found})
        left_out = [item for item in found if item[0] not in topics]
        found = [item for item in found if item[0] in topics]
    opening = _Opening(
        *(loader, progress, len(found), recovery_points, log_starts, short),
        is_written=is_written,
        clean=clean,
        verify=verify,
        keeps_faulty=keeps_faulty,
        now_ms=now_ms,
    )
    opening.open(found)
    return Opened(scan, left_out, opening.bytes_read, time.monotonic() - started)


@dataclass(slots=True)
class _Opening:
    """Opens a list of partitions.

    `short`: the partitions with short logs; `partitions`: the number of loaded ones.
    """

    loader: Loader
    progress: Callable[[Progress], None] | None
    total: int
    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    short: Set[TopicPartition]
    is_written: bool
    clean: bool
    verify: bool
    keeps_faulty: bool
    now_ms: int
    bytes_read: int = 0
    partitions: int = 0
    logs: list[Log] = field(default_factory=list)

    def open(self, found: list[TopicPartition]) -> None:
        """Load these partitions and add them to their topics."""
        loader = self.loader
        threads = loader.files.parallel
        if not self.clean:
            threads = max(threads, loader.settings.broker.num_recovery_threads_per_data_dir)
        # Opening a short log is interpreted code, which several threads only slow down.
        short = [item for item in found if item in self.short]
        long = [item for item in found if item not in self.short]
        try:
            loaded = side_by_side(self._load, short, loader.files.parallel, "opening")
            loaded += side_by_side(self._load, long, threads, "recovery")
            # Partitions with a known topic id come first.
            for log in sorted(filter(None, loaded), key=_in_order):
                with self._as_fault((log.topic, log.partition), log):
                    loader.add(log)
        except BaseException:
            for log in self.logs:
                log.abandon()
            raise

    def _load(self, item: TopicPartition) -> Log | None:
        """Load a partition in any thread; return None if it is a fault or was deleted."""
        loader = self.loader
        log = None
        with self._as_fault(item):
            loader.checkpoints.check_log_start(item)
            load_once = partial(
                loader.load_partition,
                item,
                clean=self.clean,
                recovery_point=self.recovery_points.get(item),
                verify=self.verify,
                log_start=self.log_starts.get(item),
                now_ms=self.now_ms,
                advance=self._advance,
            )
            log = loader.retry_while_writer_renames(item, load_once, awaits_swap=True)
            # A living writer's checkpoint may be ahead of the part of its log that was read.
            if log is not None and not self.is_written:
                loader.compare_end(log, self.recovery_points.get(item, 0))
        if log is not None:
            self.logs.append(log)
        self._advance(0, 1)
        return log

    def _advance(self, size: int, partitions: int = 0) -> None:
        self.bytes_read += size
        self.partitions += partitions
        if self.progress is not None:
            self.progress(Progress(self.bytes_read, self.partitions, self.total))

    @contextlib.contextmanager
    def _as_fault(self, item: TopicPartition, log: Log | None = None) -> Iterator[None]:
        """Make an error in this block the partition's fault, if faults are kept."""
        try:
            yield
        except Exception as error:
            everybodys = isinstance(error, MemoryError) or (
                isinstance(error, OSError) and error.errno in _SYSTEM_WIDE_ERRORS
            )
            if not self.keeps_faulty or everybodys or isinstance(error, ReadOnlyFormat):
                raise
            if log is not None:
                log.abandon()
            self.loader.topics.set_fault(item, error)


def _in_order(log: Log) -> tuple[bool, str, int]:
    return not log.topic_id, log.topic, log.partition
