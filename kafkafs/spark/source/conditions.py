"""The option `where` of a query: what goes with its tasks, and what is logged of it.

A time without a zone is in the session's, which Spark tells tasks, but not who plans them. So the
driver takes its own zone, as a session does that has no other, or that of the option `timeZone`;
and where the option is missing, each task compares the condition with what it means in the
session's zone, before it reads.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.option_values import InvalidOption
from storage.condition.condition import Condition
from storage.split.split import Split

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)

_ZONE = "spark.sql.session.timeZone"


class Where:
    """A condition for tasks. `is_checked`: they compare its zone with the session's."""

    def __init__(self, condition: Condition, *, is_checked: bool) -> None:
        self.condition = condition
        self.needs_check = is_checked and condition.is_local

    def check_zone(self) -> None:
        """InvalidOption where the condition means something else in the session's time zone."""
        if not self.needs_check:
            return
        from pyspark import TaskContext

        context = TaskContext.get()
        name = None if context is None else context.getLocalProperty(_ZONE)
        if name is not None and not self._means_the_same(name):
            raise InvalidOption(
                f"Option 'where' has a time without a zone: the session's is {name}, which the "
                f"driver's is not. Set the option 'timeZone' to {name}, or write the zone: "
                "2026-11-22T08:00Z"
            )

    def _means_the_same(self, name: str) -> bool:
        from storage.condition.literals import zone_named
        from storage.condition.parse import parse

        try:
            again = parse(self.condition.text, zone=zone_named(name), now_ms=self.condition.now_ms)
        except ValueError:
            return False
        return again.part == self.condition.part


class ZoneCheck(InputPartition):
    """A task that reads nothing, where a condition has left nothing to read."""

    def __init__(self, where: Where) -> None:
        super().__init__(None)
        self.where = where


def inform(where: Where, planned: Sequence[Split], whole: Sequence[Split]) -> None:
    """Log what the indexes have left out of all splits."""

    def partitions(splits: Sequence[Split]) -> int:
        return len({(split.topic, split.partition) for split in splits})

    left, size = (sum(split.size for split in splits) for splits in (planned, whole))
    line = (
        f"where {where.condition.text}: {partitions(planned)} of {partitions(whole)} partitions, "
        f"{len(planned)} of {len(whole)} splits; the indexes have skipped {max(size - left, 0)} of "
        f"{size} bytes"
    )
    if _log.hasHandlers():
        _log.info("%s", line)
    else:
        # Spark takes standard error of the process that plans into the driver's log.
        print(f"{time.strftime('%y/%m/%d %H:%M:%S')} INFO kafkafs: {line}", file=sys.stderr)


def report(split: Split, kept: int, decoded: int) -> None:
    """Log a task's figures where the executor logs at all: Python's streaming sources have no
    metrics.
    """
    _log.info(
        "%s-%s from offset %s to %s: the condition holds for %s of %s decoded records",
        *(split.topic, split.partition, split.from_offset, split.to_offset, kept, decoded),
    )
