"""Frees space on a full disk by unlinking files, before a data directory is opened.

Opening writes checkpoints, indexes and truncated bytes. So the files of deleted segments and topics
that wait for file.delete.delay.ms are removed first, until there is room. Opening removes them too.

If a directory without a reserve (`reserve`) still cannot be opened, the error says what to remove.

The caller has the lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from storage import paths
from storage.files import Files
from storage.plural import counted
from storage.room import FULL
from storage.state.tiered import TieredTopics

ROOM = 1 << 20
"""A disk with fewer free bytes counts as full."""
INODES = 8
"""So does a disk with fewer free inodes."""


def is_full(files: Files, path: str) -> bool:
    """Return whether the file system of `path` has too little room to open a data directory."""
    space = files.space(path)
    # Some file systems have no fixed number of blocks or inodes, and report 0.
    lacks_bytes = space.f_blocks and space.f_bavail * space.f_frsize < ROOM
    return bool(lacks_bytes or (space.f_files and space.f_favail < INODES))


def make_room(files: Files, path: str, tiered: TieredTopics) -> list[str]:
    """Unlink files until the disk has room; return a line for users about each removal.

    Files of tiered topics stay. `path`: a data directory that is about to be opened.
    """
    gone: list[str] = []
    steps = _deleted(files, path, tiered)
    while is_full(files, path):
        step = next(steps, None)
        if step is None:
            break
        gone.append(step)
    return gone


@contextlib.contextmanager
def say_what_to_remove(path: str) -> Iterator[None]:
    """Add to the error of a full disk in this block what a user can remove."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        reason = (
            f"{os.strerror(error.errno)}: cannot open the data directory. Delete other files on "
            "this disk (1 MiB is enough). In a broker's directory you can also delete the oldest "
            "segments of a topic with cleanup.policy=delete: all files with the same number, but "
            "never the newest segment of a partition"
        )
        raise OSError(error.errno, reason, path) from error


def _deleted(files: Files, path: str, tiered: TieredTopics) -> Iterator[str]:
    """Remove files that wait for deletion, one directory at a time."""
    for name, kind in files.listing(path):
        aside = paths.parse_aside_directory(name)
        whole = aside is not None and aside.kind == "delete"
        partition = paths.parse_partition_directory(name)
        if kind != "directory" or not (whole or partition):
            continue
        if partition is not None and tiered.why(partition[0]) is not None:
            continue
        directory = os.path.join(path, name)
        doomed = [
            file
            for file, inner in files.listing(directory)
            if inner != "directory" and (whole or file.endswith(paths.DELETED))
        ]
        for file in doomed:
            files.unlink(os.path.join(directory, file))
        if whole:
            with contextlib.suppress(OSError):
                # If the directory has other files, opening tries again and reports it.
                files.rmdir(directory)
        if doomed or whole:
            yield f"{directory}: {counted(len(doomed), 'file')} of deleted segments"
