"""Checks data directories as `kafkafs verify` does, with the segments read by Spark's tasks.

`storage.verify` has the checks and the messages. The driver lists directories, checks small files,
bundles segments into tasks of about equal size, and combines their results in order. It writes
nothing and takes no lock: the directory may be mounted, a running broker's, or in an object store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kafkafs.quantities import Size
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.report import JobReport
from kafkafs.spark.jobs.selection import EVERYTHING, Selection
from kafkafs.spark.jobs.splits import fair_bytes
from storage import paths
from storage.errors import SegmentGone
from storage.files import Files
from storage.verify.verify import verify
from storage.verify.verify_segment import LogPiece, OldLog, Verified, verify_piece

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkafs.spark.location.location import Location


def run(session: SparkSession, path: str, selection: Selection = EVERYTHING) -> JobReport:
    """Verify a data directory or a selection of it; the report has its faults.

    Errors: OSError, StorageError; Spark's error if a task cannot read.
    """
    where = selection.location_of(path)
    files = where.files()
    context = session.sparkContext
    segments = 0

    def read_ahead(pieces: Sequence[LogPiece]) -> list[Verified | None]:
        nonlocal segments
        segments = len(pieces)
        bundles = _bundles(files, pieces, context.defaultParallelism)
        if not bundles:
            return []
        with working(session, "verifying"):
            rows = context.parallelize(bundles, len(bundles))
            return rows.flatMap(partial(_read, where)).collect()

    found = verify(where.path, files=files, wanted=_wanted(selection), read_ahead=read_ahead)
    report = JobReport("verify")
    report.faults = list(map(str, found.faults))
    report.notes = [f"left over: {fault}" for fault in found.left_over]
    report.figures = {
        "partitions": found.partitions,
        "segments": segments,
        "records": found.records,
        "bytes": Size(found.size),
        "left_over": len(found.left_over),
        "faults": len(found.faults),
    }
    return report


def plan(path: str, selection: Selection = EVERYTHING) -> JobReport:
    """Return a report of what `run` would read, without Spark. OSError, StorageError."""
    where = selection.location_of(path)
    files = where.files()
    report = JobReport("verify", is_dry_run=True)

    def count(pieces: Sequence[LogPiece]) -> list[Verified | None]:
        sizes = [_size(files, piece) for piece in pieces]
        report.figures = {"segments": len(sizes), "bytes": Size(sum(sizes))}
        raise _SegmentsCounted

    with suppress(_SegmentsCounted):
        verify(where.path, files=files, wanted=_wanted(selection), read_ahead=count)
    return report


class _SegmentsCounted(Exception):  # noqa: N818 - it is no error
    """Ends `verify` when the segments are counted."""


def _wanted(selection: Selection) -> Callable[[str, int], bool] | None:
    return selection.wants if selection.places else None


def _size(files: Files, piece: LogPiece) -> int:
    """Return the bytes of log that the piece reads; 0 for a deleted file."""
    if isinstance(piece, OldLog):
        logs = [f"{piece.directory}/{name}" for name in piece.names]
    else:
        logs = [piece.path(paths.LOG)]
    size = 0
    for path in logs:
        with suppress(FileNotFoundError):
            size += files.file_stat(path).st_size
    return size


def _bundles(files: Files, pieces: Sequence[LogPiece], slots: int) -> list[list[LogPiece]]:
    """Return the pieces, in order, in a bundle for each task."""
    sizes = [_size(files, piece) for piece in pieces]
    wanted = fair_bytes(sum(sizes), slots)
    bundles: list[list[LogPiece]] = []
    room = 0
    for piece, size in zip(pieces, sizes, strict=True):
        if room < size or not bundles:
            bundles.append([])
            room = wanted
        room -= size
        # `_read` gives each piece its executor's files: an object store's cannot be pickled.
        bundles[-1].append(replace(piece, files=Files()))
    return bundles


def _read(where: Location, pieces: Sequence[LogPiece]) -> Iterator[Verified | None]:
    """Verify a task's pieces."""
    files = where.files()
    for piece in pieces:
        try:
            yield verify_piece(replace(piece, files=files))
        except SegmentGone:
            yield None  # an object that was replaced meanwhile
