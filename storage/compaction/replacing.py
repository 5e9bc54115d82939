"""Replaces segments by their cleaned copies, in one swap.

`prepare`, then `publish`, both on a worker thread; only their `on_log_thread` parts touch the log.
Until `publish` begins nothing has changed, and a restart removes `.cleaned` files.

Not here: writing the new segments (`group_writer`), a swap at a restart (`swap`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from storage import paths
from storage.errors import TaskCancelled
from storage.log.log import Log
from storage.recovery import swap
from storage.segment.segment import Segment
from storage.task import Task, in_chunks


def prepare(log: Log, old: Sequence[Segment], new: Sequence[Segment], task: Task) -> None:
    """Write the history of shown text before the readable segments `new` replace `old`. The log is
    flushed. Errors: TaskCancelled, OSError, StorageError; the log must be left as it is.
    """
    task.begin("replacing", 0)
    # Before the first rename to `.swap`: after it, a restart carries the swap out.
    task.on_log_thread(lambda: log.prepare_replacement(old, new))()


def publish(log: Log, old: Sequence[Segment], new: Sequence[Segment], task: Task) -> None:
    """Let the cleaned segments take the place of the old ones; as `publish_by`."""

    def replace() -> None:
        # (`LogManager.updateTopicConfig` aborts a cleaning then.)
        if not log.config.may_be_cleaned:
            raise TaskCancelled("cleanup.policy no longer includes compact")
        log.replace(old, new, log.monotonic_ms())

    publish_by(replace, log, old, new, task)


def publish_by(
    replace: Callable[[], None],
    log: Log,
    old: Sequence[Segment],
    new: Sequence[Segment],
    task: Task,
) -> None:
    """Let the new segments take the place of the old ones (`LocalLog.replaceSegments`).

    `replace`: changes the log, on its thread. After an error before it nothing has changed, and the
    new files are deleted; after a later one the log has the new segments, and a restart finds them.
    """
    try:
        log.manifest.withdraw(old)
        # After a crash the next start carries the swap out (`swap`).
        swap.decide(log.files, log.directory, new)
        task.on_log_thread(replace)
    except BaseException:
        if new[0] not in log.segments:
            take_back(log, old, new)
        raise
    for some in in_chunks(old):
        task.on_log_thread(partial(log.rename_to_deleted, some))
    log.files.sync_directory(log.directory)
    for segment in new:
        task.on_log_thread(partial(log.finish_replacement, segment))
        # A restart treats segments between two `.swap` files as replaced.
        log.files.sync_directory(log.directory)


def take_back(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Revoke the decision to swap, and remove the files.

    The lowest one becomes `.cleaned` again first: after a crash a start then removes all of them.
    """
    new[0].set_suffix(paths.CLEANED)
    log.files.sync_directory(log.directory)
    for segment in new[1:]:
        segment.discard()
    log.files.sync_directory(log.directory)
    new[0].discard()
    log.end_change(old, new)
    log.manifest.reinstate(old)
    with contextlib.suppress(OSError):
        log.manifest.save()
