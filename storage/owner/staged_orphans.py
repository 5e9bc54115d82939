"""Removes orphans: staged files that no request will name any more.

A killed task, or one whose result was not used, leaves its staged file. Only its age distinguishes
it from the file of a running job: a file that was written `kafkafs.staged.retention.ms` ago is an
orphan (-1: never). If the tasks of a job take longer than that, its files are deleted, and its
request is refused.

Only names of `staged.parse_name` are removed, and no file that an active request names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from storage.adopt.staged import parse_name
from storage.log.log import Log
from storage.manager import LogManager
from storage.plural import counted
from storage.task import Task

UnderWay = Callable[[str, int, str], bool]
"""Whether an active request names the staged file (topic, partition, name)."""


class Removed(NamedTuple):
    """The deleted files; `size` in bytes."""

    files: int = 0
    size: int = 0

    def __str__(self) -> str:
        files = counted(self.files, "staged file")
        return f"removed {files} that no request named, {self.size} bytes"


def remove_orphans(manager: LogManager, task: Task, under_way: UnderWay) -> Removed:
    """Delete the orphans of all partitions. Runs on a worker thread; `under_way` is the owner's.

    Errors: OSError from the disk, after the other partitions; TaskCancelled.
    """
    retention_ms = manager.settings.broker.kafkafs_staged_retention_ms
    if retention_ms < 0:
        return Removed()
    before_ns = (manager.clock_ms() - retention_ms) * 1_000_000
    files = size = 0
    failure: OSError | None = None
    for log in list(manager.logs()):
        task.check()
        if log.read_only:
            continue
        try:
            for path, age_size in _old(log, before_ns):
                name = os.path.basename(path)
                if not task.on_log_thread(partial(_is_kept, log, name, under_way)):
                    log.files.unlink(path)
                    files += 1
                    size += age_size
        except FileNotFoundError:
            continue  # the topic is being deleted, or the file was deleted
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return Removed(files, size)


def _is_kept(log: Log, name: str, under_way: UnderWay) -> bool:
    return log.closed or under_way(log.topic, log.partition, name)


def _old(log: Log, before_ns: int) -> list[tuple[str, int]]:
    """Return (path, size) of a partition's staged files that were written before that time."""
    found = []
    for name, kind in log.files.listing(log.directory):
        if parse_name(name) is None or kind == "directory":
            continue
        path = os.path.join(log.directory, name)
        with contextlib.suppress(FileNotFoundError):
            status = log.files.file_stat(path)
            if status.st_mtime_ns < before_ns:
                found.append((path, status.st_size))
    return found
