"""Divides the records of logs into splits for a job's tasks."""

from __future__ import annotations

from kafkafs.spark.location.location import Location
from storage.condition.condition import Condition
from storage.log.log import Log
from storage.log.read import Isolation
from storage.split.narrow import few, narrowed
from storage.split.split import plan_splits
from storage.split.split_finder import Split

LARGEST = 128 << 20
SMALLEST = 8 << 20
#: The number of splits for each of Spark's slots: enough that no slot waits long for the last one.
A_SLOT = 4


def fair_bytes(total: int, slots: int) -> int:
    """Return the bytes that a task reads, so that the tasks in all slots end about together."""
    return min(max(total // max(slots * A_SLOT, 1), SMALLEST), LARGEST)


def all_splits(
    location: Location,
    logs: list[Log],
    slots: int,
    isolation: Isolation,
    where: Condition | None = None,
) -> list[Split]:
    """Return splits of all records that `isolation` shows, by topic, partition and offset.

    `where`: leave out the records that cannot meet it.
    """
    target_bytes = fair_bytes(sum(log.size for log in logs), slots)
    splits = []
    for log in logs:
        committed = isolation == "read_committed"
        end = log.last_stable_offset if committed else log.high_watermark
        ranges = [(log.log_start_offset, end)]
        if where is not None:
            left = where.of_partition(log.topic, log.partition)
            cache = location.cache_directory(log)
            ranges = few(narrowed(log, log.log_start_offset, end, left, cache))
        for start, behind in ranges:
            splits += plan_splits(
                log, start, behind, target_bytes=target_bytes, isolation=isolation
            )
    return splits
