"""Loads a partition's directory, after any stop, into trusted segments.

The passes are those of Kafka's `LogLoader`, with the same numbers:

1. remove the rest of an interrupted cleaning or deletion (`.deleted`, `.cleaned`, late `.swap`);
2. of a decided swap, remove the files that it replaces;
3. finish that swap by renaming its files;
4. load the segments in order of their base offsets (`segment`), and then the producers and
   transactions (`producers`).

Our own steps are beside them: before the fourth pass, the rest of a roll goes, and the manifest
says which segments must exist; after it, missing segments become damage, a log that ends before its
log start begins there, and a deletion that was half done is completed.

The log ends at the first torn or damaged batch. Unlike in Kafka nothing is deleted: the bytes after
it are copied to `BASE.log.POSITION.cut` and later segments are renamed to `….cut`; each is reported
as a `Cut`.

Invariants: afterwards every segment but the last is sealed, offsets rise from segment to segment,
the recovery point is ≤ the log end, and every index equals a rebuilt one.

Not here: recovering valid batches after damage (`log.salvage`), other partitions.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from storage import paths
from storage.bad_file import set_aside
from storage.errors import CorruptCheckpoint, CorruptRecord
from storage.files import Files, unusable
from storage.kafka07.segment import holds_entries, load_entries, refusal
from storage.recovery.producers import replay
from storage.recovery.promises import PartitionFiles, Promises
from storage.recovery.segment import (
    Loaded,
    SegmentLoader,
    finish_index,
    is_empty,
    missing_segment,
    reaches,
)
from storage.recovery.swap import as_if_finished, drop_orphan_indexes, finish_swaps
from storage.segment.cut import Cut
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state import manifest_file
from storage.state.history import read as read_history
from storage.state.manifest_file import ManifestContent, ManifestEntry
from storage.state.producer_state import ProducerState
from storage.threads import side_by_side


@dataclass(slots=True)
class Recovered:
    """The outcome of loading: segments in order, the last one active.

    `damaged`: the log ends before its files do (even if nothing may be cut); `torn`: only because
    of an unfinished last write. `manifest`: None: there is none. `producers`: at the log's end.
    `snapshot_offset`: that of the newest snapshot on disk, -1: there is none; `unsynced_snapshots`:
    the offsets of those that a power cut may take. `epochs`: those of the batches that loading has
    read. `cuts`, `faults`: for the user.
    """

    segments: list[Segment]
    producers: ProducerState = field(default_factory=ProducerState)
    snapshot_offset: int = -1
    unsynced_snapshots: frozenset[int] = frozenset()
    damaged: bool = False
    torn: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    manifest: ManifestContent | None = None


class LogLoader:
    """Loads one partition's directory.

    `names`: of the files; `bases`: the base offsets of the segments; `entries`: the valid ones of
    the manifest. `known`: called with a base offset, returns the segment if it need not be loaded.
    `is_open`: whether the log is open, so that no swap is unfinished, and files of retired segments
    and temporary files are in use.
    """

    def __init__(
        self,
        partition: PartitionFiles,
        now_ms: int,
        known: Callable[[int], Segment | None] = lambda base: None,
        *,
        is_open: bool = False,
    ) -> None:
        self.partition = partition
        self.known = known
        self.is_open = is_open
        self.files, self.directory = partition.files, partition.directory
        self.writable = partition.writable
        self.now_ms = now_ms
        self.result = Recovered([])
        self.names: list[str] = []
        self.bases: list[int] = []
        self.entries: Sequence[ManifestEntry] = ()

    @property
    def promises(self) -> Promises:
        """The promises about the log, also those that its directory shows."""
        return self.partition.promises

    @promises.setter
    def promises(self, promises: Promises) -> None:
        self.partition = replace(self.partition, promises=promises)

    def load(self) -> Recovered:
        """Load the directory; a second call starts again, and keeps `cuts` and `faults`.

        Unless it is `writable`, nothing on disk changes: the parts that a writable load would cut
        or rebuild are not shown. Errors: ReadOnlyFormat for a partition of Kafka 0.7 that is opened
        for writing; OSError from the disk.
        """
        earlier = self.result
        result = self.result = Recovered([], cuts=earlier.cuts, faults=earlier.faults)
        self.names, bad = _files_of(self.files, self.directory)
        if holds_entries(self.names):
            return self._load_old()
        if self.writable and not (self.names or bad):
            return self._begin()
        loaded = self._load_all(bad)
        if loaded and loaded[-1].segment.next_offset < self.promises.log_start:
            self._take_out(loaded)
            loaded = []
        if not loaded:
            loaded = [Loaded(self._first_segment())]
        loaded = self._without_deleted(loaded)
        result.segments = [item.segment for item in loaded]
        if self.writable:
            active = result.segments[-1]
            active.sealed = False
            # Its words may be those of records that were cut off.
            if os.path.basename(active.file_path(paths.WORDS)) in self.names:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(active.file_path(paths.WORDS))
        # Then the producers, up to the end of the log.
        names = set(self.names)
        result.producers, snapshots = replay(self.partition, loaded, names)
        result.snapshot_offset = snapshots.newest_up_to(paths.MAX_OFFSET)
        if self.writable:
            result.unsynced_snapshots = snapshots.unsynced
        for item in loaded:
            finish_index(self.files, item)
        return result

    def load_segments(self, names: list[str]) -> list[Segment]:
        """Load the segments of a directory with these files, and nothing else. Errors: OSError."""
        self.names = names
        return [item.segment for item in self._load_all([])]

    def _load_all(self, bad: list[str]) -> list[Loaded]:
        """Load the segments of the directory; `bad`: see `_files_of`."""
        if paths.UNSYNCED in self.names:
            self.promises = replace(self.promises, unsynced=True)
        # First, second and third pass: finish or undo an interrupted swap.
        self._finish_swaps()
        for name in bad:
            path = os.path.join(self.directory, name)
            self._set_aside(name, f"{path}: not a regular file; it is rebuilt from the log")
        # The manifest lists segments that must exist.
        self._read_manifest()
        self._leave_out_half_rolled()
        missing = self._missing()
        if self.writable:
            known = {*self.bases, *(entry.base_offset for entry in missing)}
            self.names = drop_orphan_indexes(self.files, self.directory, self.names, known)
        # Fourth pass: load the segments, up to the first that ends the log.
        return self._with_losses(self._load_segments(), missing)

    def _begin(self) -> Recovered:
        """Begin the log of a directory without files."""
        if self.promises.manifest_below is not None:
            self.result.manifest = ManifestContent()
        self.result.segments = [self._first_segment()]
        return self.result

    def _load_old(self) -> Recovered:
        """Load a partition of Kafka 0.7. Errors: ReadOnlyFormat if it was opened for writing."""
        if self.writable:
            raise refusal(self.directory)
        progress = None if self.promises.clean else self.partition.progress
        segments, faults = load_entries(
            self.files, self.directory, self.names, self.partition.config, progress=progress
        )
        return Recovered(list[Segment](segments), damaged=bool(faults), faults=faults)

    # -- the first three passes ----------------------------------------------------------------

    def _finish_swaps(self) -> None:
        """Finish or undo an interrupted swap (`swap`); in a read-only load in memory only."""
        if self.is_open:
            self.bases = paths.log_bases(self.names)
            return
        if self.writable:
            self.names = finish_swaps(self.files, self.directory, self.names)
        else:
            self.names, swapped = as_if_finished(self.files, self.directory, self.names)
            bases = paths.log_bases(self.names)
            # A segment that a cleaner has just made may have gaps up to the next one.
            behind = [base for base in bases if base > max(swapped, default=paths.MAX_OFFSET)]
            gaps_below = max([self.promises.gaps_below, *behind[:1]])
            self.promises = replace(self.promises, gaps_below=gaps_below)
            self.partition = replace(self.partition, swapped=swapped)
        self.bases = paths.log_bases(self.names)

    def _leave_out_half_rolled(self) -> None:
        """Leave out empty segments that begin inside of the previous one, and remove their files.

        A failed roll has made them, and their removal failed too or did not reach the disk; the log
        continued in the previous segment. If the manifest has that segment, the roll succeeded.
        """
        ends = {entry.base_offset: entry.next_offset for entry in self.entries}
        left = self.bases[:1]
        for base in self.bases[1:]:
            segment = self.partition.segment(base)
            is_next = ends.get(left[-1], paths.MAX_OFFSET) <= base or not is_empty(segment)
            if is_next or not reaches(self.partition.segment(left[-1]), base):
                left.append(base)
            elif self.writable:
                segment.discard()
                kinds = (paths.LOG, *paths.REBUILT_SUFFIXES)
                removed = {paths.file_name(base, kind) for kind in kinds}
                self.names = [name for name in self.names if name not in removed]
        self.bases = left

    def _set_aside(self, name: str, fault: str) -> None:
        """Note a file that cannot be read, and rename it if that is allowed."""
        if self.writable:
            kept_as = set_aside(self.files, os.path.join(self.directory, name))
            fault = f"{fault}; kept as {kept_as}"
        self.result.faults.append(fault)

    # -- the manifest --------------------------------------------------------------------------

    def _read_manifest(self) -> None:
        """Read the manifest, and rename a damaged one. If no segment is there, its log start
        counts, unless the log is open.
        """
        below = self.promises.manifest_below
        is_there = manifest_file.FILE_NAME in self.names
        if below is None:
            if is_there and self.writable:
                # The manifest is older than the broker in the directory.
                self.files.unlink(os.path.join(self.directory, manifest_file.FILE_NAME))
            return
        recorded = ManifestContent()
        if is_there:
            try:
                recorded = manifest_file.read(self.files, self.directory)
            except CorruptCheckpoint as error:
                fault = f"{error}: missing segments may not be noticed"
                self._set_aside(manifest_file.FILE_NAME, fault)
        self.result.manifest = recorded
        self.entries = [entry for entry in recorded.entries if entry.next_offset <= below]
        if not (self.bases or self.is_open):
            log_start = max(self.promises.log_start, recorded.log_start)
            self.promises = replace(self.promises, log_start=log_start)

    def _missing(self) -> list[ManifestEntry]:
        """Return the listed segments that have no file, ascending.

        If another program has rewritten the log, no entry is valid any more.
        """
        bases = self.bases
        if not bases or {entry.base_offset for entry in self.entries}.issubset(bases):
            return []
        sizes = self._sizes()
        gone = manifest_file.missing(self.entries, sizes, self.promises.log_start)
        is_rewritten = not manifest_file.fits(self.entries, sizes) or any(
            reaches(self.partition.segment(before), entry.base_offset)
            for entry in gone
            for before in [base for base in bases if base < entry.base_offset][-1:]
        )
        if is_rewritten:
            self.entries, gone = (), []
        return gone

    def _sizes(self) -> dict[int, int]:
        """Return the bytes of the segments' logs; if longer than listed, up to the last batch."""
        segment, present = self.partition.segment, set(self.names)
        sizes = {base: self.files.file_stat(segment(base).log_path).st_size for base in self.bases}
        for entry in self.entries:
            base = entry.base_offset
            if sizes.get(base, 0) > entry.size:
                loader = SegmentLoader(self.partition, base, entry.next_offset, present, entry)
                sizes[base] = loader.own_size()
        return sizes

    def _with_losses(self, loaded: list[Loaded], missing: list[ManifestEntry]) -> list[Loaded]:
        """Add a segment in the place of each missing one, and mark bytes missing from segments that
        are shorter than listed.
        """
        made = list(loaded)
        for entry in missing:
            if entry.base_offset < loaded[-1].segment.base_offset:
                segment = missing_segment(self.partition, entry)
                self.result.faults.append(segment.loss)
                made.append(Loaded(segment))
        made.sort(key=lambda item: item.segment.base_offset)
        sealed = {item.segment.base_offset: item for item in made[:-1] if item.segment.sealed}
        sizes = {base: item.segment.size for base, item in sealed.items()}
        for entry in manifest_file.short(self.entries, sizes):
            item = sealed[entry.base_offset]
            # (An entry that counts bytes after the last batch is wrong, and the next one right.)
            if item.end != entry.next_offset:
                SegmentReader(item.segment).mark_end_missing(entry.size)
                item.segment.close_descriptors()
                self.result.faults.append(item.segment.loss)
        return made

    # -- the fourth pass -----------------------------------------------------------------------

    def _load_segments(self) -> list[Loaded]:
        """Load the segments, in order, up to one that ends the log."""
        loaded: list[Loaded] = []
        for item in self._load_each():
            loaded.append(item)
            self.result.epochs += item.epochs
            self.result.cuts += item.cuts
            self.result.faults += item.faults
            if item.damaged:
                self.result.damaged, self.result.torn = True, item.torn
                break
        return loaded

    def _load_each(self) -> Iterable[Loaded]:
        """Load the segments, several at a time if that pays; return them in order.

        If an entry ends a segment before the next one begins, the gap is no loss. A segment that is
        shorter than listed was flushed, so neither a kill nor a power cut has shortened it: it does
        not end the log.
        """
        listed = {entry.base_offset: entry for entry in self.entries}
        present = set(self.names)
        short: set[int] = set()
        if self.entries and not self.promises.clean:
            entries = manifest_file.short(self.entries, self._sizes())
            short = {entry.base_offset for entry in entries}

        def load_one(pair: tuple[int, int | None]) -> Loaded:
            base, following = pair
            known, entry = self.known(base), listed.get(base)
            # A sealed segment that is shorter than listed may lack bytes.
            if known and not (known.sealed and entry and known.size < entry.size):
                return Loaded(known)
            end = following
            if following is None:
                entry = None
            elif entry is not None:
                end = min(following, entry.next_offset)
            loader = SegmentLoader(
                *(self.partition, base, end, present, entry),
                lambda: self._cut_off([each for each in self.bases if each > base]),
            )
            if end is not None and base in short:
                loader.trusted_below = max(loader.trusted_below, end)
            return loader.load()

        pairs = itertools.zip_longest(self.bases, self.bases[1:])
        if self.writable or self.files.parallel == 1 or len(self.bases) < 2:
            return map(load_one, pairs)
        return side_by_side(load_one, pairs, self.files.parallel, "segments")

    def _cut_off(self, bases: Sequence[int]) -> list[Cut]:
        """Take segments after a damaged one out of the log. Durable."""
        cuts: list[Cut] = []
        if not (self.writable and bases):
            return cuts
        for base in bases:
            segment = self.partition.segment(base)
            path, reason = segment.log_path, "the records before it are missing"
            size = self.files.file_stat(path).st_size
            if not size:
                segment.discard()
                continue
            segment.leave(paths.CUT)
            cuts.append(Cut(path, 0, size, reason, segment.log_path))
        # The log will grow over them: they must not return.
        self.files.sync_directory(self.directory)
        return cuts

    def _take_out(self, loaded: list[Loaded]) -> None:
        """Take a log that ends before its log start out of the way. Errors: CorruptRecord if it is
        only read, and has records.
        """
        has_records = any(item.segment.size or item.damaged > item.torn for item in loaded)
        if not (self.writable or has_records):
            # The first batch will begin below the log start.
            return
        if not self.writable:
            raise CorruptRecord(
                f"the log ends at offset {loaded[-1].segment.next_offset}, before its start offset "
                f"{self.promises.log_start}",
                path=self.directory,
            )
        self.result.cuts += self._cut_off([item.segment.base_offset for item in loaded])

    def _first_segment(self) -> Segment:
        """Make the first segment of an empty log, at its log start (`LogLoader`)."""
        base = self.promises.log_start
        if not self.writable:
            return self.partition.segment(base)
        is_unused = all(paths.base_offset_of(name) != base for name in self.names)
        made = Segment.create(
            *(self.files, self.directory, base, self.partition.config),
            now_ms=self.now_ms,
            is_unused=is_unused,
        )
        made.close_descriptors()
        # A flush syncs the directory after a segment was made since the start.
        self.files.sync_directory(self.directory)
        return made

    def _without_deleted(self, loaded: list[Loaded]) -> list[Loaded]:
        """Discard the segments below the log start after a crash: their deletion may be half done.

        Segments from the first base on in the history stay. A deletion moves the history's bases,
        durably, before it removes a file, so no deletion of these segments has begun. Retention
        moves the bases and then deletes the segments.
        """
        if not self.writable or self.promises.clean:
            return loaded
        following = [item.segment.base_offset for item in loaded[1:]]
        count = sum(base <= self.promises.log_start for base in following)
        if count:
            try:
                bases = read_history(self.files, self.directory).bases
            except CorruptCheckpoint:
                bases = {}
            kept_from = min((lines[0].offset for lines in bases.values()), default=paths.MAX_OFFSET)
            count = sum(base <= kept_from for base in following[:count])
        for item in loaded[:count]:
            item.segment.discard()
        if count:
            # The checkpoint has no log start if it is the first segment's
            # (`Log.log_start_for_checkpoint`): they must not return.
            self.files.sync_directory(self.directory)
        return loaded[count:]


def _files_of(files: Files, directory: str) -> tuple[list[str], list[str]]:
    """Return the names of a directory's files, and of other entries in the place of files that can
    be rebuilt (a link, a pipe, a directory).

    Errors: UnusableFile if a log is no file.
    """
    names: list[str] = []
    bad: list[str] = []
    for name, kind in files.listing(directory):
        if kind == "file":
            names.append(name)
        elif paths.base_offset_of(name) is not None:
            path = os.path.join(directory, name)
            if name.endswith(paths.LOG):
                raise unusable(path, files.file_stat(path).st_mode)
            if name.endswith((*paths.REBUILT_SUFFIXES, paths.SNAPSHOT)):
                bad.append(name)
        elif name == manifest_file.FILE_NAME:
            bad.append(name)
    return names, bad
