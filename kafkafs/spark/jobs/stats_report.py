"""The figures of `stats` as tables: topics, partitions, times, the longest time gaps.

The size of a record is that of its key and value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.quantities import Size, TimeMs, Value
from kafkafs.spark.jobs.report import JobReport, Table
from storage.plural import plural
from storage.record.compression import CODECS

if TYPE_CHECKING:
    from kafkafs.spark.jobs.range_stats import RangeStats

_SHOWN_GAPS = 20


class TopicStats(NamedTuple):
    """The figures of each partition, by topic and number, and the different keys of each topic.

    `is_exact`: the keys are counted, not estimated. `keys` is empty without the option for keys.
    `is_whole`: the figures cover all records; otherwise the report omits those of the log itself.
    """

    partitions: list[RangeStats]
    log_bytes: dict[tuple[str, int], int]
    keys: dict[str, int]
    is_exact: bool
    is_whole: bool = True


def fill(report: JobReport, counted: TopicStats) -> None:
    """Put the tables and totals into a report."""
    partitions = counted.partitions
    report.tables = [_topics(counted), _partitions(counted), _times(counted)]
    gaps = _gaps(counted)
    if gaps.rows:
        report.tables.append(gaps)
    report.figures = {
        "topics": len({stats.topic for stats in partitions}),
        "partitions": len(partitions),
        "records": sum(stats.records for stats in partitions),
        "bytes": Size(sum(counted.log_bytes.values())),
        "record_bytes": Size(sum(stats.key_bytes + stats.value_bytes for stats in partitions)),
        "batches": sum(sum(stats.batches) for stats in partitions),
        "time_gaps": sum(len(stats.gaps) + stats.more_gaps for stats in partitions),
        "offset_gaps": sum(stats.offset_gaps for stats in partitions),
    }
    if not counted.is_whole:
        for name in ("bytes", "batches", "offset_gaps"):
            del report.figures[name]
    if counted.keys:
        report.figures["keys_are_exact"] = counted.is_exact
    gone = sum(stats.gone for stats in partitions)
    if gone:
        report.notes.append(
            f"retention deleted {gone} {plural(gone, 'offset')} before they were read"
        )


def _topics(counted: TopicStats) -> Table:
    from kafkafs.spark.jobs.range_stats import total_of

    columns = ("topic", "partitions", "records", "bytes", "keys", "no_key", "tombstones", "codecs")
    table = Table("topics", columns)
    # They are in the order of topics.
    for topic, group in groupby(counted.partitions, key=lambda stats: stats.topic):
        parts = list(group)
        total = total_of(topic, parts)
        size: Value = None
        if counted.is_whole:
            size = Size(sum(counted.log_bytes[topic, stats.partition] for stats in parts))
        sizes = (len(parts), total.records, size, counted.keys.get(topic))
        table.rows.append(
            (topic, *sizes, total.without_key, total.tombstones, _codecs(total.batches))
        )
    return table


def _codecs(batches: Sequence[int]) -> str:
    """Return the codecs in use and, if there are several, the share of batches of each."""
    names = [*CODECS, *map(str, range(len(CODECS), len(batches)))]
    used = [(count, name) for name, count in zip(names, batches, strict=True) if count]
    if len(used) == 1:
        return used[0][1]
    shares = ((name, count * 100 / sum(batches)) for count, name in sorted(used)[::-1])
    return ", ".join(f"{name} {share:.3g}%" for name, share in shares)


def _partitions(counted: TopicStats) -> Table:
    sizes = ("size_avg", "size_p50", "size_p95", "size_max")
    columns = ("topic", "partition", "records", "bytes", "batches", *sizes)
    table = Table("partitions", (*columns, "offset_gaps", "missing_offsets"))
    for stats in counted.partitions:
        log_bytes: Value = Size(counted.log_bytes[stats.topic, stats.partition])
        measured: tuple[Value, ...] = (None, None, None, None)
        if stats.records:
            average = round((stats.key_bytes + stats.value_bytes) / stats.records)
            quantiles = map(stats.quantile, (0.5, 0.95, 1.0))
            measured = tuple(map(Size, (average, *quantiles)))
        batches: Value = sum(stats.batches)
        gaps: tuple[Value, ...] = (stats.offset_gaps, stats.missing_offsets)
        if not counted.is_whole:
            log_bytes, batches, gaps = None, None, (None, None)
        counts = (stats.records, log_bytes, batches)
        table.rows.append((stats.topic, stats.partition, *counts, *measured, *gaps))
    return table


def _times(counted: TopicStats) -> Table:
    columns = ("topic", "partition", "oldest", "newest", "records_per_s", "peak_per_s", "peak_at")
    table = Table("times", columns)
    for stats in counted.partitions:
        span_s = (stats.newest_ms - stats.oldest_ms) / 1000
        rate = (stats.records - stats.without_time) / span_s if span_s > 0 else None
        peak, at = stats.peak
        ends = (_time(stats.oldest_ms), _time(stats.newest_ms))
        rates = (rate, peak if at >= 0 else None, _time(at))
        table.rows.append((stats.topic, stats.partition, *ends, *rates))
    return table


def _gaps(counted: TopicStats) -> Table:
    """Return the longest time gaps of all partitions."""
    table = Table("time gaps", ("topic", "partition", "offset", "before", "after", "seconds"))
    gaps = [
        (after - before, stats.topic, stats.partition, offset, before, after)
        for stats in counted.partitions
        for before, after, offset in stats.gaps
    ]
    for length, topic, partition, offset, before, after in sorted(gaps, reverse=True)[:_SHOWN_GAPS]:
        table.rows.append((topic, partition, offset, _time(before), _time(after), length / 1000))
    return table


def _time(time_ms: int) -> TimeMs | None:
    """Return a time as text; None for no time."""
    return TimeMs(time_ms) if time_ms >= 0 else None
