"""Stages the rows of one of the sink's tasks: a file for each partition, with finished batches.

A file has v2 batches according to the topic's settings (compression.type). When `finish` returns,
the files are closed, so that other machines see them, too. The task does not flush the files: the
owner checks every byte before it adopts them, and flushes the log. If a power failure has damaged a
file, the owner refuses the batch, and Spark writes it again. The task writes full buffers to the
files, so memory does not grow with the task. With many partitions only some files are open at a
time.

The partitions of a topic are the directories that exist when the task begins. If there are fewer
than `topic_partitions`, the task first asks the owner to create the topic. A row that the topic
refuses ends the task with an error that names the row.

Invariants: no file existed before; `discard` leaves none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkafs.spark.sink.sink_columns import by_topic, columns_of
from kafkafs.spark.sink.sink_options import no_topic
from storage import paths
from storage.adopt.staged import StagedFile, StagedName
from storage.errors import InvalidRecord, StorageError
from storage.files import Files
from storage.log.partitioner import STAY_BYTES, next_sticky_partition
from storage.log.validator import converted, converts
from storage.record.columns._rows import RowEncoder
from storage.settings.config import LONG_MAX, LogConfig
from storage.settings.settings import Settings
from storage.state.tiered import TieredTopics

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

# Large enough to compress well and to make headers cheap, small enough that reading one record
# decodes little.
BATCH_BYTES = 64 * 1024
# The most bytes of rows in memory; with more, batches are written before they are full.
HELD_BYTES = 64 << 20
OPEN_FILES = 128
_KEY_SHOWN = 40


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Staging:
    """The staged files of one task. `topic`: overrides the rows' column `topic`."""

    def __init__(
        self,
        data_dir: str,
        name: StagedName,
        *,
        topic: str | None = None,
        topic_partitions: int | None = None,
        files: Files | None = None,
        clock_ms: Callable[[], int] = _now_ms,
        held_bytes: int = HELD_BYTES,
        open_files: int = OPEN_FILES,
    ) -> None:
        """Errors: StorageError if the settings are invalid; OSError."""
        files = files or Files(data_dir)
        self._disk = files
        self._data_dir = data_dir
        self._name = name
        self._topic = topic
        self._topic_partitions = topic_partitions
        self._clock_ms = clock_ms
        self._held_bytes = held_bytes
        self._rows = 0
        self._topics: dict[str, _TopicRows] = {}
        self._files = _StagedFiles(files, open_files)
        self._partitions = paths.partitions_in(files.listing(data_dir))
        self._settings = Settings(files, data_dir)
        self._tiered = TieredTopics(files, data_dir, self._settings)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch.

        Errors: a StorageError names the row that the topic refuses; errors of `create_topic`;
        OSError. After an error call only `discard`.
        """
        if not batch.num_rows:
            return
        columns, now_ms = columns_of(batch), self._clock_ms()
        each = [(self._topic, None)] if self._topic is not None else by_topic(batch)
        for topic, selection in each:
            rows = self._rows_of(topic)
            try:
                rows.encoder.add(
                    now_ms,
                    columns.keys,
                    columns.values,
                    headers=columns.headers,
                    timestamps=columns.timestamps if rows.has_times else None,
                    partitions=columns.partitions,
                    selection=selection,
                )
            except StorageError as error:
                error.message = f"{self._describe(batch, rows)}: {error.message}"
                raise
        self._rows += batch.num_rows
        if sum(rows.encoder.held for rows in self._topics.values()) > self._held_bytes:
            self._flush()

    def finish(self) -> tuple[list[StagedFile], int]:
        """Close the files; return them, and the number of their records. OSError."""
        self._flush()
        self._files.close()
        staged = [
            StagedFile(topic, partition, str(self._name), self._files.sizes[path])
            for topic, rows in self._topics.items()
            for partition, path in sorted(rows.written.items())
        ]
        return staged, self._rows

    def discard(self) -> None:
        """Remove the files. It raises nothing: files that cannot be removed expire."""
        self._files.remove()

    def _flush(self) -> None:
        for rows in self._topics.values():
            for partition in rows.partitions:
                rows.encoder.flush(partition)

    def _rows_of(self, topic: str | None) -> _TopicRows:
        if topic is None:
            raise InvalidRecord(
                "null topic present in the data. Use the topic option for setting a topic."
            )
        rows = self._topics.get(topic)
        if rows is None:
            self._tiered.check_may_write(topic)
            partitions = self._partitions_of(topic)
            config = self._settings.log_config(topic)
            count = self._settings.partition_count(topic)
            rows = _TopicRows(topic, partitions, count, config, self._write, self._clock_ms)
            self._topics[topic] = rows
        return rows

    def _partitions_of(self, topic: str) -> list[int]:
        """Return the topic's partitions. First create a missing topic if the option says so."""
        found = self._partitions.get(topic, [])
        if self._topic_partitions is None:
            if not found:
                raise no_topic(self._data_dir, topic)
        elif len(found) < self._topic_partitions:
            from kafkafs.spark.location.owner_client import create_topic

            create_topic(self._data_dir, topic, self._topic_partitions)
            self._partitions = paths.partitions_in(self._disk.listing(self._data_dir))
            found = self._partitions[topic]
        return found

    def _write(self, topic: str, partition: int, batches: memoryview | bytearray) -> str:
        """Add batches to a partition's file; return its path."""
        directory = paths.partition_directory(topic, partition)
        path = os.path.join(self._data_dir, directory, str(self._name))
        self._files.append(path, batches)
        return path

    def _describe(self, batch: pa.RecordBatch, rows: _TopicRows) -> str:
        """Describe the row that the encoder has refused."""
        row = rows.encoder.row
        names = {"partition", "key"} & set(batch.schema.names)
        values = {name: batch.column(name)[row].as_py() for name in names}
        known = [f"topic {rows.topic!r}"]
        if values.get("partition") is not None:
            known.append(f"partition {values['partition']}")
        if "key" in values:
            key = values["key"]
            shown = key if key is None else key[:_KEY_SHOWN]
            known.append(f"key {shown!r}{'' if shown == key else '…'}")
        return f"row {self._rows + row + 1} of task {self._name.task} ({', '.join(known)})"


class _TopicRows:
    """Encodes the rows of one topic into the files of its partitions.

    `write` adds batches to the file of a partition, and returns its path. `written` has the paths.
    """

    def __init__(
        self,
        topic: str,
        partitions: list[int],
        least_count: int,
        config: LogConfig,
        write: Callable[[str, int, memoryview | bytearray], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.written: dict[int, str] = {}
        # With LogAppendTime the owner stamps records when it appends them.
        self.has_times = config.message_timestamp_type == "CreateTime"
        limit = config.max_message_bytes
        # The encoder checks the times.
        unchecked = replace(
            config, message_timestamp_type="CreateTime", message_timestamp_before_max_ms=LONG_MAX
        )
        is_rewritten = converts(unchecked)

        def stage(partition: int, batches: memoryview) -> None:
            stored = converted(batches, unchecked, clock_ms()) if is_rewritten else batches
            self.written[partition] = write(topic, partition, stored)

        self.encoder = RowEncoder(
            partitions,
            stage,
            lambda before: next_sticky_partition(partitions, before),
            # Compression makes incompressible batches longer.
            batch_bytes=min(BATCH_BYTES, limit - limit // 16) if is_rewritten else BATCH_BYTES,
            max_batch_bytes=limit,
            stay_bytes=STAY_BYTES,
            least_count=least_count,
            keys_required=config.is_compacted,
            before_ms=config.message_timestamp_before_max_ms,
            after_ms=config.message_timestamp_after_max_ms,
        )


class _StagedFiles:
    """Files that grow, with their `sizes` by path; only `open_files` are open at a time."""

    def __init__(self, files: Files, open_files: int) -> None:
        self._files = files
        self._limit = open_files
        self.sizes: dict[str, int] = {}
        # The open files; the one used last is at the end.
        self._open: OrderedDict[str, int] = OrderedDict()

    def append(self, path: str, data: memoryview | bytearray) -> None:
        fd = self._opened(path)
        with _located(path):
            self._files.pwrite(fd, data, self.sizes[path])
        self.sizes[path] += len(data)

    def _opened(self, path: str) -> int:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        if len(self._open) >= self._limit:
            oldest, fd = self._open.popitem(last=False)
            with _located(oldest):
                self._files.close(fd)
        flags = 0 if path in self.sizes else os.O_CREAT | os.O_EXCL
        fd = self._open[path] = self._files.open(path, os.O_WRONLY | flags)
        self.sizes.setdefault(path, 0)
        return fd

    def close(self) -> None:
        while self._open:
            path, fd = self._open.popitem()
            with _located(path):
                self._files.close(fd)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.close()
        for path in self.sizes:
            try:
                self._files.unlink(path)
            except OSError as error:
                _log.warning("%s: %s", path, error)
        self.sizes.clear()


@contextlib.contextmanager
def _located(path: str) -> Iterator[None]:
    """Add the path to an OSError of its descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
