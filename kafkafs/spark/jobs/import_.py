"""Imports files into a topic: text with a record a line, or rows of Parquet, JSON or CSV.

The sink appends all records as one transaction, under an *import id*. A second run with this id
appends nothing. If the user gives no id, it is a hash of the topic, the files with their sizes and
times, and the options for reading them.

Lines of text keep their order in a file, and the order of files on the command line (those of a
directory by name). Rows with a column `offset`, such as those of an export, are sorted by it. Other
rows keep their order in a file, and are sorted by the paths of their files. The column `partition`
or `--partition` chooses the partition, otherwise Kafka's partitioner does by key.

`import_records` makes records of the columns.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from kafkafs.quantities import Size
from kafkafs.spark.jobs.export_state import without_scheme
from kafkafs.spark.jobs.import_records import ImportOptions, records
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport
from kafkafs.spark.jobs.selection import data_location
from kafkafs.spark.location.location import is_uri
from kafkafs.spark.location.owner_client import create_topic, partitions_of
from storage import paths
from storage.adopt.adoptions import Adoptions
from storage.errors import InvalidConfig, UnknownTopicOrPartition
from storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SUFFIX = re.compile(r"\.(parquet|json|jsonl|ndjson|csv)(?:\.(?:gz|bz2|zst|lz4|snappy))?$")

# CSV as in RFC 4180. Each file has a header, and each row has all columns.
_CSV = {
    "header": "true",
    "enforceSchema": "false",
    "columnPruning": "false",
    "multiLine": "true",
    "escape": '"',
}


class _Input(NamedTuple):
    """The files in order, the paths for Spark, and the format."""

    files: list[str]
    sources: list[str]
    format: str


def run(
    session: SparkSession, path: str, options: ImportOptions, *, dry_run: bool = False
) -> JobReport:
    """Import into a data directory or, with `dry_run`, only read the files.

    Errors: StorageError, OSError; Spark's error if it cannot read a file, or a row is not a record.
    After an error nothing is appended.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    from kafkafs.spark.data_source import KafkafsDataSource

    directory = _directory(path)
    found = _found(options)
    name = options.name or _name(options, found)
    query = Adoptions.load(Files(directory), directory).queries.get(name)
    partitions = _partitions(directory, options)
    report = JobReport("import", is_dry_run=dry_run)
    report.figures = {"import_id": name, "topic": options.topic, "files": len(found.files)}
    if query is not None and query.batch >= 0:
        report.figures.update(records=0, is_imported_already=True)
        report.notes.append(
            f"import {name} is already done; nothing was appended. To import again: another --id"
        )
        return report
    is_one_file = len(found.files) == 1 and not is_uri(found.files[0])
    rows = records(_read(session, found), options, found.format, is_one_file=is_one_file)
    observed = Observation()
    size = sql.coalesce(sql.length("value"), sql.lit(0))
    if "key" in rows.columns:
        size += sql.coalesce(sql.length("key"), sql.lit(0))
    rows = rows.observe(
        observed, sql.count(sql.lit(1)).alias("records"), sql.sum(size.cast("long")).alias("size")
    )
    started = time.monotonic()
    if dry_run:
        with working(session, "reading"):
            rows.write.format("noop").mode("overwrite").save()
    else:
        if not partitions:
            assert options.partitions is not None, "_partitions has checked it"
            create_topic(directory, options.topic, options.partitions)
        session.dataSource.register(KafkafsDataSource)
        sink = {"path": directory, "topic": options.topic, "txnId": name}
        with working(session, "importing"):
            rows.write.format("kafkafs").mode("append").options(**sink).save()
    report.figures.update(
        records=observed.get["records"],
        bytes=Size(observed.get["size"] or 0),
        creates_topic=not partitions,
        partitions=partitions or options.partitions,
        seconds=round(time.monotonic() - started, 3),
        is_imported_already=False,
    )
    return report


def check(path: str, options: ImportOptions) -> None:
    """Check the arguments of `run`, without Spark. Errors: those of `run`."""
    directory = _directory(path)
    _found(options)
    _partitions(directory, options)


def _directory(path: str) -> str:
    where = data_location(path)
    if not where.is_local:
        raise InvalidConfig(f"{where}: the import needs a local directory, not an object store")
    return where.path


def _partitions(directory: str, options: ImportOptions) -> int:
    """Return how many partitions the topic has; 0: create the topic."""
    paths.check_topic_name(options.topic)
    there = partitions_of(directory, options.topic)
    if not there and options.partitions is None:
        raise UnknownTopicOrPartition(
            f"there is no topic {options.topic!r}. To create it: --partitions N", path=directory
        )
    numbers = there or range(options.partitions or 0)
    if options.partition is not None and options.partition not in numbers:
        raise UnknownTopicOrPartition(
            f"topic {options.topic!r} has no partition {options.partition}", path=directory
        )
    return len(there)


# -- the files -----------------------------------------------------------------------------------


def _found(options: ImportOptions) -> _Input:
    """Return the files that the arguments name. FileNotFoundError, InvalidConfig."""
    files: list[str] = []
    sources: list[str] = []
    for text in map(without_scheme, options.inputs):
        if is_uri(text):
            if options.name is None:
                raise InvalidConfig(f"{text}: an import of a URI requires --id NAME")
            files.append(text)
            sources.append(text)
            continue
        names: list[str] = []
        if glob.has_magic(text) and not os.path.exists(text):
            names = [name for name in sorted(glob.glob(text)) if not _is_hidden(name)]
        for name in map(os.path.abspath, names or [text]):
            sources.append(name)
            files += _files_in(name)
    if not files:
        raise InvalidConfig("nothing to import: no files found")
    kind = options.format or _format(files)
    # Text keeps its order, so Spark reads file after file. Rows with columns may be in a directory
    # whose subdirectories have some of the columns in their names.
    return _Input(files, files if kind == "text" else sources, kind)


def _escaped(name: str) -> str:
    """Return a name for Spark, with escapes: Spark reads names as patterns."""
    return name if is_uri(name) else re.sub(r"[][{}*?\\]", r"\\\g<0>", name)


def _is_hidden(name: str) -> bool:
    return os.path.basename(name)[:1] in (".", "_")


def _check_readable(name: str) -> None:
    """Raise InvalidConfig if Spark would skip the file, or cannot name it."""
    if _is_hidden(name):
        raise InvalidConfig(f"{name}: Spark skips files whose names begin with . or _")
    if ":" in os.path.basename(name):
        raise InvalidConfig(f"{name}: Spark cannot read files with a colon in their names")


def _files_in(name: str) -> Iterator[str]:
    """Yield a file, or a directory's files by name, without those that Spark skips."""
    os.stat(name)
    if not os.path.isdir(name):
        _check_readable(name)
        yield name
        return
    for directory, inner, files in os.walk(name):
        inner[:] = sorted(each for each in inner if not _is_hidden(each))
        for file in sorted(files):
            if not _is_hidden(file):
                _check_readable(file)
                yield os.path.join(directory, file)


def _format(files: Sequence[str]) -> str:
    found = (_SUFFIX.search(file) for file in files)
    suffixes = ("text" if match is None else match[1] for match in found)
    kinds = {"json" if suffix in ("jsonl", "ndjson") else suffix for suffix in suffixes}
    if len(kinds) != 1:
        raise InvalidConfig(
            f"files of several formats ({', '.join(sorted(kinds))}); give one format"
        )
    return kinds.pop()


def _name(options: ImportOptions, found: _Input) -> str:
    """Return an import id: a hash of the files and options."""
    stats = ((file, os.stat(file)) for file in found.files)
    versions = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    how = options._replace(inputs=(), partitions=None, name=None, format=found.format)
    text = json.dumps([how, versions])
    return f"import-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _read(session: SparkSession, found: _Input) -> DataFrame:
    if found.format != "text":
        # By default Spark makes nulls of what it cannot read.
        reader = session.read.format(found.format).option("mode", "FAILFAST")
        if found.format == "csv":
            _check_csv(session, found)
            reader = reader.options(**_CSV)
        return reader.load([_escaped(name) for name in found.sources])
    # As in the mount only a newline ends a line, and its bytes stay unchanged.
    reader = session.read.option("lineSep", "\n")
    lines = [
        reader.text(_escaped(file)).selectExpr("cast(value as binary) as value")
        for file in found.sources
    ]
    return reduce(lambda one, other: one.unionAll(other), lines)


def _check_csv(session: SparkSession, found: _Input) -> None:
    """Raise InvalidConfig for a file that Spark would read otherwise than it was written.

    If a file ends inside quotes, such as an incomplete copy, Spark takes the rest of it for one
    value. The check counts the quotes of a file. So a cell such as 5", which RFC 4180 does not
    allow, is refused, too, if it makes their number odd. Spark replaces bytes that are not UTF-8.
    """
    from pyspark.sql import functions as sql

    lines = session.read.option("lineSep", "\n").text([_escaped(name) for name in found.sources])
    quotes = sql.sum(sql.regexp_count("value", sql.lit('"'))).alias("quotes")
    is_utf8 = sql.bool_and(sql.is_valid_utf8("value")).alias("is_utf8")
    files = lines.groupBy(sql.col("_metadata.file_path").alias("file")).agg(quotes, is_utf8)
    wrong = files.where("quotes % 2 = 1 or not is_utf8").orderBy("file").first()
    if wrong is not None:
        why = "is not UTF-8"
        if wrong["is_utf8"]:
            why = (
                "has an odd number of quotes: it is incomplete, or has a quote that is not doubled"
            )
        raise InvalidConfig(f"{without_scheme(wrong['file'])}: {why}; nothing was appended")
