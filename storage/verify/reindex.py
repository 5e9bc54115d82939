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
from collections.abc import Iterable
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
        partitions = _find(targets, files)
        tiered: dict[str, TieredTopics] = {}
        for data_dir in sorted(set(map(os.path.dirname, partitions))):
            if not check_only:
                lock = files.lock(os.path.join(data_dir, paths.LOCK))
                locks.callback(files.unlock, lock)
            tiered[data_dir] = TieredTopics(files, data_dir, Settings(files, data_dir))
        for directory, wanted in partitions.items():
            data_dir, name = os.path.split(directory)
            topic, number = paths.parse_partition_directory(name) or (name, -1)
            line = None if check_only else tiered[data_dir].line(topic)
            if line is None:
                interval = Settings(files, data_dir).log_config(topic).index_interval_bytes
                log_start = tiered[data_dir].checkpointed_log_start(topic, number) or 0
                partition = _Partition(directory, interval, log_start, files, outcome, check_only)
                partition.run(wanted, progress)
            elif line not in outcome.tiered:
                outcome.tiered.append(line)
    return outcome


def log_bytes(targets: Iterable[str], files: Files | None = None) -> int:
    """Return the bytes that `reindex` will read, or slightly less: of the partitions' logs."""
    files = files or Files()
    return sum(
        files.file_stat(os.path.join(directory, paths.file_name(base, paths.LOG))).st_size
        for directory, wanted in _find(targets, files).items()
        for base in _bases(files, directory)
        if wanted is None or base in wanted
    )


def _find(targets: Iterable[str], files: Files) -> dict[str, set[int] | None]:
    """Return the partitions' directories of these paths, with the base offsets of the segments to
    reindex; None: all. Errors: NotADirectoryError if a path is no data directory, no partition and
    no segment's file.
    """
    found: dict[str, set[int] | None] = {}
    for target in targets:
        path = os.path.abspath(target)
        parent, name = os.path.split(path)
        base = paths.base_offset_of(name)
        if os.path.isdir(path):
            if paths.parse_partition_directory(name) is not None:
                found[path] = None
                continue
            for topic, numbers in sorted(paths.partitions_in(files.listing(path)).items()):
                for number in numbers:
                    found[os.path.join(path, paths.partition_directory(topic, number))] = None
        elif base is None:
            raise NotADirectoryError(
                errno.ENOTDIR, "neither a directory nor a file of a segment", target
            )
        elif (bases := found.setdefault(parent, set())) is not None:
            bases.add(base)
    return found


def _bases(files: Files, directory: str) -> list[int]:
    return sorted(
        base
        for name in files.names(directory)
        if name.endswith(paths.LOG) and (base := paths.base_offset_of(name)) is not None
    )


@dataclass(slots=True)
class _Partition:
    """Reindexes segments in a partition's directory.

    `producers`: the state at the end of the part that was read.
    """

    directory: str
    index_interval: int
    log_start: int
    files: Files
    outcome: Reindexed
    check_only: bool
    producers: ProducerState = field(default_factory=ProducerState)

    def run(self, wanted: set[int] | None, progress: Progress) -> None:
        """Reindex the wanted segments; None: all. Stop at damage: what follows is not known."""
        bases = _bases(self.files, self.directory)
        todo = [base for base in bases if wanted is None or base in wanted]
        begin = self._begin(bases, todo[0]) if todo else 0
        for base in bases:
            if todo and begin <= base <= todo[-1]:
                if base != begin and base in todo:
                    self._snapshot(base)
                rebuild = self._read(base, progress)
                if rebuild is None:
                    return
                if base in todo:
                    self._indexes(base, rebuild, is_last=base == bases[-1])
                self._transactions(base, rebuild, is_wanted=base in todo)

    def _begin(self, bases: list[int], first_wanted: int) -> int:
        """Return the base of the segment to begin at: the newest one, up to the first wanted one,
        with a sound snapshot, which is loaded; otherwise the first segment.
        """
        for base in reversed(bases):
            if base <= first_wanted and (producers := self._read_snapshot(base)) is not None:
                self.producers = producers
                return base
        return bases[0]

    def _path(self, base: int, suffix: str) -> str:
        return os.path.join(self.directory, paths.file_name(base, suffix))

    def _read_snapshot(self, base: int) -> ProducerState | None:
        path = self._path(base, paths.SNAPSHOT)
        try:
            data, excess = producer_state.read(self.files, path)
            return None if excess else ProducerState.decode(data, path=path)
        except (FileNotFoundError, CorruptCheckpoint):
            return None

    # -- one segment ---------------------------------------------------------------------------

    def _snapshot(self, base: int) -> None:
        if self._read_snapshot(base) is None:
            path = self._path(base, paths.SNAPSHOT)
            reason = "unreadable" if self.files.exists(path) else "missing"
            self._replace(path, self.producers.encode(), reason)

    def _read(self, base: int, progress: Progress) -> Rebuild | None:
        """Read a segment's log; return None if it is damaged."""
        rebuild = Rebuild(base, self.index_interval)
        path = self._path(base, paths.LOG)
        with self.files.held_open(path) as fd:
            size = self.files.size(fd)
            for _, taken, _ in feed(self.files, fd, size, rebuild):
                progress(taken)
        self.outcome.segments += 1
        if rebuild.position == size:
            return rebuild
        reason = rebuild.fault or "the last batch is incomplete"
        self.outcome.damaged.append(Fault(path, f"{reason}; not reindexed", rebuild.position))
        return None

    def _indexes(self, base: int, rebuild: Rebuild, *, is_last: bool) -> None:
        offsets, times = (bytes(rebuild.offset_entries),), rebuilt_times(rebuild, is_last)
        for suffix, right, size in ((paths.INDEX, offsets, 8), (paths.TIMEINDEX, times, 12)):
            path = self._path(base, suffix)
            count = len(right[0]) // size
            try:
                data = self.files.read_whole(path)
            except FileNotFoundError:
                self._replace(path, right[0], f"missing, {counted(count, 'entry')}")
                continue
            used = without_zero_tail(data, size) if is_last else data
            if used in right:
                continue
            reason = f"{counted(len(used) // size, 'entry')}, not {count}"
            if len(used) == len(right[0]):
                starts = range(0, len(used), size)
                wrong = sum(used[at : at + size] != right[0][at : at + size] for at in starts)
                reason = f"{wrong} of {counted(count, 'entry')} wrong"
            self._replace(path, right[0], reason)

    def _transactions(self, base: int, rebuild: Rebuild, *, is_wanted: bool) -> None:
        aborted: list[TxnEntry] = []
        aborts: dict[int, tuple[int, int | None]] = {}
        for batch in map(ProducerBatch._make, rebuild.producers):
            entry = self.producers.apply(batch)
            if batch.marker_type == ABORT:
                began = None if entry is None else entry.first_offset
                aborts[batch.last_offset] = batch.producer_id, began
            if entry is not None:
                aborted.append(entry)
        if not is_wanted:
            return
        path = self._path(base, paths.TXNINDEX)
        data = self.files.read_whole(path) if self.files.exists(path) else b""
        # `producers` has the transactions that were open before the segment.
        seen = SegmentTransactions(txn_index.decode(data), aborts)
        faults = list(OpenTransactions(self.log_start).faults(seen))
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
            self.files.sync_directory(self.directory)
