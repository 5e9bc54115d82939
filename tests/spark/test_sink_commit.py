"""kafkafs.spark.sink.sink: what the driver does with what tasks say, without a session."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from kafkafs.spark.sink.sink import (
    BatchWriter,
    SinkWrite,
    StagedTask,
    StreamWriter,
    batch_writer,
    stream_writer,
)
from kafkafs.spark.sink.staging import Staging
from storage import LogManager
from storage.adopt import adoptions
from storage.adopt.staged import StagedName
from storage.errors import (
    BatchGap,
    Fenced,
    InvalidRecord,
    MirroredDirectory,
    StorageError,
    UnknownTopicOrPartition,
)
from storage.files import Files
from tests.storage.directory.test_mirror import make_mirror

SCHEMA = StructType([StructField("value", BinaryType())])
STREAM = SinkWrite("stream", 0, "run")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    with LogManager.open(str(directory)) as manager:
        manager.create_topic("orders", 1)
    return directory


def batches(data: Path, **options: str) -> BatchWriter:
    writer = batch_writer({"path": str(data), "topic": "orders", **options}, SCHEMA, False)
    assert isinstance(writer, BatchWriter)
    return writer


def test_a_mirror_is_refused_before_anything_is_staged(data: Path) -> None:
    make_mirror(data)
    for make in (batch_writer, stream_writer):
        with pytest.raises(MirroredDirectory, match=f"kafkafs detach {data}"):
            make({"path": str(data), "topic": "orders"}, SCHEMA, False)


@pytest.fixture
def streams(data: Path) -> StreamWriter:
    writer = stream_writer({"path": str(data), "topic": "orders"}, SCHEMA, False)
    assert isinstance(writer, StreamWriter)
    return writer


def task(data: Path, write: SinkWrite, number: int, *values: bytes, tries: int = 0) -> StagedTask:
    """Stage these values as a task does. Return the task's message to the driver."""
    name = StagedName(write.query, write.batch, number, tries)
    staging = Staging(str(data), name, topic="orders")
    staging.add(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}))
    files, records = staging.finish()
    return StagedTask(number, tries, write, tuple(files), records)


def values(data: Path) -> list[bytes | None]:
    with LogManager.open(str(data), read_only=True) as manager:
        return [record.value for record in manager.log("orders", 0).records()]


def staged(data: Path) -> list[str]:
    return sorted(path.name for path in data.rglob("*.staged"))


def of(writer: BatchWriter) -> SinkWrite:
    found = vars(writer)["_write"]
    assert isinstance(found, SinkWrite)
    return found


def test_tasks_follow_each_other_by_number(data: Path) -> None:
    writer = batches(data)
    write = of(writer)
    writer.commit([task(data, write, 2, b"c"), task(data, write, 0, b"a"), task(data, write, 1)])
    assert values(data) == [b"a", b"c"]
    assert staged(data) == []


def test_a_commit_that_is_made_again(data: Path) -> None:
    """As Spark does not, but a driver may that did not hear the answer."""
    writer = batches(data)
    messages = [task(data, of(writer), 0, b"a")]
    writer.commit([*messages])
    writer.commit([*messages])
    writer.abort([*messages])
    assert values(data) == [b"a"]


def test_nothing_to_write(data: Path) -> None:
    before = sorted(data.rglob("*"))
    writer = batches(data)
    writer.commit([task(data, of(writer), 0)])
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize("wrong", ["silent", "twice", "another"])
def test_messages_that_cannot_be(data: Path, wrong: str) -> None:
    writer = batches(data)
    good = task(data, of(writer), 0, b"a")
    other = StagedTask(1, 0, of(batches(data)), (), 0)
    more = {"silent": None, "twice": good, "another": other}[wrong]
    with pytest.raises(InvalidRecord, match=r"sent no message|from one task|several batches"):
        writer.commit([good, more])
    assert values(data) == []


def test_abort_removes_what_was_staged(data: Path) -> None:
    """Also by tasks that were killed and said nothing; of nobody else."""
    writer = batches(data)
    messages = [task(data, of(writer), 0, b"a"), None]
    task(data, of(writer), 1, b"killed")
    task(data, STREAM, 0, b"theirs")
    writer.abort([*messages])
    assert staged(data) == ["stream-0-0-0.staged"]


def test_abort_of_a_named_write_leaves_others_of_the_name(data: Path) -> None:
    writer = batches(data, txnId="daily")
    message = task(data, of(writer), 0, b"a")
    task(data, of(batches(data, txnId="daily")), 0, b"a", tries=1)
    writer.abort([message, None])
    assert staged(data) == ["daily-0-0-1.staged"]


def test_what_failed_attempts_have_left(data: Path, streams: StreamWriter) -> None:
    """Once the batch is adopted nobody wants it: of the query, up to the batch."""
    task(data, STREAM, 0, b"failed")
    task(data, STREAM._replace(batch=1), 0, b"later")
    streams.commit([task(data, STREAM, 0, b"a", tries=1)], 0)
    assert values(data) == [b"a"]
    assert staged(data) == ["stream-1-0-0.staged"]


def test_batches_of_a_stream(data: Path, streams: StreamWriter) -> None:
    """Each once and in their order; empty ones count; a run that was replaced writes no more."""
    streams.commit([task(data, STREAM, 0, b"0")], 0)
    streams.commit([task(data, STREAM._replace(batch=1), 0)], 1)
    again = SinkWrite("stream", 1, "another run")
    streams.commit([task(data, again, 0, b"again")], 1)
    assert staged(data) == []
    with pytest.raises(BatchGap):
        streams.commit([task(data, again._replace(batch=3), 0, b"3")], 3)
    streams.commit([task(data, again._replace(batch=2), 0, b"2")], 2)
    with pytest.raises(Fenced):
        streams.commit([task(data, STREAM._replace(batch=3), 0, b"fenced", tries=1)], 3)
    assert values(data) == [b"0", b"2"]
    # The files of a refused batch stay until an abort, or until they are old.
    assert staged(data) == ["stream-3-0-0.staged", "stream-3-0-1.staged"]


def test_a_missing_topic(data: Path) -> None:
    """The driver fails before the query begins. With `topicPartitions` it creates the topic."""
    with pytest.raises(UnknownTopicOrPartition, match="'topicPartitions', or kafkafs create "):
        batches(data, topic="new")
    for _ in range(2):
        batches(data, topic="new", topicPartitions="3")
    with pytest.raises(UnknownTopicOrPartition, match=r"topic 'neww': did you mean 'new'\? To cre"):
        batches(data, topic="neww")
    with LogManager.open(str(data), read_only=True) as manager:
        assert len(manager.topic("new").partitions) == 3


def test_a_message_of_another_batch(data: Path, streams: StreamWriter) -> None:
    with pytest.raises(StorageError, match="batch 7 has a message from a task of batch 0"):
        streams.commit([task(data, STREAM, 0, b"a")], 7)


@pytest.mark.parametrize("failures", [1, 2, 9])
def test_an_error_of_the_disk_is_asked_about_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """It keeps open whether the batch was adopted; in the end it is once, or not at all."""
    left = failures
    replace = Files.replace_atomically

    def faulty(self: Files, path: str, content: bytes, *, sync: bool = True) -> None:
        nonlocal left
        if path.endswith(adoptions.FILE) and b'"committed":true' in content and left:
            left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        replace(self, path, content, sync=sync)

    monkeypatch.setattr(Files, "replace_atomically", faulty)
    writer = batches(data)
    messages = [task(data, of(writer), 0, b"a")]
    if failures > 2:
        with pytest.raises(OSError, match="Input/output"):
            writer.commit([*messages])
        writer.abort([*messages])
        assert values(data) == []
    else:
        writer.commit([*messages])
        assert values(data) == [b"a"]
    assert staged(data) == []
