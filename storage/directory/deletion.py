"""Deletes a topic, and takes that back while its files are there (``LogManager.asyncDelete``).

A deletion renames the directories of the partitions to Kafka's ``-delete`` names, the first one
before the others; an undeletion renames them back, the first one last.  So the name of the first
one decides: a start that finds one of them stopped in the middle finishes the deletion, after which
the topic can be undeleted (``Loader.scan``).

A topic deleted by this process comes back with the logs and the object that it had, which its
readers still use; one that an earlier process deleted is loaded as after a crash.

A topic cannot be undeleted where its first directory takes no file that names the others
(``deletion_file``), or the log start of a partition is not known: its files go at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from storage import paths
from storage.directory.checkpoints import Checkpoints
from storage.directory.deleted import Deleted, DeletedTopic
from storage.directory.loader import Loader
from storage.directory.lock import DirectoryLock
from storage.directory.topics import Topic, TopicPartition, Topics, fault_line
from storage.errors import StorageError, TopicExists, UnknownTopicOrPartition
from storage.files import Files
from storage.log.log import Log
from storage.settings.settings import Settings
from storage.state import deletion_file
from storage.state.deletion_file import DeletedPartition, Deletion

_log = logging.getLogger(__name__)


class Manager(Protocol):
    """What a ``LogManager`` is to this module."""

    path: str
    files: Files
    settings: Settings
    topics: Topics
    checkpoints: Checkpoints
    deleted: Deleted
    loader: Loader
    lock: DirectoryLock
    cleaner_offsets: dict[TopicPartition, int]
    keeps_faulty: bool
    clock_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]

    def forget_unflushed(self, log: Log) -> None: ...
    def start_checkpoint(
        self, *, snapshots: bool = True, coming: Sequence[Log] = ()
    ) -> Callable[[], None]: ...


def delete_topic(manager: Manager, name: str) -> int:
    """``LogManager.delete_topic``."""
    manager.settings.check_known()
    topic = manager.topics.topic(name)
    delay_ms = manager.settings.log_config(name).file_delete_delay_ms
    due_ms = manager.monotonic_ms() + delay_ms
    deletion = _planned(manager, topic, delay_ms)
    is_recorded = _recorded(manager, deletion)
    for moving in topic.partitions.values():
        moving.deleting = True
    try:
        _rename_all(manager, deletion, first_decides=is_recorded)
    except BaseException:
        for moving in topic.partitions.values():
            moving.deleting = False
        raise
    manager.lock.note_change(manager.clock_ms())
    del manager.topics[name]
    manager.topics.changes += 1
    entry = DeletedTopic(deletion, due_ms, topic, dict(topic.partitions), dict(topic.faults))
    for each in deletion.partitions:
        log = topic.partitions.get(each.number)
        directory = os.path.join(manager.path, each.directory)
        if log is not None:
            log.relocate(directory)
            log.retire(due_ms)
            manager.forget_unflushed(log)
        if not is_recorded:
            manager.deleted.add(due_ms, directory, log)
        manager.cleaner_offsets.pop((name, each.number), None)
    if is_recorded:
        manager.deleted.topics.append(entry)
    topic.partitions.clear()
    topic.faults.clear()
    manager.settings.forget(name)
    _forget_offsets(manager, name)
    return delay_ms if is_recorded else 0


def _planned(manager: Manager, topic: Topic, delay_ms: int) -> Deletion:
    """The deletion of a topic.  Its first partition is the lowest whose directory can be used."""
    lines: list[DeletedPartition] = []
    for number in topic.numbers:
        log = topic.partitions.get(number)
        point = start = None
        if log is not None and not log.lost_end:
            with contextlib.suppress(OSError):
                # The recovery point claims what it says.
                log.book.save()
                point = log.flushed_end
            start = log.remembered_log_start
        directory = paths.deleted_directory_name(topic.name, number)
        cleaned = manager.cleaner_offsets.get((topic.name, number))
        lines.append(DeletedPartition(number, directory, point, start, cleaned))
    lines.sort(
        key=lambda each: not manager.files.is_directory(_live(manager, topic.name, each.number))
    )
    now_ms = manager.clock_ms()
    return Deletion(topic.name, topic.id, now_ms, now_ms + delay_ms, tuple(lines))


def _recorded(manager: Manager, deletion: Deletion) -> bool:
    """Write down how to undelete a topic; False where that cannot be."""
    where = _live(manager, deletion.topic, deletion.partitions[0].number)
    if any(topic == deletion.topic for topic, _ in manager.checkpoints.lost_starts):
        return False
    try:
        deletion_file.write(manager.files, where, deletion)
    except OSError as error:
        _log.warning("%s: topic %r cannot be undeleted: %s", manager.path, deletion.topic, error)
        return False
    return True


def _rename_all(manager: Manager, deletion: Deletion, *, first_decides: bool) -> None:
    """Rename the directories of a topic that is deleted, the one that decides first, else last.

    A directory that somebody else has removed is skipped.  OSError: all have their names.
    """
    files = manager.files
    renamed: list[tuple[str, str]] = []
    try:
        for each in deletion.partitions if first_decides else reversed(deletion.partitions):
            where = _live(manager, deletion.topic, each.number)
            directory = os.path.join(manager.path, each.directory)
            try:
                files.rename(where, directory)
            except FileNotFoundError:
                if files.exists(where):
                    raise
                _log.warning("%s: another process has removed this directory", where)
                continue
            renamed.append((where, directory))
            if first_decides and len(renamed) == 1:
                files.sync_directory(manager.path)
        files.sync_directory(manager.path)
    except OSError:
        for where, directory in reversed(renamed):
            files.rename(directory, where)
        raise


def _forget_offsets(manager: Manager, name: str) -> None:
    """Have the checkpoints name the topic no more: another one of that name must not find its
    offsets.
    """
    try:
        manager.checkpoints.forget_lost_starts(name)
        if name in manager.checkpoints.topics():
            manager.start_checkpoint(snapshots=False)()
    except OSError as error:
        # The topic is gone all the same; ``create_topic`` looks for what is left of it.
        _log.warning(
            "%s: checkpoint entries of the deleted topic %r remain: %s", manager.path, name, error
        )


def _live(manager: Manager, topic: str, partition: int) -> str:
    return os.path.join(manager.path, paths.partition_directory(topic, partition))


# -- undeleting ------------------------------------------------------------------------------------


def undelete_topic(manager: Manager, name: str, topic_id: str | None = None) -> Topic:
    """``LogManager.undelete_topic``."""
    manager.settings.check_known()
    entry = _found(manager, name, topic_id)
    deletion = entry.deletion
    manager.topics.check_collisions(name)
    for each in deletion.partitions:
        where = _live(manager, name, each.number)
        if manager.files.exists(where):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where)
        if not manager.files.exists(os.path.join(manager.path, each.directory)):
            raise UnknownTopicOrPartition(
                f"topic {name!r} cannot be undeleted: {each.directory} no longer exists",
                path=manager.path,
            )
    topic = entry.topic or _loaded(manager, entry)
    try:
        # Before the topic can be seen: the checkpoints of a broker's directory alone say what was
        # deleted of a log.
        manager.start_checkpoint(snapshots=False, coming=list(entry.logs.values()))()
        _rename_back(manager, entry)
    except BaseException:
        if entry.topic is None:
            _unload(manager, entry)
        raise
    for log in entry.logs.values():
        if entry.topic is not None:
            log.restore()
        topic.add(log)
    topic.faults.update(entry.faults)
    for each in deletion.partitions:
        if each.cleaned is not None:
            manager.cleaner_offsets[name, each.number] = each.cleaned
    manager.settings.identify(name, topic.id)
    manager.deleted.topics.remove(entry)
    manager.lock.note_change(manager.clock_ms())
    topic.returns += 1
    manager.topics[name] = topic
    manager.topics.changes += 1
    with contextlib.suppress(OSError):
        # It means nothing there.
        first = _live(manager, name, deletion.partitions[0].number)
        manager.files.unlink(deletion_file.path_in(first))
    return topic


def _found(manager: Manager, name: str, topic_id: str | None) -> DeletedTopic:
    """The deleted topic of this name, and id if one is given.

    TopicExists, UnknownTopicOrPartition.
    """
    now_ms = manager.monotonic_ms()
    found = [
        each
        for each in list(manager.deleted.topics)
        if each.deletion.topic == name
        and topic_id in (None, each.deletion.id)
        and each.due_ms > now_ms
    ]
    if name in manager.topics:
        reason = "a topic of this name exists: delete it first" if found else "it exists"
        raise TopicExists(f"topic {name!r} cannot be undeleted: {reason}", path=manager.path)
    if not found:
        what = f"topic {name!r}" if topic_id is None else f"topic {name!r} with id {topic_id}"
        raise UnknownTopicOrPartition(
            f"no deleted {what} found: the files of a deleted topic are removed after "
            "file.delete.delay.ms",
            path=manager.path,
        )
    if len(found) > 1:
        ids = ", ".join(each.deletion.id for each in reversed(found))
        raise TopicExists(
            f"{len(found)} deleted topics have the name {name!r}: choose one by its id (most "
            f"recently deleted first): {ids}",
            path=manager.path,
        )
    return found[0]


def _loaded(manager: Manager, entry: DeletedTopic) -> Topic:
    """Load the logs of a topic, in the directories where they lie.  StorageError, OSError."""
    deletion = entry.deletion
    topic = Topic(deletion.topic, deletion.id)
    first = os.path.join(manager.path, deletion.partitions[0].directory)
    try:
        manager.settings.identify(topic.name, topic.id)
        manager.settings.recall(topic.name, first)
        for each in deletion.partitions:
            try:
                entry.logs[each.number] = _load(manager, topic, each)
            except (StorageError, OSError) as error:
                if not manager.keeps_faulty:
                    raise
                entry.faults[each.number] = fault_line((topic.name, each.number), error)
    except BaseException:
        _unload(manager, entry)
        raise
    return topic


def _load(manager: Manager, topic: Topic, partition: DeletedPartition) -> Log:
    item = (topic.name, partition.number)
    if partition.cleaned is not None:
        manager.checkpoints.cleaned_before[item] = partition.cleaned
    log = manager.loader.load_partition(
        item,
        clean=False,
        recovery_point=partition.recovery_point,
        log_start=partition.log_start,
        now_ms=manager.clock_ms(),
        directory=os.path.join(manager.path, partition.directory),
    )
    manager.loader.compare_end(log, partition.recovery_point or 0)
    if not log.topic_id:
        manager.loader.find_topic_id(log, topic.id)
    return log


def _unload(manager: Manager, entry: DeletedTopic) -> None:
    """Forget what was loaded of a topic that stays deleted."""
    for log in entry.logs.values():
        log.abandon()
        manager.forget_unflushed(log)
    entry.logs.clear()
    entry.faults.clear()
    manager.settings.forget(entry.deletion.topic)


def _rename_back(manager: Manager, entry: DeletedTopic) -> None:
    """Give the directories their names, the first one last.  OSError: none has it."""
    files, (first, *others) = manager.files, entry.deletion.partitions
    moved: list[tuple[str, str, Log | None]] = []

    def move(source: str, target: str, log: Log | None) -> None:
        files.rename(source, target)
        if log is not None:
            log.relocate(target)

    try:
        for each in (*reversed(others), first):
            if moved and each is first:
                files.sync_directory(manager.path)
            source = os.path.join(manager.path, each.directory)
            target = _live(manager, entry.deletion.topic, each.number)
            move(source, target, entry.logs.get(each.number))
            moved.append((source, target, entry.logs.get(each.number)))
        files.sync_directory(manager.path)
    except OSError:
        for source, target, log in reversed(moved):
            move(target, source, log)
        raise
