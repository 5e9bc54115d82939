"""The writer deletes or compacts records after the planner has opened the logs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kafkafs.spark.source import planning
from kafkafs.spark.source.data_loss import DataLoss, LossPolicy
from kafkafs.spark.source.offsets import OffsetRange
from kafkafs.spark.source.options import parse
from kafkafs.spark.source.subscription import SubscribedLogs
from storage import Log, LogManager
from storage.errors import UnknownTopicOrPartition
from tests.spark.reading import Seen, given, read
from tests.storage.compaction import cleaned
from tests.storage.logs import NOW_MS, opened, remove_head
from tests.storage.segmented import DAY_MS, segmented


def rows(data: Path, meanwhile: Callable[[], object], **options: object) -> list[Seen]:
    """Return the rows of a batch query. Its planner opens the logs before `meanwhile` runs."""
    chosen = parse(given(data, {"failOnDataLoss": "false", **options}), "batch")
    subscribed = SubscribedLogs(chosen)
    try:
        subscribed.refresh()
        meanwhile()
        start = subscribed.resolve(chosen.starting, is_start=True)
        end = subscribed.resolve(chosen.ending, is_start=False)
        ranges = [OffsetRange(name, start[name], end[name]) for name in end]
        policy = LossPolicy(chosen.fail_on_data_loss)
        return read(planning.plan(chosen, subscribed, ranges, policy))
    finally:
        subscribed.close()


def times(query: str, ms: int) -> dict[str, object]:
    """Options for the records from a time on."""
    if query == "where":
        return {"where": f"timestamp >= '{datetime.fromtimestamp(ms / 1000, UTC).isoformat()}'"}
    return {"startingTimestamp": ms}


def retained(manager: LogManager, log: Log) -> None:
    remove_head(log, 2, NOW_MS)
    remove = manager.sweep(manager.monotonic_ms() + DAY_MS)
    assert remove is not None
    remove()


@pytest.mark.parametrize("query", ["where", "startingTimestamp"])
def test_segments_that_are_deleted_meanwhile(tmp_path: Path, query: str) -> None:
    """The times begin in the midst of one of them."""
    with opened(tmp_path) as manager:
        log = segmented(manager, index_interval_bytes="1")
        found = rows(tmp_path, lambda: retained(manager, log), **times(query, NOW_MS + DAY_MS // 2))
        assert [row.value for row in found] == [b"a2", b"b2", b"a3", b"b3"]


@pytest.mark.parametrize("query", ["where", "startingTimestamp"])
def test_segments_that_are_cleaned_meanwhile(tmp_path: Path, query: str) -> None:
    """No record that counts is lost by it: no query fails, though it must not lose any."""
    with cleaned.compacted(tmp_path, log_index_interval_bytes=1) as (manager, log):
        for number in range(4):
            for at, value in enumerate((b"before", b"before", b"since")):
                pairs = (b"key", b"%d" % number), (b"%d %s" % (number, value), value)
                cleaned.put(log, *pairs, timestamp_ms=NOW_MS + at * 1000)
            cleaned.roll(log)

        def clean() -> None:
            cleaned.clean(manager, log)
            remove = manager.sweep(manager.monotonic_ms() + DAY_MS)
            assert remove is not None
            remove()

        found = rows(tmp_path, clean, failOnDataLoss="true", **times(query, NOW_MS + 1500))
        assert [row.value for row in found if row.value == b"since"] == [b"since"] * 4


@pytest.mark.parametrize("query", ["where", "startingTimestamp"])
def test_a_topic_that_is_deleted_meanwhile(tmp_path: Path, query: str) -> None:
    with opened(tmp_path) as manager:
        segmented(manager, index_interval_bytes="1", file_delete_delay_ms="0")

        def delete() -> None:
            manager.delete_topic("t")
            remove = manager.sweep(manager.monotonic_ms() + DAY_MS)
            assert remove is not None
            remove()

        options = {"subscribe": "t", **times(query, NOW_MS + DAY_MS // 2)}
        with pytest.raises((DataLoss, UnknownTopicOrPartition), match=r"was deleted|no topic"):
            rows(tmp_path, delete, failOnDataLoss="true", **options)
