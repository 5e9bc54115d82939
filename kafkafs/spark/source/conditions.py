"""The option `where` of a query: what goes with its tasks, and what is logged of it.

A time without a zone is in the session's, which Spark tells tasks, but not who plans them. So the
driver takes its own zone, as a session does that has no other, or that of the option `timeZone`;
and where the option is missing, each task compares the condition with what it means in the
session's zone, before it reads. To tasks of an RDD of the rows Spark tells no setting of SQL's.

Lines for people go to standard error, which Spark takes into the logs of the driver and of the
executors: Python's processes there have no handlers, and do not know Spark's log level.
"""

from __future__ import annotations

import logging
import sys
import time

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.option_values import InvalidOption
from storage.condition.condition import Condition
from storage.split.split_finder import Split

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)

_ZONE = "spark.sql.session.timeZone"
_QUERY = "spark.sql.execution.id"


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
        if context is None:
            return
        name = context.getLocalProperty(_ZONE)
        if name is not None:
            if self._means_the_same(name):
                return
            why, zone = (
                f"the time zone of the session is {name}, that of the driver is another one",
                name,
            )
        elif context.getLocalProperty(_QUERY) is None:
            why, zone = (
                "Spark does not pass the time zone of the session to the tasks of an RDD",
                "the time zone of the session",
            )
        else:
            return  # nobody has set one
        raise InvalidOption(
            f"Option 'where' has a time without a zone: {why}. Set the option 'timeZone' to {zone},"
            " or write the zone: 2026-11-22T08:00Z"
        )

    def _means_the_same(self, name: str) -> bool:
        from storage.condition.literals import zone_named
        from storage.condition.parse import in_zone

        try:
            again = in_zone(self.condition, zone_named(name))
        except ValueError:
            return False
        return again.part == self.condition.part


class ZoneCheck(InputPartition):
    """A task that reads nothing, where a condition has left nothing to read."""

    def __init__(self, where: Where) -> None:
        super().__init__(None)
        self.where = where


def report(split: Split, kept: int, decoded: int) -> None:
    """Say a task's figures in the executor's log: Python's streaming sources have no metrics."""
    say(
        f"{split.topic}-{split.partition} from offset {split.from_offset} to {split.to_offset}: the"
        f" condition holds for {kept} of {decoded} decoded records"
    )


def say(line: str) -> None:
    """Write a line into the log of the driver, or of the executor."""
    if _log.hasHandlers():
        _log.info("%s", line)
    else:
        # In one write: the lines of several processes come together there.
        sys.stderr.write(f"{time.strftime('%y/%m/%d %H:%M:%S')} INFO kafkafs: {line}\n")
