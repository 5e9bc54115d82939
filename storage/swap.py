"""Passes 1 to 3 of loading: what a cleaner or a deletion left half done (``LogLoader``).

A cleaner writes ``*.cleaned``, renames all of it to ``*.swap`` (highest base first), renames what
it replaces to ``*.deleted``, then strips ``.swap``.  So after a crash:

- some ``.cleaned`` is left: the swap was not decided; its files go, the old ones stay;
- only ``.swap`` is left: it was decided; what lies in its range goes, the rest is renamed;
- ``.deleted`` and ``.tmp`` are of no use to anybody.
"""

from __future__ import annotations

import os

from storage import paths
from storage.files import Files, FileSource
from storage.record.scan import batches


def finish_swaps(files: Files, directory: str, names: list[str]) -> list[str]:
    """Bring ``names``, the files of a partition's directory, to one side of any swap.

    Returns the names that are there afterwards.  OSError from the disk.
    """
    unfinished = [
        base
        for name in names
        if name.endswith(paths.CLEANED) and (base := paths.base_offset_of(name)) is not None
    ]
    remaining: list[str] = []
    for name in names:
        base = paths.base_offset_of(name)
        late_swap = (
            name.endswith(paths.SWAP)
            and base is not None
            and bool(unfinished)
            and base >= min(unfinished)
        )
        if late_swap or name.endswith((paths.DELETED, paths.CLEANED, ".tmp")):
            files.unlink(os.path.join(directory, name))
        else:
            remaining.append(name)
    return _complete(files, directory, remaining)


def _complete(files: Files, directory: str, names: list[str]) -> list[str]:
    """Remove what decided swaps replace, then strip ``.swap``."""
    swaps = [name for name in names if name.endswith(paths.LOG + paths.SWAP)]
    low, high = _replaced_range(files, directory, swaps)
    remaining: list[str] = []
    for name in names:
        base = paths.base_offset_of(name)
        if not name.endswith(paths.SWAP) and base is not None and low <= base < high:
            files.unlink(os.path.join(directory, name))
        else:
            remaining.append(name)
    for name in names:
        if name.endswith(paths.SWAP):
            final = name.removesuffix(paths.SWAP)
            files.rename(os.path.join(directory, name), os.path.join(directory, final))
            remaining.remove(name)
            remaining.append(final)
    return remaining


def _replaced_range(files: Files, directory: str, swaps: list[str]) -> tuple[int, int]:
    """Lowest base and highest next offset of the swapped-in segments."""
    low, high = paths.MAX_OFFSET, -1
    for name in swaps:
        base = paths.base_offset_of(name)
        assert base is not None
        low, high = min(low, base), max(high, base)
        path = os.path.join(directory, name)
        fd = files.open(path, os.O_RDONLY)
        try:
            for _, header in batches(FileSource(files, fd, path), 0):
                high = max(high, header.last_offset + 1)
        finally:
            files.close(fd)
    return low, high


def drop_orphan_indexes(
    files: Files, directory: str, names: list[str], bases: set[int]
) -> list[str]:
    """Remove index files of segments that have no log; returns the names that are left."""
    remaining: list[str] = []
    for name in names:
        base = paths.base_offset_of(name)
        if base is not None and base not in bases and name.endswith(paths.INDEX_SUFFIXES):
            files.unlink(os.path.join(directory, name))
        else:
            remaining.append(name)
    return remaining
