"""What is in topics: records, bytes, batches, codecs, rates, sizes, keys, gaps.

Each task counts the figures of some splits (`facts`), while it reads them once, and hands on the
different keys of each, which Spark counts by their hashes.  The figures are put together here, in
the order of offsets.

Not here: the tables (`stats_report`), the picture (`chart`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.spark.jobs.choice import EVERYTHING, Choice
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import Report
from kafkafs.spark.jobs.splits import all_splits, chosen_logs
from kafkafs.spark.jobs.stats_report import Counted, fill
from storage.errors import OffsetOutOfRange
from storage.files import Files
from storage.split.split import Split, Wanted, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kafkafs.spark.jobs.facts import Facts
    from kafkafs.spark.place.opened import Place
    from storage.log.read import Isolation
    from storage.record.columns._columns import Columns

#: Up to so many keys, each split's counted for itself, the different ones are counted exactly.
EXACT_KEYS = 20_000_000
_RELATIVE_ERROR = 0.01
_KEYS_AT_ONCE = 65536
_SCHEMA = "topic string, facts string, key binary"


class Wishes(NamedTuple):
    """What is to be counted.  `gap_ms`: the shortest time gap; `keys`: whether to count those."""

    choice: Choice = EVERYTHING
    gap_ms: int = 3_600_000
    keys: bool = True
    isolation: Isolation = "read_committed"


def run(
    session: SparkSession,
    path: str,
    wishes: Wishes = Wishes(),  # noqa: B008 - it is immutable
    *,
    chart: str | None = None,
) -> Report:
    """Count what is in a data directory; `chart`: a file (.png, .svg) for a picture of it.

    OSError, StorageError; what Spark raises where a task cannot read.
    """
    check(path, wishes, chart)
    counted = count(session, path, wishes)
    report = Report("stats")
    fill(report, counted)
    if chart is not None:
        from kafkafs.spark.jobs import chart as charts

        charts.draw(counted, chart)
        report.notes.append(f"chart: {chart}")
    return report


def check(path: str, wishes: Wishes, chart: str | None) -> None:
    """What can be known of a run before Spark is there.  As `run`."""
    wishes.choice.place_of(path)
    if chart is not None:
        from kafkafs.spark.jobs import chart as charts

        charts.check(chart)


def plan(path: str, wishes: Wishes = Wishes()) -> Report:  # noqa: B008
    """What `run` would read, without Spark.  OSError, StorageError."""
    from kafkafs.spark.place.opened import Opened

    where = wishes.choice.place_of(path)
    with Opened(where, wishes.choice.wants_topic) as opened:
        logs = chosen_logs(opened, wishes.choice)
        splits = all_splits(logs, 1, wishes.isolation)
        report = Report("stats", is_dry_run=True)
        report.figures = {
            "partitions": len(logs),
            "offsets": sum(split.to_offset - split.from_offset for split in splits),
            "bytes": sum(split.size for split in splits),
        }
        return report


def count(session: SparkSession, path: str, wishes: Wishes) -> Counted:
    """Count, and tell nobody."""
    from kafkafs.spark.jobs.facts import Facts
    from kafkafs.spark.place.opened import Opened

    where = wishes.choice.place_of(path)
    with Opened(where, wishes.choice.wants_topic) as opened:
        logs = chosen_logs(opened, wishes.choice)
        slots = session.sparkContext.defaultParallelism
        splits = all_splits(logs, slots, wishes.isolation)
        log_bytes = {(log.topic, log.partition): log.size for log in logs}
        starts = {(log.topic, log.partition): log.log_start_offset for log in logs}
    parts = {place: Facts(*place, start, start) for place, start in starts.items()}
    found, keys, is_exact = _counted(session, where, splits, wishes) if splits else ([], {}, True)
    for facts in sorted(found, key=lambda facts: (facts.topic, facts.partition, facts.from_offset)):
        parts[facts.topic, facts.partition].add(facts, wishes.gap_ms)
    return Counted(list(parts.values()), log_bytes, keys, is_exact)


def _counted(
    session: SparkSession, where: Place, splits: list[Split], wishes: Wishes
) -> tuple[list[Facts], dict[str, int], bool]:
    """The figures of each split, and the different keys of each topic."""
    from pyspark.sql import functions as sql

    from kafkafs.spark.jobs.facts import Facts

    with working(session, "counting") as work:
        task = partial(_count_splits, where, splits, wishes)
        rows = session.range(0, len(splits), 1, len(splits)).mapInArrow(task, _SCHEMA)
        key = sql.when(sql.col("key").isNotNull(), sql.xxhash64("key")).alias("key")
        rows = rows.select("topic", "facts", key)
        if wishes.keys:
            rows.persist()
        try:
            told = rows.where("facts is not null").select("facts").collect()
            found = [Facts.decode(row.facts) for row in told]
            if not wishes.keys:
                return found, {}, True
            work.say("counting keys")
            is_exact = sum(facts.keys for facts in found) <= EXACT_KEYS
            return found, _different_keys(rows, found, is_exact=is_exact), is_exact
        finally:
            if wishes.keys:
                rows.unpersist()


def _different_keys(rows: DataFrame, found: list[Facts], *, is_exact: bool) -> dict[str, int]:
    from pyspark.sql import functions as sql

    keys: dict[str, int] = {}
    parts: dict[str, int] = {}
    for facts in found:
        keys[facts.topic] = keys.get(facts.topic, 0) + facts.keys
        parts[facts.topic] = parts.get(facts.topic, 0) + (facts.keys > 0)
    if max(parts.values()) > 1:
        count = (
            sql.count_distinct("key")
            if is_exact
            else sql.approx_count_distinct("key", _RELATIVE_ERROR)
        )
        grouped = rows.where("key is not null").groupBy("topic").agg(count.alias("keys"))
        for row in grouped.collect():
            # What one task has counted is exact.
            if parts[row.topic] > 1:
                keys[row.topic] = row.keys
    return keys


# -- in a task -----------------------------------------------------------------------------------


def _count_splits(
    where: Place, splits: list[Split], wishes: Wishes, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A row of figures for each split, and one for each of its keys."""
    import pyarrow as pa

    schema = pa.schema([("topic", pa.string()), ("facts", pa.string()), ("key", pa.binary())])
    files = where.files()
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            split = splits[number]
            facts, keys = _count_split(files, split, wishes)
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                some = keys[start : start + _KEYS_AT_ONCE]
                topics = pa.repeat(pa.scalar(split.topic, pa.string()), len(some))
                columns = [topics, pa.nulls(len(some), pa.string()), some]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            columns = [
                pa.array([split.topic]),
                pa.array([facts.encode()]),
                pa.nulls(1, pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _count_split(files: Files, split: Split, wishes: Wishes) -> tuple[Facts, pa.Array]:
    """The figures and the different keys of a split.  CorruptRecord, OSError."""
    import pyarrow as pa
    import pyarrow.compute

    from kafkafs.spark.jobs.facts import Facts
    from storage.record._census import Census

    facts = Facts(split.topic, split.partition, split.from_offset, split.to_offset)
    census = Census(split.from_offset, split.to_offset)
    wanted = Wanted(headers=False, timestamp_types=False)
    keys: list[pa.Array] = [pa.array([], pa.binary())]
    while split.from_offset < split.to_offset:
        try:
            for columns in read_split(files, split, wanted, seen=census.add):
                facts.count(columns, wishes.gap_ms)
                if wishes.keys and columns.key_nulls < columns.rows:
                    keys.append(pa.compute.unique(_key_array(columns).drop_null()))
            break
        except OffsetOutOfRange as error:
            # Retention was faster: what is left counts.
            start = min(error.log_start, split.to_offset)
            if start <= split.from_offset:
                raise
            facts.gone += start - split.from_offset
            split = split._replace(from_offset=start)
    facts.count_batches(census)
    different = pa.compute.unique(pa.concat_arrays(keys))
    facts.keys = len(different)
    return facts, different


def _key_array(columns: Columns) -> pa.Array:
    import pyarrow as pa

    parts = (columns.key_validity, columns.key_positions, columns.keys)
    buffers = [None if part is None else pa.py_buffer(part) for part in parts]
    return pa.Array.from_buffers(pa.binary(), columns.rows, buffers, null_count=columns.key_nulls)
