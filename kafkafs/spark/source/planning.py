"""Makes tasks of ranges of offsets.

The option `where` leaves out partitions, and the offsets that the indexes exclude. Each task gets
the rest of the condition (`conditions`) and compares it in the decoder.

`minPartitions` and `maxRecordsPerPartition` divide ranges first, then the size of splits does.
Offsets whose records were deleted are data loss.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import offsets
from kafkafs.spark.source.conditions import Where, ZoneCheck, log
from kafkafs.spark.source.data_loss import LossPolicy
from kafkafs.spark.source.offsets import OffsetRange, TopicPartition
from kafkafs.spark.source.options import SourceOptions
from kafkafs.spark.source.subscription import SubscribedLogs
from kafkafs.spark.source.task import SplitPartition
from storage.log.log import Log
from storage.split.narrow import bytes_of, few, narrowed
from storage.split.split import plan_splits
from storage.split.split_finder import Split

_log = logging.getLogger(__name__)

# Spark passes `df.limit(n)` to no source. It runs the first task alone then.
_FIRST_BYTES = 1 << 20


def plan_batch(options: SourceOptions) -> list[InputPartition]:
    """Return the tasks of a batch query over the records that exist now.

    Errors: InvalidOption, StorageError, OSError.
    """
    for remark in options.remarks:
        _log.warning("%s", remark)
    subscribed = SubscribedLogs(options)
    try:
        start = subscribed.resolve(options.starting, is_start=True)
        end = subscribed.resolve(options.ending, is_start=False)
        for name in start:
            if start[name] > end[name]:
                raise InvalidOption(
                    f"The resolved start offset {start[name]} is greater than the resolved end "
                    f"offset {end[name]} for topic {name.topic} partition {name.partition}."
                )
        ranges = [OffsetRange(name, start[name], end[name]) for name in end if name in start]
        policy = LossPolicy(options.fail_on_data_loss)
        return plan(
            options, subscribed, ranges, policy, starts_small=options.min_partitions is None
        )
    finally:
        subscribed.close()


def plan(
    options: SourceOptions,
    subscribed: SubscribedLogs,
    ranges: Iterable[OffsetRange],
    policy: LossPolicy,
    *,
    informs: bool = True,
    starts_small: bool = False,
) -> list[InputPartition]:
    """Return the tasks for these ranges, by partition and offset. DataLoss.

    `informs`: log the parts that `where` has left out. `starts_small`: let the first tasks read
    little, for queries that want only the first rows.
    """
    logs, location = subscribed.logs(), subscribed.location
    readable = [
        _readable(each, logs.get(each.partition), subscribed, policy) for each in sorted(ranges)
    ]
    whole = readable
    if options.where is not None:
        readable = []
        for name, start, end in whole:
            if start < end:
                left = options.where.of_partition(*name)
                cache = location.cache_directory(logs[name])
                found = few(narrowed(logs[name], start, end, left, cache))
                readable += [OffsetRange(name, *each) for each in found]
    where = None
    if options.where is not None:
        where = Where(options.where, is_checked=not options.has_zone)
    parts: list[InputPartition] = [
        SplitPartition(location, split, options.fail_on_data_loss, where)
        for split in _splits(options, logs, readable, _FIRST_BYTES if starts_small else None)
    ]
    if where is not None:
        if informs:
            _inform(where, logs, readable, whole, len(parts), options.partition_bytes)
        if not parts and where.needs_check:
            parts.append(ZoneCheck(where))
    return parts


def _inform(
    where: Where,
    logs: Mapping[TopicPartition, Log],
    left: Sequence[OffsetRange],
    whole: Sequence[OffsetRange],
    tasks: int,
    task_bytes: int,
) -> None:
    """Log the part of the ranges that the indexes have left.

    `tasks`: the number of tasks that read this part. `task_bytes`: the most that a task reads.
    """

    def partitions(ranges: Iterable[OffsetRange]) -> int:
        return len({name for name, start, end in ranges if start < end})

    def sizes(ranges: Iterable[OffsetRange]) -> list[int]:
        return [bytes_of(logs[name], start, end) for name, start, end in ranges if start < end]

    all_sizes = sizes(whole)
    everything, some = sum(all_sizes), sum(sizes(left))
    # Planning them all would cost as much as the plan does.
    all_tasks = max(tasks, sum(math.ceil(size / task_bytes) for size in all_sizes))
    log(
        f"where {where.condition.text}: {partitions(left)} of {partitions(whole)} partitions in "
        f"{tasks} of about {all_tasks} tasks; the indexes have skipped about {everything - some} "
        f"of {everything} bytes"
    )


def _splits(
    options: SourceOptions,
    logs: Mapping[TopicPartition, Log],
    ranges: Iterable[OffsetRange],
    first_bytes: int | None,
) -> list[Split]:
    """Return the splits of the ranges. `first_bytes`: the size of the very first split."""
    splits: list[Split] = []
    for name, start, end in offsets.divided(
        ranges, at_least=options.min_partitions, most_records=options.max_records
    ):
        splits += plan_splits(
            logs[name],
            start,
            end,
            target_bytes=options.partition_bytes,
            isolation=options.isolation,
            first_bytes=None if splits else first_bytes,
        )
    return splits


def _readable(
    wanted: OffsetRange, log: Log | None, subscribed: SubscribedLogs, policy: LossPolicy
) -> OffsetRange:
    """Return the readable part of a range, and report the rest as lost."""
    name, start, end = wanted
    if wanted.size <= 0:
        return wanted
    if log is None:
        policy.report_offsets(name, start, end, "the partition was deleted")
        return OffsetRange(name, end, end)
    if start < log.log_start_offset:
        first = min(log.log_start_offset, end)
        policy.report_offsets(name, start, first, f"the log starts at {log.log_start_offset}")
        start = first
    last = subscribed.end(log)
    if end > last:
        first = max(last, start)
        policy.report_offsets(name, first, end, f"the log ends at {last}")
        end = first
    return OffsetRange(name, start, end)
