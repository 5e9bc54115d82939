"""The figures of `stats` as tables: topics, partitions, times, the longest time gaps.

Times are ISO 8601 in UTC; sizes are of keys and values, in bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.spark.jobs.report import JobReport, Table, Value
from storage.record.compression import CODECS

if TYPE_CHECKING:
    from kafkafs.spark.jobs.range_stats import RangeStats

_SHOWN_GAPS = 20


class TopicStats(NamedTuple):
    """The figures of each partition, by topic and number, and the different keys of each topic.

    `is_exact`: the keys are counted, not estimated. `keys` is empty without the option for keys.
    """

    partitions: list[RangeStats]
    log_bytes: dict[tuple[str, int], int]
    keys: dict[str, int]
    is_exact: bool


def fill(report: JobReport, counted: TopicStats) -> None:
    """Put the tables and totals into a report."""
    report.tables = [_topics(counted), _partitions(counted), _times(counted)]
    gaps = _gaps(counted)
    if gaps.rows:
        report.tables.append(gaps)
    records = sum(stats.records for stats in counted.partitions)
    report.figures = {
        "topics": len({stats.topic for stats in counted.partitions}),
        "partitions": len(counted.partitions),
        "records": records,
        "bytes": sum(counted.log_bytes.values()),
        "record_bytes": sum(stats.key_bytes + stats.value_bytes for stats in counted.partitions),
        "batches": sum(sum(stats.batches) for stats in counted.partitions),
        "time_gaps": sum(len(stats.gaps) + stats.more_gaps for stats in counted.partitions),
        "offset_gaps": sum(stats.offset_gaps for stats in counted.partitions),
    }
    if counted.keys:
        report.figures["keys_are_exact"] = counted.is_exact
    gone = sum(stats.gone for stats in counted.partitions)
    if gone:
        report.notes.append(f"retention deleted {gone} offsets before they were read")


def _topics(counted: TopicStats) -> Table:
    from kafkafs.spark.jobs.range_stats import total_of

    table = Table(
        "topics",
        ("topic", "partitions", "records", "bytes", "keys", "no_key", "tombstones", "codecs"),
    )
    topics: dict[str, list[RangeStats]] = {}
    for stats in counted.partitions:
        topics.setdefault(stats.topic, []).append(stats)
    for topic, parts in topics.items():
        total = total_of(topic, parts)
        size = sum(counted.log_bytes[topic, stats.partition] for stats in parts)
        table.rows.append(
            (
                *(topic, len(parts), total.records, size, counted.keys.get(topic)),
                *(total.without_key, total.tombstones, _codecs(total)),
            )
        )
    return table


def _codecs(stats: RangeStats) -> str:
    """The codecs in use and, if there are several, the share of batches of each."""
    total = sum(stats.batches)
    names = [*CODECS, *map(str, range(len(CODECS), len(stats.batches)))]
    used = [(count, name) for name, count in zip(names, stats.batches, strict=True) if count]
    if len(used) == 1:
        return used[0][1]
    return ", ".join(f"{name} {count * 100 / total:.3g}%" for count, name in sorted(used)[::-1])


def _partitions(counted: TopicStats) -> Table:
    table = Table(
        "partitions",
        (
            *("topic", "partition", "records", "bytes", "batches", "size_avg", "size_p50"),
            *("size_p95", "size_max", "offset_gaps", "missing_offsets"),
        ),
    )
    for stats in counted.partitions:
        some = stats.records > 0
        average = (stats.key_bytes + stats.value_bytes) / stats.records if some else None
        table.rows.append(
            (
                *(stats.topic, stats.partition, stats.records),
                *(counted.log_bytes[stats.topic, stats.partition], sum(stats.batches), average),
                *(stats.quantile(part) if some else None for part in (0.5, 0.95, 1.0)),
                *(stats.offset_gaps, stats.missing_offsets),
            )
        )
    return table


def _times(counted: TopicStats) -> Table:
    table = Table(
        "times",
        ("topic", "partition", "oldest", "newest", "records_per_s", "peak_per_s", "peak_at"),
    )
    for stats in counted.partitions:
        span_s = (stats.newest_ms - stats.oldest_ms) / 1000
        timed = stats.records - stats.without_time
        rate: Value = timed / span_s if span_s > 0 else None
        peak, at = stats.peak
        table.rows.append(
            (
                *(stats.topic, stats.partition, _time(stats.oldest_ms), _time(stats.newest_ms)),
                *(rate, peak if at >= 0 else None, _time(at)),
            )
        )
    return table


def _gaps(counted: TopicStats) -> Table:
    """The longest time gaps of all partitions."""
    table = Table("time gaps", ("topic", "partition", "offset", "before", "after", "seconds"))
    gaps = [
        (after - before, stats.topic, stats.partition, offset, before, after)
        for stats in counted.partitions
        for before, after, offset in stats.gaps
    ]
    for length, topic, partition, offset, before, after in sorted(gaps, reverse=True)[:_SHOWN_GAPS]:
        table.rows.append((topic, partition, offset, _time(before), _time(after), length / 1000))
    return table


def _time(time_ms: int) -> str | None:
    """ISO 8601, in UTC, without a fraction; None for no time."""
    if time_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
