"""Keeps the bytes that are removed from the end of a log beside it until they are purged.

`BASE.log.POSITION.cut` has the bytes from a position of a segment's log to its end that recovery
has removed. `BASE.index.POSITION.cut` is the offset index of that time, if it has batches there.
`BASE.log.cut` (and `.index.cut`, …) is a whole segment that followed a damaged one.
Bytes of another history than the leader's (`log.truncate`) have the suffix `.diverged` instead.
Kafka ignores both suffixes; it would have deleted the bytes.

Invariant: the copy is durable before the log is cut.

`purge` removes these files, and small files that `bad_file` has renamed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from storage import paths
from storage.files import Files

_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a log that was set aside: the file, its former place, its size, the reason.

    `ends_log`: whether the log ends there; otherwise it had no record of the log.
    """

    path: str
    position: int
    size: int
    reason: str
    kept_as: str | None
    ends_log: bool = True

    def __str__(self) -> str:
        where = f"; kept as {os.path.basename(self.kept_as)}" if self.kept_as else ""
        what = f"truncated {self.size} bytes at position {self.position}"
        return f"{self.path}: {what}: {self.reason}{where}"


def cut_tail(
    files: Files, fd: int, path: str, position: int, size: int, reason: str, index: bytes = b""
) -> Cut:
    """Copy the bytes from `position` on beside the log, make that durable, then cut them off.

    `index`: the offset index, if it has batches there: it is kept, too.
    """
    kept = copy_tail(files, fd, path, position, size, paths.CUT)
    if index:
        files.replace_atomically(index_path(kept), index)
    cut_end(files, fd, path, position)
    files.fsync(fd)
    return Cut(path, position, size - position, reason, kept)


def index_path(path: str) -> str:
    """Return the path of the offset index that belongs to a log's `.cut` file."""
    directory, name = os.path.split(path)
    return os.path.join(directory, name.replace(paths.LOG, paths.INDEX, 1))


def copy_tail(files: Files, fd: int, path: str, position: int, size: int, kind: str) -> str:
    """Copy the bytes from `position` on beside the log, durably; return the path of the copy."""
    kept = _unused_name(files, f"{path}.{position}", kind)
    with files.held_open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target:
        for start, end in files.data_ranges(fd, position, size):
            for at in range(start, end, _CHUNK_BYTES):
                data = files.pread(fd, min(_CHUNK_BYTES, end - at), at)
                if data.count(0) != len(data):  # blocks of zeros stay holes
                    files.pwrite(target, data, at - position)
        files.ftruncate(target, size - position)
        files.fsync(target)
    files.sync_directory(os.path.dirname(path))
    return kept


def mark_diverged(files: Files, directory: str) -> None:
    """Rename all `*.cut` files of a partition to `*.diverged`, durably. Errors: OSError."""
    renamed = cut_files(files, directory)
    for path in renamed:
        kept = _unused_name(files, path.removesuffix(paths.CUT), paths.DIVERGED)
        files.rename(path, kept)
    if renamed:
        files.sync_directory(directory)


def cut_end(files: Files, fd: int, path: str, size: int) -> None:
    """Truncate bytes that are not part of the log, keeping the mtime."""
    mtime_ns = files.descriptor_stat(fd).st_mtime_ns
    files.ftruncate(fd, size)
    with contextlib.suppress(PermissionError):  # only a file's owner may set its time
        files.utime_ns(path, mtime_ns)


def _unused_name(files: Files, path: str, kind: str) -> str:
    number, candidate = 0, path + kind
    while files.exists(candidate):
        number += 1
        candidate = f"{path}.{number}{kind}"
    return candidate


def cut_files(files: Files, directory: str, kind: str = paths.CUT) -> list[str]:
    """Return the paths of everything that was cut out of a partition's log, in log order."""
    names = [
        name
        for name, found in files.listing(directory)
        if name.endswith(kind) and found != "directory" and paths.base_offset_of(name) is not None
    ]
    return [os.path.join(directory, name) for name in sorted(names, key=_log_order)]


def _log_order(name: str) -> tuple[int, int, str]:
    base = paths.base_offset_of(name)
    position = name.split(".")[2]
    return (
        base if base is not None else -1,
        int(position) if position.isdecimal() else 0,
        name,
    )


def set_aside_files(files: Files, directory: str) -> list[str]:
    """Return the paths of all files that were set aside (also by `bad_file`). Errors: OSError."""
    bad = [
        name
        for name, kind in files.listing(directory)
        if name.endswith(paths.BAD) and kind != "directory"
    ]
    cut = [*cut_files(files, directory), *cut_files(files, directory, paths.DIVERGED)]
    return [*cut, *(os.path.join(directory, name) for name in bad)]


def purge(files: Files, directory: str) -> list[str]:
    """Remove all files that were set aside; return the paths. Errors: OSError."""
    removed = set_aside_files(files, directory)
    for path in removed:
        files.unlink(path)
    if removed:
        files.sync_directory(directory)
    return removed
