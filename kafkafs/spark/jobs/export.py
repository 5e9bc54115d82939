"""Topics as Parquet files: `OUT/topic=…/date=…/part-….parquet`; the date is the record's UTC day.

A streaming query reads the source and writes with Spark's own Parquet sink. Its checkpoint is in
the export (`export_state`). So the job exports each record once, even if processes are killed. A
run continues from the end of the last run. It ends at the log end, or follows the topics until the
user stops it. A *snapshot* is one batch query instead, into a new directory.

The columns are the source's, and `date`. As text, key and value are strings.

The sink lists the valid files in `_spark_metadata`, and Spark reads only those. A killed run may
leave other files, which other readers read, too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkafs.quantities import Value
from kafkafs.spark.jobs import export_state
from kafkafs.spark.jobs.export_state import without_scheme
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport, Table
from kafkafs.spark.jobs.selection import EVERYTHING, Selection, data_name
from kafkafs.spark.jobs.session import held_signals
from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.location import is_uri
from kafkafs.spark.source.offsets import Offsets, TopicPartition
from storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_LOOK_S = 1
_DAY_S = 86_400
# Options of the source that may differ from run to run: they do not choose records.
_NOT_CONTENT = frozenset(
    (
        *("failondataloss", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"),
        *("minpartitions", "maxrecordsperpartition", "maxpartitionbytes", "group"),
    )
)


class ExportOptions(NamedTuple):
    """The options of an export.

    `as_text`: key and value as strings. `interval`: follow, with the time between batches ("10
    seconds"). `is_snapshot`: a batch query. `source`: more options of the source.
    """

    selection: Selection = EVERYTHING
    as_text: bool = False
    interval: str | None = None
    is_snapshot: bool = False
    source: Mapping[str, str] = {}

    def content(self, path: str) -> str:
        """Return the options that all runs into the same export must have in common, as JSON."""
        options = (each for each in self.source.items() if each[0].lower() not in _NOT_CONTENT)
        fields = {
            "data": data_name(path),
            "places": self.selection.places,
            "as_text": self.as_text,
            "options": sorted(options),
        }
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


ALL = ExportOptions()


def run(session: SparkSession, path: str, out: str, options: ExportOptions = ALL) -> JobReport:
    """Export from a data directory to `out`, a directory or a URI that Spark can write to.

    A run that follows ends with its report on KeyboardInterrupt.

    Errors: OSError, StorageError; Spark's error if it cannot read or write a record.
    """
    check(path, out, options)
    out = without_scheme(out)
    out = out if is_uri(out) else os.path.abspath(out)
    if options.is_snapshot:
        return _snapshot(session, path, out, options)
    with export_state.begun(out, options.content(path)):
        rows = _rows(session.readStream.format("kafkafs"), session, path, options)
        writer = (
            rows.writeStream.format("parquet")
            .partitionBy("topic", "date")
            .option("path", out)
            .option("checkpointLocation", export_state.checkpoint_of(out))
        )
        if options.interval is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=options.interval)
        with working(session, "exporting") as progress:
            query = writer.start()
            progress.groups.append(str(query.runId))
            return _watched(query, is_endless=options.interval is not None)


def check(path: str, out: str, options: ExportOptions) -> None:
    """Check the arguments of `run`, without Spark. Errors: those of `run`."""
    options.selection.location_of(path)
    _subscription(options.selection)
    out = without_scheme(out)
    if is_uri(out):
        return
    if not options.is_snapshot:
        export_state.check(out, options.content(path))
    elif os.path.lexists(out):
        raise InvalidConfig(f"{out} already exists; give a new directory for a snapshot")


def plan(path: str, out: str, options: ExportOptions = ALL) -> JobReport:
    """Return a report of what a run would export, without Spark. OSError, StorageError."""
    where = options.selection.location_of(path)
    _subscription(options.selection)
    out = without_scheme(out)
    known: Offsets = {}
    if not is_uri(out) and export_state.check(out, options.content(path)):
        known = export_state.exported(out)
    report = JobReport("export", is_dry_run=True)
    table = Table("partitions", ("topic", "partition", "from_offset", "to_offset", "offsets"))
    offsets = 0
    with FollowedDirectory(where, options.selection.wants_topic) as opened:
        for log in options.selection.logs(opened.manager):
            start = known.get(TopicPartition(log.topic, log.partition), log.log_start_offset)
            end = log.last_stable_offset
            count = max(end - start, 0)
            offsets += count
            table.rows.append((log.topic, log.partition, start, end, count))
    report.tables = [table]
    report.figures = {"offsets": offsets}
    return report


# -- the query -----------------------------------------------------------------------------------


def _rows(reader: Any, session: SparkSession, path: str, options: ExportOptions) -> DataFrame:
    from pyspark.sql import functions as sql

    from kafkafs.spark.data_source import KafkafsDataSource

    session.dataSource.register(KafkafsDataSource)
    source = {"path": path, "includeHeaders": "true", **_subscription(options.selection)}
    if not options.is_snapshot:
        source["startingOffsets"] = "earliest"
    source = {**source, **options.source}
    if {"where", "timezone"} & {name.lower() for name in source} == {"where"}:
        source["timeZone"] = str(session.conf.get("spark.sql.session.timeZone"))
    rows: DataFrame = reader.options(**source).load()
    # Days are of UTC, whatever the session's time zone is.
    days = sql.floor(sql.unix_micros("timestamp") / (_DAY_S * 1_000_000)).cast("int")
    rows = rows.withColumn("date", sql.date_add(sql.lit("1970-01-01").cast("date"), days))
    if options.as_text:
        for name in ("key", "value"):
            rows = rows.withColumn(name, sql.col(name).cast("string"))
    return rows


def _subscription(selection: Selection) -> dict[str, str]:
    """Return the option of the source for this selection. InvalidConfig if no option has it."""
    if not selection.places:
        return {"subscribePattern": ".*"}
    whole = dict.fromkeys(topic for topic, partition in selection.places if partition is None)
    assigned: dict[str, list[int]] = {}
    for topic, partition in selection.places:
        if partition is not None and topic not in whole:
            assigned.setdefault(topic, []).append(partition)
    if not assigned:
        return {"subscribe": ",".join(whole)}
    if whole:
        raise InvalidConfig(
            f"an export has whole topics or single partitions, not both: name each partition of "
            f"{', '.join(whole)}, too, or export {', '.join(assigned)} into another directory"
        )
    return {"assign": json.dumps(assigned)}


def _watched(query: StreamingQuery, *, is_endless: bool) -> JobReport:
    """Wait until the query ends; Ctrl-C ends a query that follows, and cancels any other."""
    progress = _QueryProgress()
    started = time.monotonic()
    try:
        with held_signals() as held:
            while not (query.awaitTermination(_LOOK_S) or held):
                progress.update(query)
    finally:
        query.stop()  # without effect if it has ended
    if held and not is_endless:
        raise KeyboardInterrupt
    progress.update(query)
    return progress.report(time.monotonic() - started)


class _QueryProgress:
    """Sums up the reports of a query about its batches."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._starts: Offsets = {}
        self._ends: Offsets = {}

    def update(self, query: StreamingQuery) -> None:
        """Add the new batches of the query's recent progress."""
        for batch in query.recentProgress:
            if batch.batchId in self._rows or not batch.numInputRows:
                continue
            self._rows[batch.batchId] = batch.numInputRows
            for source in batch.sources:
                ends = export_state.parse_offsets(source.endOffset)
                starts = export_state.parse_offsets(source.startOffset)
                self._ends.update(ends)
                self._starts = {**starts, **self._starts}

    def report(self, seconds: float) -> JobReport:
        report = JobReport("export")
        table = Table("partitions", ("topic", "partition", "from_offset", "to_offset"))
        for partition, end in sorted(self._ends.items()):
            table.rows.append((*partition, self._starts.get(partition), end))
        report.tables = [table] if table.rows else []
        records = sum(self._rows.values())
        report.figures = {"records": records, "batches": len(self._rows), **_rate(records, seconds)}
        return report


def _rate(records: int, seconds: float) -> dict[str, Value]:
    rate = round(records / seconds, 1) if seconds else None
    return {"seconds": round(seconds, 3), "records_per_s": rate}


def _snapshot(session: SparkSession, path: str, out: str, options: ExportOptions) -> JobReport:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    rows = _rows(session.read.format("kafkafs"), session, path, options)
    observed = Observation()
    rows = rows.observe(observed, sql.count(sql.lit(1)).alias("records"))
    started = time.monotonic()
    with working(session, "exporting"):
        rows.write.partitionBy("topic", "date").mode("errorifexists").parquet(out)
    seconds = time.monotonic() - started
    records = observed.get["records"]
    return JobReport("export", figures={"records": records, **_rate(records, seconds)})
