"""Repairs a log after a failed fsync, or after another process has truncated its active file, by
copying the bytes of the page cache to new files.

Linux marks the pages that it could not write as clean. A later fsync of the file then succeeds and
proves nothing, and at any time the page may be dropped and read back from the disk. So the old
files are never trusted again:

1. The active segment is sealed, so that nothing changes any more; appends are refused meanwhile.
2. The log of every segment from the recovery point on is copied to a new file, as it can be read
   now, and the new file is fsynced and read back from the disk. Only batches whose CRC is wrong
   there are lost: no reader is shown them, and a line names their offsets.
3. The indexes are rebuilt from that file, the snapshots of producers are written once more.
4. When all of them are durable it is decided: `paths.UNSYNCED` has the offset up to which the log
   is on the disk, and the lost ranges. From then on a start continues with the next step.
5. The new files take the old ones' names, one by one: each has the bytes of the old one, at the
   same positions. Readers continue: positions, and shown bytes, stay, except the lost ones.
6. All is flushed, and if anything is lost the checkpoints are written: by older ones a start would
   end the log there.

If a step fails, nothing has changed: the log takes no appends, and the caller tries again.

The page cache outlives the process, and no start could detect that an fsync had failed before it.
So `paths.UNSYNCED` lies in the partition's directory from then on until step 6 is done: the next
start does the same, and does not end the log at damage that whole batches follow. Until step 4 it
need not be durable: a power cut also empties the cache, and recovery finds the bytes on the disk.

Not here: when it is tried again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from storage import paths
from storage.errors import StorageError
from storage.files import Files
from storage.index.txn_index import encode
from storage.log.log import Log
from storage.record._batch import Rebuild
from storage.segment.batch_check import Part, check_file
from storage.segment.damage import Damage
from storage.segment.direct_io import fill_readable
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.walk import sealed_indexes
from storage.state import producer_state
from storage.state.producer_state import ProducerState
from storage.task import Task

_NEW = ".tmp"
_DIGITS = 20
_CHUNK_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class _Copied(NamedTuple):
    """A segment with complete new files, and its lost ranges."""

    segment: Segment
    new: list[str]
    damages: list[Damage]


def rescue(
    log: Log, task: Task, now_ms: int, write_checkpoints: Callable[[], None] = lambda: None
) -> None:
    """Repair `log` after a failed fsync, on a worker thread. Errors: OSError, StorageError;
    retry.
    """
    segments = task.on_log_thread(lambda: _begin(log, now_ms))
    if segments is None:
        return
    copied: list[_Copied] = []
    mark = os.path.join(log.directory, paths.UNSYNCED)
    try:
        log.durability.flush_before(task.on_log_thread)
        # The decision of a failed try is revoked: its files are made again.
        log.files.replace_atomically(mark, b"")
        for segment in segments:
            copied.append(_copy(log, segment, task))
        _write_snapshots(log)
        log.files.sync_directory(log.directory)
        log.files.replace_atomically(mark, b"%d\n" % log.log_end_offset)
        finish(log.files, log.directory, [os.path.basename(p) for c in copied for p in c.new])
    except BaseException:
        task.on_log_thread(lambda: _end(log, segments))
        raise
    task.on_log_thread(lambda: _take_over(log, copied, now_ms))
    try:
        log.flush(task.on_log_thread)
    finally:
        task.on_log_thread(lambda: _end(log, segments))
    if any(each.damages for each in copied):
        write_checkpoints()
    with contextlib.suppress(FileNotFoundError):
        log.files.unlink(mark)


def decided(files: Files, directory: str) -> int:
    """Return the offset up to which a decided, unfinished rescue has the log on disk, or 0."""
    try:
        said = files.read_whole(os.path.join(directory, paths.UNSYNCED)).strip()
    except OSError:
        return 0
    return min(int(said), paths.MAX_OFFSET) if said.isdigit() and len(said) < _DIGITS else 0


def finish(files: Files, directory: str, names: Iterable[str]) -> None:
    """Rename the new files of a decided rescue; `names`: all files. Errors: OSError."""
    for name in names:
        if name.endswith(_NEW) and paths.base_offset_of(name) is not None:
            path = os.path.join(directory, name)
            files.rename(path, path.removesuffix(_NEW))
    files.sync_directory(directory)


def _begin(log: Log, now_ms: int) -> Sequence[Segment] | None:
    """Seal the active segment; return the untrusted segments, or None: nothing to do."""
    if log.closed or log.flush_error is None:
        return None
    if log.cleaning:
        raise OSError(errno.EBUSY, "it is being compacted", log.directory)
    if log.lost_end:
        raise OSError(errno.EIO, log.what_is_lost, log.directory)
    log.roll_unchecked(now_ms)
    log.cleaning = True
    segments = [
        each
        for each in log.segments[:-1]
        if each.next_offset >= log.durability.recovery_point and not each.is_lost
    ]
    for segment in segments:
        segment.lease()
    return segments


def _end(log: Log, segments: Sequence[Segment]) -> None:
    log.cleaning = False
    for segment in segments:
        segment.release()


def _take_over(log: Log, copied: Sequence[_Copied], now_ms: int) -> None:
    """Continue with the new files, which have the old ones' names."""
    for segment, _, damages in copied:
        segment.renewed()
        log.note_damage(segment, damages, now_ms)
        for place in segment.damages:
            last = max(place.next_offset - 1, place.first_offset)
            _log.warning(
                "%s: offsets %d to %d are lost: %s, and they could not be read back",
                *(log.name, place.first_offset, last, log.flush_error_text),
            )
    log.flush_error = None


# -- new files -----------------------------------------------------------------------------------


def _copy(log: Log, segment: Segment, task: Task) -> _Copied:
    files = log.files
    path = segment.log_path + _NEW
    with files.held_open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
        _copy_bytes(files, segment, fd)
        files.fdatasync(fd)
        base, largest = segment.base_offset, log.config.max_message_bytes
        part = Part(base, 0, base, segment.size, largest, named=segment.offset_index.position_after)
        damages = check_file(files, path, part, task).damages
        rebuild = Rebuild(base, log.config.index_interval_bytes)
        offsets, times = sealed_indexes(files, fd, segment.size, rebuild, damages)
    new = [path]
    kinds = [(paths.INDEX, offsets), (paths.TIMEINDEX, times)]
    if segment.aborted:
        kinds.append((paths.TXNINDEX, encode(segment.aborted)))
    for kind, data in kinds:
        new.append(segment.file_path(kind) + _NEW)
        _write(files, new[-1], data)
    return _Copied(segment, new, damages)


def _copy_bytes(files: Files, segment: Segment, fd: int) -> None:
    """Copy all that can be read; zeros for the rest."""
    chunk = bytearray(_CHUNK_BYTES)
    for position in range(0, segment.size, _CHUNK_BYTES):
        view = memoryview(chunk)[: min(_CHUNK_BYTES, segment.size - position)]
        count = fill_readable(SegmentReader(segment).raw, view, position)
        view[count:] = bytes(len(view) - count)
        files.pwrite(fd, view, position)


def _write(files: Files, path: str, data: bytes) -> None:
    with files.held_open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        files.pwrite(fd, data, 0)
        files.fdatasync(fd)


def _write_snapshots(log: Log) -> None:
    """Write the unsynced snapshots; remove unreadable ones, which a recovery makes again."""
    for offset in sorted(log.snapshots.unsynced):
        path = log.snapshots.path(offset)
        try:
            data, _ = producer_state.read(log.files, path)
            ProducerState.decode(data, path=path)
        except FileNotFoundError:
            continue
        except (StorageError, ValueError):
            log.files.unlink(path)
        else:
            log.files.replace_atomically(path, data)
