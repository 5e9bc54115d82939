"""After an unclean election, a copy has all records that came after its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_client.cluster import Cluster
from kafka_client.properties import ClientSettings
from kafka_client.requests import LATEST
from kafkafs.mirror.mirror import Mirror
from storage import clock
from storage.files import Files
from storage.manager import LogManager
from storage.settings.messages import Struct
from storage.state import mirror_file, point_file
from storage.state.point_file import lost_from
from tests.kafka_client.fake_broker import batch
from tests.kafkafs.mirror.fake_source import NO_ID, Run, Source, SourceLog


@pytest.fixture
def log() -> SourceLog:
    """The log of `t:0`, which has no records any more."""
    return SourceLog(start=100)


def bounds(data: Path) -> tuple[int, int]:
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        return log.log_start_offset, log.log_end_offset


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_copy_without_records_begins_at_the_end_of_the_new_leader(
    source: Source, log: SourceLog, tmp_path: Path, has_ids: bool
) -> None:
    """It began at the end of the old one."""
    if not has_ids:
        source.topics["t"].id = NO_ID
    run = Run(source, tmp_path, start=LATEST)
    run()
    assert bounds(tmp_path) == (100, 100)
    log.start, log.batches = 70, [batch(70), batch(75)]
    assert run().waiting == {}
    assert bounds(tmp_path) == (80, 80)
    log.batches += [batch(80 + n) for n in range(0, 40, 5)]
    run()
    assert (bounds(tmp_path), run.lines) == ((80, 120), [])


def test_a_kill_while_all_records_are_removed_leaves_out_none(
    source: Source, log: SourceLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader has lost all that was copied, and what was before."""
    Run(source, tmp_path, start=LATEST)()
    log.batches = [batch(100, epoch=3)]
    Run(source, tmp_path)()
    assert bounds(tmp_path) == (100, 105)
    log.start, log.batches, log.epochs = 0, [batch(0, epoch=4), batch(5, epoch=4)], {3: 0}
    truncate = LogManager.truncate
    with monkeypatch.context() as patch:

        def killed(*arguments: Any) -> None:
            truncate(*arguments)
            patch.setattr(mirror_file, "write", lambda *_: None)
            raise KeyboardInterrupt

        patch.setattr(LogManager, "truncate", killed)
        with pytest.raises(KeyboardInterrupt):
            Run(source, tmp_path)()
    assert bounds(tmp_path) == (0, 0)
    Run(source, tmp_path)()
    assert bounds(tmp_path) == (0, 10)


def test_records_that_cannot_be_removed_yet_are_no_gap(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """Compaction is replacing segments. A run that ends at the end of the source waits for it; the
    next leader may have the records.
    """
    log.batches = [batch(100), batch(105)]
    run = Run(source, tmp_path)
    run()
    log.batches[1], log.epochs = batch(105, epoch=1), {0: 105}
    with Cluster([source.address], ClientSettings()) as cluster:
        mirror = Mirror(cluster, str(tmp_path), run.options, run.lines.append)
        facts = mirror.facts

        def stop() -> bool:
            (copy,) = facts.copies.values()
            copy.log.cleaning = not (facts.waiting or facts.copied_offsets)
            return False

        mirror.run(True, stop)
    assert bounds(tmp_path) == (100, 110)
    waits, goes_on, lost = run.lines
    assert "is being compacted" in waits
    assert "has lost its records at the offsets 105 to 109" in lost
    assert goes_on == "t:0: the copy goes on"


def test_the_same_offsets_are_lost_twice(source: Source, log: SourceLog, tmp_path: Path) -> None:
    """Each loss is named: a restore point between them has lost records."""
    log.batches = [batch(100), batch(105)]
    run = Run(source, tmp_path)
    run()
    for epoch in (1, 2):
        log.batches[1], log.epochs = batch(105, epoch=epoch), {epoch - 1: 105}
        assert run().gaps == 1
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        gaps = manager.log("t", 0).gaps
        assert [gap[:3] for gap in gaps] == [("diverged", 105, 109)] * 2


def test_points_from_before_a_loss_have_lost_records_though_the_clock_was_set_back(
    source: Source, log: SourceLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those from after it have all of theirs."""
    wall_ms, ahead_ms = clock.wall_ms, 3_600_000
    monkeypatch.setattr(clock, "wall_ms", lambda: wall_ms() + ahead_ms)
    log.batches = [batch(100), batch(105)]
    run, files = Run(source, tmp_path), Files(str(tmp_path))
    run()
    (name,) = point_file.names(files, str(tmp_path))
    point_file.keep(files, str(tmp_path), name, "kept")
    run()
    ahead_ms = 0
    log.batches[1:], log.epochs = [batch(105, epoch=1)], {0: 105}
    run()
    log.batches.append(batch(110, epoch=1))
    run()
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        gaps = manager.log("t", 0).gaps
    lost = {
        (each := point_file.read(files, str(tmp_path), name)).partitions["t", 0].end: lost_from(
            each, each.partitions["t", 0], gaps
        )
        for name in point_file.names(files, str(tmp_path))
    }
    assert lost == {110: 105, 115: None}


@pytest.mark.parametrize(("answers", "count"), [(0, 3), (1, 4)])
def test_a_new_leader_is_compared_after_records_were_skipped(
    source: Source, log: SourceLog, tmp_path: Path, answers: int, count: int
) -> None:
    """No epoch tells the leader what is before damaged records: before the first answer after them,
    and before the first records.
    """
    damaged = bytearray(batch(10, epoch=3))
    damaged[70] ^= 1
    log.start, log.batches = 0, [batch(0, epoch=3), batch(5, epoch=3), bytes(damaged)]
    fetch, left = source.answers["Fetch"], answers

    def elect(version: int, data: Struct) -> Any:
        nonlocal left
        if [part["fetchOffset"] for each in data["topics"] for part in each["partitions"]] == [15]:
            if not left:
                log.batches[1:] = [batch(5 * number, epoch=4) for number in range(1, count)]
                log.epochs = {3: 5}
            left -= 1
        return fetch(version, data)

    source.answers["Fetch"] = elect
    run = Run(source, tmp_path, accept_loss=True)
    # Ten of the old leader, and all but the first five of the new one.
    run(lambda: run.facts.copied_offsets >= 5 + 5 * count)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        copied = manager.log("t", 0)
        assert copied.epochs.entries == [(3, 0), (4, 5)]
        assert [gap[:3] for gap in copied.gaps] == [("damaged", 10, 14), ("diverged", 5, 9)]
        assert copied.log_end_offset == 5 * count
