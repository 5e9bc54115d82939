"""Restore points of a cluster that changes while one is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkafs.mirror import points
from storage import Record, encode, paths
from storage.settings.messages import Struct
from storage.state.point_file import VALID, Point, Range
from tests.kafka_client.fake_broker import batch
from tests.kafkafs.mirror.fake_source import (
    ID,
    NO_ID,
    OTHER_ID,
    Run,
    Source,
    SourceLog,
    SourceTopic,
)
from tests.storage.groups.records import position
from tests.storage.logs import NOW_MS
from tests.waits import HANG_S, until


def when_asked_for_ends(source: Source, action: Callable[[Struct], object]) -> None:
    """Do something once with the answer that has the ends of a point."""
    answer = source.answers["ListOffsets"]
    is_done: list[bool] = []

    def changed(version: int, data: Struct) -> Any:
        found: Any = answer(version, data)
        if data["isolationLevel"] and not is_done:
            is_done.append(True)
            action(found["topics"][0]["partitions"][0])
        return found

    source.answers["ListOffsets"] = changed


def taken(run: Run) -> Point:
    assert run.facts.point is not None
    return run.facts.point[1]


@pytest.mark.parametrize("has_new", [True, False])
def test_an_end_that_the_cluster_has_lost(
    source: Source, log: SourceLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_new: bool
) -> None:
    """Our log has never had its records. The next leader has none or others there."""
    monkeypatch.setattr(points, "_IN_TIME_MS", HANG_S * 1000 if has_new else 0)
    run = Run(source, tmp_path)

    def elect(found: Struct) -> None:
        found["offset"] = 15
        if has_new:
            log.batches.append(batch(10, epoch=1))

    when_asked_for_ends(source, elect)
    run()
    assert taken(run).state == "invalid"
    assert "the cluster has lost records of t:0" in taken(run).reason


def test_a_truncation_while_the_cluster_is_asked(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """The answer is from before; the run takes another point."""
    run = Run(source, tmp_path)

    def elect(_: Struct) -> None:
        log.epochs = {0: 5}
        log.batches[1:] = [batch(5, epoch=1), batch(10, epoch=1)]
        until(lambda: any("has lost" in line for line in run.lines))

    when_asked_for_ends(source, elect)
    run()
    assert (taken(run).state, taken(run).partitions) == (VALID, {("t", 0): Range(0, 15)})


def test_a_partition_that_has_no_copy_yet(source: Source, tmp_path: Path) -> None:
    run = Run(source, tmp_path)

    def add(_: Struct) -> None:
        source.topics["t"].logs[1] = SourceLog()

    when_asked_for_ends(source, add)
    run()
    assert (taken(run).state, taken(run).reason) == ("invalid", "t:1 was not copied yet")


def test_groups_that_the_client_may_not_describe(source: Source, tmp_path: Path) -> None:
    """The cluster lists none, but it has committed offsets."""
    run, note = Run(source, tmp_path), "the cluster lists none that this client may describe"
    log = SourceLog()
    source.topics[paths.CONSUMER_OFFSETS] = SourceTopic(OTHER_ID, logs={0: log})
    run()
    assert note not in taken(run).reason
    log.batches.append(bytes(encode([Record(0, NOW_MS, 0, *position("g", "t", 0, 3))])))
    run()
    assert (taken(run).state, taken(run).groups) == (VALID, {})
    assert note in taken(run).reason


def test_a_cluster_that_has_ids_since_an_upgrade(source: Source, tmp_path: Path) -> None:
    source.topics["t"].id = NO_ID
    Run(source, tmp_path)()
    source.topics["t"].id = ID
    run = Run(source, tmp_path)
    run()
    assert taken(run).state == VALID
