"""A mirror names tombstones that it may have missed, and only these."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import clock
from storage.manager import LogManager
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import answer, batch
from tests.kafkafs.mirror.fake_source import Run, Source, SourceLog
from tests.kafkafs.mirror.test_faults_of_the_source import steps


@pytest.mark.parametrize("ends", [False, True], ids=["", "ends"])
@pytest.mark.parametrize(("steps_s", "gaps"), [([4] * 20, []), ([70], [("tombstones", 0, 14)])])
def test_a_mirror_that_was_stopped_may_have_missed_tombstones(
    source: Source,
    log: SourceLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps_s: list[int],
    gaps: list[tuple[str, int, int]],
    ends: bool,
) -> None:
    """… but not one that got no records for long. The leader does not mention the partition. The
    process is stopped while it waits for an answer; the run may end right after that.
    """
    wall_ms, late_ms = clock.wall_ms, 0
    monkeypatch.setattr(clock, "wall_ms", lambda: wall_ms() + late_ms)
    run, fetch = Run(source, tmp_path, accept_loss=True), source.answers["Fetch"]

    def script() -> Iterator[None]:
        while run.facts.left or not run.facts.copied_offsets:
            yield
        source.answers["Fetch"] = lambda *_: answer()
        # The mirror has then processed what came before.
        asked = source.count("Fetch")
        while source.count("Fetch") < asked + 3:
            yield
        source.answers["Fetch"] = late
        while steps_s[1:]:
            yield
        source.answers["Fetch"] = last
        while steps_s:
            yield
        if ends:
            return
        while run.facts.copied_offsets < 15:
            yield

    def late(*_: Any) -> Struct:
        nonlocal late_ms
        if steps_s[1:]:
            late_ms += steps_s.pop() * 1000
        return answer()

    def last(version: int, data: Struct) -> Any:
        nonlocal late_ms
        late_ms += steps_s.pop() * 1000
        log.batches.append(batch(10))
        source.answers["Fetch"] = fetch
        return answer() if ends else fetch(version, data)

    steps_s = [*steps_s]
    run(steps(script()))
    if ends:
        run()
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert [gap[:3] for gap in manager.log("t", 0).gaps] == gaps


def test_tombstones_are_named_once_in_a_run(
    source: Source, log: SourceLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other partition takes long. Meanwhile, this one grows faster than it is copied."""
    wall_ms, late_ms, growth = clock.wall_ms, 0, 20
    monkeypatch.setattr(clock, "wall_ms", lambda: wall_ms() + late_ms)
    source.topics["t"].logs[1] = SourceLog([batch(0)])
    run, fetch = Run(source, tmp_path), source.answers["Fetch"]
    assert run().gaps == 0

    def slowly(version: int, data: Struct) -> Any:
        nonlocal late_ms, growth
        late_ms, growth = late_ms + 9_000, growth - 1
        found: Any = fetch(version, data)
        for topic in found["responses"]:
            if growth > 0:
                topic["partitions"] = [each | {"highWatermark": 99} for each in topic["partitions"]]
                del topic["partitions"][1:]
                log.batches.append(batch(log.end))
        return found

    source.answers["Fetch"] = slowly
    late_ms += 60_000
    run()
    # At the end that it had at first, and when it is complete.
    assert sum(line.startswith("t:0: records") for line in run.lines) == 2, run.lines
