"""Loads a partition's directory, after any stop, into trusted segments.

The passes are those of Kafka's `LogLoader`, with the same numbers:

1. remove the rest of an interrupted cleaning or deletion (`.deleted`, `.cleaned`, late `.swap`);
2. of a decided swap, remove the files that it replaces;
3. finish that swap by renaming its files;
4. load the segments in order of their base offsets (`segment`), and then the producers and
   transactions (`producers`).

The log ends at the first torn or damaged batch. Unlike in Kafka nothing is deleted: the bytes after
it are copied to `BASE.log.POSITION.cut` and later segments are renamed to `….cut`; each is reported
as a `Cut`.

Invariants: afterwards every segment but the last is sealed, offsets rise from segment to segment,
the recovery point is ≤ the log end, and every index equals a rebuilt one.

Not here: recovering valid batches after damage (`log.salvage`), other partitions.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from storage import paths
from storage.bad_file import set_aside
from storage.errors import CorruptCheckpoint, CorruptRecord
from storage.files import unusable
from storage.kafka07.segment import holds_entries, load_entries, refusal
from storage.recovery.producers import Snapshots, replay
from storage.recovery.segment import (
    Loaded,
    PartitionFiles,
    Promises,
    finish_index,
    is_empty,
    load,
    missing_segment,
    own_size,
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

__all__ = ["PartitionFiles", "Promises", "Recovered", "recover"]


@dataclass(slots=True)
class Recovered:
    """The outcome of `recover`: segments in order, the last one active.

    `damaged`: the log ends before its files do (even if nothing may be cut); `torn`: only because
    of an unfinished last write. `manifest`: None: there is none. `producers`: at the log's end.
    `snapshot_offset`: that of the newest snapshot on disk, -1: there is none; `unsynced_snapshots`:
    the offsets of those that a power cut may take; `directory_unsynced`: whether a power cut may
    restore removed names, and take new ones.
    """

    segments: list[Segment]
    producers: ProducerState = field(default_factory=ProducerState)
    snapshot_offset: int = -1
    unsynced_snapshots: frozenset[int] = frozenset()
    directory_unsynced: bool = False
    damaged: bool = False
    torn: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    manifest: ManifestContent | None = None


def recover(partition: PartitionFiles, promises: Promises, now_ms: int) -> Recovered:
    """Load one partition's directory.

    With `writable` false nothing on disk changes: the parts that a writable load would cut or
    rebuild are not shown. Errors: ReadOnlyFormat for a partition of Kafka 0.7 that is opened for
    writing; OSError from the disk.
    """
    files, directory = partition.files, partition.directory
    names, bad = _files_of(partition)
    if partition.writable and not (names or bad):
        return _begin(partition, promises, now_ms)
    if holds_entries(names):
        return _load_old(partition, promises, names)
    if partition.writable:
        names = finish_swaps(files, directory, names)
    else:
        names, swapped = as_if_finished(files, directory, names)
        partition = replace(partition, swapped=swapped)
    bases = paths.log_bases(names)
    if partition.swapped:
        # A segment that a cleaner has just made may have gaps up to the next one.
        behind = next((base for base in bases if base > max(partition.swapped)), -1)
        promises = replace(promises, gaps_below=max(promises.gaps_below, behind))
    bases, names = _without_half_rolled(partition, bases, names)
    result = Recovered([])
    for name in bad:
        fault = "not a regular file; it is rebuilt from the log"
        path = os.path.join(directory, name)
        result.faults.append(_kept_aside(partition, name, f"{path}: {fault}"))
    result.manifest, entries = _read_manifest(partition, promises, names, result)
    gone, entries = _missing(partition, promises, entries, bases, set(names))
    if result.manifest is not None and not bases:
        log_start = max(promises.log_start, result.manifest.log_start)
        promises = replace(promises, log_start=log_start)
    if partition.writable:
        known = {*bases, *(each.base_offset for each in gone)}
        names = drop_orphan_indexes(files, directory, names, known)
    present = set(names)
    loaded: list[Loaded] = []
    for number, item in enumerate(_load_all(partition, promises, bases, present, entries)):
        loaded.append(item)
        result.epochs += item.epochs
        result.cuts += item.cuts
        result.faults += item.faults
        if item.damaged:
            result.damaged, result.torn = True, item.torn
            _cut_off(partition, result, bases[number + 1 :])
            break
    loaded = _with_missing(partition, result, loaded, gone)
    _expect_all(result, loaded, entries)
    result.segments = [item.segment for item in loaded]
    if _starts_anew(partition, promises, result, names, now_ms):
        loaded = [Loaded(result.segments[0])]
    loaded = _without_deleted(partition, promises, loaded)
    result.segments = [item.segment for item in loaded]
    if partition.writable:
        result.segments[-1].sealed = False
    result.producers, snapshots = replay(partition, promises, loaded, set(names))
    _note_snapshots(partition, promises, result, snapshots)
    for item in loaded:
        finish_index(files, item)
    return result


def _begin(partition: PartitionFiles, promises: Promises, now_ms: int) -> Recovered:
    """Begin the log of a directory without files."""
    result = Recovered([], manifest=None if promises.manifest_below is None else ManifestContent())
    _starts_anew(partition, promises, result, [], now_ms)
    result.directory_unsynced = not promises.clean
    return result


def _without_half_rolled(
    partition: PartitionFiles, bases: list[int], names: list[str]
) -> tuple[list[int], list[str]]:
    """Leave out empty segments that begin inside of the previous one, and remove their files.

    Return the remaining bases and names. A failed roll has made them, and their removal failed too
    or did not reach the disk; the log continued in the previous segment.
    """
    left = bases[:1]
    for base in bases[1:]:
        segment, before = partition.segment(base), partition.segment(left[-1])
        if not is_empty(segment) or not reaches(before, base):
            left.append(base)
        elif partition.writable:
            segment.discard()
            removed = {paths.file_name(base, kind) for kind in (paths.LOG, *paths.INDEX_SUFFIXES)}
            names = [name for name in names if name not in removed]
    return left, names


def _files_of(partition: PartitionFiles) -> tuple[list[str], list[str]]:
    """Return the names of the directory's files, and of other entries in the place of files that
    can be rebuilt (a link, a pipe, a directory).

    Errors: UnusableFile if a log is no file.
    """
    names: list[str] = []
    bad: list[str] = []
    for name, kind in partition.files.listing(partition.directory):
        if kind == "file":
            names.append(name)
        elif paths.base_offset_of(name) is not None:
            path = os.path.join(partition.directory, name)
            if name.endswith(paths.LOG):
                raise unusable(path, partition.files.file_stat(path).st_mode)
            if name.endswith((*paths.INDEX_SUFFIXES, *paths.LINES_SUFFIXES, paths.SNAPSHOT)):
                bad.append(name)
        elif name == manifest_file.FILE_NAME:
            bad.append(name)
    return names, bad


def _kept_aside(partition: PartitionFiles, name: str, fault: str) -> str:
    """Rename a file that cannot be read, if that is allowed; return the fault's line."""
    if not partition.writable:
        return fault
    return f"{fault}; kept as {set_aside(partition.files, os.path.join(partition.directory, name))}"


# -- the manifest --------------------------------------------------------------------------------


def _read_manifest(
    partition: PartitionFiles, promises: Promises, names: list[str], result: Recovered
) -> tuple[ManifestContent | None, list[ManifestEntry]]:
    """Return the manifest, or None, and its valid entries; rename a damaged one."""
    is_there = manifest_file.FILE_NAME in names
    if promises.manifest_below is None:
        if is_there and partition.writable:
            # The manifest is older than the broker in the directory.
            partition.files.unlink(os.path.join(partition.directory, manifest_file.FILE_NAME))
        return None, []
    recorded = ManifestContent()
    if is_there:
        try:
            recorded = manifest_file.read(partition.files, partition.directory)
        except CorruptCheckpoint as error:
            line = f"{error}: missing segments may not be noticed"
            result.faults.append(_kept_aside(partition, manifest_file.FILE_NAME, line))
    below = promises.manifest_below
    return recorded, [entry for entry in recorded.entries if entry.next_offset <= below]


def _missing(
    partition: PartitionFiles,
    promises: Promises,
    entries: list[ManifestEntry],
    bases: list[int],
    present: set[str],
) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Return the listed segments that are not among `bases`, ascending; and the valid entries: none
    if another program has rewritten the log.
    """
    if not bases or {entry.base_offset for entry in entries}.issubset(bases):
        return [], entries
    sizes = _sizes(partition, promises, bases, entries, present)
    if not manifest_file.fits(entries, sizes):
        return [], []
    gone = manifest_file.missing(entries, sizes, promises.log_start)
    for entry in gone:
        before = [base for base in bases if base < entry.base_offset]
        if before and reaches(partition.segment(before[-1]), entry.base_offset):
            return [], []
    return gone, entries


def _sizes(
    partition: PartitionFiles,
    promises: Promises,
    bases: list[int],
    entries: list[ManifestEntry],
    present: set[str],
) -> dict[int, int]:
    """Return the bytes of these segments' logs; if longer than listed, up to the last batch."""
    files = partition.files
    sizes = {base: files.file_stat(partition.segment(base).log_path).st_size for base in bases}
    for base, end, size, _ in entries:
        if sizes.get(base, 0) > size:
            sizes[base] = own_size(partition, promises, base, end, present, size)
    return sizes


def _with_missing(
    partition: PartitionFiles, result: Recovered, loaded: list[Loaded], gone: list[ManifestEntry]
) -> list[Loaded]:
    """Add a segment in the place of each missing one, and a fault."""
    made = list(loaded)
    for entry in gone:
        if entry.base_offset < loaded[-1].segment.base_offset:
            segment = missing_segment(partition, entry)
            result.faults.append(segment.loss)
            made.append(Loaded(segment))
    return sorted(made, key=lambda item: item.segment.base_offset)


def _expect_all(result: Recovered, loaded: list[Loaded], entries: list[ManifestEntry]) -> None:
    """Mark bytes missing from segments that are shorter than the manifest says."""
    sealed = {item.segment.base_offset: item for item in loaded[:-1]}
    sizes = {base: item.segment.size for base, item in sealed.items()}
    for entry in manifest_file.short(entries, sizes):
        item = sealed[entry.base_offset]
        segment = item.segment
        # (An entry that counts bytes after the last batch is wrong, and the next one right.)
        if item.end != entry.next_offset:
            SegmentReader(segment).mark_end_missing(entry.size)
            segment.close_descriptors()
            result.faults.append(segment.loss)


def _load_all(
    partition: PartitionFiles,
    promises: Promises,
    bases: list[int],
    present: set[str],
    entries: list[ManifestEntry],
) -> Iterable[Loaded]:
    """Load the segments, several at a time if that pays; return them in order.

    If an entry ends a segment before the next one begins, the gap is no loss. A segment that is
    shorter than listed was flushed, so neither a kill nor a power cut has shortened it: it does
    not end the log.
    """
    listed = {entry.base_offset: entry for entry in entries}
    shorter: set[int] = set()
    if entries and not promises.clean:
        sizes = _sizes(partition, promises, bases, entries, present)
        shorter = {entry.base_offset for entry in manifest_file.short(entries, sizes)}

    def load_one(pair: tuple[int, int | None]) -> Loaded:
        base, following = pair
        entry = listed.get(base)
        if following is None or entry is None:
            return load(partition, promises, base, following, present)
        end = min(following, entry.next_offset)
        is_short = base in shorter
        return load(partition, promises, base, end, present, entry.size, was_flushed=is_short)

    pairs = itertools.zip_longest(bases, bases[1:])
    if partition.writable or partition.files.parallel == 1 or len(bases) < 2:
        return map(load_one, pairs)
    return side_by_side(load_one, pairs, partition.files.parallel, "segments")


def _load_old(partition: PartitionFiles, promises: Promises, names: list[str]) -> Recovered:
    """Load a partition of Kafka 0.7. Errors: ReadOnlyFormat if it was opened for writing."""
    if partition.writable:
        raise refusal(partition.directory)
    segments, faults = load_entries(
        partition.files,
        partition.directory,
        names,
        partition.config,
        progress=None if promises.clean else partition.progress,
    )
    return Recovered(list[Segment](segments), damaged=bool(faults), faults=faults)


def _cut_off(partition: PartitionFiles, result: Recovered, bases: list[int]) -> None:
    """Take segments after a damaged one out of the log."""
    if not partition.writable:
        return
    for base in bases:
        segment = partition.segment(base)
        path = segment.log_path
        size = partition.files.file_stat(path).st_size
        segment.leave(paths.CUT)
        result.cuts.append(
            Cut(path, 0, size, "the records before it are missing", segment.log_path)
        )
    if bases:
        # The log will grow over them: they must not return.
        partition.files.sync_directory(partition.directory)


def _without_deleted(
    partition: PartitionFiles, promises: Promises, loaded: list[Loaded]
) -> list[Loaded]:
    """Discard the segments below the log start after a crash: their deletion may be half done.

    Segments from the first base on in the history stay. A deletion moves the history's bases,
    durably, before it removes a file, so no deletion of these segments has begun. Retention moves
    the bases and then deletes the segments.
    """
    if not partition.writable or promises.clean:
        return loaded
    following = [item.segment.base_offset for item in loaded[1:]]
    count = sum(base <= promises.log_start for base in following)
    if count:
        try:
            bases = read_history(partition.files, partition.directory).bases
        except CorruptCheckpoint:
            bases = {}
        kept_from = min((lines[0].offset for lines in bases.values()), default=paths.MAX_OFFSET)
        count = sum(base <= kept_from for base in following[:count])
    for item in loaded[:count]:
        item.segment.discard()
    if count:
        # The checkpoint has no log start if it is the first segment's
        # (`Log.log_start_for_checkpoint`): they must not return.
        partition.files.sync_directory(partition.directory)
    return loaded[count:]


def _note_snapshots(
    partition: PartitionFiles, promises: Promises, result: Recovered, snapshots: Snapshots
) -> None:
    """Note the newest snapshot, and which changes of the start are not durable yet."""
    result.snapshot_offset = snapshots.newest_up_to(paths.MAX_OFFSET)
    if partition.writable:
        result.unsynced_snapshots = snapshots.unsynced
        # The index of transactions that are cut off may be removed, too.
        result.directory_unsynced = not promises.clean or bool(snapshots.unsynced)


def _starts_anew(
    partition: PartitionFiles, promises: Promises, result: Recovered, names: list[str], now_ms: int
) -> bool:
    """If the log is empty or ends before its log start, start a segment there (`LogLoader`)."""
    segments = result.segments
    if segments and segments[-1].next_offset < promises.log_start:
        if not partition.writable:
            raise CorruptRecord(
                f"the log ends at offset {segments[-1].next_offset}, before its start offset "
                f"{promises.log_start}",
                path=partition.directory,
            )
        _cut_off(partition, result, [segment.base_offset for segment in segments])
        segments.clear()
    if segments:
        return False
    where = (partition.files, partition.directory, promises.log_start, partition.config)
    if partition.writable:
        is_unused = all(paths.base_offset_of(name) != promises.log_start for name in names)
        made = Segment.create(*where, now_ms=now_ms, is_unused=is_unused)
        segments.append(made)
        segments[0].close_descriptors()
        # A flush syncs the directory after a segment was made since the start.
        partition.files.sync_directory(partition.directory)
    else:
        segments.append(Segment(*where, writable=False))
    return True
