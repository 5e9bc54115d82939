"""`.control/compaction`: cleans a topic now, or shows what that would do.

`run`, `run N`, `dry-run`, `dry-run N`, `cancel`. A run cleans all dirty segments, however small, in
as many rounds as the offset map needs; retention follows, as after a compaction by the clock. Where
one partition fails, the others are cleaned. Reading then shows the figures of all partitions
together, and a row for each. A topic whose cleanup.policy does not have `compact` is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import CANCEL, DRY_RUN, RUN
from kafkafs.tree.control.job_file import JobFile
from kafkafs.tree.control.retention import delete_old
from kafkafs.tree.files.text_file import text_table
from kafkafs.tree.jobs import JobKind, JobResult
from storage.compaction.cleaner import Cleaned
from storage.errors import StorageError, TaskCancelled
from storage.log.log import Log
from storage.manager import Topic
from storage.settings.config import format_value
from storage.task import Task

KIND = JobKind("compaction", runs_alone=True, is_long=True)
_COLUMNS = (
    ("partition", 10),
    ("first_dirty", 20),
    ("clean_up_to", 20),
    ("segments_before", 15),
    ("segments_after", 15),
    ("bytes_before", 20),
    ("bytes_after", 20),
    ("records_read", 20),
    ("records_kept", 20),
)
# Facts and columns by name: fields of `Cleaned`, where they have another name.
_FIELDS = {
    "first_dirty": "first_dirty_offset",
    "clean_up_to": "end_offset",
    "dropped_superseded": "records_superseded",
    "dropped_without_key": "records_invalid",
    "dropped_aborted": "records_aborted",
    "dropped_markers": "markers",
}
_TOTALS = (
    *("segments_before", "segments_after", "bytes_before", "bytes_after"),
    *("records_read", "records_kept", "records_dropped"),
    *("dropped_superseded", "dropped_without_key", "dropped_aborted", "dropped_markers"),
    "map_keys",
)


def _check(mount: MountContext, topic: Topic) -> None:
    """EPERM, EINVAL where the topic's settings do not allow a compaction."""
    settings = mount.manager.settings
    why_no_deletion = settings.why_no_deletion(topic.name)
    if why_no_deletion is not None:
        raise OSError(errno.EPERM, why_no_deletion)
    config = settings.log_config(topic.name)
    if not config.is_compacted:
        policy = format_value(config.cleanup_policy)
        raise OSError(errno.EINVAL, f"cleanup.policy is {policy}, which does not include compact")


def clean(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    """Clean logs of one topic."""
    cleaner = mount.cleaner
    rounds: list[tuple[Log, Cleaned]] = []
    fault: Exception | None = None
    for log in logs:
        try:
            rounds += [(log, cleaned) for cleaned in cleaner.clean_all(log, task)]
        except TaskCancelled:
            raise
        except (StorageError, OSError) as error:
            fault = fault or error
        else:
            # It can be, whatever was wrong when it could not.
            cleaner.note_cleaned(log)
    return _result_of(rounds)._replace(fault=fault)


def _clean_and_retain(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    """Clean and apply retention; the job fails if damage keeps a part of a log uncleaned."""
    result = clean(mount, logs, task)
    damages = filter(None, map(mount.cleaner.damage_of, logs))
    result = result._replace(fault=result.fault or next(damages, None))
    retained = delete_old(mount, logs, task)
    if retained.idle and retained.fault is None:
        return result
    facts = [(f"deleted_{name}", value) for name, value in retained.facts]
    return result._replace(facts=[*result.facts, *facts], fault=result.fault or retained.fault)


def _preview(mount: MountContext, logs: Sequence[Log], task: Task) -> JobResult:
    preview = mount.cleaner.preview
    return _result_of(
        [(log, cleaned) for log in logs if (cleaned := preview(log, task)) is not None]
    )


def _value(cleaned: Cleaned, name: str) -> int:
    value: int = getattr(cleaned, _FIELDS.get(name, name))
    return value


def totals_of(rounds: Sequence[Cleaned]) -> dict[str, int]:
    """The figures of rounds together, by the names of facts."""
    return {name: sum(_value(cleaned, name) for cleaned in rounds) for name in _TOTALS}


def _result_of(rounds: Sequence[tuple[Log, Cleaned]]) -> JobResult:
    """The figures of rounds of cleaning."""
    facts: list[tuple[str, object]] = [
        ("partitions", len({log for log, _ in rounds})),
        ("rounds", len(rounds)),
        *totals_of([cleaned for _, cleaned in rounds]).items(),
        ("map_full", str(any(cleaned.map_full for _, cleaned in rounds)).lower()),
        ("elapsed_ms", sum(cleaned.elapsed_ms for _, cleaned in rounds)),
    ]
    columns = [name for name, _ in _COLUMNS[1:]]
    rows = [
        (log.partition, *(_value(cleaned, name) for name in columns)) for log, cleaned in rounds
    ]
    return JobResult(facts, text_table(_COLUMNS, rows), idle=not rounds)


def bytes_per_second(mount: MountContext) -> float:
    """How fast a cleaner may go through a log."""
    return mount.manager.settings.broker.log_cleaner_io_max_bytes_per_second


def _uncleanable(mount: MountContext, topic: Topic) -> list[tuple[str, object]]:
    """The partitions whose last cleaning has failed."""
    return [
        ("uncleanable", f"{log.partition} {why}")
        for log, why in sorted(
            mount.cleaner.uncleanable.items(), key=lambda item: item[0].partition
        )
        if topic.partitions.get(log.partition) is log
    ]


COMPACTION = JobFile(
    KIND,
    {RUN: _clean_and_retain, DRY_RUN: _preview, CANCEL: None},
    check=_check,
    rate=bytes_per_second,
    facts=_uncleanable,
)
