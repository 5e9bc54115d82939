"""Streaming queries over logs that change: what each batch reads, run after run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source.data_loss import DataLoss
from kafkafs.spark.source.offsets import Reached, TopicPartition
from storage import Log, LogManager
from storage.log.truncate import truncate
from tests.spark.reading import Stream, values
from tests.storage.logs import NOW_MS, append, opened, remove_head
from tests.storage.segmented import segmented
from tests.storage.transactions import Client

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def topic(manager: LogManager, partitions: int = 1, name: str = "t") -> list[Log]:
    return list(manager.create_topic(name, partitions).partitions.values())


# -- where a query starts --------------------------------------------------------------------------


def test_latest_is_the_default_and_written_down_before_anything_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        with Stream(tmp_path) as stream:
            assert stream.plan.initial().offsets == {T0: 1}
            append(log, b"b")
            assert stream.plan.initial().offsets == {T0: 1}
            assert stream.next() == []
            assert stream.ends == [{T0: 1}]
            assert values(stream.rest()) == [b"b"]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"t":{"0":-1}}'},
        {"startingTimestamp": NOW_MS + 1, "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_a_query_that_dies_in_its_first_batch_misses_nothing(
    tmp_path: Path, options: dict[str, str]
) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        with Stream(tmp_path, **options) as stream:
            stream.next()
        append(log, b"b", timestamp_ms=NOW_MS + 5)
        with Stream(tmp_path, stream.log, **options) as again:
            assert again.run(0) == []
            assert values(again.rest()) == [b"b"]


def test_an_interrupted_first_batch_from_earliest_is_read_again(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        with Stream(tmp_path, startingOffsets="earliest") as stream:
            stream.next()
        append(log, b"b")
        topic(manager, name="u")
        with Stream(tmp_path, stream.log, startingOffsets="earliest") as again:
            assert values(again.run(0)) == [b"a"]
            assert values(again.rest()) == [b"b"]


def test_starts_at_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        first, second = topic(manager, 2)
        append(first, b"a", b"b", b"c")
        append(second, b"d", b"e")
        with Stream(tmp_path, startingOffsets='{"t":{"0":1,"1":-2}}') as stream:
            assert values(stream.rest()) == [b"b", b"c", b"d", b"e"]
        with (
            Stream(tmp_path, startingOffsets='{"t":{"0":1}}') as stream,
            pytest.raises(InvalidOption, match=r"Specified: \[t-0\] Assigned: \[t-0, t-1\]"),
        ):
            stream.plan.initial()


def test_an_assigned_partition_that_comes_later_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as manager:
        topic(manager)
        append(manager.log("t", 0), b"a")
        with Stream(tmp_path, assign='{"t":[0,1]}', startingOffsets="earliest") as stream:
            assert values(stream.rest()) == [b"a"]
            assert len(caplog.messages) == 1
            append(manager.create_partition("t", 1), b"b")
            assert values(stream.next() or []) == [b"b"]


# -- how far a batch goes --------------------------------------------------------------------------


def test_a_limit_is_shared_by_partitions(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        first, second = topic(manager, 2)
        append(first, *[b"a"] * 30)
        append(second, *[b"b"] * 10)
        with Stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=8) as stream:
            assert values(stream.next() or []) == [b"a"] * 6 + [b"b"] * 2
            assert stream.ends == [{T0: 6, T1: 2}]
            assert stream.plan.latest == {T0: 30, T1: 10}
            assert len(stream.next(is_limited=False) or []) == 32


def test_waits_for_more_but_not_for_ever(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        options = {"minOffsetsPerTrigger": 3, "maxTriggerDelay": "5s"}
        with Stream(tmp_path, startingOffsets="earliest", **options) as stream:
            assert values(stream.next() or []) == [b"a"]
            append(log, b"b", b"c")
            assert stream.next() is None
            append(log, b"d")
            assert values(stream.next() or []) == [b"b", b"c", b"d"]
            append(log, b"e")
            stream.now_ms += 4_999
            assert stream.next() is None
            stream.now_ms += 1
            assert values(stream.next() or []) == [b"e"]


def test_stops_at_what_was_there(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a", b"b", b"c")
        options: dict[str, object] = {"maxOffsetsPerTrigger": 2, "minOffsetsPerTrigger": 2}
        with Stream(tmp_path, startingOffsets="earliest", **options) as stream:
            stream.plan.stop_at_latest()
            append(log, b"d")
            append(topic(manager, name="u")[0], b"u")
            assert values(stream.next() or []) == [b"a", b"b"]
            assert values(stream.next() or []) == [b"c"]
            assert stream.next() is None
        with Stream(tmp_path, stream.log, startingOffsets="earliest") as again:
            again.plan.stop_at_latest()
            assert values(again.rest()) == [b"d", b"u"]


def test_latest_of_a_query_that_stops_is_where_it_stops(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        with Stream(tmp_path) as stream:
            stream.plan.stop_at_latest()
            append(log, b"b")
            topic(manager, name="u")
            assert stream.rest() == []
            assert stream.end() == 1


def test_a_query_that_stops_may_start_behind_where_it_stops(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        with Stream(tmp_path, startingTimestamp=NOW_MS + 5) as stream:
            stream.plan.stop_at_latest()
            # The first record with the starting timestamp arrives after the end was chosen.
            append(log, b"b")
            append(log, b"c", timestamp_ms=NOW_MS + 5)
            assert stream.rest() == []
        with Stream(tmp_path, stream.log, startingTimestamp=NOW_MS + 5) as again:
            assert values(again.rest()) == [b"c"]
        with Stream(tmp_path, startingOffsets='{"t":{"0":4}}') as stream:
            stream.plan.stop_at_latest()
            with pytest.raises(DataLoss, match="from 4 to 3"):
                stream.rest()


# -- logs that change ------------------------------------------------------------------------------


def test_partitions_and_topics_that_appear_are_read_from_their_start(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a")
        with Stream(tmp_path, maxOffsetsPerTrigger=100) as stream:
            assert stream.rest() == []
            append(manager.create_partition("t", 1), b"b")
            append(topic(manager, name="u")[0], b"c")
            assert values(stream.rest()) == [b"b", b"c"]
            assert stream.run(1) == stream.run(1)


def test_open_transactions_hold_back_and_aborted_ones_are_left_out(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        client = Client(log, 7)
        client.send(b"lost")
        append(log, b"a")
        with (
            Stream(tmp_path, startingOffsets="earliest") as stream,
            Stream(tmp_path, startingOffsets="earliest", isolationLevel="read_uncommitted") as all_,
        ):
            assert stream.rest() == []
            assert values(all_.rest()) == [b"lost", b"a"]
            client.abort()
            assert values(stream.rest()) == [b"a"]
            assert all_.rest() == []
            client.send(b"kept")
            client.commit()
            assert values(stream.rest()) == [b"kept"]
            assert stream.end() == log.log_end_offset


# -- lost data -------------------------------------------------------------------------------------


def retained(manager: LogManager, tmp_path: Path, **options: object) -> list[Reached]:
    """A query that has read up to offset 1 of a log that starts at 4 now."""
    log = segmented(manager)
    with Stream(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=1, **options) as stream:
        stream.next()
    remove_head(log, 2, NOW_MS)
    manager.checkpoint()
    return stream.log


def test_retention_before_reading_fails(tmp_path: Path) -> None:
    with opened(tmp_path) as manager, Stream(tmp_path, retained(manager, tmp_path)) as stream:
        with pytest.raises(DataLoss) as loss:
            stream.next()
        assert "failOnDataLoss to false" in str(loss.value)
        assert str(loss.value).endswith(
            "Could not read records in offset [1, 4) for topic partition t-0: the log starts at 4"
        )


def test_or_goes_on_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        log = retained(manager, tmp_path)
        with Stream(tmp_path, log, failOnDataLoss="false") as stream:
            assert values(stream.next() or []) == [b"a2", b"b2", b"a3", b"b3"]
            assert values(stream.run(1)) == [b"a2", b"b2", b"a3", b"b3"]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "[1, 4) for topic partition t-0" in caplog.text


def test_a_partition_that_is_deleted_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a")
        append(topic(manager, name="u")[0], b"b")
        with Stream(tmp_path, startingOffsets="earliest") as stream:
            stream.rest()
            manager.delete_topic("u")
            with pytest.raises(DataLoss, match=r"Partitions \[u-0\] have been deleted"):
                stream.next()
        with Stream(tmp_path, stream.log, failOnDataLoss="false") as stream:
            append(manager.log("t", 0), b"c")
            assert values(stream.rest()) == [b"c"]
            assert stream.ends[-1][T0] == 2
            assert len(caplog.records) == 1


def test_each_deletion_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    with opened(tmp_path) as manager, Stream(tmp_path, **options) as stream:
        for name in "uv":
            append(topic(manager, name=name)[0], b"a")
        stream.rest()
        for name in "uv":
            manager.delete_topic(name)
            assert stream.rest() == stream.rest() == []
        found = [record.message.partition("Reason: ")[2] for record in caplog.records]
        assert found == [
            "Partitions [u-0] have been deleted.",
            "Partitions [u-0, v-0] have been deleted.",
        ]


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_restored_topic_is_read_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool, stops: bool
) -> None:
    """It is as if nobody had deleted it, also for a query that has seen that it was missing."""
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a", b"b")
        append(topic(manager, name="u")[0], b"c")
        options = {"startingOffsets": "earliest", "failOnDataLoss": fails}
        with Stream(tmp_path, **options) as stream:
            assert values(stream.rest()) == [b"a", b"b", b"c"]
        manager.delete_topic("t")
        append(manager.log("u", 0), b"d")
        with Stream(tmp_path, stream.log, **options) as again:
            if stops:
                again.plan.stop_at_latest()
            if fails:
                with pytest.raises(DataLoss, match=r"Partitions \[t-0\] have been deleted"):
                    again.next()
            else:
                assert values(again.rest()) == [b"d"]
        assert len(caplog.records) == (0 if fails else 1)
        manager.undelete_topic("t")
        append(manager.log("t", 0), b"e")
        with Stream(tmp_path, stream.log, **options) as again:
            assert values(again.rest()) == ([b"e", b"d"] if fails else [b"e"])


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_deleted_before_a_query_reaches_its_end(
    tmp_path: Path, fails: bool
) -> None:
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a")
        options = {"startingOffsets": "earliest", "failOnDataLoss": fails}
        with Stream(tmp_path, **options) as stream:
            assert values(stream.rest()) == [b"a"]
            append(manager.log("t", 0), b"b")
            stream.plan.stop_at_latest()
            manager.delete_topic("t")
            if fails:
                with pytest.raises(DataLoss, match=r"Partitions \[t-0\] have been deleted"):
                    stream.next()
            else:
                assert stream.rest() == []
        manager.undelete_topic("t")
        with Stream(tmp_path, stream.log, **options) as again:
            assert values(again.rest()) == [b"b"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_was_shorter_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """A broker may remove the end of its log at a restart, and copy it from the leader again."""
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        append(log, b"b", b"c")
    options = {"startingOffsets": "earliest", "failOnDataLoss": fails}
    with Stream(tmp_path, **options) as stream:
        assert values(stream.rest()) == [b"a", b"b", b"c"]
    with opened(tmp_path) as manager:
        truncate(manager.log("t", 0), 1, NOW_MS, lambda end: None)
    with Stream(tmp_path, stream.log, **options) as again:
        if fails:
            with pytest.raises(DataLoss, match="was changed from 3 to 1"):
                again.next()
        else:
            assert again.rest() == []
            assert len(caplog.records) == 1
    with opened(tmp_path) as manager:
        append(manager.log("t", 0), b"b", b"c", b"d")
    with Stream(tmp_path, stream.log, **options) as again:
        assert values(again.rest()) == [b"d"]


def remade(manager: LogManager, *new: bytes, has_id: bool = True) -> None:
    """Delete the topic, and make one of the same name."""
    manager.delete_topic("t")
    (log,) = topic(manager)
    if new:
        append(log, *new)
    if not has_id:
        forget_id(manager)


def forget_id(manager: LogManager) -> None:
    """As an old broker makes topics."""
    Path(manager.log("t", 0).directory, "partition.metadata").unlink()


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_recreated_topic_is_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, has_id: bool
) -> None:
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a", b"b")
        if not has_id:
            forget_id(manager)
        with Stream(tmp_path, startingOffsets="earliest") as stream:
            stream.rest()
            new = [b"%d" % number for number in range(count)]
            remade(manager, *new, has_id=has_id)
            with pytest.raises(DataLoss, match=r"topic (of partition t-0 )?was recreated"):
                stream.next()
        failed = len(stream.log) - 1
        with (
            Stream(tmp_path, stream.log, startingOffsets="earliest") as again,
            pytest.raises(DataLoss, match=r"topic (of partition t-0 )?was recreated"),
        ):
            again.run(failed)
        with Stream(tmp_path, stream.log, failOnDataLoss="false") as again:
            assert values(again.run(failed) + again.rest()) == new
        assert len(caplog.records) == 1


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_recreated_topic_between_two_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool, has_id: bool
) -> None:
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a", b"b")
        if not has_id:
            forget_id(manager)
        with Stream(tmp_path, startingOffsets="earliest", failOnDataLoss=fails) as stream:
            start = stream.plan.initial()
            end = stream.plan.next_end(start, is_limited=True)
            remade(manager, b"1", b"2", b"3", has_id=has_id)
            if fails:
                with pytest.raises(DataLoss, match="The topic of partition t-0 was recreated"):
                    stream.plan.partitions(start, end)
                return
            assert stream.plan.partitions(start, end) == []
            stream.log.append(end)
            assert values(stream.rest()) == [b"1", b"2", b"3"]
            assert len(caplog.records) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_topic_recreated_between_two_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    new = [b"%d" % number for number in range(count)]
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a", b"b")
        with Stream(tmp_path, startingOffsets="earliest") as stream:
            stream.rest()
        remade(manager, *new)
        before = list(stream.log)
        with (
            Stream(tmp_path, list(before)) as again,
            pytest.raises(DataLoss, match="The topic of partition t-0 was recreated"),
        ):
            again.next()
        with Stream(tmp_path, before, failOnDataLoss="false") as again:
            assert values(again.rest()) == new
            append(manager.log("t", 0), b"more")
            assert values(again.rest()) == [b"more"]
        assert len(caplog.records) == 1


def test_ids_that_are_not_known_say_nothing(tmp_path: Path) -> None:
    """A checkpoint without ids is taken, and gets them; a topic that has lost its id is the same,
    wherever the directory is by now.
    """
    data, moved = tmp_path / "data", tmp_path / "moved"
    data.mkdir()
    with opened(data) as manager:
        append(topic(manager)[0], b"a", b"b")
        known = manager.topics["t"].id
        with Stream(data, [Reached({T0: 1})]) as stream:
            assert values(stream.rest()) == [b"b"]
            assert stream.log[-1] == Reached({T0: 2}, {"t": known})
            log = stream.log
        append(manager.log("t", 0), b"c")
        forget_id(manager)
    data.rename(moved)
    with Stream(moved, log) as stream:
        assert values(stream.rest()) == [b"c"]
        assert stream.log[-1] == Reached({T0: 3}, {"t": known})


def test_a_topic_that_is_gone_for_a_while_keeps_its_id(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(topic(manager)[0], b"a", b"b")
        options = {"failOnDataLoss": "false", "startingOffsets": "earliest"}
        with Stream(tmp_path, maxOffsetsPerTrigger=1, **options) as stream:
            stream.plan.stop_at_latest()
            stream.next()
            known = stream.log[-1].ids["t"]
            manager.delete_topic("t")
            append(topic(manager, name="u")[0], b"c")
            assert values(stream.rest()) == []
        with Stream(tmp_path, stream.log, **options) as stream:
            assert values(stream.rest()) == [b"c"]
            assert stream.log[-1].offsets[T0] == 1
            assert stream.log[-1].ids["t"] == known


def test_a_start_that_is_too_high(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        (log,) = topic(manager)
        append(log, b"a")
        with (
            Stream(tmp_path, startingOffsets='{"t":{"0":3}}') as stream,
            pytest.raises(DataLoss, match="the start offset was too high"),
        ):
            stream.next()
        options = {"startingOffsets": '{"t":{"0":3}}', "failOnDataLoss": "false"}
        with Stream(tmp_path, **options) as stream:
            assert stream.next() == []
            append(log, b"b", b"c", b"d")
            assert values(stream.rest()) == [b"d"]
            assert len(caplog.records) == 1
