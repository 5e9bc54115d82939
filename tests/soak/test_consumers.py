"""Eight consumers of a group share sixteen partitions that grow, and are killed at random."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.consume.conftest import Topic
from tests.mount.consume.crowd import Crowd
from tests.mount.contract.writing import append
from tests.mount.mounting import mounted

PARTITIONS, CONSUMERS, BATCH = 16, 8, 50


@pytest.mark.soak
def test_killed_consumers_lose_nothing(
    tmp_path: Path, soak_s: float, figures: Callable[[str, object], None]
) -> None:
    draw = random.Random(3)
    with mounted(tmp_path) as mount:
        topic = Topic(mount, 0)
        for number in range(2, PARTITIONS):
            (topic.path / str(number)).touch()
        records = dict.fromkeys(range(PARTITIONS), 0)
        with Crowd(topic, tmp_path / "notes", batch=BATCH) as crowd:
            for _ in range(CONSUMERS):
                crowd.start()
            until = time.monotonic() + soak_s
            while time.monotonic() < until:
                for _ in range(draw.randrange(1, 50)):
                    partition, count = draw.randrange(PARTITIONS), draw.randrange(1, 200)
                    append(topic.path / str(partition), b"a record\n" * count)
                    records[partition] += count
                time.sleep(draw.uniform(0, 2))
                crowd.kill_one()
            crowd.wait_until_done(PARTITIONS)
        crowd.check(records)
        figures("consumers killed", crowd.kills)
        figures("batches handled", len(crowd.handled()))
