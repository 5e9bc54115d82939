"""Rebuilds the indexes of segments from their logs, and reports files that differed.

`.index` and `.timeindex` become byte for byte those of a log of ours; a broker's, which are sound
but follow other rules, count as different. `.txnindex` and producer snapshots may have facts that
the log has lost (by compaction or retention), so a sound one stays. A missing or broken one, or one
that contradicts the log, is rebuilt from the newest snapshot before it and the log.

No process has the directory open. Each file is replaced atomically. The indexes of a damaged log
stay unchanged.

Not here: the log itself (`recovery`, `salvage`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.index import txn_index
from storage.index.txn_index import TxnEntry
from storage.plural import counted
from storage.record._batch import Rebuild
from storage.record.control import ABORT
from storage.segment.walk import feed
from storage.settings.settings import Settings
from storage.state import producer_state
from storage.state.producer_state import ProducerBatch, ProducerState
from storage.state.tiered import TieredTopics
from storage.verify.transactions import OpenTransactions, SegmentTransactions
from storage.verify.verify_index import rebuilt_times, without_zero_tail
from storage.verify.verify_segment import Fault, Progress


@dataclass(slots=True)
class Reindexed:
    """The segments that were read, the index files that differed and why, and the damaged logs.

    `tiered`: a line for each tiered topic; these stay unchanged.
    """

    segments: int = 0
    different: list[Fault] = field(default_factory=list)
    damaged: list[Fault] = field(default_factory=list)
    tiered: list[str] = field(default_factory=list)


def reindex(
    targets: Iterable[str],
    *,
    check_only: bool = False,
    files: Files | None = None,
    progress: Progress = lambda size: None,
) -> Reindexed:
    """Reindex data directories, partitions' directories and single segments (any file of one).

    `check_only` takes no lock and changes nothing. Errors: LogLocked, NotADirectoryError, OSError.
    """
    files = files or Files()
    outcome = Reindexed()
    with ExitStack() as locks:
        partitions = list(find(targets, files))
        data_dirs = {os.path.dirname(partition.directory) for partition in partitions}
        for data_dir in sorted(data_dirs):
            if not check_only:
                lock = files.lock(os.path.join(data_dir, paths.LOCK))
                locks.callback(files.unlock, lock)
        tiered = {
            data_dir: TieredTopics(files, data_dir, Settings(files, data_dir))
            for data_dir in data_dirs
        }
        for partition in partitions:
            data_dir, name = os.path.split(partition.directory)
            topic, number = paths.parse_partition_directory(name) or (name, -1)
            line = None if check_only else tiered[data_dir].line(topic)
            if line is None:
                log_start = tiered[data_dir].checkpointed_log_start(topic, number) or 0
                _Partition(partition, log_start, files, outcome, check_only, progress).run()
            elif line not in outcome.tiered:
                outcome.tiered.append(line)
    return outcome


@dataclass(slots=True)
class ReindexTarget:
    """A partition's directory, and the base offsets of its segments to reindex; None: all."""

    directory: str
    bases: set[int] | None

    def includes(self, base: int) -> bool:
        """Return whether this segment is to be reindexed."""
        return self.bases is None or base in self.bases


def find(targets: Iterable[str], files: Files) -> Iterator[ReindexTarget]:
    """Yield the partitions of these paths. Errors: NotADirectoryError if one is no data directory,
    no partition and no segment's file.
    """
    found: dict[str, ReindexTarget] = {}
    for target in targets:
        path = os.path.realpath(target)
        parent, name = os.path.split(path)
        base = paths.base_offset_of(name)
        if base is not None and not os.path.isdir(path):
            partition = found.setdefault(parent, ReindexTarget(parent, set()))
            if partition.bases is not None:
                partition.bases.add(base)
        elif not os.path.isdir(path):
            raise NotADirectoryError(
                errno.ENOTDIR, "neither a directory nor a file of a segment", target
            )
        elif paths.parse_partition_directory(name) is not None:
            found[path] = ReindexTarget(path, None)
        else:
            for entry, is_directory in sorted(files.scan(path)):
                if is_directory and paths.is_partition_directory(entry):
                    directory = os.path.join(path, entry)
                    found[directory] = ReindexTarget(directory, None)
    yield from found.values()


def log_bytes(targets: Iterable[str], files: Files | None = None) -> int:
    """Return the bytes that `reindex` will read, or slightly less: of the partitions' logs."""
    files = files or Files()
    total = 0
    for partition in find(targets, files):
        for base in _bases(files, partition.directory):
            if partition.includes(base):
                name = paths.file_name(base, paths.LOG)
                total += files.file_stat(os.path.join(partition.directory, name)).st_size
    return total


def _bases(files: Files, directory: str) -> list[int]:
    return sorted(
        base
        for name, _ in files.scan(directory)
        if name.endswith(paths.LOG) and (base := paths.base_offset_of(name)) is not None
    )


class _Partition:
    """Reindexes the target's segments in a partition's directory."""

    def __init__(
        self,
        target: ReindexTarget,
        log_start: int,
        files: Files,
        outcome: Reindexed,
        check_only: bool,
        progress: Progress,
    ) -> None:
        self.target = target
        self.files = files
        self.outcome = outcome
        self.check_only = check_only
        self.progress = progress
        self.bases = _bases(files, target.directory)
        data_dir, name = os.path.split(target.directory)
        topic, _ = paths.parse_partition_directory(name) or (name, -1)
        self.index_interval = Settings(files, data_dir).log_config(topic).index_interval_bytes
        self.log_start = log_start
        # The state at the end of the part that was read.
        self.producers = ProducerState()

    def run(self) -> None:
        wanted = self.bases if self.target.bases is None else self.target.bases
        begin = self._begin(min(wanted, default=self.bases[0] if self.bases else 0))
        end = max(wanted, default=begin)
        for base in self.bases:
            if not begin <= base <= end:
                continue
            if base != begin and self.target.includes(base):
                self._snapshot(base)
            if not self._segment(base):
                return

    def _begin(self, first_wanted: int) -> int:
        """Return the base of the segment to begin at: the newest one, up to the first wanted one,
        with a sound snapshot, which is loaded; otherwise the first segment.
        """
        for base in reversed(self.bases):
            if base <= first_wanted and (producers := self._read_snapshot(base)) is not None:
                self.producers = producers
                return base
        return self.bases[0] if self.bases else 0

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self.target.directory, paths.file_name(base, suffix))

    def _read_snapshot(self, base: int) -> ProducerState | None:
        path = self._path(base, paths.SNAPSHOT)
        try:
            data, excess = producer_state.read(self.files, path)
            return None if excess else ProducerState.decode(data, path=path)
        except (FileNotFoundError, CorruptCheckpoint):
            return None

    def _snapshot(self, base: int) -> None:
        if self._read_snapshot(base) is None:
            path = self._path(base, paths.SNAPSHOT)
            reason = "unreadable" if self.files.exists(path) else "missing"
            self._replace(path, self.producers.encode(), reason)

    # -- one segment ---------------------------------------------------------------------------

    def _segment(self, base: int) -> bool:
        """Reindex a segment; return False if its log is damaged, so that the rest is not known."""
        rebuild = Rebuild(base, self.index_interval)
        path = self._path(base, paths.LOG)
        fd = self.files.open(path, os.O_RDONLY)
        try:
            size = self.files.size(fd)
            for _, taken, _ in feed(self.files, fd, size, rebuild):
                self.progress(taken)
        finally:
            self.files.close(fd)
        self.outcome.segments += 1
        if rebuild.position < size:
            reason = rebuild.fault or "the last batch is incomplete"
            self.outcome.damaged.append(Fault(path, f"{reason}; not reindexed", rebuild.position))
            return False
        is_last = base == self.bases[-1]
        if self.target.includes(base):
            offsets, times = (bytes(rebuild.offset_entries),), rebuilt_times(rebuild, is_last)
            self._compare(self._path(base, paths.INDEX), offsets, 8, is_last)
            self._compare(self._path(base, paths.TIMEINDEX), times, 12, is_last)
        self._transactions(base, rebuild)
        return True

    def _compare(self, path: str, right: tuple[bytes, ...], size: int, is_last: bool) -> None:
        try:
            data = self.files.read_whole(path)
        except FileNotFoundError:
            self._replace(path, right[0], f"missing, {counted(len(right[0]) // size, 'entry')}")
            return
        used = without_zero_tail(data, size) if is_last else data
        if used not in right:
            reason = f"{counted(len(used) // size, 'entry')}, not {len(right[0]) // size}"
            if len(used) == len(right[0]):
                wrong = sum(
                    used[at : at + size] != right[0][at : at + size]
                    for at in range(0, len(used), size)
                )
                reason = f"{wrong} of {counted(len(used) // size, 'entry')} wrong"
            self._replace(path, right[0], reason)

    def _transactions(self, base: int, rebuild: Rebuild) -> None:
        aborted: list[TxnEntry] = []
        aborts: dict[int, tuple[int, int | None]] = {}
        for batch in map(ProducerBatch._make, rebuild.producers):
            entry = self.producers.apply(batch)
            if batch.marker_type == ABORT:
                began = None if entry is None else entry.first_offset
                aborts[batch.last_offset] = batch.producer_id, began
            if entry is not None:
                aborted.append(entry)
        path = self._path(base, paths.TXNINDEX)
        data = self.files.read_whole(path) if self.files.exists(path) else b""
        # `producers` has the transactions that were open before the segment.
        seen = SegmentTransactions(txn_index.decode(data), aborts)
        faults = list(OpenTransactions(self.log_start).faults(seen))
        if not self.target.includes(base):
            return
        if len(data) % txn_index.ENTRY_SIZE:
            faults.append(("it ends inside an entry", None, None))
        if faults:
            reason, _, offset = faults[0]
            at = "" if offset is None else f"offset {offset}: "
            self._replace(path, txn_index.encode(aborted), at + reason)

    def _replace(self, path: str, data: bytes, reason: str) -> None:
        self.outcome.different.append(Fault(path, reason))
        if self.check_only:
            return
        if data or not path.endswith(paths.TXNINDEX):
            self.files.replace_atomically(path, data)
        else:
            self.files.unlink(path)
            self.files.sync_directory(self.target.directory)
