"""Counts records, bytes, batches, codecs, rates, sizes, keys and gaps of topics.

A task reads a split once, counts its figures (`range_stats`) and passes on its different keys.
Spark counts the hashes of the keys. The driver adds the figures up in the order of offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.quantities import Size, Value
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport
from kafkafs.spark.jobs.selection import EVERYTHING, Selection
from kafkafs.spark.jobs.splits import all_splits
from kafkafs.spark.jobs.stats_report import TopicStats, fill
from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.location import Location
from storage.errors import OffsetOutOfRange
from storage.files import Files
from storage.split.split_finder import Split
from storage.split.split_reader import Wanted, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkafs.spark.jobs.range_stats import RangeStats
    from storage.condition.condition import Condition
    from storage.log.read import Isolation

#: The job counts a topic's different keys exactly up to this sum of the keys of its splits.
EXACT_KEYS = 20_000_000
_RELATIVE_ERROR = 0.01
_KEYS_AT_ONCE = 65536
_SCHEMA = "topic string, stats string, key binary"


class StatsOptions(NamedTuple):
    """The options of the job. `gap_ms`: the shortest time gap. `keys`: count different keys.

    `where`: count only the records that meet the condition; its times without a zone are in the
    session's. Time gaps are then between these records. The bytes, batches, codecs and offset gaps
    of the log are not reported.
    """

    selection: Selection = EVERYTHING
    gap_ms: int = 3_600_000
    keys: bool = True
    isolation: Isolation = "read_committed"
    where: Condition | None = None


ALL = StatsOptions()


def run(
    session: SparkSession, path: str, options: StatsOptions = ALL, *, chart: str | None = None
) -> JobReport:
    """Count the records of a data directory, and draw them into the file `chart` (.png, .svg).

    Errors: OSError, StorageError; Spark's error if a task cannot read.
    """
    check(path, options, chart)
    counted = count(session, path, options)
    report = JobReport("stats")
    fill(report, counted)
    if chart is not None:
        from kafkafs.spark.jobs import chart as charts

        charts.draw(counted, chart)
        report.notes.append(f"chart: {chart}")
    return report


def check(path: str, options: StatsOptions, chart: str | None) -> None:
    """Check the arguments of `run`, without Spark. Errors: those of `run`."""
    options.selection.location_of(path)
    if chart is not None:
        from kafkafs.spark.jobs import chart as charts

        charts.check(chart)


def plan(path: str, options: StatsOptions = ALL) -> JobReport:
    """Return a report of what `run` would read, without Spark. OSError, StorageError."""
    with _opened(path, options) as opened:
        logs = options.selection.logs(opened.manager)
        splits = all_splits(opened.location, logs, 1, options.isolation, options.where)
    figures: dict[str, Value] = {
        "partitions": len(logs),
        "offsets": sum(split.to_offset - split.from_offset for split in splits),
        "bytes": Size(sum(split.size for split in splits)),
    }
    return JobReport("stats", is_dry_run=True, figures=figures)


def count(session: SparkSession, path: str, options: StatsOptions) -> TopicStats:
    """Return the figures of each partition, without a report. Errors: those of `run`."""
    from kafkafs.spark.jobs.range_stats import RangeStats

    options = in_zone_of(options, str(session.conf.get("spark.sql.session.timeZone")))
    with _opened(path, options) as opened:
        logs = options.selection.logs(opened.manager)
        slots = session.sparkContext.defaultParallelism
        splits = all_splits(opened.location, logs, slots, options.isolation, options.where)
        log_bytes = {(log.topic, log.partition): log.size for log in logs}
        starts = {(log.topic, log.partition): log.log_start_offset for log in logs}
    totals = {key: RangeStats(*key, start, start) for key, start in starts.items()}
    if not splits:
        return TopicStats(list(totals.values()), log_bytes, {}, True, options.where is None)
    with working(session, "counting") as progress:
        task = partial(_count_splits, opened.location, splits, options)
        rows = session.range(0, len(splits), 1, len(splits)).mapInArrow(task, _SCHEMA)
        if options.keys:
            rows = _with_hashes(rows).persist()
        try:
            counted = rows.where("stats is not null").select("stats").collect()
            found = [RangeStats.decode(row.stats) for row in counted]
            progress.what = "counting keys"
            is_exact = sum(stats.keys for stats in found) <= EXACT_KEYS
            keys = _different_keys(rows, found, is_exact=is_exact) if options.keys else {}
        finally:
            if options.keys:
                rows.unpersist()
    for stats in sorted(found, key=lambda stats: (stats.topic, stats.partition, stats.from_offset)):
        totals[stats.topic, stats.partition].add(stats, options.gap_ms)
    is_whole = options.where is None
    return TopicStats(list(totals.values()), log_bytes, keys, is_exact, is_whole)


def in_zone_of(options: StatsOptions, name: str) -> StatsOptions:
    """Return the options with the condition's times without a zone in the session's zone."""
    if options.where is None or not options.where.is_local:
        return options
    from storage.condition.literals import zone_named
    from storage.condition.parse import in_zone

    return options._replace(where=in_zone(options.where, zone_named(name)))


def _opened(path: str, options: StatsOptions) -> FollowedDirectory:
    return FollowedDirectory(options.selection.location_of(path), options.selection.wants_topic)


def _with_hashes(rows: DataFrame) -> DataFrame:
    """Return the rows with 64-bit hashes instead of keys."""
    from pyspark.sql import functions as sql

    key = sql.when(sql.col("key").isNotNull(), sql.xxhash64("key")).alias("key")
    return rows.select("topic", "stats", key)


def _different_keys(rows: DataFrame, found: list[RangeStats], *, is_exact: bool) -> dict[str, int]:
    from pyspark.sql import functions as sql

    keys: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    for stats in found:
        keys[stats.topic] += stats.keys
        splits[stats.topic] += stats.keys > 0
    if max(splits.values()) > 1:
        count = (
            sql.count_distinct("key")
            if is_exact
            else sql.approx_count_distinct("key", _RELATIVE_ERROR)
        )
        grouped = rows.where("key is not null").groupBy("topic").agg(count.alias("keys"))
        for row in grouped.collect():
            # The keys of a single split are already exact.
            if splits[row.topic] > 1:
                keys[row.topic] = row.keys
    return dict(keys)


# -- in a task -----------------------------------------------------------------------------------


def _count_splits(
    where: Location, splits: list[Split], options: StatsOptions, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield a row of figures for each split, and one for each of its keys."""
    import pyarrow as pa

    schema = pa.schema({"topic": pa.string(), "stats": pa.string(), "key": pa.binary()})
    files = where.files()
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            split = splits[number]
            stats, keys = _count_split(files, split, options)
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                some = keys[start : start + _KEYS_AT_ONCE]
                columns = [pa.repeat(split.topic, len(some)), pa.nulls(len(some), "string"), some]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            row = {"topic": split.topic, "stats": stats.encode()}
            yield pa.RecordBatch.from_pylist([row], schema=schema)


def _count_split(files: Files, split: Split, options: StatsOptions) -> tuple[RangeStats, pa.Array]:
    """Return the figures and the different keys of a split. CorruptRecord, OSError."""
    import pyarrow as pa
    import pyarrow.compute

    from kafkafs.spark.jobs.range_stats import RangeStats
    from kafkafs.spark.source.rows import bytes_array

    stats = RangeStats(split.topic, split.partition, split.from_offset, split.to_offset)
    wanted = Wanted(headers=False, timestamp_types=False)
    keys: list[pa.Array] = [pa.array([], pa.binary())]
    predicate = None
    if options.where is not None:
        predicate = options.where.of_partition(split.topic, split.partition).predicate()
    while split.from_offset < split.to_offset:
        try:
            for columns in read_split(files, split, wanted, predicate=predicate):
                if predicate is None:
                    counts = zip(stats.batches, columns.batches, strict=True)
                    stats.batches = [count + more for count, more in counts]
                if not columns.rows:
                    continue
                stats.count(columns, options.gap_ms)
                assert columns.keys is not None
                if options.keys and columns.keys.nulls < columns.rows:
                    array = bytes_array(pa.binary(), columns.rows, columns.keys)
                    keys.append(pa.compute.unique(array.drop_null()))
            break
        except OffsetOutOfRange as error:
            # Retention has deleted the start of the split: count the rest.
            start = min(error.log_start, split.to_offset)
            if start <= split.from_offset:
                raise
            stats.gone += start - split.from_offset
            split = split._replace(from_offset=start)
    different = pa.compute.unique(pa.concat_arrays(keys))
    stats.keys = len(different)
    return stats, different
