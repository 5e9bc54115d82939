"""The option `where` of a query, in its tasks.

A time without a zone is in the session's zone. Spark passes this zone to tasks, but not to the
process that plans them. So the plan uses the option `timeZone`, else the zone of the driver, which
is the default of a session. Without the option, each task first parses the condition again in the
session's zone, and compares. To tasks of an RDD of the rows Spark passes no setting of SQL.

Spark passes its log level to no Python process. The figures of a condition are logged with level
INFO, which Python does not print. Spark records them if the session has
`spark.sql.pyspark.worker.logging.enabled`.
"""

from __future__ import annotations

import logging

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
        """Raise InvalidOption if the session's time zone gives the condition another meaning."""
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
                f"the time zone of the session is {name}, and the driver has another one",
                name,
            )
        elif context.getLocalProperty(_QUERY) is None:
            why, zone = (
                "Spark does not pass the time zone of the session to the tasks of an RDD",
                "the time zone of the session",
            )
        else:
            return  # the session has no zone of its own
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
    """A task that only checks the zone: the condition excludes all records."""

    def __init__(self, where: Where) -> None:
        super().__init__(None)
        self.where = where


def log_task(split: Split, kept: int, decoded: int) -> None:
    """Log a task's figures: Python's streaming sources have no metrics."""
    log(
        f"{split.topic}-{split.partition} from offset {split.from_offset} to {split.to_offset}: the"
        f" condition holds for {kept} of {decoded} decoded records"
    )


def log(line: str) -> None:
    """Log a line with level INFO."""
    _log.info("%s", line)
