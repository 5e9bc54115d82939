"""Checks all files of a data directory, without a lock and without changing anything.

`_RULES` lists the rules for a partition, `verify_segment` those for a segment. In the directory,
checkpoints must be readable and not exceed the logs. Files that an interrupted or a delayed
deletion, a cleaner or recovery left beside them are reported as leftovers, and are no fault.

If the writer was killed, the next start recovers unflushed bytes. Indexes and snapshots that it
rebuilds from the log are leftovers, too. Any start finishes a decided swap, and rebuilds the
indexes of its segments: the logs are read as that start leaves them.

The directory may be a running broker's, or mounted. Then the present work of its writer is no
fault: checkpoints are read before the logs, which only grow; a segment with faults is read again; a
file that has vanished meanwhile was deleted.

Not here: reading a segment (`verify_segment`), which other processes may do before; repairs
(`recovery`, `salvage`, `reindex`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from storage import paths
from storage.errors import CorruptCheckpoint, StorageError, UnusableFile
from storage.files import ABANDONED_S, Files
from storage.kafka07.segment import entry_files
from storage.recovery.segment import BEGUN
from storage.recovery.swap import as_if_finished
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.settings.settings import Settings
from storage.state import checkpoint_file, gaps_file, manifest_file, mirror_file, producer_state
from storage.state.gaps_file import Gap
from storage.verify.transactions import OpenTransactions
from storage.verify.verify_segment import (
    Fault,
    LogPiece,
    OldLog,
    Progress,
    SegmentPlace,
    Verified,
    verify_piece,
)
from storage.words import words

_CHECKPOINTS = (
    (paths.RECOVERY_POINTS, "recovery point"),
    (paths.LOG_STARTS, "log start"),
    (paths.HIGH_WATERMARKS, "high watermark"),
    (paths.CLEANER_OFFSETS, "first dirty offset"),
)
_LEFT_OVER = {
    paths.CUT: (
        "truncated by recovery. To restore its valid batches: kafkafs repair --salvage --apply"
    ),
    paths.DIVERGED: (
        "removed, as the leader has other records at these offsets. To delete it: "
        "kafkafs repair --purge --apply"
    ),
    paths.BAD: (
        "set aside because it could not be read. To remove it: kafkafs repair --purge --apply"
    ),
    paths.DELETED: "will be deleted",
    paths.CLEANED: "left by an interrupted compaction; the next start removes it",
    paths.SWAP: "part of a decided swap; the next start completes it",
    paths.STAGED: "staged file; removed after kafkafs.staged.retention.ms unless it is adopted",
    ".tmp": "left by an interrupted write; the next start removes it",
    paths.UNSYNCED: (
        "an fsync failed; the process that has the log open, or the next start, "
        "rewrites all data that can be read"
    ),
}

_ASIDE = {
    None: "not a partition directory: no broker starts with it",
    "delete": "will be deleted",
    "stray": "set aside by a broker that did not know the partition",
    "future": "a broker was moving the partition to this directory",
}

_NO_DIRECTORY = (UnusableFile, NotADirectoryError)
_ANEW = "the next start rebuilds it"
_NOT_USED = "searches read the log instead. To build it again: kafkafs words"

_T = TypeVar("_T")
_Key: TypeAlias = tuple[str, int]
Wanted: TypeAlias = Callable[[str, int], bool]
ReadAhead: TypeAlias = Callable[[Sequence[LogPiece]], Sequence[Verified | None]]


@dataclass(slots=True)
class VerifyReport:
    """The result: faults, leftovers, gaps of a mirror with the paths of their files, and the amount
    that was read (sizes in bytes).
    """

    faults: list[Fault] = field(default_factory=list)
    left_over: list[Fault] = field(default_factory=list)
    gaps: list[tuple[str, Gap]] = field(default_factory=list)
    partitions: int = 0
    records: int = 0
    size: int = 0


def log_bytes(path: str, files: Files | None = None, wanted: Wanted | None = None) -> int:
    """Return the bytes that `verify` will read: of the logs of a data directory or a partition."""
    if files is None:
        path, files = os.path.realpath(path), Files()
    total = 0
    for directory in _partitions(path, files, wanted):
        # It was deleted meanwhile, or is no directory.
        with contextlib.suppress(FileNotFoundError, *_NO_DIRECTORY):
            for file in files.names(directory):
                if paths.is_log(file):
                    total += files.file_stat(os.path.join(directory, file)).st_size
    return total


def _partitions(path: str, files: Files, wanted: Wanted | None) -> list[str]:
    """Return the directories of the wanted partitions in a data directory, or this partition.

    A link, or the like, with the name of a partition is among them: opening it is refused, too.
    """
    entries = files.listing(path)
    if any(paths.is_log(name) and kind != "directory" for name, kind in entries):
        return [path]
    return [
        os.path.join(path, name)
        for name, kind in sorted(entries)
        if kind != "file"
        and paths.is_partition_directory(name)
        and (wanted is None or wanted(*(paths.parse_partition_directory(name) or ("", -1))))
    ]


def verify(
    path: str,
    *,
    files: Files | None = None,
    progress: Progress = lambda size: None,
    wanted: Wanted | None = None,
    read_ahead: ReadAhead | None = None,
) -> VerifyReport:
    """Check a data directory, or a partition's; `progress` gets the bytes of log that were read.

    `wanted`: which partitions of a directory; None: all, and the other files. `read_ahead` gets all
    pieces of their logs, lets `verify_piece` be called for each, in any process, and returns the
    results in the same order. Errors: OSError from the disk; InvalidConfig if its settings cannot
    be read.
    """
    if files is None:
        path, files = os.path.realpath(path), Files()
    path = os.path.abspath(path)
    partitions = _partitions(path, files, wanted)
    if partitions == [path]:
        return _Directory(os.path.dirname(path), files, progress, read_ahead).run(partitions)
    directory = _Directory(path, files, progress, read_ahead)
    for name, kind in sorted(files.listing(path)):
        if kind != "directory":
            if wanted is None:
                directory.name_left_over(path, name)
        elif paths.parse_partition_directory(name) is None and name not in paths.BROKERS_OWN:
            aside = paths.parse_aside_directory(name)
            if wanted is None or (aside is not None and wanted(aside.topic, aside.partition)):
                directory.name_directory(name)
    return directory.run(partitions)


@dataclass(slots=True)
class _Partition:
    """A partition's directory as it was listed, and what is known of its log so far.

    `key`: (topic, partition), by which checkpoints name it; partition -1: the directory has no
    partition's name. `recorded_epochs`: those of its checkpoint, `epochs`: those of its batches.
    `old_log`: replaces the segments in a log of 0.7. `end`: the log end; after damage, which may
    hide batches, the largest offset. `sound_sizes`: of each segment, the bytes before the first
    damage.
    """

    directory: str
    key: _Key
    names: list[str]
    recorded_epochs: list[tuple[int, int]]
    segments: list[SegmentPlace] = field(default_factory=list)
    old_log: OldLog | None = None
    end: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    sound_sizes: dict[int, int] = field(default_factory=dict)

    @property
    def pieces(self) -> list[LogPiece]:
        """The pieces to read."""
        return [*self.segments] if self.old_log is None else [self.old_log]

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments, ascending."""
        return [place.base_offset for place in self.segments]


class _Directory:
    """Checks partitions of a data directory."""

    def __init__(
        self, path: str, files: Files, progress: Progress, read_ahead: ReadAhead | None
    ) -> None:
        self.path = path
        self.files = files
        self.progress = progress
        self.read_ahead = read_ahead
        self.report = VerifyReport()
        self.is_live = files.locked_by(os.path.join(path, paths.LOCK)) is not None
        self.was_killed = not self.is_live and not checkpoint_file.has_marker(files, path)
        self.settings = Settings(files, path)
        self.checkpoints = {
            name: self._read(checkpoint_file.read_offsets, os.path.join(path, name)) or {}
            for name, _ in _CHECKPOINTS
        }
        self._read(lambda files, _: mirror_file.read(files, path), mirror_file.path_in(path))
        self.recovery_points = self.checkpoints[paths.RECOVERY_POINTS]
        self.log_starts = self.checkpoints[paths.LOG_STARTS]
        self.topic_ids: dict[str, tuple[str, str]] = {}
        # The results of `read_ahead`.
        self.found: dict[LogPiece, Verified | None] = {}

    def _read(self, read: Callable[[Files, str], _T], path: str) -> _T | None:
        """Return the content of a small file; None, and a fault, if it cannot be read."""
        try:
            return read(self.files, path)
        except StorageError as error:
            self._fault(path, error.message)
            return None

    def run(self, partitions: list[str]) -> VerifyReport:
        """Check these partitions, and their lines in the checkpoints."""
        ends: dict[_Key, int] = {}
        listings: Iterable[_Partition] = filter(None, map(self._list, partitions))
        if self.read_ahead is not None:
            listings = list(listings)
            pieces = [piece for listed in listings for piece in listed.pieces]
            self.found = dict(zip(pieces, self.read_ahead(pieces), strict=True))
        for listed in listings:
            if listed.old_log is None:
                for _, check in _RULES:
                    check(self, listed)
                ends[listed.key] = listed.end
            elif (verified := self._verify(listed.old_log, None)) is not None:
                self.report.faults += verified.faults
                if verified.is_read_whole:
                    ends[listed.key] = verified.next_offset
        for name, what in _CHECKPOINTS:
            is_rebuilt = name in (paths.HIGH_WATERMARKS, paths.CLEANER_OFFSETS)
            for key, offset in self.checkpoints[name].items():
                if key in ends and offset > ends[key]:
                    reason = f"the {what} of {key[0]}-{key[1]} is beyond the log end {ends[key]}"
                    path = os.path.join(self.path, name)
                    self._fault(path, reason, offset, is_rebuilt=is_rebuilt)
        return self.report

    def _fault(
        self, path: str, reason: str, offset: int | None = None, *, is_rebuilt: bool = False
    ) -> None:
        fault = Fault(path, reason, offset=offset)
        self._add(fault, is_rebuilt=is_rebuilt and self.was_killed)

    def _add(self, fault: Fault, *, is_rebuilt: bool) -> None:
        """Report a fault; if the next start repairs it (`is_rebuilt`), it is a leftover."""
        if is_rebuilt:
            self.report.left_over.append(replace(fault, reason=f"{fault.reason}: {_ANEW}"))
        else:
            self.report.faults.append(fault)

    def _left_over(self, directory: str, name: str, what: str) -> None:
        self.report.left_over.append(Fault(os.path.join(directory, name), what))

    def name_left_over(self, directory: str, name: str) -> None:
        """Report a file that a process has not removed yet."""
        for suffix, what in _LEFT_OVER.items():
            if name.endswith(suffix) and not (
                suffix == ".tmp" and self.is_live and self._may_be_written(directory, name)
            ):
                self._left_over(directory, name, what)

    def _may_be_written(self, directory: str, name: str) -> bool:
        """Return whether a process may still write a temporary file."""
        try:
            modified = self.files.file_stat(os.path.join(directory, name)).st_mtime
        except FileNotFoundError:
            return True
        return modified >= time.time() - ABANDONED_S

    def name_directory(self, name: str) -> None:
        """Report a directory that is no partition's."""
        aside = paths.parse_aside_directory(name)
        self._left_over(self.path, name, _ASIDE[None if aside is None else aside.kind])

    # -- one partition -------------------------------------------------------------------------

    def _list(self, directory: str) -> _Partition | None:
        """List a partition's directory; return None if it vanished."""
        name = os.path.basename(directory)
        key = paths.parse_partition_directory(name) or (name, -1)
        try:
            names = sorted(self.files.names(directory))
        except FileNotFoundError:
            if self.is_live:
                return None
            raise
        except _NO_DIRECTORY as error:
            self._fault(directory, str(error.strerror))
            return None
        self.report.partitions += 1
        for file in names:
            self.name_left_over(directory, file)
        swapping = {paths.base_offset_of(file) for file in names if file.endswith(paths.SWAP)}
        swapped: frozenset[int] = frozenset()
        if not self.is_live and swapping:
            try:
                names, swapped = as_if_finished(self.files, directory, names)
            except StorageError as error:
                self._fault(error.path or directory, error.message)
        self._check_topic_id(directory, key[0])
        path = os.path.join(directory, paths.LEADER_EPOCH_CHECKPOINT)
        epochs = self._read(checkpoint_file.read_epochs, path) or []
        listed = _Partition(directory, key, names, epochs)
        old = tuple(file for _, file in entry_files(names))
        if old:
            listed.old_log = OldLog(self.files, self.path, directory, key[0], old, self.is_live)
            return listed
        bases = [
            base
            for file in names
            if file.endswith(paths.LOG) and (base := paths.base_offset_of(file)) is not None
        ]
        listed.segments = [
            SegmentPlace(
                self.files,
                directory,
                base,
                self.settings.log_config(key[0]).index_interval_bytes,
                base == bases[-1],
                self.is_live,
                renamed=paths.SWAP if base in swapped else "",
                was_killed=self.was_killed,
                is_swapping=not self.is_live and base in swapping,
            )
            for base in bases
        ]
        return listed

    def _check_segments(self, listed: _Partition) -> None:
        transactions = OpenTransactions(self.log_starts.get(listed.key, 0))
        end = 0
        is_end_known = True
        recovery_point = self.recovery_points.get(listed.key, 0)
        followings = [*listed.bases[1:], paths.MAX_OFFSET]
        for place, following in zip(listed.segments, followings, strict=False):
            if place.base_offset < end:
                reason = f"the segment before it ends at {end}"
                self._fault(place.path(paths.LOG), reason, place.base_offset)
            verified = self._verify(place, transactions)
            if verified is None:
                continue
            transactions.pass_over(verified.transactions)
            for fault in verified.faults:
                name = fault.path.removesuffix(paths.SWAP)
                # The next start keeps our flushed entries; a broker's recovery drops its own first.
                is_kept = (
                    name.endswith(paths.TXNINDEX)
                    and not self.settings.is_brokers
                    and fault.offset is not None
                    and fault.offset < recovery_point
                )
                is_rebuilt = following >= recovery_point and not is_kept
                is_rebuilt = self.was_killed and (is_rebuilt or self._is_rebuilt(place))
                is_rebuilt |= place.is_swapping
                is_rebuilt &= name.endswith(paths.INDEX_SUFFIXES)
                self._add(fault, is_rebuilt=is_rebuilt)
            end = max(end, verified.next_offset)
            listed.sound_sizes[place.base_offset] = verified.sound_size
            listed.epochs += verified.epochs
            is_end_known = verified.is_read_whole
        listed.end = end if is_end_known else paths.MAX_OFFSET

    def _is_rebuilt(self, place: SegmentPlace) -> bool:
        """Return whether the next start rebuilds a flushed segment's indexes, because a kill has
        interrupted a rebuild (`recovery.segment`).
        """
        try:
            return self.files.file_stat(place.path(paths.INDEX)).st_size == len(BEGUN)
        except FileNotFoundError:
            return True

    def _verify(self, piece: LogPiece, before: OpenTransactions | None) -> Verified | None:
        """Read a piece, unless `read_ahead` has, and count it; return None if it vanished."""
        found = self.found.get(piece)
        if self.read_ahead is None or found is not None:
            found = verify_piece(piece, self.progress, before, found)
        if found is not None:
            self.report.size += found.size
            self.report.records += found.records
        return found

    def _check_manifest(self, listed: _Partition) -> None:
        directory, key = listed.directory, listed.key
        if self.settings.is_brokers or key[1] < 0 or manifest_file.FILE_NAME not in listed.names:
            return
        sizes: dict[int, int] = {}
        for place in listed.segments:
            with contextlib.suppress(FileNotFoundError):
                size = self.files.file_stat(place.path(paths.LOG)).st_size
                sizes[place.base_offset] = size
        try:
            # Read after the files' sizes: entries of removed segments are withdrawn before.
            entries = manifest_file.read(self.files, directory).entries
        except CorruptCheckpoint as error:
            self._fault(os.path.join(directory, manifest_file.FILE_NAME), error.message)
            return
        if self.was_killed or self.is_live:
            flushed_end = self.recovery_points.get(key, 0)
            entries = [entry for entry in entries if entry.next_offset <= flushed_end]
        for base, _, size, _ in entries:
            if sizes.get(base, 0) > size >= listed.sound_sizes.get(base, size + 1):
                # Bytes after the last batch, which the segment's own fault reports.
                sizes[base] = size
        gone = manifest_file.missing(entries, sizes, self.log_starts.get(key, 0))
        short = [] if self.is_live else manifest_file.short(entries, sizes)
        for entry in [*gone, *short]:
            path = os.path.join(directory, paths.file_name(entry.base_offset, paths.LOG))
            what = "the file is missing"
            if entry in short:
                what = f"the file has {sizes[entry.base_offset]} bytes"
            reason = f"{what} (offsets {entry.base_offset} to {entry.next_offset - 1})"
            self._fault(path, f"{reason}, its size was {entry.size} bytes", entry.base_offset)

    def _check_gaps(self, listed: _Partition) -> None:
        if gaps_file.FILE_NAME in listed.names:
            path = os.path.join(listed.directory, gaps_file.FILE_NAME)
            try:
                found = gaps_file.read(self.files, listed.directory)
                self.report.gaps += [(path, gap) for gap in found]
            except CorruptCheckpoint as error:
                self._fault(path, error.message)

    def _check_orphans(self, listed: _Partition) -> None:
        for name in listed.names:
            base = paths.base_offset_of(name)
            is_orphan = base is not None and base not in listed.bases
            if is_orphan and name.endswith((*paths.INDEX_SUFFIXES, paths.WORDS)):
                self._left_over(listed.directory, name, "an index without a log")

    def _check_words(self, listed: _Partition) -> None:
        names = set(listed.names)
        for place in listed.segments:
            name = os.path.basename(place.path(paths.WORDS))
            if name not in names:
                continue
            segment = Segment(
                *(self.files, listed.directory, place.base_offset, LogConfig()),
                writable=False,
                sealed=True,
                suffix=place.renamed,
            )
            with contextlib.suppress(FileNotFoundError):
                segment.size = self.files.file_stat(segment.log_path).st_size
                reason = words.check(segment, segment.file_path(paths.WORDS))
                if reason is not None:
                    self._left_over(listed.directory, name, f"{reason}: {_NOT_USED}")
            segment.close_descriptors()

    def _check_topic_id(self, directory: str, topic: str) -> None:
        path = os.path.join(directory, paths.PARTITION_METADATA)
        topic_id = self._read(checkpoint_file.read_partition_metadata, path)
        if topic_id is not None:
            known, where = self.topic_ids.setdefault(topic, (topic_id, path))
            if known != topic_id:
                self._fault(path, f"topic id {topic_id}, but {where} has {known}")

    def _check_epochs(self, listed: _Partition) -> None:
        path = os.path.join(listed.directory, paths.LEADER_EPOCH_CHECKPOINT)
        first = dict(reversed(listed.epochs))
        for number, (epoch, start) in enumerate(listed.recorded_epochs):
            if start > listed.end:
                reason = f"epoch {epoch} begins beyond the log end {listed.end}"
                self._fault(path, reason, start, is_rebuilt=True)
            elif number and epoch in first and first[epoch] < start:
                reason = f"epoch {epoch} has batches from offset {first[epoch]} on"
                self._fault(path, reason, start)

    def _check_snapshots(self, listed: _Partition) -> None:
        # The log does not repeat the snapshot at its first segment.
        first = min(listed.bases, default=0)
        for name in listed.names:
            offset = paths.base_offset_of(name)
            if not name.endswith(paths.SNAPSHOT) or offset is None:
                continue
            path = os.path.join(listed.directory, name)
            try:
                data, excess = producer_state.read(self.files, path)
                producer_state.decode(data, path=path)
            except FileNotFoundError:
                continue
            except StorageError as error:
                is_needed = first > 0 and offset <= first
                if is_needed or not self.is_live:  # else it may be about to be written
                    self._fault(path, error.message, is_rebuilt=not is_needed)
                continue
            if excess:
                self._fault(path, f"{excess} bytes follow its last producer", is_rebuilt=True)
            if offset > listed.end:
                reason = f"it contains offsets beyond the log end {listed.end}"
                self._fault(path, reason, offset, is_rebuilt=True)


# The rules for a partition's segments and the files beside them, in the order of the checks.
_RULES: tuple[tuple[str, Callable[[_Directory, _Partition], None]], ...] = (
    (
        "Each segment begins at or after the end of the one before it, and follows the rules of "
        "`verify_segment`.",
        _Directory._check_segments,
    ),
    (
        "No segment in the manifest is missing or shorter, unless a deletion explains it.",
        _Directory._check_manifest,
    ),
    ("The list of a mirror's gaps is readable.", _Directory._check_gaps),
    ("Each index has a log; otherwise it is left over.", _Directory._check_orphans),
    (
        "Each `.words` file is one of its segment; otherwise it is left over.",
        _Directory._check_words,
    ),
    (
        "No recorded leader epoch begins after the log end or after its own batches. The first "
        "one may begin after its batches: deleting records moves it to the log start.",
        _Directory._check_epochs,
    ),
    (
        "Each producer snapshot is readable, ends with its last producer, and contains only "
        "offsets below its own and the log end.",
        _Directory._check_snapshots,
    ),
)
