"""A round of cleaning by another process than the owner, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from storage import Log, LogManager
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.staged_round import StagedRound, clean, plan
from storage.compaction.swap_request import SwapRequest
from storage.task import Task

JOB = "compact.test"


def planned(manager: LogManager, log: Log) -> StagedRound:
    """A round that has something to do."""
    now_ms = manager.clock_ms()
    cleanable = LogCleaner(manager).plan(log, now_ms)
    found = plan(log, cleanable, manager.settings.broker, now_ms)
    assert found is not None
    return found


def staged_request(manager: LogManager, log: Log, attempt: int = 0) -> SwapRequest:
    """Clean a log into staged files; returns the request to its owner."""
    return clean(planned(manager, log), manager.files, Task(), job=JOB, attempt=attempt)[1]


def clean_staged(manager: LogManager, log: Log) -> Cleaned:
    """All of a round, swapped in."""
    return LogCleaner(manager).swap_in(staged_request(manager, log), Task())


def staged(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".staged")]
