"""Frees space on a full disk by unlinking files, before a data directory is opened.

Opening writes checkpoints, indexes and truncated bytes. So files are removed first, until there is
room:

1. the files of deleted segments and topics that wait for file.delete.delay.ms: opening removes them
   too;
2. without a reserve (`reserve`), as in a broker's former directory or after a kill that followed
   its use: whole segments that retention would delete now, the oldest first. They must lie below
   the recovery point, so that their time indexes, with the newest timestamp, are on the disk.

Their log start is not recorded: it follows from the remaining segments.

The caller has the lock. Not here: the choice of expired segments (`retention`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

from storage import paths
from storage.directory.checkpoints import Checkpoints
from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.index.index import TIME, Index
from storage.plural import counted
from storage.retention.retention import LogFacts, SegmentFacts, decide
from storage.settings.settings import Settings
from storage.state import checkpoint_file, manifest_file
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


def make_room(
    files: Files,
    path: str,
    settings: Settings,
    checkpoints: Checkpoints,
    tiered: TieredTopics,
    *,
    now_ms: int,
    has_reserve: bool,
) -> list[str]:
    """Unlink files until the disk has room; return a line for users about each removal.

    Files of tiered topics stay. `path`: a data directory that is about to be opened.
    """
    gone: list[str] = []
    expired: Iterator[str] = iter(())
    if not has_reserve:
        expired = _expired(files, path, settings, checkpoints, tiered, now_ms)
    steps = itertools.chain(_deleted(files, path, tiered), expired)
    while is_full(files, path):
        step = next(steps, None)
        if step is None:
            break
        gone.append(step)
    return gone


def _deleted(files: Files, path: str, tiered: TieredTopics) -> Iterator[str]:
    """Remove files that wait for deletion, one directory at a time."""
    for name, is_directory in files.scan(path):
        aside = paths.parse_aside_directory(name)
        whole = aside is not None and aside.kind == "delete"
        partition = paths.parse_partition_directory(name)
        if not is_directory or not (whole or partition):
            continue
        if partition is not None and tiered.why(partition[0]) is not None:
            continue
        directory = os.path.join(path, name)
        doomed = [
            file
            for file, is_inner in files.scan(directory)
            if not is_inner and (whole or file.endswith(paths.DELETED))
        ]
        for file in doomed:
            files.unlink(os.path.join(directory, file))
        if whole:
            with contextlib.suppress(OSError):
                # If the directory has other files, opening tries again and reports it.
                files.rmdir(directory)
        if doomed or whole:
            yield f"{directory}: {counted(len(doomed), 'file')} of deleted segments"


def _expired(
    files: Files,
    path: str,
    settings: Settings,
    checkpoints: Checkpoints,
    tiered: TieredTopics,
    now_ms: int,
) -> Iterator[str]:
    """Remove segments that retention would delete, one at a time.

    Skips a partition whose small files cannot be read: opening reports them.
    """
    recovery_points = checkpoints.readable(paths.RECOVERY_POINTS)
    log_starts = checkpoints.readable(paths.LOG_STARTS)
    for name, is_directory in sorted(files.scan(path)):
        partition = paths.parse_partition_directory(name) if is_directory else None
        if partition is None or name in paths.BROKERS_OWN:
            continue
        directory = os.path.join(path, name)
        durable = recovery_points.get(partition, 0)
        metadata = os.path.join(directory, paths.PARTITION_METADATA)
        try:
            topic_id = checkpoint_file.read_partition_metadata(files, metadata)
            facts = _facts(files, directory, durable, log_starts.get(partition, 0))
        except (CorruptCheckpoint, OSError):
            continue
        if facts is None:
            continue
        settings.set_topic_id(partition[0], topic_id or "")
        if tiered.why(partition[0]) is not None:
            continue
        config = settings.log_config(partition[0])
        for segment, _ in decide(facts, config, now_ms).doomed:
            if segment.is_active or segment.next_offset >= durable:
                break
            _remove(files, directory, segment)
            yield f"{directory}: segment {segment.base_offset}, expired by retention"


def _facts(files: Files, directory: str, durable: int, log_start: int) -> LogFacts | None:
    """Return a log's facts without opening it, or None if there are too few.

    `durable`: its recovery point. Segments after it count as part of the active one.
    """
    names = [name for name, is_directory in files.scan(directory) if not is_directory]
    bases = paths.log_bases(names)
    segments: list[SegmentFacts] = []
    for base, following in itertools.pairwise(bases):
        if following >= durable:
            break
        newest_ms = _newest_timestamp(files, directory, base, following)
        if newest_ms is None:
            return None
        status = files.file_stat(os.path.join(directory, paths.file_name(base, paths.LOG)))
        mtime_ms = status.st_mtime_ns // 1_000_000
        segments.append(
            SegmentFacts(base, following, status.st_size, newest_ms, mtime_ms, is_active=False)
        )
    if not segments:
        return None
    rest = bases[len(segments) :]
    stats = [files.file_stat(os.path.join(directory, paths.file_name(b, paths.LOG))) for b in rest]
    mtime_ms = stats[-1].st_mtime_ns // 1_000_000
    size = sum(status.st_size for status in stats)
    end = max(durable, rest[0])
    segments.append(SegmentFacts(rest[0], end, size, mtime_ms, mtime_ms, is_active=True))
    return LogFacts(tuple(segments), log_start, end)


def _newest_timestamp(files: Files, directory: str, base: int, following: int) -> int | None:
    """Return a sealed segment's largest timestamp by its time index, or None."""
    path = os.path.join(directory, paths.file_name(base, paths.TIMEINDEX))
    index = Index.of_file(files, TIME, path, base)
    last = index.last_entry if index.is_sound else None
    # An index that was never trimmed ends in zeros.
    return last[0] if last is not None and last[0] > 0 and last[1] < following else None


def _remove(files: Files, directory: str, segment: SegmentFacts) -> None:
    """Remove a segment, its log first: opening makes nothing from the other files."""
    manifest_file.drop(files, directory)
    # Only the next segment's snapshot has the producers of these records.
    snapshot = os.path.join(directory, paths.file_name(segment.next_offset, paths.SNAPSHOT))
    with contextlib.suppress(FileNotFoundError), files.held_open(snapshot) as fd:
        files.fdatasync(fd)
    suffixes = (paths.LOG, *paths.INDEX_SUFFIXES, *paths.LINES_SUFFIXES, paths.SNAPSHOT)
    for suffix in suffixes:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(os.path.join(directory, paths.file_name(segment.base_offset, suffix)))
    files.sync_directory(directory)
