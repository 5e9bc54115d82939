"""Deletes a topic, and restores it while its files exist (`LogManager.asyncDelete`).

A deletion renames the directories of the partitions to Kafka's `-delete` names, the first one
before the others. An undeletion renames them back, the first one last. So the name of the first
directory decides. If a start finds either half done, it finishes the deletion; the topic can be
undeleted afterwards (`open.find_partitions`). Its logs are then loaded as after a crash.

A topic cannot be undeleted if its deletion record cannot be written to its first directory
(`deletion_file`), or if the log start of a partition is not known. The next start removes its
files.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Sequence

from storage import paths
from storage.directory.data_directory import DataDirectory
from storage.directory.partition import load_undeleted
from storage.directory.topics import Topic
from storage.errors import CorruptCheckpoint, TopicExists, UnknownTopicOrPartition
from storage.files import Files
from storage.state import checkpoint_file, deletion_file
from storage.state.deletion_file import DeletedPartition, Deletion

_log = logging.getLogger(__name__)


def delete_topic(directory: DataDirectory, name: str) -> int:
    """Delete a topic (`LogManager.delete_topic`)."""
    directory.settings.check_known()
    topic = directory.topics.topic(name)
    delay_ms = directory.settings.log_config(name).file_delete_delay_ms
    due_ms = directory.monotonic_ms() + delay_ms
    deletion = _planned(directory, topic, delay_ms)
    moves = [(_live(name, each), each.directory) for each in deletion.partitions]
    is_recorded = _record(directory, deletion)
    logs = dict(topic.partitions)
    for log in logs.values():
        log.deleting = True
    try:
        _rename(directory, moves if is_recorded else moves[::-1], sync_after=int(is_recorded))
    except BaseException:
        for log in logs.values():
            log.deleting = False
        raise
    directory.lock.note_change(directory.clock_ms())
    del directory.topics[name]
    directory.topics.deleted_ms[name] = deletion.deleted_ms
    directory.topics.changes += 1
    directory.checkpoints.forget((name, each.number) for each in deletion.partitions)
    for each in deletion.partitions:
        if each.number in logs:
            logs[each.number].relocate(os.path.join(directory.path, each.directory))
            logs[each.number].mark_topic_deleted(due_ms)
            directory.forget_unflushed(logs[each.number])
    directory.deleted.add_topic(deletion, due_ms, logs, can_return=is_recorded)
    topic.partitions.clear()
    topic.faults.clear()
    directory.settings.forget(name)
    try:
        # Another topic of this name must not find these offsets.
        if directory.checkpoints.stale:
            directory.write_checkpoints()
    except OSError as error:  # `create_topic` tries again
        _log.warning("%s: checkpoint entries of %r remain: %s", directory.path, name, error)
    return delay_ms if is_recorded else 0


def _planned(directory: DataDirectory, topic: Topic, delay_ms: int) -> Deletion:
    """Return the deletion of a topic. Its first partition is the lowest with a usable directory."""
    found: list[DeletedPartition] = []
    for number in topic.numbers:
        item = topic.name, number
        log = topic.partitions.get(number)
        point, start = directory.checkpoints.recorded(item)
        if log is not None:
            point, start = None, log.log_start_for_checkpoint
            with contextlib.suppress(OSError):
                log.manifest.save()  # the recovery point relies on it
                point = log.flushed_end
        name, cleaned = paths.deleted_directory_name(*item), directory.checkpoints.cleaned.get(item)
        found.append(DeletedPartition(number, name, point, start, cleaned))
    is_usable = directory.files.is_directory
    found.sort(
        key=lambda each: not is_usable(os.path.join(directory.path, _live(topic.name, each)))
    )
    now_ms = directory.clock_ms()
    return Deletion(topic.name, topic.id, now_ms, now_ms + delay_ms, tuple(found))


def _record(directory: DataDirectory, deletion: Deletion) -> bool:
    """Write the deletion record. Return False if that is not possible."""
    lost = directory.checkpoints.lost_starts
    if any((deletion.topic, each.number) in lost for each in deletion.partitions):
        return False
    first = os.path.join(directory.path, _live(deletion.topic, deletion.partitions[0]))
    try:
        deletion_file.write(directory.files, first, deletion)
    except OSError as error:
        _log.warning("%s: topic %r cannot be undeleted: %s", directory.path, deletion.topic, error)
        return False
    return True


def can_be_undeleted(files: Files, data_dir: str, topic: str, numbers: Sequence[int]) -> bool:
    """Return whether a topic with these partitions could be restored after its deletion."""
    directories = (paths.partition_directory(topic, number) for number in numbers)
    if not any(files.is_directory(os.path.join(data_dir, each)) for each in directories):
        return False
    try:
        lost = checkpoint_file.read_offsets(files, os.path.join(data_dir, paths.LOST_STARTS))
    except (CorruptCheckpoint, OSError):
        return False
    return not any((topic, number) in lost for number in numbers)


def _live(topic: str, partition: DeletedPartition) -> str:
    return paths.partition_directory(topic, partition.number)


def _rename(directory: DataDirectory, moves: Sequence[tuple[str, str]], *, sync_after: int) -> None:
    """Rename directories in this order. The first `sync_after` are durable before the next.

    A directory that another process has removed is skipped. Errors: OSError; all have their old
    names.
    """
    files, done = directory.files, list[tuple[str, str]]()
    try:
        for move in moves:
            source, target = (os.path.join(directory.path, each) for each in move)
            if not files.exists(source):
                _log.warning("%s: another process has removed this directory", source)
                continue
            files.rename(source, target)
            done.append((source, target))
            if len(done) == sync_after:
                files.sync_directory(directory.path)
        files.sync_directory(directory.path)
    except OSError:
        for source, target in reversed(done):
            files.rename(target, source)
        raise


def undelete_topic(directory: DataDirectory, name: str, topic_id: str | None = None) -> Topic:
    """Restore a topic (`LogManager.undelete_topic`)."""
    directory.settings.check_known()
    deletion = _found(directory, name, topic_id)
    directory.topics.check_collisions(name)
    moves = [(each.directory, _live(name, each)) for each in reversed(deletion.partitions)]
    for source, target in moves:
        if directory.files.exists(os.path.join(directory.path, target)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        if not directory.files.exists(os.path.join(directory.path, source)):
            reason = f"topic {name!r} cannot be undeleted: {source} no longer exists"
            raise UnknownTopicOrPartition(reason, path=directory.path)
    directory.deleted.end_reading(deletion)
    # Before the topic is visible: only the checkpoints of a broker's directory have log starts.
    directory.checkpoints.bring_back(deletion)
    try:
        directory.write_checkpoints()
        _rename(directory, moves, sync_after=len(moves) - 1)
    except BaseException:
        directory.checkpoints.forget((name, each.number) for each in deletion.partitions)
        raise
    directory.deleted.take_back(deletion)
    directory.lock.note_change(directory.clock_ms())
    # A partition that is not recovered prevents the clean-shutdown marker.
    clean, directory.clean = directory.clean, False
    topic = load_undeleted(directory, deletion)
    directory.clean = clean and not topic.faults
    directory.topics.deleted_ms.pop(name, None)
    directory.topics.changes += 1
    # Recovery may have truncated a log.
    directory.note(topic.partitions.values())
    try:
        directory.write_checkpoints()
    except OSError as error:  # the next checkpoint tries again
        _log.warning("%s: checkpoint entries of %r are old: %s", directory.path, name, error)
    with contextlib.suppress(OSError):  # the file means nothing there
        directory.files.unlink(deletion_file.path_in(os.path.join(directory.path, moves[-1][1])))
    return topic


def _found(directory: DataDirectory, name: str, topic_id: str | None) -> Deletion:
    """Return the deletion of a topic of this name and id. Errors: TopicExists,
    UnknownTopicOrPartition.
    """
    now_ms = directory.monotonic_ms()
    found = {
        each.id: each
        for each, due_ms in list(directory.deleted.topics.items())
        if each.topic == name and topic_id in (None, each.id) and due_ms > now_ms
    }
    if name in directory.topics:
        reason = "a topic of this name exists: delete it first" if found else "it exists"
        raise TopicExists(f"topic {name!r} cannot be undeleted: {reason}", path=directory.path)
    if not found:
        with_id = "" if topic_id is None else f" with id {topic_id}"
        reason = "the files of a deleted topic are removed after file.delete.delay.ms"
        what = f"no deleted topic {name!r}{with_id} found: {reason}"
        raise UnknownTopicOrPartition(what, path=directory.path)
    if len(found) > 1:
        many = f"{len(found)} deleted topics have the name {name!r}: choose one by its id"
        ids = f"(most recently deleted first): {', '.join(reversed(found))}"
        raise TopicExists(f"{many} {ids}", path=directory.path)
    return next(iter(found.values()))
