"""Replaces segments by their cleaned copies, in one swap.

`finish_last` before a `.cleaned` file is written, then `prepare` and `publish`, all on a worker
thread; only their `on_log_thread` parts touch the log. Until `publish` begins nothing has changed,
and a restart removes `.cleaned` files.

Not here: writing the new segments (`group_writer`), a swap at a restart (`swap`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from storage.errors import TaskCancelled
from storage.log.log import Log, Replacement
from storage.recovery import swap
from storage.segment.segment import Segment
from storage.task import Task, in_chunks


def finish_last(log: Log, task: Task) -> None:
    """Finish or take back the last swap if an error has interrupted it, and remove `.cleaned` files
    that could not be removed.

    A start would mistake the files of two swaps in one directory for one. Errors: OSError,
    TaskCancelled; no other swap may begin.
    """
    last = log.replacement
    if last is None:
        assert not any(each.suffix for each in log.segments)
        swap.undo(log.files, log.directory)
    elif last.is_done:
        _finish(log, last, task)
    else:
        _take_back(log, last)


def finish_swap(log: Log, task: Task) -> None:
    """Finish the last swap of a log, if an error has interrupted it: the settings may allow no
    other one. Runs on a worker thread. Errors: as `finish_last`.
    """

    def begin() -> bool:
        is_due = log.replacement is not None and not (log.closed or log.cleaning)
        log.cleaning = log.cleaning or is_due
        return is_due

    def end() -> None:
        log.cleaning = False

    if task.on_log_thread(begin):
        try:
            finish_last(log, task)
        finally:
            task.on_log_thread(end)


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
    If the disk does not allow that, `finish_last` completes it.
    """
    log.replacement = Replacement(old, new, is_done=False)
    try:
        log.manifest.withdraw(old)
        # After a crash the next start carries the swap out (`swap`).
        swap.decide(log.files, log.directory, new)
        task.on_log_thread(replace)
    except BaseException:
        log.replacement = Replacement(old, new, is_done=new[0] in log.segments)
        if not log.replacement.is_done:
            _take_back(log, log.replacement)
        raise
    log.replacement = Replacement(old, new, is_done=True)
    _finish(log, log.replacement, task)


def _finish(log: Log, last: Replacement, task: Task) -> None:
    """Rename the files of a swap that the log has carried out, also if some of them are renamed."""
    for some in in_chunks([segment for segment in last.old if not segment.deleted]):
        task.on_log_thread(partial(log.rename_to_deleted, some))
    log.files.sync_directory(log.directory)
    for segment in last.new:
        task.on_log_thread(partial(log.finish_replacement, segment))
        # A restart treats segments between two `.swap` files as replaced.
        log.files.sync_directory(log.directory)
    log.replacement = None


def _take_back(log: Log, last: Replacement) -> None:
    """Revoke the decision to swap, and remove the files."""
    for each in last.new:
        each.let_go()
    swap.undo(log.files, log.directory)
    log.replacement = None
    log.end_change(last.old, last.new)
    log.give_up_repack()
    log.manifest.reinstate(last.old)
    with contextlib.suppress(OSError):
        log.manifest.save()
