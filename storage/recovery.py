"""From a partition's directory, after any stop, to segments that can be trusted.

The passes are those of Kafka's ``LogLoader``, numbered as there:

1. remove what a cleaner or a deletion left half done (``.deleted``, ``.cleaned``, late ``.swap``);
2. of a swap that had been decided, remove the files that it replaces;
3. finish that swap by renaming its files;
4. load the segments in order of their base offsets (``loading``), and then what is known of
   producers and transactions (``replay``).

At the first batch that is torn or damaged the log ends.  Unlike Kafka nothing is thrown away: the
bytes behind it are copied to ``BASE.log.POSITION.cut`` and later segments are renamed to
``….cut``; each is reported as a ``Cut``.

Invariants: afterwards every segment but the last is sealed, offsets rise from segment to segment,
the recovery point is ≤ the log end, and every index equals a rebuilt one.

Not here: taking back what is valid behind a damaged place (``LogManager.salvage``), and other
partitions.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage import old_segment, paths
from storage.bad_file import set_aside
from storage.cut import Cut
from storage.errors import CorruptCheckpoint, CorruptRecord
from storage.files import unusable
from storage.history import read as read_history
from storage.loading import Loaded, Origin, finish_index, is_empty, load, reaches
from storage.producer_state import ProducerState
from storage.replay import replay
from storage.segment import Segment
from storage.swap import as_if_finished, drop_orphan_indexes, finish_swaps
from storage.threads import side_by_side

__all__ = ["Origin", "Recovered", "load_segment", "recover"]


@dataclass(slots=True)
class Recovered:
    """The outcome of ``recover``: segments in order, the last one active.

    ``damaged``: the log ends before its files do (also where nothing may be cut); ``torn``: only
    for a last write that was not finished.
    ``producers``: as of the log's end.  ``snapshot_offset``: that of the newest snapshot on disk,
    -1 where there is none.
    """

    segments: list[Segment]
    producers: ProducerState = field(default_factory=ProducerState)
    snapshot_offset: int = -1
    damaged: bool = False
    torn: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def recover(origin: Origin) -> Recovered:
    """Load one partition's directory.

    ReadOnlyFormat where Kafka 0.7 has written it and it was to be written; OSError from the disk.
    With ``writable`` false nothing on disk changes: what a writable load would cut or rebuild is
    left out of sight.
    """
    names, bad = _files_of(origin)
    if old_segment.is_old(names):
        return _load_old(origin, names)
    if origin.writable:
        names = finish_swaps(origin.files, origin.directory, names)
    else:
        names, swapped = as_if_finished(origin.files, origin.directory, names)
        origin = dataclasses.replace(origin, swapped=swapped)
    bases = sorted(
        base
        for name in names
        if name.endswith(paths.LOG) and (base := paths.base_offset_of(name)) is not None
    )
    if origin.swapped:
        # What a cleaner has just made may have holes up to the segment behind it.
        behind = next((base for base in bases if base > max(origin.swapped)), -1)
        origin = dataclasses.replace(origin, holes_to=max(origin.holes_to, behind))
    bases = _without_half_rolled(origin, bases)
    if origin.writable:
        names = drop_orphan_indexes(origin.files, origin.directory, names, set(bases))
    present = set(names)
    result = Recovered([], faults=_set_bad_aside(origin, bad))
    loaded: list[Loaded] = []
    for number, item in enumerate(_load_all(origin, bases, present)):
        loaded.append(item)
        result.epochs += item.epochs
        result.cuts += item.cuts
        result.faults += item.faults
        if item.damaged:
            result.damaged = True
            result.torn = item.torn
            _set_aside(origin, result, bases[number + 1 :])
            break
    result.segments = [item.segment for item in loaded]
    if _starts_anew(origin, result):
        loaded = [Loaded(result.segments[0])]
    loaded = _without_deleted(origin, loaded)
    result.segments = [item.segment for item in loaded]
    if origin.writable:
        result.segments[-1].sealed = False
    result.producers, result.snapshot_offset = replay(origin, loaded, set(names))
    for item in loaded:
        finish_index(origin.files, item)
    return result


def _without_half_rolled(origin: Origin, bases: list[int]) -> list[int]:
    """Leave out empty segments that begin inside of the one before them, and remove their files.

    A roll that failed has made them, and their removal failed too or did not reach the disk; the
    log went on in the segment before.
    """
    left = bases[:1]
    for base in bases[1:]:
        segment = _segment(origin, base)
        if not is_empty(origin, segment) or not reaches(origin, _segment(origin, left[-1]), base):
            left.append(base)
        elif origin.writable:
            segment.discard()
    return left


def _files_of(origin: Origin) -> tuple[list[str], list[str]]:
    """The names of the files of the directory, and of what is in the place of files that can be
    made again (a link, a pipe, a directory).

    UnusableFile where a log is none.
    """
    names: list[str] = []
    bad: list[str] = []
    for name, kind in origin.files.listing(origin.directory):
        if kind == "file":
            names.append(name)
        elif paths.base_offset_of(name) is not None:
            path = os.path.join(origin.directory, name)
            if name.endswith(paths.LOG):
                raise unusable(path, origin.files.file_stat(path).st_mode)
            if name.endswith((*paths.INDEX_SUFFIXES, *paths.LINES_SUFFIXES, paths.SNAPSHOT)):
                bad.append(name)
    return names, bad


def _set_bad_aside(origin: Origin, bad: list[str]) -> list[str]:
    """A line for each."""
    lines = []
    for name in bad:
        path = os.path.join(origin.directory, name)
        line = f"{path}: no file; what it would say is made again from the log"
        if origin.writable:
            line += f"; kept as {set_aside(origin.files, path)}"
        lines.append(line)
    return lines


def _load_all(origin: Origin, bases: list[int], present: set[str]) -> Iterator[Loaded]:
    """Each segment in order, some at a time where that is worth it."""
    followings = [*bases[1:], None]
    if origin.writable or origin.files.parallel == 1 or len(bases) < 2:
        for base, following in zip(bases, followings, strict=False):
            yield load(origin, base, following, present)
        return

    def load_pair(pair: tuple[int, int | None]) -> Loaded:
        return load(origin, *pair, present)

    pairs = zip(bases, followings, strict=True)
    yield from side_by_side(load_pair, pairs, origin.files.parallel, "segments")


def _load_old(origin: Origin, names: list[str]) -> Recovered:
    """A partition of Kafka 0.7; ReadOnlyFormat where it was to be written."""
    if origin.writable:
        raise old_segment.refusal(origin.directory)
    segments, faults = old_segment.load(
        origin.files,
        origin.directory,
        names,
        origin.config,
        check_last=not origin.clean,
        progress=origin.progress,
    )
    return Recovered(list[Segment](segments), damaged=bool(faults), faults=faults)


def load_segment(origin: Origin, base: int, following: int | None, present: set[str]) -> Segment:
    """Load one segment; ``following`` is the base offset of the next one, None for the last.

    ``present`` are the names of the files that are there.  As ``recover``.
    """
    return load(origin, base, following, present).segment


def _set_aside(origin: Origin, result: Recovered, bases: list[int]) -> None:
    """Segments behind a damaged one are no part of the log any more."""
    if not origin.writable:
        return
    for base in bases:
        segment = _segment(origin, base)
        path = segment.log_path
        size = origin.files.file_stat(path).st_size
        segment.set_aside()
        result.cuts.append(Cut(path, 0, size, "records before it are missing", segment.log_path))


def _segment(origin: Origin, base: int) -> Segment:
    """Its files, and nothing that is in them."""
    segment = Segment(
        origin.files,
        origin.directory,
        base,
        origin.config,
        writable=False,
    )
    if base in origin.swapped:
        segment.is_called(paths.SWAP)
    return segment


def _without_deleted(origin: Origin, loaded: list[Loaded]) -> list[Loaded]:
    """After a crash the segments below the log start go: their deletion may be half done.

    It is not while positions hang on one of them: those are moved, durably, before anything is
    deleted.  It waits for retention then, which moves them first.
    """
    if not origin.writable or origin.clean:
        return loaded
    following = [item.segment.base_offset for item in loaded[1:]]
    count = sum(base <= origin.log_start for base in following)
    if count:
        kept_from = _first_base(origin)
        count = sum(base <= kept_from for base in following[:count])
    for item in loaded[:count]:
        item.segment.discard()
    return loaded[count:]


def _first_base(origin: Origin) -> int:
    """The offset of the first segment that positions hang on; beyond all where none do."""
    try:
        bases = read_history(origin.files, origin.directory).bases
    except CorruptCheckpoint:
        return paths.MAX_OFFSET
    return min((lines[0].offset for lines in bases.values()), default=paths.MAX_OFFSET)


def _starts_anew(origin: Origin, result: Recovered) -> bool:
    """A log that ends before its start offset, or has nothing, begins there (``LogLoader``)."""
    segments = result.segments
    if segments and segments[-1].next_offset < origin.log_start:
        if not origin.writable:
            raise CorruptRecord(
                f"the log ends at offset {segments[-1].next_offset}, before its start offset "
                f"{origin.log_start}",
                path=origin.directory,
            )
        _set_aside(origin, result, [segment.base_offset for segment in segments])
        segments.clear()
    if segments:
        return False
    where = (origin.files, origin.directory, origin.log_start, origin.config)
    if origin.writable:
        segments.append(Segment.create(*where, now_ms=origin.now_ms))
        segments[0].close_descriptors()
    else:
        segments.append(Segment(*where, writable=False))
    return True
