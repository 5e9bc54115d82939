"""Topics as Parquet files: `OUT/topic=…/date=…/part-….parquet`, date being the record's UTC day.

A streaming query reads the source and writes with Spark's own Parquet sink; its checkpoint lies in
the export (`export_state`).  So each record is exported once, whatever is killed: a run goes on
where the last one has stopped, with what is new, and ends there, or follows the topics until it is
stopped.  A *snapshot* is one batch query instead, into a new directory.

Columns are the source's, and `date`; as text, key and value are strings.

Which files count is written down by the sink (`_spark_metadata`), and Spark reads only those; a
run that was killed may leave others beside them, which other readers cannot tell apart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkafs.spark.jobs import export_state
from kafkafs.spark.jobs.choice import EVERYTHING, Choice, data_name
from kafkafs.spark.jobs.export_state import Offsets, Wanted
from kafkafs.spark.jobs.progress import Working, working
from kafkafs.spark.jobs.report import Report, Table
from kafkafs.spark.jobs.splits import chosen_logs
from storage.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_LOOK_S = 1
_DAY_S = 86_400
# Options of the source that each run may have as it likes: they do not choose records.
_SAY_HOW_ONLY = frozenset(
    (
        *("failondataloss", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"),
        *("minpartitions", "maxrecordsperpartition", "maxpartitionbytes"),
    )
)


class Wishes(NamedTuple):
    """What is to be exported, and how.

    `as_text`: key and value as strings.  `interval`: follow, with a batch so often ("10 seconds").
    `is_snapshot`: a batch query.  `options`: further options of the source.
    """

    choice: Choice = EVERYTHING
    as_text: bool = False
    interval: str | None = None
    is_snapshot: bool = False
    options: Mapping[str, str] = {}

    def written_down(self, path: str) -> Wanted:
        """What another run must want, too."""
        options = tuple(
            sorted(
                (name, value)
                for name, value in self.options.items()
                if name.lower() not in _SAY_HOW_ONLY
            )
        )
        return Wanted(path, tuple(self.choice.places), self.as_text, options)


def run(session: SparkSession, path: str, out: str, wishes: Wishes = Wishes()) -> Report:  # noqa: B008
    """Export from a data directory to `out`, a directory or a URI that Spark can write to.

    A run that follows ends, with its report, when it is interrupted.  OSError, StorageError; what
    Spark raises where a record cannot be read or written.
    """
    check(path, out, wishes)
    out = export_state.without_scheme(out)
    out = out if export_state.is_uri(out) else os.path.abspath(out)
    if wishes.is_snapshot:
        return _snapshot(session, path, out, wishes)
    with export_state.begun(out, wishes.written_down(data_name(path))):
        rows = _rows(session.readStream.format("kafkafs"), session, path, wishes)
        writer = (
            rows.writeStream.format("parquet")
            .partitionBy("topic", "date")
            .option("path", out)
            .option("checkpointLocation", export_state.checkpoint_of(out))
        )
        if wishes.interval is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=wishes.interval)
        with working(session, "exporting") as work:
            query = writer.start()
            return _watched(query, work, is_endless=wishes.interval is not None)


def check(path: str, out: str, wishes: Wishes) -> None:
    """What can be known of a run before Spark is there.  As `run`."""
    wishes.choice.place_of(path)
    out = export_state.without_scheme(out)
    if export_state.is_uri(out):
        return
    if not wishes.is_snapshot:
        export_state.check(out, wishes.written_down(data_name(path)))
    elif os.path.lexists(out):
        raise InvalidConfig(f"{out} is there already: give a new directory for a snapshot")


def plan(path: str, out: str, wishes: Wishes = Wishes()) -> Report:  # noqa: B008
    """What a run would export, without Spark.  OSError, StorageError."""
    from kafkafs.spark.place.opened import Opened

    where = wishes.choice.place_of(path)
    out = export_state.without_scheme(out)
    known: Offsets = {}
    if not export_state.is_uri(out) and export_state.check(
        out, wishes.written_down(data_name(path))
    ):
        known = export_state.exported(out)
    report = Report("export", is_dry_run=True)
    table = Table("partitions", ("topic", "partition", "from_offset", "to_offset", "offsets"))
    with Opened(where, wishes.choice.wants_topic) as opened:
        for log in chosen_logs(opened, wishes.choice):
            start = known.get((log.topic, log.partition), log.log_start_offset)
            end = log.last_stable_offset
            table.rows.append((log.topic, log.partition, start, end, max(end - start, 0)))
    report.tables = [table]
    report.figures = {"offsets": sum(int(row[4] or 0) for row in table.rows)}
    return report


# -- the query -----------------------------------------------------------------------------------


def _rows(reader: Any, session: SparkSession, path: str, wishes: Wishes) -> DataFrame:
    from pyspark.sql import functions as sql

    from kafkafs.spark.data_source import KafkafsDataSource

    session.dataSource.register(KafkafsDataSource)
    options = {"path": path, "includeHeaders": "true", **_subscription(wishes.choice)}
    if not wishes.is_snapshot:
        options["startingOffsets"] = "earliest"
    rows: DataFrame = reader.options(**{**options, **wishes.options}).load()
    # Of UTC, whatever the session's time zone is.
    days = sql.floor(sql.unix_micros("timestamp") / (_DAY_S * 1_000_000)).cast("int")
    rows = rows.withColumn("date", sql.date_add(sql.lit("1970-01-01").cast("date"), days))
    if wishes.as_text:
        for name in ("key", "value"):
            rows = rows.withColumn(name, sql.col(name).cast("string"))
    return rows


def _subscription(choice: Choice) -> dict[str, str]:
    """The option of the source that chooses the same."""
    if not choice.places:
        return {"subscribePattern": ".*"}
    if all(partition is None for _, partition in choice.places):
        return {"subscribe": ",".join(dict.fromkeys(topic for topic, _ in choice.places))}
    assigned: dict[str, list[int]] = {}
    for topic, partition in choice.places:
        if partition is not None and partition not in assigned.setdefault(topic, []):
            assigned[topic].append(partition)
    return {"assign": json.dumps(assigned)}


def _watched(query: StreamingQuery, work: Working, *, is_endless: bool) -> Report:
    """Wait until the query ends; a query that follows ends with Ctrl-C."""
    work.also(str(query.runId))
    told = _Told()
    started = time.monotonic()
    try:
        while not query.awaitTermination(_LOOK_S):
            told.hear(query)
    except KeyboardInterrupt:
        query.stop()
        if not is_endless:
            raise
    except BaseException:
        query.stop()
        raise
    told.hear(query)
    return told.report(time.monotonic() - started)


class _Told:
    """What a query has said of its batches."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._starts: Offsets = {}
        self._ends: Offsets = {}

    def hear(self, query: StreamingQuery) -> None:
        """Take what is new in what it keeps of its progress."""
        for progress in query.recentProgress:
            if progress.batchId in self._rows or not progress.numInputRows:
                continue
            self._rows[progress.batchId] = progress.numInputRows
            for source in progress.sources:
                ends = export_state.parse_offsets(source.endOffset)
                starts = export_state.parse_offsets(source.startOffset or "null")
                self._ends.update(ends)
                for place in ends:
                    if place in starts:
                        self._starts.setdefault(place, starts[place])

    def report(self, seconds: float) -> Report:
        """The figures."""
        report = Report("export")
        table = Table("partitions", ("topic", "partition", "from_offset", "to_offset"))
        for place, end in sorted(self._ends.items()):
            table.rows.append((*place, self._starts.get(place), end))
        report.tables = [table] if table.rows else []
        records = sum(self._rows.values())
        report.figures = {
            "records": records,
            "batches": len(self._rows),
            "seconds": round(seconds, 3),
            "records_per_s": round(records / seconds, 1) if seconds else None,
        }
        return report


def _snapshot(session: SparkSession, path: str, out: str, wishes: Wishes) -> Report:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    rows = _rows(session.read.format("kafkafs"), session, path, wishes)
    observed = Observation()
    rows = rows.observe(observed, sql.count(sql.lit(1)).alias("records"))
    started = time.monotonic()
    with working(session, "exporting"):
        rows.write.partitionBy("topic", "date").mode("errorifexists").parquet(out)
    seconds = time.monotonic() - started
    records = observed.get["records"]
    report = Report("export")
    report.figures = {
        "records": records,
        "seconds": round(seconds, 3),
        "records_per_s": round(records / seconds, 1),
    }
    return report
