"""Batch queries over logs of every kind: what is planned, and what tasks read."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import task
from kafkafs.spark.source.data_loss import DataLoss
from kafkafs.spark.source.task import SplitPartition
from storage import LogManager
from storage.errors import FaultyPartition, UnknownTopicOrPartition
from tests.spark.reading import SCHEMA, Seen, Stream, batch, batch_parts, batch_reader, read, values
from tests.storage.logs import NOW_MS, append, opened, remove_head, write_settings
from tests.storage.segmented import segmented
from tests.storage.transactions import Client


def two_topics(manager: LogManager) -> None:
    """Topic a with two partitions of four and two records, topic b with one of one record."""
    first, second = manager.create_topic("a", 2).partitions.values()
    for number in range(4):
        append(first, b"%d" % number, timestamp_ms=NOW_MS + number)
    append(second, b"x", None)
    append(manager.create_topic("b", 1).partitions[0], b"y", timestamp_ms=NOW_MS + 9)


# -- which partitions, from where to where ---------------------------------------------------------


def test_everything_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
        assert batch(tmp_path) == [
            Seen("a", 0, 0, b"0"),
            Seen("a", 0, 1, b"1"),
            Seen("a", 0, 2, b"2"),
            Seen("a", 0, 3, b"3"),
            Seen("a", 1, 0, b"x"),
            Seen("a", 1, 1, None),
            Seen("b", 0, 0, b"y"),
        ]


A1 = '{"a":[1]}'


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"subscribe": "b"}, [b"y"]),
        ({"subscribePattern": "[b-z]"}, [b"y"]),
        ({"assign": A1}, [b"x", None]),
        ({"assign": A1, "startingOffsets": '{"a":{"1":1}}'}, [None]),
        ({"assign": A1, "endingOffsets": '{"a":{"1":1}}'}, [b"x"]),
        ({"assign": A1, "endingOffsets": '{"a":{"1":-1}}'}, [b"x", None]),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":2,"1":-2}}'}, [b"2", b"3", b"x", None]),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":2,"1":2}}'}, [b"2", b"3"]),
        ({"assign": '{"a":[0]}', "startingTimestamp": NOW_MS + 2}, [b"2", b"3"]),
        ({"assign": '{"a":[0]}', "endingTimestamp": NOW_MS + 2}, [b"0", b"1"]),
        ({"assign": A1, "endingTimestamp": NOW_MS + 2}, [b"x", None]),
        (
            {
                "subscribe": "a",
                "startingTimestamp": NOW_MS + 1,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [b"1", b"2", b"3"],
        ),
        (
            {
                "assign": '{"a":[0]}',
                "startingOffsetsByTimestamp": f'{{"a":{{"0":{NOW_MS + 1}}}}}',
                "endingOffsetsByTimestamp": f'{{"a":{{"0":{NOW_MS + 3}}}}}',
            },
            [b"1", b"2"],
        ),
    ],
)
def test_a_part_is_read(
    tmp_path: Path, options: dict[str, object], found: list[bytes | None]
) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
        assert values(batch(tmp_path, **options)) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsets": '{"a":{"0":0}}'},
            r"don't match.*Specified: \[a-0\] Assigned: \[a-0, a",
        ),
        ({"endingOffsets": '{"a":{"0":0,"1":0,"2":0}}'}, r"for end offsets don't match"),
        ({"startingOffsetsByTimestamp": '{"a":{"0":0}}'}, r"timestamp based start offsets don't"),
        (
            {"startingTimestamp": NOW_MS + 2},
            r"No offset matched from request of topic-partition a-1",
        ),
        ({"startingOffsets": '{"a":{"0":5,"1":0}}'}, r"start offset 5 is greater than .* offset 4"),
        ({"startingTimestamp": NOW_MS + 2, "endingTimestamp": NOW_MS + 1}, r"greater|No offset"),
    ],
)
def test_is_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
        with pytest.raises(InvalidOption, match=message):
            batch_parts(tmp_path, subscribe="a", **options)


def test_what_is_named_must_be_there(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'c'"):
            batch_parts(tmp_path, subscribe="a,c")
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'c'"):
            batch_parts(tmp_path, assign='{"b":[0],"c":[0,1]}')
        manager.create_topic("orders", 1)
        with pytest.raises(UnknownTopicOrPartition) as error:
            batch_parts(tmp_path, subscribe="a,Order,c")
    assert error.value.message == "there is no topic 'Order', 'c': did you mean 'orders'?"
    with pytest.raises(FileNotFoundError, match="no such data directory"):
        batch_parts(tmp_path / "nowhere")


def test_a_partition_that_is_assigned_and_not_there_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
        assert values(batch(tmp_path, assign='{"b":[0,1,7]}')) == [b"y"]
        (message,) = caplog.messages
        assert message.endswith(" in 'assign' that do not exist are ignored: b-1, b-7")
        assert batch_parts(tmp_path, assign='{"b":[1]}') == []
        named = {"assign": '{"b":[0,1]}', "startingOffsets": '{"b":{"0":0,"1":0}}'}
        with pytest.raises(InvalidOption, match="don't match what are assigned"):
            batch_parts(tmp_path, **named)


def test_nothing_is_there(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        assert batch_parts(tmp_path) == []
        manager.create_topic("a", 1)
        assert batch_parts(tmp_path) == []
    reader = batch_reader(tmp_path)
    assert list(reader.read(InputPartition(None))) == []


# -- how it is cut ---------------------------------------------------------------------------------


def test_tasks_are_as_many_as_wanted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        first, second = manager.create_topic("a", 2).partitions.values()
        for _ in range(9):
            append(first, *[b"v" * 1000] * 10)
        append(second, *[b"w"] * 10)
        whole = batch(tmp_path)
        assert len(whole) == 100
        assert len(batch_parts(tmp_path)) == 2
        for options, count in (
            ({"minPartitions": 2}, 2),
            ({"minPartitions": 10}, 10),
            ({"maxRecordsPerPartition": 10}, 10),
            ({"maxRecordsPerPartition": 20}, 6),
            ({"maxRecordsPerPartition": 50, "minPartitions": 6}, 7),
        ):
            parts = batch_parts(tmp_path, **options)
            assert len(parts) == count
            assert read(parts) == whole


def test_tasks_are_as_large_as_wanted(tmp_path: Path) -> None:
    write_settings(tmp_path, log_index_interval_bytes=4096)
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("a", 1).partitions.values()
        for _ in range(30):
            append(log, *[b"v" * 1000] * 10)
        parts = batch_parts(tmp_path, maxPartitionBytes=30_000)
        assert len(parts) >= 8
        assert read(parts) == batch(tmp_path)
        again = pickle.loads(pickle.dumps(parts))
        assert read(again) == read(parts)


def test_the_first_task_reads_little(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        for log in manager.create_topic("a", 2).partitions.values():
            for _ in range(40):
                append(log, *[b"v" * 10_000] * 10)
        parts = batch_parts(tmp_path)
        sizes = [part.split.size >> 20 for part in parts if isinstance(part, SplitPartition)]
        assert sizes == [1, 2, 3]
        assert len(read(parts)) == 800
        assert len(batch_parts(tmp_path, minPartitions=2)) == 2
        with Stream(tmp_path, startingOffsets="earliest") as stream:
            end = stream.plan.next_end(stream.plan.initial(), is_limited=False)
            assert len(stream.plan.partitions(stream.plan.initial(), end)) == 2


# -- logs of every kind ----------------------------------------------------------------------------


def test_transactions(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        done, lost, undecided = Client(log, 7), Client(log, 8), Client(log, 9)
        done.send(b"done")
        lost.send(b"lost")
        append(log, b"plain")
        done.commit()
        lost.abort()
        undecided.send(b"open")
        append(log, b"behind")
        assert values(batch(tmp_path)) == [b"done", b"plain"]
        assert values(batch(tmp_path, **{"kafka.isolation.level": "read_uncommitted"})) == [
            b"done",
            b"lost",
            b"plain",
            b"open",
            b"behind",
        ]
        with pytest.raises(DataLoss, match="the log ends at 5"):
            batch_parts(tmp_path, endingOffsets='{"t":{"0":7}}')


# -- lost data -------------------------------------------------------------------------------------


def test_what_retention_has_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        remove_head(log, 1, NOW_MS)
        manager.checkpoint()
        assert len(batch(tmp_path)) == 6
        options = {"startingOffsets": '{"t":{"0":1}}'}
        with pytest.raises(DataLoss, match=r"offset \[1, 2\) for topic partition t-0: the log sta"):
            batch_parts(tmp_path, **options)
        assert len(batch(tmp_path, failOnDataLoss="false", **options)) == 6
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_end_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        append(log, b"a", b"b")
        options = {"endingOffsets": '{"t":{"0":5}}'}
        with pytest.raises(
            DataLoss, match=r"offset \[2, 5\) for topic partition t-0: the log ends"
        ):
            batch_parts(tmp_path, **options)
        assert values(batch(tmp_path, failOnDataLoss="false", **options)) == [b"a", b"b"]
        assert len(caplog.records) == 1


@pytest.mark.parametrize("happens", ["retention", "deletion", "another"])
def test_what_goes_after_planning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, happens: str
) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        (failing,) = batch_parts(tmp_path)
        (skipping,) = batch_parts(tmp_path, failOnDataLoss="false")
        if happens == "retention":
            remove_head(log, 2, NOW_MS)
        else:
            manager.delete_topic("t")
        if happens == "another":
            append(manager.create_topic("t", 1).partitions[0], *[b"new"] * 20)
        lost = 4 if happens == "retention" else 8
        with pytest.raises(DataLoss, match=rf"\[0, {lost}\) for topic partition t-0"):
            read([failing])
        assert len(read([skipping])) == 8 - lost
        assert len(caplog.records) == 1


def test_a_log_that_ends_inside_a_batch(tmp_path: Path) -> None:
    """A crash may leave one like that after planning."""
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for line in (b"a", b"b", b"c"):
            append(log, line)
        (failing,) = batch_parts(tmp_path)
        (skipping,) = batch_parts(tmp_path, failOnDataLoss="false")
    path = tmp_path / "t-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataLoss, match=r"\[2, 3\) for topic partition t-0: the log ends at 2"):
        read([failing])
    assert values(read([skipping])) == [b"a", b"b"]


def test_what_replicas_may_not_have_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        append(log, b"a")
        manager.checkpoint()
        append(log, b"b")
        assert values(batch(tmp_path, untilHighWatermark="true")) == [b"a"]
        assert values(batch(tmp_path)) == [b"a", b"b"]
        assert not caplog.messages
        path = tmp_path / "replication-offset-checkpoint"
        path.unlink()
        assert values(batch(tmp_path, untilHighWatermark="true")) == []
        assert caplog.messages == [
            f"{path} does not exist: no records are read until a broker writes it"
        ]


def test_remarks_are_made_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
        options = {"kafka.bootstrap.servers": "nowhere:1", "kafka.security.protocol": "SSL"}
        assert len(batch(tmp_path, **options)) == 7
    assert [record.getMessage() for record in caplog.records] == [
        "Options without effect, because no broker is used: kafka.bootstrap.servers, "
        "kafka.security.protocol"
    ]


def test_a_reader_can_be_sent_elsewhere(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        two_topics(manager)
    reader = batch_reader(tmp_path, subscribe="b")
    again = pickle.loads(pickle.dumps(reader))
    (part,) = again.partitions()
    (found,) = task.read(part, SCHEMA)
    assert found.num_rows == 1


def test_a_partition_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        for log in manager.create_topic("t", 2).partitions.values():
            append(log, b"a", b"b", b"c")
            log.roll(NOW_MS)
            append(log, b"d")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n2\nt 0 3\nt 1 3\n")
    snapshot = tmp_path / "t-0" / f"{3:020d}.snapshot"
    snapshot.unlink()
    snapshot.symlink_to("elsewhere")
    given = {"untilHighWatermark": "true", "failOnDataLoss": "false"}
    with pytest.raises(FaultyPartition, match="snapshot"):
        batch(tmp_path, **given)
    stream = Stream(tmp_path, startingOffsets="earliest", **given)
    with stream, pytest.raises(FaultyPartition, match="snapshot"):
        stream.next()
    assert len(batch(tmp_path, assign='{"t":[1]}', **given)) == 3
