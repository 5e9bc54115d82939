"""How cleaned segments take the place of those that they were made of: in one swap.

`prepare`, then `publish`, both in a worker thread; only their `on_log_thread` parts touch the log.
Until `publish` begins nothing has changed, and a restart removes what is `.cleaned`.

Not here: how the new segments are made (`group_writer`), what a restart does with a swap (`swap`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from storage import paths
from storage.errors import TaskCancelled
from storage.log.log import Log, in_turns
from storage.recovery import swap
from storage.segment.segment import Segment
from storage.task import Task


def prepare(log: Log, old: Sequence[Segment], new: Sequence[Segment], task: Task) -> None:
    """Make durable what has to be before `new`, which can be read, replaces `old`.

    Errors: TaskCancelled, OSError, StorageError: the log must be left as it is.
    """
    task.begin("replacing", 0)
    # A record may go for a later one that is not durable yet.
    log.flush(task.on_log_thread)
    # Before any name says `.swap`: from then on a restart carries it out.
    task.on_log_thread(lambda: log.prepare_replacement(old, new))()


def publish(log: Log, old: Sequence[Segment], new: Sequence[Segment], task: Task) -> None:
    """Let the new segments take the place of the old ones (`LocalLog.replaceSegments`).

    An error before `replace` is done leaves all as it was, and the new files are gone; after a
    later one the log has the new segments, and a restart finds them.
    """

    def replace() -> None:
        # (`LogManager.updateTopicConfig` aborts a cleaning then.)
        if not log.config.may_be_cleaned:
            raise TaskCancelled("cleanup.policy no longer includes compact")
        log.replace(old, new, log.monotonic_ms())

    decide(log, old, new)
    try:
        task.on_log_thread(replace)
    except BaseException:
        if new[0] not in log.segments:
            take_back(log, old, new)
        raise
    for some in in_turns(old):
        task.on_log_thread(partial(log.mark_detached, some))
    log.files.sync_directory(log.directory)
    for segment in new:
        task.on_log_thread(partial(log.finish_replacement, segment))
        # A restart takes what it finds between two that are still `.swap` for replaced.
        log.files.sync_directory(log.directory)


def decide(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Decide that `new`, durable `.cleaned` segments, replace `old`, all in their range.

    After a crash the next start carries it out (`swap`); the caller must `Log.replace` or
    `take_back`. Any thread; waits for the disk. Errors: OSError: nothing is decided then.
    """
    try:
        log.book.let_go(old)
        swap.decide(log.files, log.directory, new)
    except OSError:
        take_back(log, old, new)
        raise


def take_back(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Take back `decide`, and remove the files. Any thread; waits for the disk.

    The lowest one becomes `.cleaned` again first: with that a crash removes all of them.
    """
    new[0].set_suffix(paths.CLEANED)
    log.files.sync_directory(log.directory)
    for segment in new[1:]:
        segment.discard()
    log.files.sync_directory(log.directory)
    new[0].discard()
    log.end_change(old, new)
    log.book.keep(old)
    with contextlib.suppress(OSError):
        log.book.save()
