"""Loads the partitions of a data directory, each from its own directory (`TOPIC-N`).

Loading is recovery, by the promises of the checkpoints. Small files of a partition that cannot be
read are renamed (`bad_file`) and rebuilt:

- `leader-epoch-checkpoint` from the epochs of the batches;
- `partition.metadata` from another partition of the topic, or from the broker's metadata log.
  Without these the partition is a fault until `repair`.

Not here: which partitions there are (`open`), the checkpoints of the directory (`checkpoints`), the
list of partitions (`topics`), new partitions (`data_directory`).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from storage import paths
from storage.directory.data_directory import DataDirectory
from storage.directory.mirror import mirrored_id
from storage.directory.topics import Topic, TopicPartition
from storage.errors import CorruptCheckpoint, CorruptRecord, LogWouldEnd, SegmentGone
from storage.files import Files
from storage.log.epochs import LeaderEpochs
from storage.log.log import Log
from storage.log.rescue import decided, finish
from storage.log.salvage import count_behind
from storage.plural import counted
from storage.recovery.partition import LogLoader, Recovered
from storage.recovery.promises import PartitionFiles, Promises
from storage.recovery.segment import header_at
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state import checkpoint_file, history, manifest_file
from storage.state.deletion_file import Deletion

_log = logging.getLogger(__name__)

# Attempts to load a partition while its writer renames files.
_TRIES = 5
# Seconds that a cleaner may take to rename its output, and between two checks.
_SWAP_S = 1.0
_LOOK_S = 0.005


def load_partition(
    directory: DataDirectory,
    item: TopicPartition,
    *,
    clean: bool,
    recovery_point: int | None,
    log_start: int | None,
    advance: Callable[[int], None] = lambda size: None,
    verify: bool = False,
    is_new: bool = False,
) -> Log:
    """Load a partition.

    `recovery_point`, `log_start`: its lines in the checkpoints, or None. `verify`: read all
    batches; a log that a repair may not truncate is loaded as a mount does. `is_new`: it has no
    files. Errors: StorageError, OSError.
    """
    path = directory.partition_path(item)
    files, settings, answers = directory.files, directory.settings, directory.answers
    topic, partition = item
    topic_id = "" if is_new else read_topic_id(files, path)
    settings.set_topic_id(topic, topic_id)
    config = settings.log_config(topic)
    tiered = directory.tiered.line(topic)
    writable = not directory.read_only and tiered is None
    is_brokers = settings.is_brokers_topic(topic)
    promises = _promises(
        directory, item, recovery_point, log_start, clean=clean, verify=verify, is_new=is_new
    )
    if verify and answers is not None and not answers.may_hide and tiered is None:
        promises = replace(promises, may_end=False)
    now_ms = directory.clock_ms()
    loader = LogLoader(PartitionFiles(files, path, config, promises, writable, advance), now_ms)
    damage: LogWouldEnd | None = None
    try:
        # `load` is called again if it needs a part of the reserve.
        recovered = files.with_reserve(loader.load)
    except LogWouldEnd as error:
        damage, point, stopped_clean = error, promises.recovery_point, directory.stopped_clean
        loader.promises = _promises(
            directory, item, point, log_start, clean=stopped_clean, verify=False, is_new=is_new
        )
        recovered = files.with_reserve(loader.load)
        if recovered.segments[-1].next_offset <= (damage.offset or 0):
            # A mount ends the log there, too.
            for segment in recovered.segments:
                segment.close()
            damage, loader.promises = None, replace(promises, may_end=True)
            recovered = files.with_reserve(loader.load)
    promises = loader.promises
    recovered.producers.expire(now_ms, settings.broker.producer_id_expiration_ms)
    directory.cuts.extend(recovered.cuts)
    directory.faults.extend(dict.fromkeys(recovered.faults))
    end = recovered.segments[-1].next_offset
    epochs = list[tuple[int, int]]()
    if not is_new:
        # A broker finds remote segments by the epochs below the first local one.
        start = promises.log_start
        epochs_start = start if is_brokers else max(start, recovered.segments[0].base_offset)
        epochs = _load_epochs(directory, path, epochs_start, end, recovered, writable=writable)
    log = Log(
        *(loader.partition, topic, partition, topic_id, recovered, directory.log_group),
        # (`_find_topic_id` sets it after it has written the file that has this time.)
        created_ns=0 if is_new and writable else checkpoint_file.created_ns(files, path),
        epochs=epochs,
        was_closed=directory.clean,
        tiered=tiered,
        checkpointed_start=log_start if is_brokers else None,
    )
    if promises.unsynced and writable and not promises.clean:
        log.durability.restore_flush_error()
    if damage is not None:
        _keep_uncut(directory, log, damage)
    return log


def _keep_uncut(directory: DataDirectory, log: Log, damage: LogWouldEnd) -> None:
    """Record that a repair did not truncate a log at damage, and count the records after it."""
    directory.uncut.add((log.topic, log.partition))
    behind = counted(count_behind(log, damage), "record")
    directory.faults.append(
        f"{damage}; nothing was truncated, because a mount shows {behind} after the "
        f"damage. To keep them: kafkafs repair {directory.path} --salvage --apply. To truncate the "
        f"log there: kafkafs repair {directory.path} --accept-loss --apply"
    )


def retry_while_writer_renames(
    directory: DataDirectory,
    item: TopicPartition,
    load: Callable[[], Log],
    *,
    awaits_swap: bool = False,
) -> Log | None:
    """Load a partition, and again while its writer, another process, renames its files; return None
    if it was removed.

    `awaits_swap`: wait until a cleaner has renamed its output.
    """
    if not directory.read_only:
        return load()
    path = directory.partition_path(item)
    for number in range(_TRIES):
        try:
            if awaits_swap:
                _await_swap(directory, path)
            return load()
        except (FileNotFoundError, SegmentGone):
            if not directory.files.exists(path):
                break
            if number == _TRIES - 1:
                raise
    return None


def _await_swap(directory: DataDirectory, path: str) -> None:
    """Wait while a living cleaner replaces segments, so that no file is renamed during the load.

    The rest of an interrupted swap is shown as if it were finished.
    """
    files, end = directory.files, time.monotonic() + _SWAP_S
    lock = os.path.join(directory.path, paths.LOCK)
    while any(name.endswith(paths.LOG + paths.SWAP) for name in files.names(path)):
        if time.monotonic() > end or files.locked_by(lock) is None:
            return
        time.sleep(_LOOK_S)


def load_undeleted(directory: DataDirectory, deletion: Deletion) -> Topic:
    """Load the partitions of an undeleted topic as after a crash; then add the topic with them.

    A partition that cannot be loaded is a fault of the topic.
    """
    loaded: list[Log] = []
    faults: dict[int, Exception] = {}

    def give_up(number: int, log: Log | None, error: Exception) -> None:
        if log is not None:
            log.abandon()
            directory.forget_unflushed(log)
        faults[number] = error

    for each in deletion.partitions:
        item = deletion.topic, each.number
        point, start = each.recovery_point, each.log_start
        if each.cleaned is not None:
            directory.checkpoints.cleaned[item] = each.cleaned
        log: Log | None = None
        try:
            log = load_partition(
                directory, item, clean=False, recovery_point=point, log_start=start
            )
            note_lost_end(directory, log, point or 0)
            if not log.topic_id:
                _find_topic_id(directory, log, deletion.id)
            loaded.append(log)
        except Exception as error:
            give_up(each.number, log, error)
    topic = directory.topics.appear(deletion.topic, deletion.id)
    # The first partition gives the topic its id.
    for log in sorted(loaded, key=lambda log: log.topic_id != deletion.id):
        try:
            add_log(directory, log)
        except CorruptCheckpoint as error:
            give_up(log.partition, log, error)
    for number, fault in faults.items():
        directory.topics.set_fault((deletion.topic, number), fault)
        _log.warning("%s", topic.faults[number])
    return topic


def note_lost_end(directory: DataDirectory, log: Log, flushed_end: int) -> None:
    """Record a lost end if the log ends before `flushed_end`, up to which it was flushed.

    A mirror goes on at the log end: the cluster sends the same records again.
    """
    if flushed_end > log.log_end_offset:
        log.note_lost_end(flushed_end)
        what = log.what_is_lost
        if directory.mirrors:
            log.lost_end = 0
            lost = f"offsets {log.log_end_offset} to {flushed_end - 1}"
            what = f"{lost} had been flushed but are missing; the mirror copies them again"
        directory.faults.append(f"{log.directory}: {what}")


# -- the promises --------------------------------------------------------------------------------


def _promises(
    directory: DataDirectory,
    item: TopicPartition,
    recovery_point: int | None,
    checkpointed_start: int | None,
    *,
    clean: bool,
    verify: bool,
    is_new: bool,
) -> Promises:
    """Return the promises about a log, by the checkpoints and its own small files.

    `recovery_point`, `checkpointed_start`: its lines in the checkpoints, or None. `is_new`: it has
    no files. An interrupted rescue is finished first, as that moves the recovery point.

    A partition's own files count only if the directory is ours, not a broker's or a copy whose
    files appear in any order: the log start and the entries of the manifest, and the recovery point
    as a flushed end. A broker deletes and cleans without these records. The end of a copy is known
    to the cluster that writes the original.

    Our cleaner leaves gaps between segments only below a durable recovery point. A broker's cleaner
    may have left gaps anywhere; for a copy, the copied checkpoint decides. Any gap is possible,
    too, if the cleaner's checkpoint is ahead of the recovery point, or if the log was copied
    without its checkpoints.
    """
    files, settings, path = directory.files, directory.settings, directory.partition_path(item)
    is_ours = files.in_order and not settings.is_brokers
    log_start = checkpointed_start or 0
    if is_ours and not is_new:
        has_lines = recovery_point is not None and directory.checkpoints.has_log_starts
        if not has_lines:
            log_start = max(log_start, _own_log_start(files, path))
        elif recovery_point == 0 and not clean:
            # Appending with given offsets may have moved the log start to the first batch
            # (`append_with_offsets`). A later log start may belong to a change that was not made.
            written = min(_own_log_start(files, path), _first_offset(files, path))
            log_start = max(log_start, written)
    if not (clean or is_new or directory.read_only) and directory.tiered.line(item[0]) is None:
        rescued_to = decided(files, path)
        if rescued_to:
            finish(files, path, files.names(path))
            recovery_point = max(recovery_point or 0, rescued_to)
    point = recovery_point or 0
    cleaned_to = directory.checkpoints.cleaned_before.get(item)
    may_have_gaps = cleaned_to is not None or (
        files.in_order and settings.is_brokers_topic(item[0])
    )
    has_gaps_anywhere = (
        settings.is_brokers
        or (cleaned_to or 0) > point
        or (recovery_point is None and not manifest_file.is_blank(files, path))
    )
    manifest_below = paths.MAX_OFFSET if directory.stopped_clean else point
    # Recovery in a directory of ours reads what a power cut may have taken from its indexes.
    has_whole_indexes = directory.stopped_clean or (is_ours and not directory.read_only)
    return Promises(
        clean,
        recovery_point,
        verify,
        log_start,
        manifest_below=manifest_below if is_ours else None,
        gaps_below=paths.MAX_OFFSET if has_gaps_anywhere else point,
        may_have_gaps=may_have_gaps,
        aborts_below=paths.MAX_OFFSET if files.in_order and has_whole_indexes else point,
    )


def _own_log_start(files: Files, path: str) -> int:
    """Return the log start in a partition's own files; 0 if they have none.

    It may belong to a deletion that was not decided. So it counts only for a partition without
    lines in the checkpoints, or up to the first batch.
    """
    start = 0
    with contextlib.suppress(CorruptCheckpoint, OSError):
        start = manifest_file.read(files, path).log_start
    with contextlib.suppress(CorruptCheckpoint, OSError):
        start = max(start, history.recorded_start(files, path) or 0)
    return start


def _first_offset(files: Files, path: str) -> int:
    """Return the base offset of a partition's first batch; 0 if it cannot be found."""
    bases = paths.log_bases(files.names(path))
    if not bases:
        return 0
    log_path = os.path.join(path, paths.file_name(bases[0], paths.LOG))
    with contextlib.suppress(OSError), files.held_open(log_path) as fd:
        header = header_at(files, fd, 0)
        return 0 if header is None else header.base_offset
    return 0


# -- the topic's id, and the epochs --------------------------------------------------------------


def add_log(directory: DataDirectory, log: Log) -> None:
    """Add a loaded partition to its topic; all partitions of a topic share one id. Errors:
    CorruptCheckpoint if the ids differ, or the id was lost.
    """
    if not log.topic_id:
        _find_topic_id(directory, log, directory.topics.id_of(log.topic))
    directory.topics.add(log)
    if not log.read_only:
        directory.checkpoints.note_end((log.topic, log.partition), log.log_end_offset)


def _find_topic_id(directory: DataDirectory, log: Log, known: str) -> None:
    """Give a log the id of its topic's other partitions. If there are none, use the id that a
    mirror's file has, that of the broker's metadata log if the log's own file cannot be read, or a
    new one.

    In a broker's directory, a topic without an id gets none on the disk: when the cluster gives it
    one, the broker refuses partitions with another.

    Errors: CorruptCheckpoint if its own file cannot be read and there is no other source, until a
    `repair`.
    """
    files = directory.files
    path = os.path.join(log.directory, paths.PARTITION_METADATA)
    fault: CorruptCheckpoint | None = None
    if directory.mirrors:
        known = known or mirrored_id(files, directory.path, log.topic)
    try:
        checkpoint_file.read_partition_metadata(files, path)
    except CorruptCheckpoint as error:
        fault = error
        known = known or directory.settings.id_at_broker(log.topic)
        if not known and directory.answers is None:
            does = (
                "set the file aside" if directory.settings.is_brokers else "give the topic a new id"
            )
            remedy = f"to {does}: kafkafs repair {directory.path} --apply"
            raise CorruptCheckpoint(f"{error.message}; {remedy}", path=path) from None
    stand_in = checkpoint_file.stand_in_topic_id(directory.path, log.topic)
    if known:
        log.topic_id = known
    elif log.read_only or directory.settings.is_brokers:
        log.topic_id = stand_in
    else:
        log.topic_id = checkpoint_file.new_topic_id()
    if fault is not None:
        directory.checkpoints.set_aside(path, fault, stays=log.read_only)
    if not log.read_only:
        if log.topic_id != stand_in:
            checkpoint_file.write_partition_metadata(files, path, log.topic_id)
        log.created_ns = checkpoint_file.created_ns(files, log.directory)


def read_topic_id(files: Files, path: str) -> str:
    """Return the id of `partition.metadata`; empty if `add_log` has to find it."""
    try:
        metadata = os.path.join(path, paths.PARTITION_METADATA)
        return checkpoint_file.read_partition_metadata(files, metadata) or ""
    except CorruptCheckpoint:
        return ""


def _load_epochs(
    directory: DataDirectory,
    path: str,
    start: int,
    end: int,
    recovered: Recovered,
    *,
    writable: bool,
) -> list[tuple[int, int]]:
    """Return the leader epochs from `start` to `end`, as in `LeaderEpochFileCache`.

    If the file cannot be read, they come from all batches; in a writable log also if it is missing.
    """
    path = os.path.join(path, paths.LEADER_EPOCH_CHECKPOINT)
    seen = recovered.epochs
    try:
        recorded: list[tuple[int, int]] | None = checkpoint_file.read_epochs(directory.files, path)
        if writable and not recorded and not directory.files.exists(path):
            seen = _epochs_of(recovered)
    except CorruptCheckpoint as error:
        recorded, seen = None, _epochs_of(recovered)
        directory.checkpoints.set_aside(path, error, stays=not writable)
    epochs: list[tuple[int, int]] = []
    for epoch, offset in recorded or []:
        # An empty log keeps the epoch of its start.
        if offset < end or offset <= start:
            if offset <= start:
                epochs.clear()
            epochs.append((epoch, max(offset, start)))
    for epoch, offset in seen:
        if epoch > (epochs[-1][0] if epochs else -1):
            checkpoint_file.begin_epoch(epochs, epoch, max(offset, start))
    if epochs != recorded and writable:
        checkpoint_file.write_epochs(directory.files, path, epochs)
    return epochs


def _epochs_of(recovered: Recovered) -> list[tuple[int, int]]:
    """Return (epoch, offset of its first batch), ascending, of all batches.

    Epochs rise from batch to batch, so that most segments are read only at their beginnings. If the
    last batch is one of v0 or v1, no earlier epoch counts (`LeaderEpochs.assign`).
    """
    epochs = LeaderEpochs([])
    segments = [segment for segment in recovered.segments if segment.size]
    if segments and _last_epoch(segments[-1], None) == -1:
        segments[-1].close_descriptors()
        return []
    for segment, following in itertools.zip_longest(segments, segments[1:]):
        last = _last_epoch(segment, following)
        with _up_to_damage():
            for _, header in SegmentReader(segment).batches():
                epochs.assign([header])
                if header.leader_epoch == last:
                    break
        segment.close_descriptors()
    return epochs.entries


def _last_epoch(segment: Segment, following: Segment | None) -> int | None:
    """Return the leader epoch with which the `following` segment begins; without one, that with
    which the segment ends. None: not known.
    """
    with _up_to_damage():
        if following is None:
            found = SegmentReader(segment).last_batch()
        else:
            found = next(SegmentReader(following).batches(), None)
        if found is not None:
            return found[1].leader_epoch
    return None


@contextlib.contextmanager
def _up_to_damage() -> Iterator[None]:
    """Read a segment up to its first damage, or up to a read error."""
    try:
        yield
    except CorruptRecord:
        pass
    except OSError as error:
        if error.errno != errno.EIO:
            raise
