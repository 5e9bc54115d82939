"""Passes 1 to 3 of loading: finish or undo an interrupted cleaning or deletion (`LogLoader`).

A cleaner writes `*.cleaned`, renames all of it to `*.swap` (highest base first), renames the files
that it replaces to `*.deleted`, then strips `.swap`. So after a crash:

- some `.cleaned` is left: the swap was not decided; its files are removed, the old ones stay;
- only `.swap` is left: it was decided; the old files in its range are removed, the rest is renamed;
- `.deleted` and `.tmp` are useless.

As in Kafka, the range ends at the last record of the new segments. So if the last old segments keep
no record, those of them stay that were not renamed yet, and the next cleaning takes them again.

`decide` is the second step of these, and `undo` takes it back. `replace_closed` is a complete swap,
for segments that are rewritten under their own base in a partition that is not open (in an open
one: `replacing`). Files that were set aside (`.cut`, `.diverged`) belong to no swap.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Sequence

from storage import paths
from storage.byte_source import FileSource
from storage.files import Files
from storage.record.scan import batches
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.state import manifest_file

_LOG_SWAP = paths.LOG + paths.SWAP
# Files in its range that a swap does not replace. Snapshots that match no segment any more are
# removed later.
_KEPT = (paths.SWAP, paths.CUT, paths.DIVERGED, paths.SNAPSHOT)
# Files that a rewritten segment with the same offsets loses; producer snapshots stay valid.
_REPLACED = (paths.LOG, *paths.REBUILT_SUFFIXES, paths.OLD_LOG)

# Any process may remove these at any moment.
_MAY_VANISH = (*paths.LINES_SUFFIXES, paths.WORDS)

# Without a log, these are removed.
_ORPHANS = (*paths.INDEX_SUFFIXES, paths.WORDS)


def decide(files: Files, directory: str, new: Sequence[Segment]) -> None:
    """Rename `new`, durable `.cleaned` segments in the order of the log, to `.swap`: from now on
    they replace the segments in their range, by this process or by the next start.

    Nothing is decided while a name of the lowest is the old one, and it is renamed when the others'
    names are durable. Errors: OSError; nothing is decided.
    """
    files.sync_directory(directory)
    for segment in reversed(new[1:]):
        segment.set_suffix(paths.SWAP)
    files.sync_directory(directory)
    new[0].set_suffix(paths.SWAP)
    files.sync_directory(directory)


def undo(files: Files, directory: str) -> None:
    """Remove the `.cleaned` and `.swap` files of a swap that is not carried out, whichever of them
    an error has left. Errors: OSError; the caller has to call it again.
    """
    names = files.names(directory)
    made = [_between(names, 0, paths.MAX_OFFSET, end) for end in (paths.CLEANED, paths.SWAP)]
    first = min((paths.base_offset_of(name) or 0 for name in set().union(*made)), default=0)
    lowest, decided = (_between(some, first, first + 1) for some in made)
    # After a crash, a start removes all files because of the lowest `.cleaned` ones.
    for name in decided:
        path = os.path.join(directory, name)
        files.rename(path, path.removesuffix(paths.SWAP) + paths.CLEANED)
    # An earlier call may have ended in an error before its sync.
    if lowest or decided:
        files.sync_directory(directory)
    _remove(files, directory, set().union(*made) - lowest - decided, then_sync=True)
    renamed = {name.removesuffix(paths.SWAP) + paths.CLEANED for name in decided}
    _remove(files, directory, lowest | renamed, then_sync=False)


def replace_closed(files: Files, directory: str, bases: Collection[int]) -> None:
    """Replace segments by the `.cleaned` files of these bases, which are durable.

    Durable when it returns (`LocalLog.replaceSegments`). No process has the log open for appends.
    Other processes may read it, and remove its line indexes and words.
    """
    manifest_file.drop(files, directory)
    new = [
        Segment(files, directory, base, LogConfig(), writable=True, suffix=paths.CLEANED)
        for base in sorted(bases)
    ]
    decide(files, directory, new)
    old = [
        os.path.join(directory, name)
        for name in files.names(directory)
        if name.endswith(_REPLACED) and paths.base_offset_of(name) in bases
    ]
    for path in old:
        with _may_vanish(path):
            files.rename(path, path + paths.DELETED)
    files.sync_directory(directory)
    for segment in new:
        segment.set_suffix("")
        # (A restart treats segments between two `.swap` files as replaced.)
        files.sync_directory(directory)
    for path in old:
        with _may_vanish(path):
            files.unlink(path + paths.DELETED)


def _may_vanish(path: str) -> contextlib.AbstractContextManager[None]:
    """Suppress FileNotFoundError for a file that any process may remove."""
    is_removable = path.endswith(_MAY_VANISH)
    return contextlib.suppress(FileNotFoundError) if is_removable else contextlib.nullcontext()


def _sorted_out(
    files: Files, directory: str, names: list[str]
) -> tuple[set[str], set[str], set[str], list[str]]:
    """Sort a directory's names by their treatment.

    Return names in four parts. The first three have to be removed, in this order: `.swap` files of
    an undecided swap (at or after the first `.cleaned`), useless files, and files that a swap
    replaces. The rest stays and loses its `.swap`.
    """
    unfinished = _between(names, 0, paths.MAX_OFFSET, paths.CLEANED)
    first = min((paths.base_offset_of(name) or 0 for name in unfinished), default=paths.MAX_OFFSET)
    late = _between(names, first, paths.MAX_OFFSET, paths.SWAP)
    useless = {name for name in names if name.endswith((paths.DELETED, paths.CLEANED, ".tmp"))}
    left = [name for name in names if name not in late | useless]
    swaps = [name for name in left if name.endswith(_LOG_SWAP)]
    replaced = _between(left, *replaced_range(files, directory, swaps))
    replaced = {name for name in replaced if not name.endswith(_KEPT)}
    # Some of these may be the swap's own, already renamed, also the transaction index, whose loss
    # is harmless. Without an offset index loading rebuilds all of them from the log.
    own = {f"{name.removesuffix(_LOG_SWAP)}{paths.INDEX}{paths.SWAP}" for name in swaps}
    replaced |= own.intersection(left)
    return late, useless, replaced, [name for name in left if name not in replaced]


def _between(names: Collection[str], low: int, high: int, suffix: str = "") -> set[str]:
    """Return the names with this suffix of segments whose base offset is in the range."""
    return {
        name
        for name in names
        if name.endswith(suffix)
        and (base := paths.base_offset_of(name)) is not None
        and low <= base < high
    }


def finish_swaps(files: Files, directory: str, names: list[str]) -> list[str]:
    """Carry out each decided swap, and undo each other one.

    `names`: the files of the partition's directory. Return the names afterwards. Errors: OSError
    from the disk.
    """
    late, useless, replaced, rest = _sorted_out(files, directory, names)
    _remove(files, directory, late, then_sync=True)
    _remove(files, directory, useless, then_sync=False)
    _remove(files, directory, replaced, then_sync=True)
    swapped = sorted(name for name in rest if name.endswith(paths.SWAP))
    # One segment after the other: a restart treats segments between two `.swap` files as replaced.
    for _, some in itertools.groupby(swapped, key=paths.base_offset_of):
        for name in some:
            path = os.path.join(directory, name)
            files.rename(path, path.removesuffix(paths.SWAP))
        files.sync_directory(directory)
    return [name.removesuffix(paths.SWAP) for name in rest]


def as_if_finished(
    files: Files, directory: str, names: list[str]
) -> tuple[list[str], frozenset[int]]:
    """Return the result of `finish_swaps`, without a change; and the base offsets of the segments
    whose files' names still end in `.swap`.

    A half renamed segment has no offset index then: the others are rebuilt without it.
    """
    *_, rest = _sorted_out(files, directory, names)
    swapped = {paths.base_offset_of(name) for name in rest if name.endswith(_LOG_SWAP)}
    half = {paths.base_offset_of(name) for name in rest if name.endswith(paths.SWAP)} - swapped
    left = [name.removesuffix(paths.SWAP) for name in rest]
    left = [
        name
        for name in left
        if not (name.endswith(paths.INDEX) and paths.base_offset_of(name) in half)
    ]
    return left, frozenset(base for base in swapped if base is not None)


def _remove(files: Files, directory: str, names: Collection[str], *, then_sync: bool) -> None:
    for name in names:
        # Words may be removed at any moment, and their `.tmp` files renamed.
        with contextlib.suppress(FileNotFoundError):
            files.unlink(os.path.join(directory, name))
    if names and then_sync:
        files.sync_directory(directory)


def replaced_range(files: Files, directory: str, swaps: list[str]) -> tuple[int, int]:
    """Return lowest base and highest next offset of the segments whose logs have these names."""
    low, high = paths.MAX_OFFSET, -1
    for name in swaps:
        base = paths.base_offset_of(name)
        assert base is not None
        low, high = min(low, base), max(high, base + 1)
        path = os.path.join(directory, name)
        with files.held_open(path) as fd:
            for _, header in batches(FileSource(files, fd, path), 0):
                high = max(high, header.last_offset + 1)
    return low, high


def drop_orphan_indexes(
    files: Files, directory: str, names: list[str], bases: set[int]
) -> list[str]:
    """Remove indexes and words of segments that have no log; return the remaining names."""
    orphans = {
        name
        for name in names
        if name.endswith(_ORPHANS)
        and (base := paths.base_offset_of(name)) is not None
        and base not in bases
    }
    _remove(files, directory, orphans, then_sync=False)
    return [name for name in names if name not in orphans]
