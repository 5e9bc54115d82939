"""`df.write` and `df.writeStream` to `format("kafkafs")`: rows become records, each once.

Tasks stage rows (`staging`). The commit, in the driver, asks the owner of the logs to adopt the
files of the successful tasks as one Kafka transaction (`storage.adopt.adopt`). In a partition, the
records are in the order of the tasks' numbers.

A batch query with an application's id and a version (`txnAppId`, `txnVersion`) is one batch of that
application. So in a `foreachBatch` each batch is written once.

The id of a streaming query is in its checkpoint, and identifies its batches. If Spark replays a
batch after a restart, the owner does not append it again. When the owner adopts a batch of a run,
it fences off the earlier run of the query.

Spark calls commit in another process than the tasks, and calls abort even after a commit that has
failed. The owner may still adopt that batch, as a whole or not at all. Adopted files are not staged
files any more, so abort may remove staged files at any time. Each step runs in a process of its own
and imports only the modules that it needs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kafkafs.spark.one_line import one_line_errors
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.sink.sink_columns import check_columns
from kafkafs.spark.sink.sink_options import OF_BATCH_QUERIES, SinkOptions, no_topic, parse
from kafkafs.spark.worker import SentWithTask
from storage import paths
from storage.adopt.staged import AdoptRequest, QueryKind, StagedFile, StagedName, parse_name
from storage.directory.mirror import refuse_mirror
from storage.errors import InvalidRecord, StorageError
from storage.files import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

# The local properties of a task that name its batch (StreamExecution, MicroBatchExecution).
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"

# The number of requests for a batch if an error of the disk leaves the outcome open.
_TRIES = 3


class SinkWrite(NamedTuple):
    """The query, batch and run of a write."""

    query: str
    batch: int
    run: str
    kind: QueryKind = QueryKind.STREAM


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    """The files that a task has staged, and the number of records in them.

    `tries`: the number of earlier attempts, which may have left unknown files.
    """

    task: int
    tries: int
    write: SinkWrite
    files: tuple[StagedFile, ...]
    records: int


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of `df.write`. InvalidOption, StorageError, OSError."""
    if overwrite:
        raise InvalidOption(
            "SaveMode overwrite is not supported: logs are append-only. Use mode append."
        )
    return BatchWriter(_options(options, schema))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of `df.writeStream`. InvalidOption, StorageError, OSError."""
    if overwrite:
        raise InvalidOption(
            "Output mode complete is not supported: a log is only appended to. Use append or "
            "update."
        )
    given = {name.lower() for name in options}
    for name in OF_BATCH_QUERIES:
        if name.lower() in given:
            raise InvalidOption(f"Option {name!r} not valid in streaming queries")
    return StreamWriter(_options(options, schema))


def _options(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    options = parse(given)
    refuse_mirror(options.path)
    check_columns(schema, has_topic_option=options.topic is not None)
    if options.topic is not None:
        _ensure_topic(options.path, options.topic, options.topic_partitions)
    return options


def _ensure_topic(path: str, topic: str, partitions: int | None) -> None:
    """Create a missing topic if the option says so, else raise UnknownTopicOrPartition."""
    from kafkafs.spark.location.owner_client import create_topic, partitions_of

    if partitions is not None:
        create_topic(path, topic, partitions)
    elif not partitions_of(path, topic):
        raise no_topic(path, topic)


# -- tasks ---------------------------------------------------------------------------------------


def _stage(options: SinkOptions, write: SinkWrite, batches: Iterator[pa.RecordBatch]) -> StagedTask:
    from kafkafs.spark.sink.staging import Staging

    context = TaskContext.get()
    assert context is not None
    task = context.partitionId()
    # A random number keeps the files of all attempts apart, even after a restart.
    attempt = secrets.randbits(62)
    name = StagedName(write.query, write.batch, task, attempt)
    staging = Staging(
        options.path, name, topic=options.topic, topic_partitions=options.topic_partitions
    )
    try:
        for batch in batches:
            staging.add(batch)
        files, records = staging.finish()
    except BaseException:
        staging.discard()
        raise
    return StagedTask(task, context.attemptNumber(), write, tuple(files), records)


def _properties() -> tuple[str | None, str | None, str | None]:
    """Return the ids of the query, the batch and the run of this task of a streaming query."""
    context = TaskContext.get()
    assert context is not None
    query, batch, run = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
    return query, batch, run


def _write_of_stream() -> SinkWrite:
    """Return the batch that this task of a streaming query writes."""
    query, batch, run = _properties()
    if not query or not batch or not run:
        raise InvalidRecord(
            f"not a task of a streaming query: {QUERY_ID}, {BATCH_ID} or {RUN_ID} is missing"
        )
    return SinkWrite(query, int(batch), run)


def _of_run(write: SinkWrite) -> SinkWrite:
    """Return the write with the run of the streaming query, if it is in a `foreachBatch`."""
    query, _, run = _properties()
    return write._replace(run=run) if query and run else write


# -- the driver ----------------------------------------------------------------------------------


def _commit(path: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Ask the owner for one transaction of all staged files, in the order of the tasks."""
    staged = [message for message in messages if isinstance(message, StagedTask)]
    if len(staged) != len(messages):
        raise InvalidRecord(
            f"{len(messages) - len(staged)} of {len(messages)} tasks sent no message"
        )
    writes = {message.write for message in staged}
    if len(writes) != 1:
        raise InvalidRecord(f"tasks of several batches: {sorted(writes)}")
    if len({message.task for message in staged}) != len(staged):
        raise InvalidRecord("two messages from one task")
    query, batch, run, kind = writes.pop()
    staged.sort(key=lambda message: message.task)
    files = tuple(file for message in staged for file in message.files)
    if kind is QueryKind.ONCE and not files:
        return
    is_duplicate = _is_duplicate(path, AdoptRequest(query, batch, run, files, kind))
    if is_duplicate or any(message.tries for message in staged):
        _remove_all(path, query, batch)
    records = sum(message.records for message in staged)
    if is_duplicate:
        _log.warning(
            "batch %d of %s is a duplicate; its %d records were not appended again",
            *(batch, query, records),
        )
    else:
        _log.info("batch %d of %s: %d records", batch, query, records)


def _is_duplicate(path: str, request: AdoptRequest) -> bool:
    """Ask the owner to adopt a batch; return whether it had adopted the batch before."""
    from kafkafs.spark.location.owner_client import ask_owner
    from storage.owner.request_kinds import ADOPT

    for tries in range(_TRIES, 1, -1):
        try:
            return ask_owner(path, ADOPT, request).duplicate and tries == _TRIES
        except FileNotFoundError:
            raise
        except OSError as error:
            _log.warning("batch %d of %s: %s; retrying", request.batch, request.query, error)
    ask_owner(path, ADOPT, request)
    return False


def _abort(path: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    files = Files(path)
    staged = (message for message in messages if isinstance(message, StagedTask))
    for file in (file for message in staged for file in message.files):
        directory = paths.partition_directory(file.topic, file.partition)
        try:
            files.unlink(os.path.join(path, directory, file.name))
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("a staged file was not removed; it stays until it expires: %s", error)


def _remove_all(path: str, query: str, batch: int) -> None:
    """Remove the staged files of a query's batches up to this one, which are never adopted now.

    They are left by killed tasks. Files that cannot be removed expire.
    """
    files = Files(path)
    with contextlib.suppress(OSError):
        for directory, kind in files.listing(path):
            if kind != "directory" or not paths.is_partition_directory(directory):
                continue
            for name in files.names(os.path.join(path, directory)):
                parsed = parse_name(name)
                if parsed is not None and parsed.query == query and parsed.batch <= batch:
                    files.unlink(os.path.join(path, directory, name))


class BatchWriter(SentWithTask, DataSourceArrowWriter):
    """Writes once, all or nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self.tunes_worker = options.tune_workers
        run = str(uuid.uuid4())
        if options.app is not None and options.version is not None:
            app = options.app
            # In a streaming query `_of_run` adds the run.
            self._write = SinkWrite(app, options.version, app, QueryKind.RISING)
        elif options.transaction is not None:
            # A second run of a named write is another run of the same query.
            self._write = SinkWrite(options.transaction, 0, run, QueryKind.NAMED)
        else:
            self._write = SinkWrite(str(uuid.uuid4()), 0, run, QueryKind.ONCE)

    @one_line_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        write = self._write
        if write.kind is QueryKind.RISING:
            write = _of_run(write)
        staged = _stage(self._options, write, iterator)
        self.end_task()
        return staged

    @one_line_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Ask the owner to adopt the staged files."""
        _commit(self._options.path, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files, and those of killed tasks if no other write has this name."""
        _abort(self._options.path, messages)
        if self._write.kind is QueryKind.ONCE:
            _remove_all(self._options.path, self._write.query, self._write.batch)


class StreamWriter(SentWithTask, DataSourceStreamArrowWriter):
    """Writes batch after batch of a streaming query, each all or nothing, and once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self.tunes_worker = options.tune_workers

    @one_line_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage a task's rows."""
        staged = _stage(self._options, _write_of_stream(), iterator)
        self.end_task()
        return staged

    @one_line_errors
    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's
    ) -> None:
        """Ask the owner to adopt the staged files; an empty batch counts, too."""
        for message in messages:
            if isinstance(message, StagedTask) and message.write.batch != batchId:
                raise StorageError(
                    f"batch {batchId} has a message from a task of batch {message.write.batch}"
                )
        _commit(self._options.path, messages)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's
    ) -> None:
        """Remove the staged files."""
        _abort(self._options.path, messages)
