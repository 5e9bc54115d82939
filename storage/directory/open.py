"""Opens the logs of a data directory, once, in this order:

1. find the partitions, and finish an interrupted deletion (`find_partitions`);
2. read the checkpoints, and remove the marker of a clean stop: if the process is killed from now
   on, the next start recovers;
3. leave out unneeded topics, if the caller named the needed ones and the last stop was clean;
4. load each partition, several at a time if recovery has much to read (`partition`);
5. add each loaded partition to its topic.

A partition that cannot be opened is an error, or with `keeps_faulty` a fault of its topic.

Not here: taking the lock (`lock`), loading one partition (`partition`), writing the results
(`manager`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from storage import paths
from storage.directory.data_directory import DataDirectory
from storage.directory.partition import (
    add_log,
    load_partition,
    note_lost_end,
    read_topic_id,
    retry_while_writer_renames,
)
from storage.directory.reserve import NAME as RESERVE
from storage.directory.topics import TopicPartition
from storage.errors import CorruptCheckpoint, ReadOnlyFormat
from storage.files import is_temporary
from storage.kafka07.segment import holds_entries, refusal
from storage.log.log import Log
from storage.plural import counted
from storage.state import checkpoint_file, deletion_file
from storage.state.deletion_file import DeletedPartition, Deletion
from storage.threads import side_by_side

_log = logging.getLogger(__name__)

# A shortage of the machine or the disk is no fault of the first partition that met it.
_SYSTEM_WIDE_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS}
)
# Names of other directories in one line of the log.
_SHOWN = 3
# Recovering a log of at most this size takes less time than opening its files.
_SHORT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of opening: bytes read by recovery, partitions loaded of all."""

    bytes_read: int
    partitions: int
    partitions_total: int


class Found(NamedTuple):
    """The entries of a data directory: the partitions to load, in order, the directories to delete,
    and the deleted topics of some of these directories.
    """

    partitions: list[TopicPartition]
    doomed: list[str]
    deletions: list[Deletion]


class Opened(NamedTuple):
    """The results of opening besides the logs.

    `bytes_read`: bytes of the logs that recovery has read; `took_s`: the time that opening took.
    """

    found: Found
    bytes_read: int
    took_s: float


def open_logs(
    directory: DataDirectory,
    progress: Callable[[Progress], None] | None,
    needs: Callable[[Set[str]], Set[str]] | None,
    *,
    verify: bool,
) -> Opened:
    """Open the logs of a data directory, and add them to its topics.

    `needs`: returns the needed ones of these topics. Other arguments and errors: see
    `LogManager.open`; after an error no log is open.
    """
    started = time.monotonic()
    files, checkpoints = directory.files, directory.checkpoints
    everything = find_partitions(directory)
    found = everything.partitions
    needs_all = needs is None and not (directory.read_only or directory.keeps_faulty)
    new, short = _look_into(directory, found, needs_all=needs_all)
    recovery_points, log_starts, are_known = checkpoints.read_at_open(found)
    directory.stopped_clean = directory.clean and are_known
    if needs_all:
        _check_known(directory, found)
    if not directory.read_only:
        _remove_marker(directory)
    # The process with the lock has recovered the logs, or is about to.
    is_written = directory.read_only and directory.lock.is_locked()
    clean = (directory.stopped_clean or is_written) and not verify
    if needs is not None and clean:
        topics = needs({topic for topic, _ in found})
        directory.left_out = [item for item in found if item[0] not in topics]
        found = [item for item in found if item[0] in topics]
    logs: list[Log] = []
    bytes_read = partitions = 0

    def advance(size: int, count: int = 0) -> None:
        nonlocal bytes_read, partitions
        bytes_read += size
        partitions += count
        if progress is not None:
            progress(Progress(bytes_read, partitions, len(found)))

    def load(item: TopicPartition) -> Log | None:
        """Load a partition in any thread; return None if it is a fault or was deleted."""
        log, point = None, recovery_points.get(item)
        with _as_fault(directory, item):
            checkpoints.check_log_start(item)
            log = retry_while_writer_renames(
                directory,
                item,
                lambda: load_partition(
                    directory,
                    item,
                    clean=clean,
                    recovery_point=point,
                    log_start=log_starts.get(item),
                    advance=advance,
                    verify=verify,
                    is_new=item in new,
                ),
                awaits_swap=True,
            )
            # A living writer's checkpoint may be ahead of the part of its log that was read.
            if log is not None and not is_written:
                note_lost_end(directory, log, point or 0)
        if log is not None:
            logs.append(log)
        advance(0, 1)
        return log

    threads = files.parallel
    if not clean:
        threads = max(threads, directory.settings.broker.num_recovery_threads_per_data_dir)
    long = [item for item in found if item not in short]
    try:
        # Opening a short log is interpreted code, which several threads only slow down.
        loaded = side_by_side(
            load, [item for item in found if item in short], files.parallel, "opening"
        )
        loaded += side_by_side(load, long, threads, "recovery")
        # Partitions with a known topic id come first.
        for log in sorted(filter(None, loaded), key=_in_order):
            with _as_fault(directory, (log.topic, log.partition), log):
                add_log(directory, log)
    except BaseException:
        for log in logs:
            log.abandon()
        raise
    return Opened(everything, bytes_read, time.monotonic() - started)


@contextlib.contextmanager
def _as_fault(
    directory: DataDirectory, item: TopicPartition, log: Log | None = None
) -> Iterator[None]:
    """Make an error in this block the partition's fault, if faults are kept."""
    try:
        yield
    except Exception as error:
        everybodys = isinstance(error, MemoryError) or (
            isinstance(error, OSError) and error.errno in _SYSTEM_WIDE_ERRORS
        )
        if not directory.keeps_faulty or everybodys or isinstance(error, ReadOnlyFormat):
            raise
        if log is not None:
            log.abandon()
            directory.forget_unflushed(log)
        directory.topics.set_fault(item, error)


def _in_order(log: Log) -> tuple[bool, str, int]:
    return not log.topic_id, log.topic, log.partition


def _remove_marker(directory: DataDirectory) -> None:
    """Remove the marker of a clean stop, as the logs are about to be changed. Errors: OSError."""
    directory.checkpoints.set_others_aside()
    checkpoint_file.remove_marker(directory.files, directory.path)


def _check_known(directory: DataDirectory, found: Sequence[TopicPartition]) -> None:
    """Check settings and log starts before the marker of a clean stop is removed: so a command that
    is refused does not make the next start recover. Errors: InvalidConfig, CorruptCheckpoint.
    """
    for item in found:
        directory.settings.log_config(item[0])
        directory.checkpoints.check_log_start(item)


def _look_into(
    directory: DataDirectory, found: Sequence[TopicPartition], *, needs_all: bool
) -> tuple[set[TopicPartition], set[TopicPartition]]:
    """List the partitions' directories, which are about to be changed, before that.

    Return the partitions without files, and after a crash those with short logs. Errors:
    ReadOnlyFormat for a partition of Kafka 0.7; with `needs_all` OSError.
    """
    # Loading reports an unreadable directory.
    ignored = () if needs_all else (OSError,)
    new, short = set[TopicPartition](), set[TopicPartition]()
    for item in found if not directory.read_only else ():
        path = directory.partition_path(item)
        with contextlib.suppress(*ignored):
            names = directory.files.names(path)
            if holds_entries(names):
                raise refusal(path)
            if not names:
                new.add(item)
            if not directory.clean and _is_short(directory, path, names):
                short.add(item)
    return new, short


def _is_short(directory: DataDirectory, path: str, names: Sequence[str]) -> bool:
    """Return whether a partition has at most one segment, of at most `_SHORT_BYTES`."""
    bases = paths.log_bases(names)
    if not bases:
        return True
    log_path = os.path.join(path, paths.file_name(bases[0], paths.LOG))
    return len(bases) == 1 and directory.files.file_stat(log_path).st_size <= _SHORT_BYTES


# -- the names in a data directory ---------------------------------------------------------------


def find_partitions(directory: DataDirectory) -> Found:
    """List the partitions, and finish an interrupted deletion. Errors: OSError."""
    found: set[TopicPartition] = set()
    doomed: list[str] = []
    others: list[str] = []
    for name, kind in directory.files.listing(directory.path):
        if kind == "file" and is_temporary(name) and not directory.read_only:
            # A killed process left it: only this process writes here.
            directory.files.unlink(os.path.join(directory.path, name))
        if kind == "file" or name in paths.BROKERS_OWN or name.startswith(RESERVE):
            continue
        parsed = paths.parse_partition_directory(name)
        if parsed is not None:
            # Includes a link, or the like: loading reports the problem.
            if directory.wanted is None or directory.wanted(parsed[0]):
                found.add(parsed)
            continue
        if kind != "directory":
            continue
        aside = paths.parse_aside_directory(name)
        if aside is not None and aside.kind == "delete":
            doomed.append(name)
        elif name not in directory.skipped:
            others.append(name)
    if others:
        directory.skipped.update(others)
        _log.warning("%s", _ignored_line(sorted(others)))
    deletions = [each for name in doomed if (each := _deletion(directory, name)) is not None]
    for deletion in deletions:
        for partition in _not_renamed(directory, deletion, found, doomed):
            found.remove((deletion.topic, partition.number))
            doomed.append(partition.directory)
            if not directory.read_only:
                source = directory.partition_path((deletion.topic, partition.number))
                directory.files.rename(source, os.path.join(directory.path, partition.directory))
    return Found(sorted(found), doomed, deletions)


def _deletion(directory: DataDirectory, name: str) -> Deletion | None:
    """Return the deletion that a directory of this name records, if any."""
    try:
        deletion = deletion_file.read(directory.files, os.path.join(directory.path, name))
    except (CorruptCheckpoint, OSError) as error:
        _log.warning("%s: its deleted records cannot be restored: %s", name, error)
        return None
    # A copy of the record does not count.
    is_its_own = deletion is not None and deletion.partitions[0].directory == name
    return deletion if is_its_own else None


def _not_renamed(
    directory: DataDirectory,
    deletion: Deletion,
    found: Container[TopicPartition],
    doomed: Container[str],
) -> list[DeletedPartition]:
    """Return the partitions of a deleted topic whose directories have their normal names."""
    topic, (first, *others) = deletion.topic, deletion.partitions
    if (topic, first.number) in found:
        return []  # another topic has the name
    return [
        each
        for each in others
        if (topic, each.number) in found
        and each.directory not in doomed
        and read_topic_id(directory.files, directory.partition_path((topic, each.number)))
        in ("", deletion.id)
    ]


def _ignored_line(names: Sequence[str]) -> str:
    """Return a line about directories that are not partitions."""
    shown, more = ", ".join(names[:_SHOWN]), len(names) - _SHOWN
    rest = f" and {counted(more, 'other')}" if more > 0 else ""
    what = "not a partition directory" if len(names) == 1 else "not partition directories"
    return f"{shown}{rest}: {what}, ignored"
